"""Figures in an answer: its usage, read into whole numbers, and the log probabilities of its tokens.

They come from upstream and may have any shape: anything but a plausible number counts as 0, so that no figure in a log
and no sum is absurd. Server-side searches and pages read are counted in the usage, as
`{"server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 1}}`, whatever the API called them.
A log probability is kept if it has a token, its bytes and a number; a damaged one ends the list, because the entries
after it have no place in the text any more.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.json_codec import as_list, as_object

# A thousand times the longest prompt. Sums of these counts fit the 64 bits of a column for billions of requests, and
# none is infinite or has the thousands of digits that Python refuses to write.
_MOST_TOKENS = 10**9
# Limits for other figures (prices in small units) and for their sums.
_MOST, _MOST_OF_SUM = 10**15, 10**18


class Tokens(NamedTuple):
    """Tokens of the prompt, cached or not, of the answer, and the part of the answer that is thinking."""

    hit: int
    miss: int
    output: int
    thinking: int = 0
    # Server-side searches and pages read, billed one by one.
    searches: int = 0

    @property
    def prompt(self) -> int:
        return self.hit + self.miss


def read_usage(usage: Mapping[str, Any]) -> Tokens:
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = usage.get("prompt_cache_hit_tokens")
    if not isinstance(cached, int):
        cached = as_object(usage.get("prompt_tokens_details")).get("cached_tokens")
    hit = min(_count(cached), prompt)
    thinking = _count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    searches = 0
    if "server_tool_use" in usage:
        runs = as_object(usage["server_tool_use"])
        searches = count_of(runs, "web_search_requests") + count_of(runs, "web_fetch_requests")
    return Tokens(hit, prompt - hit, output, min(thinking, output), searches)


def count_of(usage: Mapping[str, Any], name: str) -> int:
    """A count of the usage; 0 if it is absent or not sensible."""
    return _count(usage.get(name))


def add_usage(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usages, number by number; other values are those of the first."""
    total = dict(one)
    for name, value in other.items():
        known = total.get(name)
        # The exact types: a bool is an int, too.
        if type(value) in (int, float):
            total[name] = _bounded(value, _MOST) + _bounded(known, _MOST_OF_SUM)
        elif isinstance(value, dict):
            total[name] = add_usage(as_object(known), value)
        else:
            total.setdefault(name, value)
    return total


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def _bounded(value: Any, bound: int) -> Any:
    """The value, or 0 if it is no number, negative or too large."""
    return value if type(value) in (int, float) and 0 <= value < bound else 0


class TokenLogprobs:
    """Collects the log probabilities of one answer. Used by the thread that runs the exchange."""

    def __init__(self) -> None:
        self.text: list[dict[str, Any]] = []
        self.reasoning: list[dict[str, Any]] = []
        self._is_damaged = False

    def clear(self) -> None:
        """Forget an answer that another one takes the place of."""
        self.text, self.reasoning, self._is_damaged = [], [], False

    def add(self, delta: Delta) -> None:
        logprobs = _logprobs_of(delta)
        for name, entries in (("content", self.text), ("reasoning_content", self.reasoning)):
            for value in as_list(logprobs.get(name)):
                entry = None if self._is_damaged else read_logprob(value)
                if entry is None:
                    self._is_damaged = True
                    return
                entries.append(entry)


def _logprobs_of(delta: Delta) -> dict[str, Any]:
    choices = as_list(delta.chunk.get("choices")) if delta.chunk is not None else []
    return as_object(as_object(choices[0]).get("logprobs")) if choices else {}


def read_logprob(value: object) -> dict[str, Any] | None:
    """The token of an entry, its log probability and its bytes, which may be null upstream; None if it is damaged."""
    fields = as_object(value)
    token, logprob, data = fields.get("token"), fields.get("logprob"), fields.get("bytes")
    if not isinstance(token, str) or type(logprob) not in (int, float):
        return None
    is_list = isinstance(data, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in data)
    return {"token": token, "logprob": logprob, "bytes": data if is_list else list(token.encode("utf-8", "replace"))}


def read_logprobs(delta: Delta) -> list[dict[str, Any]]:
    """The log probabilities of a delta's text; none for a run, whose chunks differ in their text alone.

    The bytes of a token may be null in chat completions; here they are always a list. A malformed entry is left out,
    because clients compute with it.
    """
    entries: list[dict[str, Any]] = []
    for value in as_list(_logprobs_of(delta).get("content")) if delta.run is None else ():
        if (token := read_logprob(value)) is not None:
            others = map(read_logprob, as_list(value.get("top_logprobs")))
            entries.append({**token, "top_logprobs": [other for other in others if other is not None]})
    return entries
