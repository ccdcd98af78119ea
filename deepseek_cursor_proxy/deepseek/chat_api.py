"""DeepSeek's dialect of chat completions: what it is sent, what it answers, what it insists on.

`payload` and `deltas` / `completion` are a pair: canonical conversation out, canonical deltas in. What comes back is
read tolerantly: a part of the wrong shape is passed over, because a stream is worth more than its oddest field.
Facts are as of November 2026; thinking is on by default there, so it is always named.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Message, Parts
from deepseek_cursor_proxy.deepseek.images import attachments, placeholder
from deepseek_cursor_proxy.deepseek.rules import can_see_images
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.memo import Mapped

# More parallel calls than any model makes; a larger index is damage, and would make us hold its empty neighbours.
_MAX_INDEX = 128


# Messages as they were sent: nearly all of a chat was there a request ago. Some ten chats of 200 tool turns.
_told: Mapped[Message, dict[str, Any]] = Mapped(16 * 1024 * 1024, lambda message: message.memory, lambda told: 400)


# Out: the canonical request in DeepSeek's words …


def payload(request: ChatRequest) -> dict[str, Any]:
    """The body of the upstream call."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages(request),
        "thinking": {"type": "enabled" if request.thinking else "disabled"},
    }
    if request.thinking:
        # Never beside disabled thinking: DeepSeek has refused the pair.
        body["reasoning_effort"] = request.effort
    if request.tools:
        body["tools"] = list(request.tools)
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    body.update(request.params)
    return _with_schema_in_words(body)


def plain_text(content: str | Parts) -> str:
    """Content as text alone; a picture or file becomes a stable placeholder that tells it from any other."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else placeholder(part) for part in content)


def messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The history as it is sent, with what this model can see of its pictures."""
    if not can_see_images(request.model):
        return _told.of(
            request.messages, lambda message: _message(message, _readable(message), request), request.thinking
        )
    sent = []
    # Only user messages may show pictures, so what tools returned is shown in one of ours right behind the results:
    # there in every later request as well, so that the prefix stays.
    waiting: list[Mapping[str, Any]] = []
    for message in request.messages:
        if message.role != "tool" and waiting:
            sent.append(_shown_by_tools(waiting))
            waiting = []
        if message.role == "tool":
            waiting += attachments(message)
        content = message.content if message.role == "user" else plain_text(message.content)
        sent.append(_message(message, content, request))
    return [*sent, _shown_by_tools(waiting)] if waiting else sent


def _readable(message: Message) -> str | Parts:
    """Content for a model that sees no pictures: several texts of a user's stay apart, everything else is one text."""
    content = message.content
    if message.role == "user" and not isinstance(content, str) and all(part["type"] == "text" for part in content):
        return content
    return plain_text(content)


def _shown_by_tools(pictures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lead = {"type": "text", "text": f"[pictures that tools returned: {', '.join(map(placeholder, pictures))}]"}
    return {"role": "user", "content": [lead, *pictures]}


def _message(message: Message, content: str | Parts, request: ChatRequest) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    sent: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        sent["name"] = message.name
    if message.role == "assistant":
        sent.update(_assistant_fields(message, request.thinking))
    return sent


def _assistant_fields(message: Message, thinking: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if thinking and message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.prefix:
        fields["prefix"] = True
    return fields


def _with_schema_in_words(body: dict[str, Any]) -> dict[str, Any]:
    """DeepSeek knows JSON mode but no schema on this path: the schema is put into words behind the system prompt."""
    form = body.get("response_format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return body
    schema = json.dumps(form.get("json_schema"), ensure_ascii=False, separators=(",", ":"))
    told = {"role": "system", "content": f"Answer with one JSON object that fits this JSON schema:\n{schema}"}
    messages = body["messages"]
    opening = next((at for at, each in enumerate(messages) if each["role"] != "system"), len(messages))
    messages = [*messages[:opening], told, *messages[opening:]]
    return {**body, "messages": messages, "response_format": {"type": "json_object"}}


# … and back: chunks and completions as canonical deltas.


def chunk_deltas(chunk: Mapping[str, Any]) -> list[Delta]:
    """One delta per choice of a streamed chunk; a chunk without choices (usage only) is one delta of its own."""
    return _read(chunk, "delta")


def completion_deltas(body: Mapping[str, Any]) -> list[Delta]:
    """A whole completion as one big delta per choice."""
    found = _read(body, "message")
    choices = body.get("choices")
    whole = choices if isinstance(choices, list) else []
    if not whole or not all(isinstance(each, dict) and isinstance(each.get("message"), dict) for each in whole):
        # A choice without a message would be a success that says nothing.
        raise UpstreamFailed("DeepSeek's answer has no choices, or one without a message.")
    return found


def _read(body: Mapping[str, Any], part: str) -> list[Delta]:
    if body.get("error"):
        raise UpstreamFailed(f"DeepSeek broke the answer off: {error_message(body) or 'no reason given'}")
    if "error" in body:
        # Some gateways say in every chunk that there is none, and some clients look for the word alone.
        body = {name: value for name, value in body.items() if name != "error"}
    choices = body.get("choices")
    usage = _usage(body.get("usage"))
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        return [_delta(choices[0], part, usage, body)]
    whole = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    if not whole:
        return [Delta(usage=usage, source={**body, "choices": []})]
    last = len(whole) - 1
    without_usage = {name: value for name, value in body.items() if name != "usage"}
    return [
        _delta(choice, part, usage, {**body, "choices": [choice]})
        if position == last
        else _delta(choice, part, None, {**without_usage, "choices": [choice]})
        for position, choice in enumerate(whole)
    ]


def error_message(body: Mapping[str, Any]) -> str:
    """The sentence inside an error body, whichever of the usual shapes it has."""
    error = body.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


def _delta(choice: Mapping[str, Any], part: str, usage: Mapping[str, Any] | None, source: Mapping[str, Any]) -> Delta:
    said = choice.get(part)
    if not isinstance(said, dict):
        said = {}
    calls = said.get("tool_calls")
    delta = Delta(
        choice=_index(choice.get("index"), 0) or 0,
        reasoning=_string(said.get("reasoning_content")),
        text=_string(said.get("content")),
        calls=_pieces(calls) if calls else (),
        finish_reason=_string(choice.get("finish_reason")),
        usage=usage,
        source=source,
    )
    if _is_understood(delta, choice, part):
        return delta
    return delta._replace(source={**source, "choices": [_mended(delta, choice, part, said)]})


def _is_understood(delta: Delta, choice: Mapping[str, Any], part: str) -> bool:
    """Whether the delta holds all that it should hold of its source."""
    said = choice.get(part) or {}
    if not isinstance(said, dict):
        return False
    calls = said.get("tool_calls")
    return (
        (len(delta.calls) == len(calls) if isinstance(calls, list) else calls is None)
        and (delta.text is not None or said.get("content") is None)
        and (delta.reasoning is not None or said.get("reasoning_content") is None)
        and (delta.finish_reason is not None or choice.get("finish_reason") is None)
        and choice.get("index", delta.choice) == delta.choice
    )


def _mended(delta: Delta, choice: Mapping[str, Any], part: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The choice without what is damaged in it, which would only make the client stumble in our place."""
    understood = {
        "content": delta.text,
        "reasoning_content": delta.reasoning,
        "tool_calls": _whole(said.get("tool_calls")),
    }
    mended = {**said, **{name: value for name, value in understood.items() if name in said}}
    return {**choice, "index": delta.choice, "finish_reason": delta.finish_reason, part: mended}


def _whole(calls: object) -> list[Any]:
    found = enumerate(calls if isinstance(calls, list) else [])
    return [{**call, "index": piece.index} for position, call in found if (piece := _piece(position, call)) is not None]


def _pieces(calls: object) -> tuple[CallPiece, ...]:
    found = enumerate(calls if isinstance(calls, list) else [])
    return tuple(piece for position, call in found if (piece := _piece(position, call)) is not None)


def _piece(position: int, call: object) -> CallPiece | None:
    """What one entry of `tool_calls` adds to a call; None for damage."""
    if not isinstance(call, dict) or (index := _index(call.get("index"), position)) is None:
        return None
    function = call.get("function") or {}
    if not isinstance(function, dict):
        return None
    id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    return CallPiece(index, _string(id) or "", _string(name) or "", _string(arguments) or "")


def _usage(usage: object) -> dict[str, Any] | None:
    """Usage with the cached tokens where OpenAI's clients look for them; DeepSeek's own names stay beside it."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    for cached in (details.get("cached_tokens"), usage.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")):
        if isinstance(cached, int):
            return {**usage, "prompt_tokens_details": {**details, "cached_tokens": cached}}
    return usage


def _index(value: object, default: int) -> int | None:
    if value is None:
        return default
    return value if isinstance(value, int) and 0 <= value < _MAX_INDEX else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
