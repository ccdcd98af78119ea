"""Responses with state: made, kept, asked for again, deleted, and run in the background.

How an answer comes about is generation's part. Here is what stands around it: the history it goes on from is read from
the store, and what came of it is in the store before its last event is visible. Whoever asks for another caller's
response is told that there is none.
"""

import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.api import plain_reply
from deepseek_cursor_proxy.api.chat import Generation, Stream, failure
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW
from deepseek_cursor_proxy.deepseek.responses_api import RESPONSES
from deepseek_cursor_proxy.errors import (
    BadRequest,
    ClientGone,
    NotFound,
    ProxyError,
    ProxyStopping,
    TooLarge,
    UpstreamFailed,
    UpstreamRefused,
)
from deepseek_cursor_proxy.exchange.background_jobs import Job, JobEvents
from deepseek_cursor_proxy.exchange.upstream_call import CallContext, GenerationRequest
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.protocols.request.fields import Json
from deepseek_cursor_proxy.protocols.responses import compaction, envelope
from deepseek_cursor_proxy.protocols.responses import stored as responses_listing
from deepseek_cursor_proxy.protocols.responses.envelope import Frame, Wanted
from deepseek_cursor_proxy.protocols.responses.writer import ResponseWriter, SummaryWriter, error_code
from deepseek_cursor_proxy.reasoning.sealed import Opener, Sealer
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage import event_log
from deepseek_cursor_proxy.storage.responses import StoredResponse

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange
    from deepseek_cursor_proxy.exchange.exchange import Exchange

# A cancelled call ends within moments; whoever cancelled it hears of it then, or that it is on its way.
_CANCEL_SECONDS = 5.0


@dataclass(frozen=True)
class Planned:
    """A response that is to be made: for whom, in what frame, with which items as its input, what DeepSeek is asked."""

    caller: Caller
    context: CallContext
    frame: Frame
    input: tuple[Json, ...]
    asked: GenerationRequest

    def writer(self) -> ResponseWriter:
        kind = SummaryWriter if self.frame.wanted.compacts else ResponseWriter
        return kind(self.frame, self.asked.request, time.monotonic)


class Responding:
    """Called by handler threads and those of jobs; holds nothing that changes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._services = generation.services
        self._store = generation.services.responses
        # Of what a request only names: stored items, and what its envelopes hold.
        self._most = generation.services.config.max_request_body_bytes

    # Making one …

    def create(self, request: HttpRequest) -> HttpReply:
        caller = self._services.access.admit(request)
        raw = request.read_body()
        body = self._generation.decoded(raw)
        passed = self._generation.passed_on(request, caller, body, raw, "/responses")
        if passed is not None:
            return passed
        planned = self._planned(caller, self._generation.call_context(caller, request.peer), body, len(raw))
        wanted = planned.frame.wanted
        if wanted.background:
            return self._in_background(planned, request.peer)
        try:
            exchange = self._generation.opened(caller, planned.context, planned.asked)
        except UpstreamRefused as refusal:
            if wanted.stream and error_code(refusal) == OVERFLOW:
                return self._overflow(planned, refusal)
            raise
        if wanted.stream:
            return HttpReply.events(Stream(self._events(planned, exchange), exchange))
        return plain_reply.reply(self._made(planned, exchange), exchange, failure)

    def _overflow(self, planned: Planned, refusal: UpstreamRefused) -> HttpReply:
        """A stream that only fails: Codex reads this code in an event alone, and tells a 400 as a bug."""
        writer = planned.writer()
        events = writer.begin() + writer.fail(refusal)
        self._kept(planned, writer)
        return HttpReply.events(events)

    def _planned(self, caller: Caller, context: CallContext, body: dict[str, Any], size: int) -> Planned:
        wanted = envelope.wanted(body)
        mark = secrets.token_hex(16)
        inherited = self._inherited(context.namespace, wanted)
        own = self._own(context.namespace, wanted, {item.get("id"): item for item in inherited})
        if wanted.store:
            # Read as they will be inherited, so that they are the very same then.
            own = responses_listing.listed(own, mark, len(inherited))
        sealer = Sealer(self._services.secret.read(), context.namespace)
        chat_body = compaction.summary_request if wanted.compacts else envelope.conversation
        inside = chat_body(body, envelope.unsealed([*inherited, *own], Opener(sealer, self._most)))
        chat = parse.parse(inside, self._services.config)
        if wanted.background:
            # So that it can be followed while it runs.
            chat = chat._replace(stream=True)
        frame = Frame(mark, int(time.time()), chat.requested_model, wanted, envelope.fields(body), sealer)
        return Planned(
            caller, context, frame, (*inherited, *own), GenerationRequest(chat, body, size, self._upstream_api())
        )

    def _upstream_api(self) -> UpstreamApi:
        return RESPONSES if self._services.config.responses_upstream == "native" else CHAT

    def _inherited(self, namespace: bytes, wanted: Wanted) -> list[Json]:
        """What was asked and answered before this."""
        if wanted.previous is None:
            return []
        found = self._store.get(namespace, wanted.previous, with_events=False)
        if found is None:
            raise NotFound(
                f"Previous response {safe_text(wanted.previous, 100)} is not known here: it was never stored, has been "
                "deleted, is too old, or belongs to another key. Send the whole history as input instead.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        if found.body["status"] in ("queued", "in_progress"):
            raise BadRequest(
                "The previous response is still being made. Wait until it is finished.", param="previous_response_id"
            )
        if found.json_bytes > self._most:
            raise TooLarge(
                f"The history that this request goes on from is larger than {self._most} bytes. Start a new chat."
            )
        return [*found.input, *found.body["output"]]

    def _own(self, namespace: bytes, wanted: Wanted, known: dict[Any, Json]) -> list[Json]:
        """The input of this request, with the items it only refers to."""
        outputs: dict[str, list[Json]] = {}
        own: list[Json] = []
        room = _Room(self._most)
        for index, item in enumerate(wanted.items):
            if item.get("type") == "item_reference" and item.get("id") in known:
                own.append(room.take(known[item["id"]]))
                continue
            referred = envelope.reference(item, f"input[{index}]")
            if referred is None:
                own.append(item)
                continue
            if referred.response_id not in outputs:
                found = self._store.get(namespace, referred.response_id, with_events=False)
                outputs[referred.response_id] = [] if found is None else found.body["output"]
            if referred.index >= len(outputs[referred.response_id]):
                raise envelope.unknown_item(item)
            own.append(room.take(outputs[referred.response_id][referred.index]))
        return own

    def _made(self, planned: Planned, exchange: "Exchange | ChoicesExchange") -> plain_reply.Steps:
        writer, is_late = planned.writer(), False
        told = self._generation.told(planned.asked.request, exchange, with_lulls=False)
        try:
            for _ in plain_reply.signs_of_life(told, writer.write, self._services.config.heartbeat_interval):
                is_late = True
                yield None
            writer.end()
        except ClientGone:
            raise
        except Exception as error:
            if not is_late:
                raise
            # Too late for a status, but this API has words for it.
            writer.fail(failure(error))
        yield self._kept(planned, writer)

    def _events(self, planned: Planned, exchange: "Exchange | ChoicesExchange") -> Iterator[bytes]:
        writer = planned.writer()
        try:
            yield writer.begin()
            try:
                yield from self._generation.written(planned.asked.request, exchange, writer.write)
                last = writer.end()
            except ClientGone:
                raise
            except Exception as error:
                last = writer.fail(failure(error))
            self._kept(planned, writer)
            yield last
        finally:
            if writer.response is None:
                # Nobody is there to be told; who comes back for it finds what there is.
                writer.cancel()
                self._kept(planned, writer)

    def _kept(self, planned: Planned, writer: ResponseWriter) -> dict[str, Any]:
        """The finished response, which is stored if it is to be."""
        assert writer.response is not None
        if planned.frame.wanted.store:
            self._store.put(planned.context.namespace, StoredResponse(writer.response, planned.input))
        return writer.response

    # … of its length or its summary alone …

    def input_tokens(self, request: HttpRequest) -> HttpReply:
        caller = self._services.access.admit(request)
        raw = request.read_body()
        body = self._generation.decoded(raw)
        passed = self._generation.passed_on(request, caller, {**body, "stream": False}, raw, "/responses/input_tokens")
        if passed is not None:
            return passed
        planned = self._planned(caller, self._generation.call_context(caller, request.peer), body, len(raw))
        count = self._services.counter.count(planned.asked.request)
        return HttpReply.json({"object": "response.input_tokens", "input_tokens": count})

    def compact(self, request: HttpRequest) -> HttpReply:
        caller = self._services.access.admit(request)
        raw = request.read_body()
        body = self._generation.decoded(raw)
        passed = self._generation.passed_on(request, caller, {**body, "stream": False}, raw, "/responses/compact")
        if passed is not None:
            return passed
        context = self._generation.call_context(caller, request.peer)
        planned = self._planned(caller, context, compaction.compact_request(body), len(raw))
        exchange = self._generation.opened(caller, context, planned.asked)
        return plain_reply.reply(self._compacted(planned, exchange), exchange, failure)

    def _compacted(self, planned: Planned, exchange: "Exchange | ChoicesExchange") -> plain_reply.Steps:
        for made in self._made(planned, exchange):
            yield None if made is None else self._compaction(planned, made)

    def _compaction(self, planned: Planned, made: dict[str, Any]) -> dict[str, Any]:
        if made["error"] is not None:
            raise UpstreamFailed(made["error"]["message"])
        items = responses_listing.listed(planned.input, planned.frame.mark)
        return {
            "id": made["id"],
            "object": "response.compaction",
            "created_at": made["created_at"],
            "output": compaction.compacted_items(items, made["output"]),
            "usage": made["usage"] or envelope.usage({}),
        }

    # … in the background …

    def _in_background(self, planned: Planned, peer: Peer | None) -> HttpReply:
        namespace, writer = planned.context.namespace, planned.writer()
        # The key is looked at now, while somebody is there to be told.
        self._services.access.check_call(planned.caller)
        job = Job(planned.frame.response_id, namespace)
        job.say(writer.queued())
        queued = planned.frame.response(envelope.state("queued"))
        self._store.put(namespace, StoredResponse(queued, planned.input))
        try:
            self._services.jobs.submit(job, lambda job: self._run(planned, writer, job))
        except ProxyError:
            self._store.delete(namespace, planned.frame.response_id)
            raise
        return HttpReply.events(self._followed(job, peer)) if planned.frame.wanted.stream else HttpReply.json(queued)

    def _followed(self, job: Job, peer: Peer | None) -> JobEvents:
        return job.follow(peer, self._services.config.heartbeat_interval)

    def _run(self, planned: Planned, writer: ResponseWriter, job: Job) -> None:
        try:
            last = self._outcome(planned, writer, job)
        except ProxyError as error:
            last = writer.fail(error)
        except ClientGone:
            last = writer.cancel()
        except BaseException:
            last = writer.fail(UpstreamFailed("The proxy failed unexpectedly while making this response."))
            raise
        finally:
            assert writer.response is not None
            stored = StoredResponse(writer.response, planned.input, job.packed(last))
            self._store.update(planned.context.namespace, stored)
            job.say(last)

    def _outcome(self, planned: Planned, writer: ResponseWriter, job: Job) -> bytes:
        """Have it made, by way of the job; the last event."""
        if job.is_cancelled:
            raise ClientGone
        if job.is_stopping:
            raise ProxyStopping
        started = planned.frame.response(envelope.state("in_progress"))
        self._store.update(planned.context.namespace, StoredResponse(started, planned.input))
        job.say(writer.start())
        context = planned.context._replace(peer=job.peer)
        with (
            closing(self._generation.opened(planned.caller, context, planned.asked)) as exchange,
            closing(self._generation.told(planned.asked.request, exchange, with_lulls=False)) as shown,
        ):
            for batch in shown:
                job.say(writer.write(batch))
        return writer.end()

    # Coming back to one …

    def retrieve(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self._namespace(request)
        number = responses_listing.starting_after(request.query)
        # In this order: a job that ends meanwhile is in the store by then, and one that was deleted is not.
        job = self._services.jobs.find(namespace, response_id) if number is not None else None
        found = self._found(namespace, response_id, with_events=number is not None and job is None)
        if number is None:
            return HttpReply.json(found.body)
        if job is not None:
            return HttpReply.events(_Rest(self._followed(job, request.peer), number))
        if found.events is None and found.body["background"] and found.body["status"] == "failed":
            return HttpReply.events(responses_listing.last_events(found.body, number))
        if found.events is None:
            raise BadRequest("Only a response that was made in the background can be streamed again.", param="stream")
        return HttpReply.events(_Rest(event_log.unpack(found.events), number))

    def input_items(self, request: HttpRequest, response_id: str) -> HttpReply:
        found = self._found(self._namespace(request), response_id)
        return HttpReply.json(responses_listing.page(found.input, request.query))

    def delete(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self._namespace(request)
        job = self._services.jobs.find(namespace, response_id)
        if not self._store.delete(namespace, response_id):
            raise _unknown(response_id)
        if job is not None:
            # Nobody can ask for what it would say.
            self._services.jobs.cancel(job)
        return HttpReply.json({"id": response_id, "object": "response.deleted", "deleted": True})

    def cancel(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self._namespace(request)
        if not self._found(namespace, response_id).body["background"]:
            raise BadRequest("Only a response that is made in the background can be cancelled.", param="response_id")
        job = self._services.jobs.find(namespace, response_id)
        if job is not None:
            self._services.jobs.cancel(job)
            job.wait(_CANCEL_SECONDS)
        return HttpReply.json(self._found(namespace, response_id).body)

    def _namespace(self, request: HttpRequest) -> bytes:
        return self._generation.call_context(self._services.access.admit(request), None).namespace

    def _found(self, namespace: bytes, response_id: str, *, with_events: bool = False) -> StoredResponse:
        found = self._store.get(namespace, response_id, with_events=with_events)
        if found is None:
            raise _unknown(response_id)
        return found


class _Room:
    """How much a request may refer to: forty bytes name an item of megabytes, and may stand there many times."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._sizes: dict[int, int] = {}

    def take(self, item: Json) -> Json:
        """The item, if there is room for it; TooLarge otherwise. The caller keeps it alive."""
        if id(item) not in self._sizes:
            self._sizes[id(item)] = len(encode_json(item))
        self._left -= self._sizes[id(item)]
        if self._left < 0:
            raise TooLarge(
                f"The items that this request refers to are larger than {self._most} bytes together. Refer to each "
                "once, or go on with previous_response_id."
            )
        return item


class _Rest:
    """The events of a job, or of one that is over, behind those that a client has already."""

    wait_handle = None
    is_over = False

    def __init__(self, events: JobEvents | Generator[bytes, None, None], number: int) -> None:
        self._events = events
        self._number = number

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._events:
            if rest := responses_listing.events_behind(piece, self._number):
                yield rest

    def close(self) -> None:
        self._events.close()


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"Response {safe_text(response_id, 100)} is not known here: it was never stored, has been deleted, is too old, "
        "or belongs to another key.",
        code="response_not_found",
    )
