"""The usage of an answer: the object that ends it, read into whole numbers.

It comes from upstream and may have any shape: what is no sensible number counts as 0, so that a figure in a log or a
sum is never absurd. Server-side searches and pages read are counted in the same object, as
`{"server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 1}}`, whatever the API called them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.json_codec import as_object

# More tokens than any request has. A number of thousands of digits would fill a terminal.
_PLENTY = 10**15
_NUMBERS = (int, float)


class Tokens(NamedTuple):
    """Tokens of the prompt by whether DeepSeek had them cached, of the answer, and of it those of thinking."""

    hit: int
    miss: int
    output: int
    thinking: int = 0
    # Server-side searches and pages read, each billed by itself.
    searches: int = 0

    @property
    def prompt(self) -> int:
        return self.hit + self.miss


def read_usage(usage: Mapping[str, Any]) -> Tokens:
    prompt, output = _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens"))
    cached = usage.get("prompt_cache_hit_tokens")
    if not isinstance(cached, int):
        cached = as_object(usage.get("prompt_tokens_details")).get("cached_tokens")
    hit = min(_number(cached), prompt)
    thinking = _number(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    searches = 0
    if "server_tool_use" in usage:
        runs = as_object(usage["server_tool_use"])
        searches = _number(runs.get("web_search_requests")) + _number(runs.get("web_fetch_requests"))
    return Tokens(hit, prompt - hit, output, min(thinking, output), searches)


def add_usage(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usages, number by number, however deep; of anything else the first."""
    total = dict(one)
    for name, value in other.items():
        known = total.get(name)
        # The exact types: a bool is an int, too.
        if type(value) in _NUMBERS:
            total[name] = value + known if type(known) in _NUMBERS else value
        elif isinstance(value, dict):
            total[name] = add_usage(as_object(known), value)
        else:
            total.setdefault(name, value)
    return total


def _number(value: object) -> int:
    # The exact type: a bool is an int, too.
    return value if type(value) is int and 0 <= value < _PLENTY else 0
