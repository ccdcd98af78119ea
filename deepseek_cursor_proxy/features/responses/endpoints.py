"""POST /responses, also in the background, and its input_tokens and compact; /responses/{id}: stored responses are
retrieved, streamed again, listed, cancelled and deleted.

A response continues stored ones (`ResponseInput`), and is in the store before its last event is visible. To the caller
of another key a response does not exist. Every stored item has a type, an id and a status: clients may leave them out
when they send an item, and count on them when they list it.
"""

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.api.endpoint import (
    Endpoint,
    Events,
    GenerationEndpoint,
    internal_error,
    show,
    stream_reply,
    write_events,
)
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi
from deepseek_cursor_proxy.features.encryption import Opener, Sealer
from deepseek_cursor_proxy.features.responses import fields
from deepseek_cursor_proxy.features.responses.feature import Job, Responses
from deepseek_cursor_proxy.features.responses.fields import Frame, ResponseOptions, error_code
from deepseek_cursor_proxy.features.responses.store import ResponseStore, StoredResponse, unpack_events
from deepseek_cursor_proxy.features.responses.writer import (
    PlainCompactionWriter,
    PlainResponseWriter,
    ResponseWriter,
    SummaryWriter,
    failure_event,
)
from deepseek_cursor_proxy.features.tokens.feature import TokenCounter
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Pieces
from deepseek_cursor_proxy.json_codec import Json, encode_json
from deepseek_cursor_proxy.protocols.input_items import OWN_ID
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.redaction import safe_text

_LAST_EVENT = re.compile(rb"event: response\.(?:completed|incomplete|failed)\b")
_API = RelayedApi("/responses", _LAST_EVENT, failure_event)
_INPUT_TOKENS_API = RelayedApi("/responses/input_tokens")
_COMPACT_API = RelayedApi("/responses/compact")


@dataclass(frozen=True)
class ResponsePlan:
    """A response to create: the request for it, parsed, its frame and its input items."""

    client: ClientRequest
    # As the client asks: the exchange may change that of `client`.
    chat: ChatRequest
    frame: Frame
    input: tuple[Json, ...]


class _Endpoint(Endpoint):
    @property
    def _feature(self) -> Responses:
        return self._services.get(Responses)


class ResponsesEndpoint(_Endpoint, GenerationEndpoint):
    def create(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, _API, self._create)

    def refuse_websocket(self, request: HttpRequest, _: str) -> HttpReply:
        """Codex asks for a WebSocket first, and posts at once when it reads 426; anything else costs it seconds."""
        if (request.headers.get("upgrade") or "").lower() != "websocket":
            raise errors.MethodNotAllowed("This path answers POST, OPTIONS.", "POST, OPTIONS")
        raise errors.UpgradeRefused("Responses are streamed over HTTP here; send POST.")

    def input_tokens(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, _INPUT_TOKENS_API, self._count_tokens)

    def compact(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, _COMPACT_API, self._compact)

    def _create(self, client: ClientRequest) -> HttpReply:
        plan = self._plan(client, client.body)
        options = plan.frame.options
        if options.background:
            return self._create_in_background(plan)
        try:
            exchange = self.open(plan.client)
        except errors.UpstreamRefused as refusal:
            if options.stream and error_code(refusal) == OVERFLOW:
                # A stream that only fails: Codex reads this code in an event alone, and reports a 400 as a bug.
                writer = self._writer(plan)
                return HttpReply.events(writer.begin() + writer.fail(refusal))
            raise
        chat, writer = plan.chat, self._writer(plan)
        if not options.stream:
            return self.reply(exchange, chat, PlainResponseWriter(writer))
        events = write_events(exchange, show(exchange, chat), writer)
        return stream_reply(exchange, _cancel_if_left(events, writer))

    def _count_tokens(self, client: ClientRequest) -> HttpReply:
        count = self._services.get(TokenCounter).count(self._plan(client, client.body).chat)
        return HttpReply.json({"object": "response.input_tokens", "input_tokens": count})

    def _compact(self, client: ClientRequest) -> HttpReply:
        plan = self._plan(client, fields.compact_request(client.body))
        exchange = self.open(plan.client)
        writer = PlainCompactionWriter(self._writer(plan), complete_items(plan.input, plan.frame.id_suffix))
        return self.reply(exchange, plan.chat, writer)

    def _plan(self, client: ClientRequest, body: Json) -> ResponsePlan:
        config, namespace, memory = self._services.config, client.namespace, client.memory
        options = fields.parse_options(body)
        id_suffix = secrets.token_hex(16)
        if options.previous is not None:
            memory = self._services.memory.open_response(options.previous)
        source = ResponseInput(self._feature.store, namespace, config.max_request_body_bytes)
        inherited = source.inherited_items(options)
        own = source.own_items(options, inherited)
        if options.store:
            # Completed now as they are stored, so that the next response inherits equal items.
            own = complete_items(own, id_suffix, len(inherited))
        sealer = Sealer(self._services.secret.read(), namespace)
        items = fields.unseal([*inherited, *own], Opener(sealer, config.max_request_body_bytes), memory)
        chat_body = fields.summary_request if options.compacts else fields.chat_body
        chat = parse(chat_body(body, items), config, memory, server_tools.RESPONSES, client.name)
        if options.background:
            # Streamed, so that its events can be followed while it runs; never answered by the response cache.
            chat = chat._replace(stream=True, cache=False)
        frame = Frame(id_suffix, int(time.time()), chat.requested_model, options, fields.echoed_fields(body), sealer)
        if options.store:
            memory.name(frame.response_id)
        client.body, client.memory, client.chat = body, memory, chat
        if server_tools.has_any(chat):
            client.upstream_api = self._services.search_apis.get("responses", client.upstream_api)
        return ResponsePlan(client, chat, frame, (*inherited, *own))

    def _writer(self, plan: ResponsePlan) -> ResponseWriter:
        options = plan.frame.options

        def save(response: dict[str, Any]) -> None:
            # A job saves its response itself, with all of its events.
            if options.store and not options.background:
                stored = StoredResponse(response, plan.input)
                self._feature.store.put(plan.client.namespace, stored, is_known=bool(self.report.key))

        kind = SummaryWriter if options.compacts else ResponseWriter
        return kind(plan.frame, plan.chat, time.monotonic, save)

    # In the background …

    def _create_in_background(self, plan: ResponsePlan) -> HttpReply:
        store = self._feature.store
        # The key is checked now, while the client reads the reply.
        self._services.access.check_call(plan.client.caller)
        self.reserve(plan.client)
        writer = self._writer(plan)
        is_known = bool(self.report.key)
        unknown_caller_bytes = 0 if is_known else plan.client.report.body_bytes
        # Before anything is packed.
        self._feature.jobs.check(unknown_caller_bytes)
        job = Job(plan.frame.response_id, plan.client.namespace, unknown_caller_bytes)
        job.append(writer.begin_queued())
        queued = plan.frame.response(fields.state("queued"))
        store.put(plan.client.namespace, StoredResponse(queued, plan.input), is_known=is_known)
        try:
            self._feature.jobs.submit(job, lambda job: self._run(plan, writer, job))
        except errors.ProxyError:
            store.delete(plan.client.namespace, plan.frame.response_id)
            raise
        if not plan.frame.options.stream:
            return HttpReply.json(queued)
        events = job.follow(plan.client.peer, self._services.config.heartbeat_interval)
        return HttpReply.events(follow(events))

    def _run(self, plan: ResponsePlan, writer: ResponseWriter, job: Job) -> None:
        """Called by the job's thread."""
        try:
            last = self._generate(plan, writer, job)
        except BaseException as error:
            self.report.refuse("background response", error)
            if isinstance(error, errors.ClientGone):
                last = writer.cancel()
            elif isinstance(error, errors.ProxyError):
                last = writer.fail(error)
            else:
                last = writer.fail(errors.UpstreamFailed("The proxy failed unexpectedly while making this response."))
                raise
        finally:
            assert writer.response is not None
            response = StoredResponse(writer.response, plan.input, job.pack(last))
            self._feature.store.update(plan.client.namespace, response)
            job.append(last)

    def _generate(self, plan: ResponsePlan, writer: ResponseWriter, job: Job) -> bytes:
        """Append all events but the last to the job; returns the last."""
        if job.is_cancelled:
            raise errors.ClientGone
        if job.is_stopping:
            raise errors.ProxyStopping
        started = plan.frame.response(fields.state("in_progress"))
        self._feature.store.update(plan.client.namespace, StoredResponse(started, plan.input))
        job.append(writer.start())
        client = copy(plan.client)
        client.peer = job.peer
        with closing(self.open(client)) as exchange, closing(show(exchange, plan.chat)) as batches:
            job.unknown_caller_bytes = 0
            try:
                for batch in batches:
                    job.append(writer.write(batch))
            except Exception as error:
                exchange.fail(error)
                raise
        return writer.end()


def _cancel_if_left(events: Events, writer: ResponseWriter) -> Events:
    """The events; if the client leaves before the last one, the response is saved as cancelled with its output."""
    try:
        yield from events
    finally:
        if writer.response is None:
            writer.cancel()


class ResponseInput:
    """Reads what a request inherits or refers to, at most `max_bytes` of each, from the store. Used by one thread."""

    def __init__(self, store: ResponseStore, namespace: bytes, max_bytes: int) -> None:
        self._store = store
        self._namespace = namespace
        self._max_bytes = max_bytes
        # The items of the responses that have been read, by the suffix of the id.
        self._outputs: dict[str, list[Json]] = {}

    def inherited_items(self, options: ResponseOptions) -> list[Json]:
        """The input and output of the previous response."""
        if options.previous is None:
            return []
        previous = self._store.get(self._namespace, options.previous, with_events=False)
        if previous is None:
            raise errors.NotFound(
                f"Previous response {safe_text(options.previous, 100)} is not known here: it was never stored, has "
                "been deleted, is too old, or belongs to another key. Send the whole history as input instead.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        if previous.body["status"] in ("queued", "in_progress"):
            raise errors.BadRequest(
                "The previous response is still being made. Wait until it is finished.", param="previous_response_id"
            )
        if previous.json_bytes > self._max_bytes:
            raise errors.TooLarge(
                f"The history that this request continues is larger than {self._max_bytes} bytes. Start a new chat."
            )
        return [*previous.input, *previous.body["output"]]

    def own_items(self, options: ResponseOptions, inherited: list[Json]) -> list[Json]:
        """The items that the request sends, with those it only refers to."""
        known = {item.get("id"): item for item in inherited}
        # Forty bytes refer to an item of megabytes, and may be repeated many times: each is measured once.
        sizes: dict[int, int] = {}
        total = 0
        own: list[Json] = []
        for item in options.items:
            if item.get("type") == "item_reference":
                item_id = item.get("id")
                referred = known.get(item_id) or self._stored_item(item_id or "", options)
                if referred is None:
                    raise errors.BadRequest(
                        f"Item {safe_text(item_id, 100)} is not known here. Send the item itself, or continue with "
                        "previous_response_id.",
                        param="input",
                    )
                item = referred
                if id(item) not in sizes:
                    sizes[id(item)] = len(encode_json(item))
                total += sizes[id(item)]
                if total > self._max_bytes:
                    raise errors.TooLarge(
                        f"The items that this request refers to are larger than {self._max_bytes} bytes together. "
                        "Refer to each once, or continue with previous_response_id."
                    )
            own.append(item)
        return own

    def _stored_item(self, item_id: str, options: ResponseOptions) -> Json | None:
        """An item by its id. An id of DeepSeek's own, as of a search, is looked for in the other items' responses."""
        if (own := OWN_ID.fullmatch(item_id)) is not None:
            output, index = self._output(own[1]), int(own[2])
            return output[index] if index < len(output) else None
        others = [OWN_ID.fullmatch(item.get("id") or "") for item in options.items]
        for id_suffix in dict.fromkeys(other[1] for other in others if other is not None):
            for item in self._output(id_suffix):
                if item.get("id") == item_id:
                    return item
        return None

    def _output(self, id_suffix: str) -> list[Json]:
        """The items of a stored response; none if it is not known."""
        if id_suffix not in self._outputs:
            stored = self._store.get(self._namespace, f"resp_{id_suffix}", with_events=False)
            self._outputs[id_suffix] = [] if stored is None else stored.body["output"]
        return self._outputs[id_suffix]


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


class StoredEndpoint(_Endpoint):
    def retrieve(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        number = starting_after(request.query)
        # In this order: a job that ends in between is in the store by then, and a deleted one is not.
        job = self._feature.jobs.find(namespace, response_id) if number is not None else None
        stored = self._find(namespace, response_id, with_events=number is not None and job is None)
        if number is None:
            return HttpReply.json(stored.body)
        if job is not None:
            events = job.follow(request.peer, self._services.config.heartbeat_interval)
            return HttpReply.events(follow(events, number))
        if stored.events is None and stored.body["background"] and stored.body["status"] == "failed":
            return HttpReply.events(last_events(stored.body, number))
        if stored.events is None and stored.body["status"] in ("queued", "in_progress"):
            raise errors.BadRequest("Another proxy makes this response. Ask without stream until then.", param="stream")
        if stored.events is None:
            raise errors.BadRequest("Only a background response can be streamed again.", param="stream")
        return HttpReply.events(follow(unpack_events(stored.events), number))

    def input_items(self, request: HttpRequest, response_id: str) -> HttpReply:
        stored = self._find(self.admit(request).namespace, response_id)
        return HttpReply.json(page(stored.input, request.query))

    def delete(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        job = self._feature.jobs.find(namespace, response_id)
        if not self._feature.store.delete(namespace, response_id):
            raise _unknown(response_id)
        if job is not None:
            # The job's response could not be retrieved any more.
            self._feature.jobs.cancel(job)
        return HttpReply.json({"id": response_id, "object": "response.deleted", "deleted": True})

    def cancel(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.admit(request).namespace
        if not self._find(namespace, response_id).body["background"]:
            raise errors.BadRequest("Only a background response can be cancelled.", param="response_id")
        job = self._feature.jobs.find(namespace, response_id)
        if job is not None:
            self._feature.jobs.cancel(job)
            job.wait(_CANCEL_SECONDS)
        return HttpReply.json(self._find(namespace, response_id).body)

    def _find(self, namespace: bytes, response_id: str, *, with_events: bool = False) -> StoredResponse:
        stored = self._feature.store.get(namespace, response_id, with_events=with_events)
        if stored is None:
            raise _unknown(response_id)
        return stored


def follow(events: Pieces, number: int = -1) -> Pieces:
    """The events of a running or finished job after the client's last event, `number`; -1 if it has none."""
    try:
        for piece in events:
            if rest := events_after(piece, number):
                yield rest
    except ValueError as error:
        # They are damaged in the store.
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
        raise errors.BadRequest("order must be asc or desc.", param="order")
    ordered = list(items if order == "asc" else reversed(items))
    start = 0
    if "after" in params:
        places = [at for at, item in enumerate(ordered, 1) if item["id"] == params["after"]]
        if not places:
            raise errors.BadRequest("after is not the id of an item of this response.", param="after")
        # The last of an item that was sent twice, so that the pages come to an end.
        start = places[-1]
    given = params.get("limit", str(_DEFAULT_PAGE))
    if not re.fullmatch(r"[0-9]{1,3}", given) or not 1 <= int(given) <= _MAX_PAGE:
        raise errors.BadRequest(f"limit must be a whole number from 1 to {_MAX_PAGE}.", param="limit")
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
        raise errors.BadRequest("starting_after must be the number of an event.", param="starting_after")
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


def _unknown(response_id: str) -> errors.NotFound:
    return errors.NotFound(
        f"Response {safe_text(response_id, 100)} is not known here: it was never stored, has been deleted, is too old, "
        "or belongs to another key.",
        code="response_not_found",
    )
