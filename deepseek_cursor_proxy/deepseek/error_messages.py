"""Reads DeepSeek's errors and adds the remedy to their messages.

Editors show nothing but the message, so a sentence with the remedy follows DeepSeek's own text. A chat that is too long
gets OpenAI's message and code, because Cursor summarises a chat when it sees those. Status, type and code of all other
errors stay.
"""

import re

from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.model_names import CONTEXT_TOKENS
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.json_codec import as_object, decode_upstream_json

# DeepSeek sends no Retry-After. Without one, Codex gives up at once and other clients retry too often.
_RETRY_AFTER_SECONDS = 5
_BUSY = (429, 503)

OVERFLOW = "context_length_exceeded"

# As worded by DeepSeek, by the engines that gateways run its models on, and by gateways.
_OVERFLOW = re.compile(
    r"(?:maximum|max|model'?s) (?:context|input|prompt|sequence)[ _](?:length|window|size)"
    r"|context (?:length|window|size)\b.{0,40}\b(?:exceed|limit)"
    r"|exceed\w*\b.{0,60}\bcontext (?:length|window|size|limit)"
    r"|(?:prompt|input|messages?|context|conversation|request)\b.{0,20}\b(?:is|are) too (?:long|large)"
    r"|(?:prompt|input)\b.{0,40}\bexceeds?\b.{0,40}\bmax"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE | re.DOTALL,
)
# Not the beginning of a request id.
_NUMBER = r"(\d[\d,]{3,15})(?![\w-])"
_LIMIT = (
    rf"max\w*\b[a-z'_ ]{{0,60}}[:=(]? ?{_NUMBER}",
    rf"context (?:length|window|size)[a-z'_ ]{{0,30}}[:=(]? ?{_NUMBER}",
    rf"limit[a-z'_ ]{{0,30}}[:=(]? ?{_NUMBER}",
    rf"> ?{_NUMBER}",
)
_REQUESTED = (
    rf"{_NUMBER}(?: tokens)? (?:in|from|of) (?:the |your )?(?:messages|prompt|input)",
    rf"resulted in {_NUMBER}",
    rf"requested (?:a total of |about )?{_NUMBER}",
    rf"too (?:long|large)\b[:,]? ?\(?{_NUMBER}",
    rf"(?:prompt|input|messages)[a-z'_ ]{{0,40}}[:=(]? ?{_NUMBER}",
)

# By DeepSeek's reference of September 2026.
_MAX_TOOLS = 128
_ABOUT_TOOLS = re.compile(r"\b(?:tool|function)s\b", re.IGNORECASE)

_DEEPSEEK = "DeepSeek"
_ADVICE = {
    401: "Check the DeepSeek key that your client sends.",
    402: "Top up the balance at https://platform.deepseek.com.",
    403: "Check at https://platform.deepseek.com what this key may do, and which key your client sends.",
}
_ADVICE_ELSEWHERE = {
    401: "Check the key that your client sends: it is for {}.",
    402: "Top up the balance at {}.",
    403: "Check at {} what this key may do.",
}
_EARLY_ENDS = {
    "insufficient_system_resource": "DeepSeek ran out of capacity before the answer was complete. Try again.",
    "aborted": "DeepSeek interrupted the answer. Try again.",
}


def early_end(finish_reason: str | None) -> UpstreamFailed | None:
    """The failure for a finish_reason that only chat completions have; None for any other."""
    why = _EARLY_ENDS.get(finish_reason or "")
    return UpstreamFailed(why, code=finish_reason) if why is not None else None


def read_refusal(status: int, raw: bytes, retry_after: int | None, name: str = _DEEPSEEK) -> UpstreamRefused:
    """The error in a response of the upstream of this name or of a gateway in front of it."""
    try:
        body = decode_upstream_json(raw)
    except ValueError:
        body = None
    if isinstance(body, dict) and "error" in body:
        message = chat_api.error_message(body) or f"{name} answered {status}: no explanation"
        return UpstreamRefused(status, message, body, retry_after)
    text = " ".join(re.sub(r"<[^<>]{0,200}>", " ", raw[:8000].decode("utf-8", "replace")).split())[:2000]
    return UpstreamRefused(status, f"{name} answered {status}: {text or 'no explanation'}", None, retry_after)


def name_upstream(error: ProxyError, name: str) -> None:
    """Replace the name DeepSeek, with which our error texts begin, with the name of the upstream."""
    if isinstance(error, UpstreamFailed) and error.message.startswith(_DEEPSEEK):
        error.message = name + error.message.removeprefix(_DEEPSEEK)


def explain(refusal: UpstreamRefused, tool_count: int = 0, name: str = _DEEPSEEK) -> UpstreamRefused:
    """The refusal with the remedy in its message. Most of the 4xx concern the client and stay as they are."""
    if refusal.status == 400 and is_overflow(refusal):
        return _overflow_refusal(refusal.message)
    retry_after = refusal.retry_after
    if retry_after is None and refusal.status in _BUSY:
        retry_after = _RETRY_AFTER_SECONDS
    wait = f"Wait {retry_after} seconds and try again." if retry_after else "Try again in a moment."
    if refusal.status == 429:
        advice = f"Too many requests run at once on this account. {wait}"
    elif refusal.status >= 500:
        advice = f"{name} is overloaded or out of order. {wait}"
    else:
        advice = (_ADVICE if name == _DEEPSEEK else _ADVICE_ELSEWHERE).get(refusal.status, "").format(name)
    if refusal.status == 400 and tool_count > _MAX_TOOLS and _ABOUT_TOOLS.search(refusal.message[:4000]):
        advice = f"The request has {tool_count} tools. Switch off tools or MCP servers that you do not need."
    explained = UpstreamRefused(refusal.status, refusal.message, refusal.body, retry_after)
    if advice:
        explained.add(advice)
    return explained


# What hosts call an unknown model in `code`, and their sentences for it. The sentences are whole, with nothing in them
# but the model, so that a message that quotes the client's request does not match.
_MODEL_CODE = re.compile(r"model_not_(?:found|exist|supported|available)|(?:invalid|unknown)_model")
_MODEL_SENTENCES = (
    r"model not exist|model does not exist\. please check it carefully"
    r"|(?:the )?model {} (?:does not exist|(?:was )?not found|is not (?:found|supported|available|a valid model))"
    r"|{} is not a valid model(?: id)?|no endpoints found for {}|(?:unknown|invalid|unsupported|no such) model:? {}"
    r"|the supported api model names are [\w., -]{{1,200}}, but you passed {}"
    # SiliconFlow's errors have another shape.
    r'|\S+ answered 400: \{{"code": ?20012,.{{0,1000}}'
)


def is_unknown_model(refusal: UpstreamRefused, model: str) -> bool:
    """Whether a request was refused because the upstream does not know this model."""
    if refusal.status not in (400, 404, 422):
        return False
    error = as_object((refusal.body or {}).get("error"))
    if error.get("param") == "model" or _MODEL_CODE.fullmatch(str(error.get("code"))):
        return True
    name = rf"[\"'`]?{re.escape(model)}[\"'`]?"
    sentence = _MODEL_SENTENCES.format(*[name] * _MODEL_SENTENCES.count("{}"))
    match = re.fullmatch(
        rf"(?:{sentence})\.?(?: \(request_id: [\w-]{{1,64}}\))?", refusal.message[:2000], re.IGNORECASE
    )
    return match is not None


def is_overflow(error: ProxyError) -> bool:
    """Whether an error says that a chat is too long for the model."""
    body = error.body if isinstance(error, UpstreamRefused) else None
    has_code = as_object((body or {}).get("error")).get("code") == OVERFLOW
    return has_code or is_overflow_message(error.message)


def is_overflow_message(message: str) -> bool:
    """Whether an error message says that a chat is too long for the model."""
    return _OVERFLOW.search(message[:4000]) is not None


def _overflow_refusal(message: str) -> UpstreamRefused:
    limit = _first_number(_LIMIT, message[:4000]) or CONTEXT_TOKENS
    requested = _first_number(_REQUESTED, message[:4000], above=limit)
    however = f"your messages resulted in {requested} tokens" if requested else "your messages are longer than that"
    message = (
        f"This model's maximum context length is {limit} tokens. However, {however}. "
        "Please reduce the length of the messages."
    )
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": OVERFLOW}
    return UpstreamRefused(400, message, {"error": error}, None)


def _first_number(patterns: tuple[str, ...], text: str, above: int = 0) -> int | None:
    """The first number above `above` that a pattern finds, in the order of the patterns."""
    for pattern in patterns:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            number = int(match[1].replace(",", ""))
            if number > above:
                return number
    return None
