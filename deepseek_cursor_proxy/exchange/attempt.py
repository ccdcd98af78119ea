"""Attempt: a request as one upstream gets it, and the call that is made with it.

    send     restore the history, encode the body, wait for a slot, send, read the head of the response
    read     the answer as parsed events
    close    end the call

A request keeps the tools that DeepSeek runs itself, such as web search, as long as the upstream may run them. Without
them, a request that needed another API only for their sake goes to chat completions. After a refusal `failover` changes
the form: turns in doubt become a transcript, or refused tools are left out. For another upstream it makes a new
attempt, because that host may need another form.

The events of a stream are forwarded in an order in which no delta waits for slow work:

    first event alone       the first event is parsed and forwarded alone: hundreds may have arrived with it
    cheap before durable    a piece that completes an answer or a call is stored before it is forwarded; its events
                            before the completing one are forwarded without that wait

A Heartbeat travels in a batch of its own.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Heartbeat
from deepseek_cursor_proxy.deepseek import rules, server_tools
from deepseek_cursor_proxy.deepseek.api import CHAT, with_server_tools
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents, Read, read_own_names, restore_names
from deepseek_cursor_proxy.deepseek.error_messages import is_overflow
from deepseek_cursor_proxy.deepseek.history_repair import use_template_roles
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm
from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, WrittenCalls
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import Target
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.net.wait import Action
from deepseek_cursor_proxy.observers.events import Restored, Sent
from deepseek_cursor_proxy.reasoning import server_turns
from deepseek_cursor_proxy.reasoning.chats import ChatTracker, sort_tools
from deepseek_cursor_proxy.reasoning.restore import FoundTurns, PreparedRequest, prepare
from deepseek_cursor_proxy.upstream.client import Call
from deepseek_cursor_proxy.upstream.response import StreamedResponse, UpstreamResponse

UpstreamEvents = Generator[ParsedEvents, None, None]


class Attempt:
    """Used by the thread that runs the generation."""

    def __init__(
        self, client: ClientRequest, found: FoundTurns, tracker: ChatTracker, target: Target, services: Services
    ) -> None:
        """The request as the target gets it, without tools that this upstream does not run."""
        self._client = client
        self._found = found
        self._tracker = tracker
        self._services = services
        self.target = target
        self.upstream = target.upstream
        self.credential = client.credential if target.lease is None else target.lease.key.credential
        # Whether that is a key of the owner, held or leased (see ClientRequest).
        self.has_owner_key = client.has_held_key or target.lease is not None
        request = found.request
        if target.model != request.model:
            request = request._replace(model=target.model)
        # The API that the client's API, or a tool that DeepSeek runs itself, needs; not every upstream has it.
        self._wanted_api = client.upstream_api
        # Its host has the form that answers have shown; that of the upstream is as the settings have it.
        self.api = self.upstream.api(self._wanted_api, request)
        self._is_beta = rules.needs_beta(request)
        if self._is_beta and (self.upstream.beta_url is None or self.api.path != CHAT.path):
            request, self._is_beta = rules.without_beta(request), False
        self.request = request
        # Without the feature, chat completions would refuse them.
        if self._has_server_parts and not (services.search_apis and self.upstream.runs_server_tools):
            self._remove_server_tools()
        # Whether it is sent again, with a transcript, because the upstream missed the reasoning of turns.
        self.was_refused_for_reasoning = False
        # Types of tools that the upstream refused.
        self._refused_tools: tuple[str, ...] = ()
        # The request with its reasoning, and the same as it is sent, in the form of the upstream's API.
        self._restored: PreparedRequest | None = None
        self.prepared: PreparedRequest | None = None
        # Set once the upstream accepts, or to a cached answer.
        self.response: StreamedResponse | None = None
        self.is_cached = False
        # Seconds the calls of the request waited for slots; None before the first.
        self.queue_seconds: float | None = None
        self.started = time.monotonic()
        # The calls that were made again before this one.
        self.retries = 0
        # The event of the accepted call, until it is emitted.
        self._sent: Sent | None = None
        # Converts calls that the model writes as text, once the answer is read.
        self.written_calls: WrittenCalls | None = None

    # The form of the request …

    def use_transcript(self) -> None:
        """Prepare the history as a transcript where its reasoning may be missing.

        Raises MissingReasoning if the setting `missing_reasoning_strategy` rejects transcripts.
        """
        assert self.prepared is not None
        self.was_refused_for_reasoning = True
        if not self.api.host.requires_reasoning:
            # If the upstream answers now, it does require reasoning: what was learned about it is wrong.
            chat = self.upstream.strict_chat_api
            self.api = with_server_tools(chat) if self.request.server_tools else chat
        strategy = self._services.config.missing_reasoning_strategy
        self._prepare(prepare(self.request, self._found, strategy, refused=self.prepared))

    def leave_out_tools(self) -> None:
        """Prepare the request without the tools that the upstream refused."""
        assert self._restored is not None
        # A history may have searches where the request has no tool for more.
        self._refused_tools = tuple(sorted({tool["type"] for tool in self.request.server_tools} or {"searches"}))
        self._remove_server_tools()
        self._prepare(self._restored._replace(request=server_tools.leave_out(self._restored.request)))

    def _remove_server_tools(self) -> None:
        """Raises BadRequest if the request forces one."""
        self.request = server_tools.leave_out(self.request)
        self._wanted_api = CHAT
        self.api = self.upstream.api(self._wanted_api, self.request)

    def _prepare(self, restored: PreparedRequest) -> None:
        """Bring the request into the form of the upstream's API, and its tools in order."""
        self._restored = prepared = restored
        client = self._client
        find = self._found.find
        if self.api.host.form is ReasoningForm.DETAILS:
            prepared = server_turns.add_details(prepared, client.namespace, find, client.memory)
        if self.api.runs_server_tools:
            prepared = server_turns.complete(prepared, client.namespace, find, client.memory)
        prepared.check_size(max(rules.MAX_BODY_BYTES, self._services.config.max_request_body_bytes))
        request = use_template_roles(sort_tools(prepared.request), self.api.host, client.memory)
        self.prepared = prepared if request is prepared.request else prepared._replace(request=request)

    def note(self, prepared: PreparedRequest) -> None:
        """Emit how the request was prepared, and keep it in mind: a client that leaves now asks again."""
        client, tracker, refused = self._client, self._tracker, self._refused_tools
        facts = self.was_refused_for_reasoning, self.api, tracker.divergence, refused, tracker.has_old_tools
        client.report.emit(Restored(client.report.number, prepared, *facts))
        client.memory.keep()

    @property
    def _has_server_parts(self) -> bool:
        """Whether the request has tools that DeepSeek runs itself or, in another API than usual, their items."""
        return bool(self.request.server_tools) or self._wanted_api is not CHAT

    def refuses_tools(self, error: ProxyError, *, in_answer: bool) -> bool:
        """Whether the call may have failed because of tools that DeepSeek runs itself.

        An error inside an answer counts for hosts of unknown kind only: DeepSeek reports a failing tool so.
        """
        if not self._has_server_parts:
            return False
        is_unknown = self.upstream.host.is_learning
        if in_answer:
            is_failure = is_unknown and isinstance(error, UpstreamFailed)
            return is_failure and server_tools.mentions_tools(error.message, self.request)
        is_refusal = isinstance(error, (UpstreamRefused, UpstreamFailed)) and not isinstance(error, UpstreamDropped)
        if not is_refusal or is_overflow(error):
            return False
        # 200: the body was not a stream; web servers answer so at any path.
        status = error.status if isinstance(error, UpstreamRefused) else 200
        return server_tools.is_refusal(self.request, status, error.message, is_unknown=is_unknown)

    # The call …

    def send(self, note: Action) -> None:
        """Have the upstream accept the request: one slot, one connection, the head of one response.

        With the response cache there may be an answer already. `note` runs before the first wait.
        """
        client, services = self._client, self._services
        if self.prepared is None:
            # A host that does not insist on reasoning gets no transcript; it leaves fillers out (`chat_api`).
            strategy = services.config.missing_reasoning_strategy if self.api.host.requires_reasoning else "placeholder"
            self._prepare(prepare(self.request, self._found, strategy, client.memory))
        assert self.prepared is not None
        body = self.api.encode(self.prepared.request, client.memory)
        api = self.api
        destination = self.upstream.destination(api.path, is_unversioned=api.is_unversioned, is_beta=self._is_beta)
        if client.cache is not None:
            self.response = client.cache.find(client.namespace, destination.url, body)
            self.is_cached = self.response is not None
        if not self.is_cached:
            limit = services.upstream_client.call_limits.of(self.upstream.limit_name(self.request.model))
            started = time.monotonic()
            try:
                slot = limit.acquire(client.peer, client.namespace, note)
            finally:
                self.queue_seconds = (self.queue_seconds or 0.0) + time.monotonic() - started
            call = Call(destination, self.credential, body, client.peer, note)
            response = services.upstream_client.send(call, slot)
            self.response = response
            if self.has_owner_key:
                response.hide(self.credential)
            if self.request.stream:
                response.raise_unless_stream()
        payload, seconds = partial(self.api.payload, self.prepared.request), time.monotonic() - self.started
        name = self.upstream.name if self.upstream.table is not None else ""
        self._sent = Sent(client.report.number, payload, len(body), seconds, self.retries, name)

    def record_sent(self) -> None:
        """Record the request and emit `Sent`, before the answer ends and the client can send the next. Idempotent.

        The tracker records a hit of the response cache like any other request of its chat; `Sent` is not emitted.
        """
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._tracker.record()
            if not self.is_cached:
                self._client.report.emit(sent)

    def close(self, *, was_complete: bool = False) -> None:
        """Idempotent."""
        self.record_sent()
        if self.response is not None:
            self.response.close(was_complete=was_complete)

    # Its answer …

    def read(self) -> UpstreamEvents:
        """The events of the response."""
        assert self.response is not None
        request = self.request
        open_written_calls = self._services.open_written_calls
        self.written_calls = written = open_written_calls(self._services, self._client, request, self.upstream)
        if isinstance(self.response, UpstreamResponse) and not request.stream:
            # The first wait for DeepSeek may be long.
            self.record_sent()
            return read_whole(self.response, partial(self._read_answer, written))
        read: Read = self.api.open_reader().read
        if self._client.cache is not None:
            read = self._client.cache.wrap(read)
        if written is not None:
            read = partial(written.read, read)
        if request.sent_names:
            read = partial(read_own_names, read, self._own_names)
        return read_stream(self.response, read, self.record_sent)

    @property
    def _own_names(self) -> dict[str, str]:
        """The client's names of the tools that are sent under others."""
        return {sent: name for name, sent in self.request.sent_names.items()}

    def _read_answer(self, written: WrittenCalls | None, body: Mapping[str, Any]) -> list[Delta]:
        assert self.api.read_answer is not None
        deltas = self.api.read_answer(body)
        if written is not None:
            deltas = [converted for delta in deltas for converted in written.convert(delta, is_whole=True)]
        return [restore_names(delta, self._own_names) for delta in deltas] if self.request.sent_names else deltas


def read_stream(response: StreamedResponse, read: Read, record_sent: Callable[[], None]) -> UpstreamEvents:
    """The events of a streamed response up to its [DONE] or the first problem.

    `record_sent` runs while nothing has arrived yet, or after the first event was forwarded.
    """
    has_begun = False
    if not response.has_input:
        record_sent()
    with closing(response.stream()) as pieces:
        for piece in pieces:
            if not isinstance(piece, bytes):
                yield ParsedEvents([piece])
                continue
            events = read(piece)
            if events.is_progress:
                response.note_progress()
            elif events.batch or piece.isspace():
                # Nothing but comments and blank lines.
                response.note_keep_alive()
            if events.must_store_first:
                if events.early_count:
                    yield events.take_early()
                record_sent()
            yield events
            if events.is_done or events.problem:
                return
            if not has_begun:
                # After comments, or after a part of it, the first event is still to come.
                has_begun = events.is_progress
                record_sent()


def read_whole(response: UpstreamResponse, read_answer: Callable[[Mapping[str, Any]], list[Delta]]) -> UpstreamEvents:
    """The one batch of a response that is not streamed, after a Heartbeat for each of DeepSeek's keep-alives."""
    for piece in response.read_with_heartbeats():
        if isinstance(piece, Heartbeat):
            yield ParsedEvents([piece])
        else:
            yield ParsedEvents([*read_answer(decode_answer(piece))], must_store_first=True)


def decode_answer(raw: bytes) -> dict[str, Any]:
    try:
        body = decode_upstream_json(raw)
    except ValueError:
        raise UpstreamFailed("DeepSeek's answer is not JSON.") from None
    if not isinstance(body, dict):
        raise UpstreamFailed("DeepSeek's answer is not a JSON object.")
    return body
