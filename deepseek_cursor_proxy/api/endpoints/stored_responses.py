"""/responses/{id}: stored responses are retrieved, streamed again, listed, cancelled and deleted.

To the caller of another key a response does not exist. Every stored item has a type, an id and a status: clients may
leave them out when they send an item, and count on them when they list it.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.api.reply import internal_error
from deepseek_cursor_proxy.errors import BadRequest, ClientGone, NotFound
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Pieces
from deepseek_cursor_proxy.json_codec import Json, encode_json
from deepseek_cursor_proxy.protocols.responses_writer import failure_event
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.responses import StoredResponse, unpack_events

if TYPE_CHECKING:
    from deepseek_cursor_proxy.proxy import Proxy

# A cancelled call ends within moments; the reply to the cancellation shows that, or that it is on its way.
_CANCEL_SECONDS = 5.0
_PREFIXES = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "web_search_call": "ws",
}
_MAX_PAGE = 100
_DEFAULT_PAGE = 20
_NUMBER = re.compile(rb'data: \{"type":"[a-z_.]+","sequence_number":(\d+)')


class StoredEndpoint(Endpoint):
    _services: "Proxy"

    def retrieve(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        number = starting_after(request.query)
        # In this order: a job that ends in between is in the store by then, and a deleted one is not.
        job = self._services.jobs.find(namespace, response_id) if number is not None else None
        stored = self._find(namespace, response_id, with_events=number is not None and job is None)
        if number is None:
            return HttpReply.json(stored.body)
        if job is not None:
            events = job.follow(request.peer, self._services.config.heartbeat_interval)
            return HttpReply.events(follow(events, number))
        if stored.events is None and stored.body["background"] and stored.body["status"] == "failed":
            return HttpReply.events(last_events(stored.body, number))
        if stored.events is None and stored.body["status"] in ("queued", "in_progress"):
            raise BadRequest("Another proxy makes this response. Ask for it without stream until then.", param="stream")
        if stored.events is None:
            raise BadRequest("Only a response that was made in the background can be streamed again.", param="stream")
        return HttpReply.events(follow(unpack_events(stored.events), number))

    def input_items(self, request: HttpRequest, response_id: str) -> HttpReply:
        stored = self._find(self.admit(request).namespace, response_id)
        return HttpReply.json(page(stored.input, request.query))

    def delete(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        job = self._services.jobs.find(namespace, response_id)
        if not self._services.responses.delete(namespace, response_id):
            raise _unknown(response_id)
        if job is not None:
            # The job's response could not be retrieved any more.
            self._services.jobs.cancel(job)
        return HttpReply.json({"id": response_id, "object": "response.deleted", "deleted": True})

    def cancel(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        if not self._find(namespace, response_id).body["background"]:
            raise BadRequest("Only a response that is made in the background can be cancelled.", param="response_id")
        job = self._services.jobs.find(namespace, response_id)
        if job is not None:
            self._services.jobs.cancel(job)
            job.wait(_CANCEL_SECONDS)
        return HttpReply.json(self._find(namespace, response_id).body)

    def _find(self, namespace: bytes, response_id: str, *, with_events: bool = False) -> StoredResponse:
        stored = self._services.responses.get(namespace, response_id, with_events=with_events)
        if stored is None:
            raise _unknown(response_id)
        return stored


def follow(events: Pieces, number: int = -1) -> Pieces:
    """The events of a running or finished job after the client's last event, `number`; -1 if it has none."""
    try:
        for piece in events:
            if rest := events_after(piece, number):
                yield rest
    except ClientGone:
        raise
    except Exception as error:
        yield failure_event(internal_error(error))


def complete_items(items: Sequence[Json], id_suffix: str, first: int = 0) -> list[Json]:
    """The items as they are stored; `first` is the number of items before them."""
    return [_complete(item, id_suffix, index) for index, item in enumerate(items, first)]


def _complete(item: Json, id_suffix: str, index: int) -> Json:
    # An empty type is no message: it was read as an item of an unknown kind, and must be again when it is inherited.
    kind = "message" if item.get("type") is None else item["type"]
    given = item.get("id")
    if not isinstance(kind, str):
        # Its parser says what is wrong.
        return item
    complete = {**item, "type": kind, "id": given if given else f"{_PREFIXES.get(kind, 'msg')}_{id_suffix}_i{index}"}
    if kind in _PREFIXES or kind == "message":
        complete["status"] = item.get("status") or "completed"
    if kind == "reasoning":
        complete.setdefault("summary", [])
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        is_answer = item.get("role") == "assistant"
        part = {"type": "output_text" if is_answer else "input_text", "text": content}
        complete["content"] = [{**part, "annotations": []} if is_answer else part]
    return complete


def page(items: Sequence[Json], query: str) -> dict[str, Any]:
    """One page of the list, as the query asks for it; by default the latest item comes first."""
    params = {name: values[-1] for name, values in parse_qs(query).items()}
    order = params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc.", param="order")
    ordered = list(items if order == "asc" else reversed(items))
    start = 0
    if "after" in params:
        places = [at for at, item in enumerate(ordered, 1) if item["id"] == params["after"]]
        if not places:
            raise BadRequest("after is not the id of an item of this response.", param="after")
        # The last of an item that was sent twice, so that the pages come to an end.
        start = places[-1]
    given = params.get("limit", str(_DEFAULT_PAGE))
    if not re.fullmatch(r"[0-9]{1,3}", given) or not 1 <= int(given) <= _MAX_PAGE:
        raise BadRequest(f"limit must be a whole number from 1 to {_MAX_PAGE}.", param="limit")
    limit = int(given)
    listed = [_list_item(item) for item in ordered[start : start + limit]]
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": start + limit < len(ordered),
    }


def _list_item(item: Json) -> Json:
    """The item with the fields that the official types require; not stored, because DeepSeek would get them."""
    is_answer = item.get("role") == "assistant"
    lists = [name for name in ("content", "output") if isinstance(item.get(name), list)]
    return {**item, **{name: [_list_part(part, is_answer) for part in item[name]] for name in lists}}


def _list_part(part: Any, is_answer: bool) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        return {**part, "detail": part.get("detail") or "auto"}
    if is_answer and kind in ("input_text", "output_text", "text"):
        return {**part, "type": "output_text", "annotations": part.get("annotations") or []}
    return part


def starting_after(query: str) -> int | None:
    """The number of the last event that a client has, -1 for none; None when it asks for no events."""
    params = {name: values[-1] for name, values in parse_qs(query).items()}
    if params.get("stream", "false") != "true":
        return None
    given = params.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,15}", given):
        raise BadRequest("starting_after must be the number of an event.", param="starting_after")
    return int(given)


def events_after(piece: bytes, number: int) -> bytes:
    """The events of a piece that have higher numbers; a piece holds whole events."""
    numbers = list(_NUMBER.finditer(piece))
    if not numbers or int(numbers[0][1]) > number:
        return piece
    for event in numbers:
        if int(event[1]) > number:
            return piece[piece.rindex(b"event: ", 0, event.start()) :]
    return b""


def last_events(response: Json, number: int) -> bytes:
    """The end of a failed response whose other events were lost with their process, numbered after the client's last.

    A client without events also gets a beginning, without which the official library reads no end.
    """
    kinds = ("response.created", "response.failed") if number < 0 else ("response.failed",)
    return b"".join(
        sse.event(encode_json({"type": kind, "sequence_number": at, "response": response}), kind)
        for at, kind in enumerate(kinds, number + 1)
    )


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"Response {safe_text(response_id, 100)} is not known here: it was never stored, has been deleted, is too old, "
        "or belongs to another key.",
        code="response_not_found",
    )
