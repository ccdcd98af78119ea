"""Other hosts of DeepSeek's models: DIALECTS says how each reads requests and writes answers.

A body in the words of a host is translated to DeepSeek's, `contract` judges that, and the answer is translated back. A
field that the host does not know is refused, as strict hosts do. This translation shares nothing with the proxy's own,
so that the two can disagree. To add a host, add a line to DIALECTS and, for new words, a function like those below it.
None of these hosts was called: "docs" is what its documentation said in November 2026, "assumed" was not checked.

    host          source                            reasoning in and out           thinking is asked for by
    openrouter    docs                              reasoning, reasoning_details   reasoning {effort | enabled}
    vllm          docs of 0.11.2; effort assumed    reasoning                      chat_template_kwargs {thinking}
    sglang        assumed                           reasoning_content              chat_template_kwargs {thinking}
    siliconflow   docs; bounds assumed              reasoning_content              enable_thinking, thinking_budget
    fireworks     docs; reasoning_history assumed   reasoning_content              reasoning_effort or thinking
    ark           docs                              reasoning_content              thinking {type}, reasoning_effort
    together      assumed                           reasoning                      reasoning {enabled}
    plain         any server without a parser       <think> in the content         always thinks
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import contract
from tests.fake_deepseek.completion import Completion
from tests.fake_deepseek.contract import MISSING_REASONING, Refusal, Rules, check

# OpenAI's own, which every host takes.
_BODY_FIELDS = (
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "response_format", "stop", "user",
    "logprobs", "top_logprobs", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


@dataclass(frozen=True)
class Dialect:
    """One host; `read_words` says whether a body asks for thinking, and raises Refused for words it does not know."""

    reasoning: str
    read_words: Callable[[Mapping[str, Any]], bool]
    # Fields of the body besides OpenAI's.
    fields: tuple[str, ...] = ()
    # Where the usage has the cached tokens.
    cached: str = "prompt_tokens_details"
    # Its names of models have an owner and a slash.
    has_slashes: bool = True

    def read(self, body: bytes) -> dict[str, Any] | Refusal:
        """A body as chat completions of DeepSeek, or the refusal it earns."""
        return contract.read(body, self._translate)

    def refusal(self, payload: Mapping[str, Any], rules: Rules) -> Refusal | None:
        found = contract.refusal(payload, replace(rules, has_v4_template=True))
        # No other host is known to insist on reasoning.
        return None if found is not None and found.message == MISSING_REASONING else found

    def writer(self, *details: Any) -> "ForeignCompletion":
        return ForeignCompletion(self, *details)

    def _translate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        for name in body:
            check(name in _BODY_FIELDS or name in self.fields, f"Unrecognized request argument supplied: {name}")
        model = str(body.get("model"))
        check("/" in model or not self.has_slashes, f"{model} is not a valid model ID")
        chat = {name: value for name, value in body.items() if name in _BODY_FIELDS and name != "user"}
        chat["model"] = model.rpartition("/")[2].partition(":")[0].lower()
        chat["thinking"] = {"type": "enabled" if self.read_words(body) else "disabled"}
        chat["messages"] = [self._message(index, each) for index, each in enumerate(body.get("messages") or ())]
        return chat

    def _message(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        names = {"reasoning", "reasoning_details"} if self.reasoning == "reasoning_details" else {self.reasoning}
        for name in message:
            is_known = name in _MESSAGE_FIELDS or (name in names and message.get("role") == "assistant")
            check(is_known, f"messages[{index}].{name}: Extra inputs are not permitted")
        found = {name: value for name, value in message.items() if name in _MESSAGE_FIELDS}
        if message.get("role") != "assistant":
            return found
        if message.get("reasoning_details") is not None:
            found["reasoning_content"] = _details_text(message["reasoning_details"], index)
        elif self.reasoning == "think" and str(message.get("content")).startswith("<think>"):
            reasoning, _, content = message["content"].removeprefix("<think>").partition("</think>")
            found |= {"reasoning_content": reasoning, "content": content.lstrip()}
        for name in names & message.keys() - {"reasoning_details"}:
            check(isinstance(message[name], str), f"messages[{index}].{name}: Input should be a valid string")
            found["reasoning_content"] = message[name]
        return found


def _details_text(details: Any, index: int) -> str:
    check(isinstance(details, list) and details, f"messages[{index}].reasoning_details: expected a list")
    numbers = [each.get("index") for each in details]
    # A list that was cut, doubled or reordered on its way is refused.
    check(numbers == list(range(len(details))), f"messages[{index}].reasoning_details: out of order")
    check(all(each.get("format") for each in details), f"messages[{index}].reasoning_details: incomplete")
    return "".join(each.get("text", "") for each in details)


class ForeignCompletion(Completion):
    """An answer of DeepSeek's in the words of another host."""

    def __init__(self, dialect: Dialect, *details: Any) -> None:
        super().__init__(*details)
        self._dialect = dialect
        self._is_thinking_aloud = False

    def body(self) -> bytes:
        whole = json.loads(super().body())
        whole["choices"][0]["message"] = self._whole_message(whole["choices"][0]["message"])
        return encode_json({**whole, "usage": self._foreign_usage(whole["usage"])})

    def events(self) -> Iterator[bytes]:
        for event in super().events():
            data = event.removeprefix(b"data: ")
            if data.startswith(b"{"):
                chunk = json.loads(data)
                chunk["choices"][0]["delta"] = self._delta(chunk["choices"][0]["delta"])
                if chunk.get("usage"):
                    chunk["usage"] = self._foreign_usage(chunk["usage"])
                event = b"data: " + encode_json(chunk) + b"\n\n"
            yield event

    def _whole_message(self, message: dict[str, Any]) -> dict[str, Any]:
        reasoning = message.pop("reasoning_content", None)
        if reasoning is None:
            return message
        if self._dialect.reasoning == "think":
            return {**message, "content": f"<think>{reasoning}</think>\n\n{message['content'] or ''}"}
        return {**message, **self._reasoning(reasoning, is_whole=True)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        reasoning = delta.pop("reasoning_content", None)
        if self._dialect.reasoning == "think":
            return self._think(delta, reasoning or "")
        return {**delta, **self._reasoning(reasoning)} if reasoning else delta

    def _reasoning(self, text: str, *, is_whole: bool = False) -> dict[str, Any]:
        if self._dialect.reasoning != "reasoning_details":
            return {self._dialect.reasoning: text}
        # The entries of a whole answer are numbered; a piece of a stream adds to the first.
        half = len(text) // 2
        parts = (text[:half], text[half:]) if is_whole else (text,)
        details = [
            {"type": "reasoning.text", "text": part, "format": "unknown", "index": index}
            for index, part in enumerate(parts)
        ]
        return {"reasoning": text, "reasoning_details": details}

    def _think(self, delta: dict[str, Any], reasoning: str) -> dict[str, Any]:
        content = delta.get("content") or ""
        if reasoning:
            text = reasoning if self._is_thinking_aloud else f"<think>{reasoning}"
            self._is_thinking_aloud = True
            return {**delta, "content": text}
        if self._is_thinking_aloud and (content or "tool_calls" in delta or "content" in delta):
            self._is_thinking_aloud = False
            return {**delta, "content": f"</think>\n\n{content}"}
        return delta

    def _foreign_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage with the cached tokens in the one place where this host has them."""
        kept = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        hit = usage["prompt_cache_hit_tokens"]
        name = self._dialect.cached
        return {**kept, name: {"cached_tokens": hit} if name == "prompt_tokens_details" else hit}


def _openrouter(body: Mapping[str, Any]) -> bool:
    reasoning = body.get("reasoning") or {}
    check(not {*reasoning} - {"effort", "enabled", "max_tokens", "exclude"}, "reasoning: unrecognized key")
    check(reasoning.get("effort") in (None, *_EFFORTS), "reasoning.effort: invalid option")
    return reasoning.get("enabled") is not False and reasoning.get("effort") != "none"


def _template(body: Mapping[str, Any]) -> bool:
    # The template of the model does not think unless the request says so.
    return bool((body.get("chat_template_kwargs") or {}).get("thinking"))


def _siliconflow(body: Mapping[str, Any]) -> bool:
    budget = body.get("thinking_budget")
    check(budget is None or 128 <= budget <= 32768, "thinking_budget must be between 128 and 32768")
    return bool(body.get("enable_thinking"))


def _fireworks(body: Mapping[str, Any]) -> bool:
    effort = body.get("reasoning_effort")
    check(effort is None or "thinking" not in body, "thinking and reasoning_effort cannot be specified together")
    check(effort in (None, *_EFFORTS), "reasoning_effort: invalid value")
    return bool(effort != "none" and (body.get("thinking") or {}).get("type") != "disabled")


def _ark(body: Mapping[str, Any]) -> bool:
    check(body.get("reasoning_effort") in (None, "minimal", "low", "medium", "high"), "reasoning_effort is not valid")
    return bool((body.get("thinking") or {}).get("type") != "disabled")


def _together(body: Mapping[str, Any]) -> bool:
    check(body.get("reasoning_effort") in (None, "low", "medium", "high"), "reasoning_effort: invalid value")
    return (body.get("reasoning") or {}).get("enabled") is not False


def _always(body: Mapping[str, Any]) -> bool:
    return True


DIALECTS = {
    "openrouter": Dialect("reasoning_details", _openrouter, ("reasoning", "provider")),
    "vllm": Dialect("reasoning", _template, ("chat_template_kwargs",)),
    "sglang": Dialect("reasoning_content", _template, ("chat_template_kwargs", "separate_reasoning")),
    "siliconflow": Dialect(
        "reasoning_content", _siliconflow, ("enable_thinking", "thinking_budget"), "prompt_cache_hit_tokens"
    ),
    "fireworks": Dialect("reasoning_content", _fireworks, ("reasoning_effort", "thinking", "reasoning_history")),
    "ark": Dialect("reasoning_content", _ark, ("thinking", "reasoning_effort"), has_slashes=False),
    "together": Dialect("reasoning", _together, ("reasoning", "reasoning_effort"), "cached_tokens"),
    "plain": Dialect("think", _always, has_slashes=False),
}
