"""POST /responses, also in the background, and its input_tokens and compact.

A response goes on from stored ones (`ResponseInput`), and is in the store before its last event is visible; what is
done with it afterwards is in `stored_responses`.
"""

import re
import secrets
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.api.endpoint import GenerationEndpoint, show
from deepseek_cursor_proxy.api.endpoints.stored_responses import complete_items, follow
from deepseek_cursor_proxy.api.passthrough import PassthroughApi
from deepseek_cursor_proxy.api.reply import Events, stream_reply, write_events
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.apis.responses_api import RESPONSES
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.exchange.background_jobs import Job
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.json_codec import Json, encode_json
from deepseek_cursor_proxy.protocols import responses_envelope as envelope
from deepseek_cursor_proxy.protocols.input_items import OWN_ID
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.protocols.responses_envelope import Frame, ResponseOptions, error_code
from deepseek_cursor_proxy.protocols.responses_writer import (
    PlainCompactionWriter,
    PlainResponseWriter,
    ResponseWriter,
    SummaryWriter,
    failure_event,
)
from deepseek_cursor_proxy.reasoning.sealed import Opener, Sealer
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.responses import ResponseStore, StoredResponse

if TYPE_CHECKING:
    from deepseek_cursor_proxy.proxy import Proxy

_LAST_EVENT = re.compile(rb"event: response\.(?:completed|incomplete|failed)\b")
_API = PassthroughApi("/responses", _LAST_EVENT, failure_event)
_INPUT_TOKENS_API = PassthroughApi("/responses/input_tokens")
_COMPACT_API = PassthroughApi("/responses/compact")


@dataclass(frozen=True)
class ResponsePlan:
    """A response to create: the request for it, its frame and its input items."""

    client: ClientRequest
    frame: Frame
    input: tuple[Json, ...]


class ResponsesEndpoint(GenerationEndpoint):
    _services: "Proxy"

    def create(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, _API, self._create)

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
        chat, writer = plan.client.chat, self._writer(plan)
        if not options.stream:
            return self.reply(exchange, chat, PlainResponseWriter(writer))
        events = write_events(exchange, show(exchange, chat), writer)
        return stream_reply(exchange, _cancel_if_left(events, writer))

    def _count_tokens(self, client: ClientRequest) -> HttpReply:
        count = self._services.counter.count(self._plan(client, client.body).client.chat)
        return HttpReply.json({"object": "response.input_tokens", "input_tokens": count})

    def _compact(self, client: ClientRequest) -> HttpReply:
        plan = self._plan(client, envelope.compact_request(client.body))
        exchange = self.open(plan.client)
        writer = PlainCompactionWriter(self._writer(plan), complete_items(plan.input, plan.frame.id_suffix))
        return self.reply(exchange, plan.client.chat, writer)

    def _plan(self, client: ClientRequest, body: Json) -> ResponsePlan:
        config, namespace, memory = self._services.config, client.namespace, client.memory
        options = envelope.parse_options(body)
        id_suffix = secrets.token_hex(16)
        if options.previous is not None:
            memory = self._services.memory.open_response(options.previous)
        source = ResponseInput(self._services.responses, namespace, config.max_request_body_bytes)
        inherited = source.inherited_items(options)
        own = source.own_items(options, inherited)
        if options.store:
            # Completed now as they are stored, so that the next response inherits equal items.
            own = complete_items(own, id_suffix, len(inherited))
        sealer = Sealer(self._services.secret.read(), namespace)
        items = envelope.unseal([*inherited, *own], Opener(sealer, config.max_request_body_bytes), memory)
        chat_body = envelope.summary_request if options.compacts else envelope.chat_body
        chat = parse(chat_body(body, items), config, memory, server_tools.RESPONSES)
        if options.background:
            # Streamed, so that its events can be followed while it runs; never answered by the response cache.
            chat = chat._replace(stream=True, cache=False)
        frame = Frame(id_suffix, int(time.time()), chat.requested_model, options, envelope.echoed_fields(body), sealer)
        if options.store:
            memory.name(frame.response_id)
        upstream_api = RESPONSES if server_tools.has_any(chat) else CHAT
        client = client._replace(body=body, memory=memory, chat=chat, upstream_api=upstream_api)
        return ResponsePlan(client, frame, (*inherited, *own))

    def _writer(self, plan: ResponsePlan) -> ResponseWriter:
        options = plan.frame.options

        def save(response: dict[str, Any]) -> None:
            # A job saves its response itself, with all of its events.
            if options.store and not options.background:
                stored = StoredResponse(response, plan.input)
                self._services.responses.put(plan.client.namespace, stored, is_known=bool(self._report.key))

        kind = SummaryWriter if options.compacts else ResponseWriter
        return kind(plan.frame, plan.client.chat, time.monotonic, save)

    # In the background …

    def _create_in_background(self, plan: ResponsePlan) -> HttpReply:
        store = self._services.responses
        # The key is checked now, while the client reads the reply.
        self._services.access.check_call(plan.client.caller)
        self.reserve(plan.client)
        writer = self._writer(plan)
        is_known = bool(self._report.key)
        unknown_caller_bytes = 0 if is_known else plan.client.body_bytes
        # Before anything is packed.
        self._services.jobs.check(unknown_caller_bytes)
        job = Job(plan.frame.response_id, plan.client.namespace, unknown_caller_bytes)
        job.append(writer.begin_queued())
        queued = plan.frame.response(envelope.state("queued"))
        store.put(plan.client.namespace, StoredResponse(queued, plan.input), is_known=is_known)
        try:
            self._services.jobs.submit(job, lambda job: self._run(plan, writer, job))
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
            self._report.refuse("background response", error)
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
            self._services.responses.update(plan.client.namespace, response)
            job.append(last)

    def _generate(self, plan: ResponsePlan, writer: ResponseWriter, job: Job) -> bytes:
        """Append all events but the last to the job; returns the last."""
        if job.is_cancelled:
            raise errors.ClientGone
        if job.is_stopping:
            raise errors.ProxyStopping
        started = plan.frame.response(envelope.state("in_progress"))
        self._services.responses.update(plan.client.namespace, StoredResponse(started, plan.input))
        job.append(writer.start())
        with (
            closing(self.open(plan.client._replace(peer=job.peer))) as exchange,
            closing(show(exchange, plan.client.chat)) as batches,
        ):
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
                f"The history that this request goes on from is larger than {self._max_bytes} bytes. Start a new chat."
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
                        f"Item {safe_text(item_id, 100)} is not known here. Send the item itself, or go on with "
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
                        "Refer to each once, or go on with previous_response_id."
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
