"""The items a response was asked with, as they are listed: every one with a type, an id and a status of its own.

Clients may leave these out when they send an item, and count on them when they ask for it again.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request.fields import Json

_PREFIXES = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}
_MOST_LISTED = 100
_USUALLY_LISTED = 20


def complete_items(items: Sequence[Json], id_suffix: str, first: int = 0) -> list[Json]:
    """The items as they are stored; `first` is how many stand before them."""
    return [_complete(item, id_suffix, index) for index, item in enumerate(items, first)]


def _complete(item: Json, id_suffix: str, index: int) -> Json:
    # An empty one is no message: it was read as an item of an unknown kind, and has to be that in the next link, too.
    kind = "message" if item.get("type") is None else item["type"]
    given = item.get("id")
    if not isinstance(kind, str):
        # Whoever reads it says what is wrong.
        return item
    found = {**item, "type": kind, "id": given if given else f"{_PREFIXES.get(kind, 'msg')}_{id_suffix}_i{index}"}
    if kind in _PREFIXES or kind == "message":
        found["status"] = item.get("status") or "completed"
    if kind == "reasoning":
        found.setdefault("summary", [])
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        is_answer = item.get("role") == "assistant"
        part = {"type": "output_text" if is_answer else "input_text", "text": content}
        found["content"] = [{**part, "annotations": []} if is_answer else part]
    return found


def page(items: Sequence[Json], query: str) -> dict[str, Any]:
    """One page of the list, as the query asks for it; the latest item comes first unless it asks otherwise."""
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc.", param="order")
    found = _distinct_ids(items)
    if order == "desc":
        found.reverse()
    start = _start_after(found, asked["after"]) if "after" in asked else 0
    limit = _limit(asked)
    shown = [_listed(item) for item in found[start : start + limit]]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(found),
    }


def _distinct_ids(items: Sequence[Json]) -> list[Json]:
    """The items, each with an id that no other has: behind an id that comes twice, pages would go round in circles.

    Whoever sends an item that is inherited already, or a reference to one, has it there twice.
    """
    taken = {item["id"] for item in items}
    if len(taken) == len(items):
        return list(items)
    counts: Counter[str] = Counter()
    found: list[Json] = []
    for item in items:
        own = item["id"]
        counts[own] += 1
        if counts[own] > 1:
            while (named := f"{own}_{counts[own]}") in taken:
                counts[own] += 1
            taken.add(named)
            item = {**item, "id": named}
        found.append(item)
    return found


def _listed(item: Json) -> Json:
    """The item with what the official types insist on; it is not stored so, because DeepSeek would be told it later."""
    is_answer = item.get("role") == "assistant"
    lists = [name for name in ("content", "output") if isinstance(item.get(name), list)]
    return {**item, **{name: [_listed_part(part, is_answer) for part in item[name]] for name in lists}}


def _listed_part(part: Any, is_answer: bool) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        return {**part, "detail": part.get("detail") or "auto"}
    if is_answer and kind in ("input_text", "output_text", "text"):
        return {**part, "type": "output_text", "annotations": part.get("annotations") or []}
    return part


def _start_after(items: Sequence[Json], after: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise BadRequest("after is not the id of an item of this response.", param="after")


def _limit(asked: Mapping[str, str]) -> int:
    given = asked.get("limit", str(_USUALLY_LISTED))
    if not re.fullmatch(r"[0-9]{1,3}", given) or not 1 <= int(given) <= _MOST_LISTED:
        raise BadRequest(f"limit must be a whole number from 1 to {_MOST_LISTED}.", param="limit")
    return int(given)


# Events that were sent already …

_NUMBER = re.compile(rb'data: \{"type":"[a-z_.]+","sequence_number":(\d+)')


def starting_after(query: str) -> int | None:
    """The number of the last event that a client has; None when it does not ask for events at all, -1 for none."""
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    if asked.get("stream", "false") != "true":
        return None
    given = asked.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,15}", given):
        raise BadRequest("starting_after must be the number of an event.", param="starting_after")
    return int(given)


def events_after(piece: bytes, number: int) -> bytes:
    """Of some whole events those with higher numbers."""
    found = list(_NUMBER.finditer(piece))
    if not found or int(found[0][1]) > number:
        return piece
    for event in found:
        if int(event[1]) > number:
            return piece[piece.rindex(b"event: ", 0, event.start()) :]
    return b""


def last_events(response: Json, number: int) -> bytes:
    """For a response whose events are lost with the process that made it: how it ended, behind what a client has.

    Whoever has nothing yet gets a beginning as well, without which the official library reads no end.
    """
    kinds = ("response.created", "response.failed") if number < 0 else ("response.failed",)
    return b"".join(
        sse.event(encode_json({"type": kind, "sequence_number": at, "response": response}), kind)
        for at, kind in enumerate(kinds, number + 1)
    )
