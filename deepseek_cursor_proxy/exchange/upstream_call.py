"""The calls of one exchange: send the prepared request, send it again while that can help, read the response.

Three failures are worth another call, and only while the client has nothing of an answer: those that pass by themselves
(DeepSeek is busy, a connection broke), the refusal of a history for missing reasoning, which is sent once more with the
turns in doubt as a transcript, and the refusal of tools that DeepSeek runs itself, as web search: the request is sent
without them, and so are those that follow. Any other is raised as it is. Where there are several upstreams, `failover`
says which of them is asked next; the request is prepared anew for each, because its host may want it otherwise.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader
from deepseek_cursor_proxy.deepseek.error_messages import explain, name_upstream
from deepseek_cursor_proxy.deepseek.hosts import Form
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.deepseek.tools.call_names import OwnNameReader, restore_names
from deepseek_cursor_proxy.errors import (
    ProxyError,
    QueueFull,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange import upstream_events
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.request_report import RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_request import UpstreamRequest
from deepseek_cursor_proxy.exchange.upstreams.upstreams import Upstream
from deepseek_cursor_proxy.observers.events import Rerouted, Restored, Sent
from deepseek_cursor_proxy.reasoning import server_turns
from deepseek_cursor_proxy.reasoning.chats.divergence import Divergence
from deepseek_cursor_proxy.reasoning.chats.tracker import ChatTracker
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, add_details, prepare, prepare_second_attempt
from deepseek_cursor_proxy.reasoning.store_match import StoredTexts
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from deepseek_cursor_proxy.upstream.retry import Retries

if TYPE_CHECKING:
    from deepseek_cursor_proxy.deepseek.tools.written_calls import WrittenCalls
    from deepseek_cursor_proxy.exchange.response_cache.replay import ReplayedResponse
    from deepseek_cursor_proxy.exchange.upstreams.failover import Failover


class UpstreamCall:
    """The calls of one exchange, and the response of the last. Used by the thread that runs the exchange."""

    def __init__(
        self, report: RequestReport, context: CallContext, generation: GenerationRequest, services: Services
    ) -> None:
        self._report = report
        self._context = context
        self._services = services
        self._generation = generation
        # With several upstreams, the way through them.
        self._failover: Failover | None = None
        if (only := services.upstreams.only) is not None:
            self._use(only, generation.request)
        else:
            # Only here: most proxies have one upstream, and are smaller without.
            from deepseek_cursor_proxy.exchange.upstreams.failover import open_failover

            self._failover = open_failover(context, generation, services)
            self._use_current(self._failover)
        self._started = time.monotonic()
        self._slot = context.slot
        self.retries = Retries(services.config.retry_budget)
        # The upstreams that failed, for which others were asked.
        self.rerouted: list[str] = []
        self._history: History | None = None
        self._stored: StoredTexts = {}
        self.tracker: ChatTracker | None = None
        # The event of the accepted call, until it is emitted.
        self._sent: Sent | None = None
        self.prepared: PreparedRequest | None = None
        self._response: UpstreamResponse | ReplayedResponse | None = None
        # Whether the answer is one of the response cache; see CachedUpstreamCall.
        self.is_cached = False
        # Waited for slots, by all calls; None as long as none was asked for.
        self.queue_seconds: float | None = None

    def _use(self, upstream: Upstream, request: ChatRequest) -> None:
        """Send the request to this upstream from now on, without tools that it does not run."""
        is_native = self._services.config.responses_upstream == "native"
        is_native = is_native and request.client_api == server_tools.RESPONSES
        wanted_api = self._generation.upstream_api
        self.upstream_request = UpstreamRequest.of(upstream, request, wanted_api, is_native=is_native)
        self._is_second_attempt = False
        if not self.upstream_request.can_run_tools(self._context.namespace):
            self.upstream_request = self.upstream_request.without_server_tools()

    def _use_current(self, failover: "Failover") -> None:
        candidate = failover.current.candidate
        self._use(candidate.upstream, self._generation.request._replace(model=candidate.model))

    @property
    def upstream(self) -> Upstream:
        return self.upstream_request.upstream

    @property
    def request(self) -> ChatRequest:
        """As it is sent, without tools that the upstream does not run."""
        return self.upstream_request.request

    @property
    def connect_seconds(self) -> float | None:
        """How long the connection of the accepted call took; 0 if it was open already."""
        return self._response.connect_seconds if self._response is not None else None

    @property
    def divergence(self) -> Divergence | None:
        """Where the request parted from the last one of its chat, if it did."""
        return self.tracker.divergence if self.tracker is not None else None

    def learn(self, reply: Reply) -> None:
        """Learn from a complete answer how its upstream writes reasoning."""
        self.upstream.host_choice.learn(reply, has_thinking=self.request.thinking)

    @property
    def credential(self) -> str:
        """The key that the upstream is called with: the owner's for it, or that of the request."""
        lease = self._failover.current.lease if self._failover is not None else None
        return self._context.credential if lease is None else lease.key.credential

    @property
    def has_owner_key(self) -> bool:
        """Whether no client may see the key."""
        return self._context.is_held or self.credential is not self._context.credential

    @property
    def is_accepted(self) -> bool:
        """Whether there is an answer, if only to break off: DeepSeek accepted the request, or it is a cached one."""
        return self._response is not None

    def send(self, history: History, stored: StoredTexts, tracker: ChatTracker) -> None:
        """Have an upstream accept the request; raises a ProxyError or ClientGone otherwise."""
        self._history, self._stored, self.tracker = history, stored, tracker
        if self._failover is not None:
            self._failover.check_key()
        self._send_anywhere()

    def _send_anywhere(self) -> None:
        """Send to the current upstream, and to the others as long as that can help."""
        while True:
            try:
                return self._send_here()
            except (UpstreamRefused, UpstreamFailed, UpstreamTimeout, QueueFull) as error:
                if self._failover is None:
                    raise
                if not self._move(error):
                    raise self._final_error(error) from None

    def _final_error(self, error: ProxyError) -> ProxyError:
        assert self._failover is not None
        return self._failover.final_error(self._explain(error) if isinstance(error, UpstreamRefused) else error)

    def _move(self, error: ProxyError) -> bool:
        """Turn to the next upstream after this error; whether there is one."""
        assert self._failover is not None
        failed, peer = self.upstream.name, self._context.peer
        self.close()
        if not self._failover.move(error, lambda soonest: self.retries.wait(soonest, peer)):
            return False
        self._use_current(self._failover)
        if self.upstream.name != failed:
            self.rerouted.append(failed)
            reason = self._failover.failures[failed]
            self._report.emit(Rerouted(self._report.number, failed, reason, self.upstream.name))
        return True

    def _send_here(self) -> None:
        assert self._history is not None
        # A host that does not insist on reasoning gets the history as it is.
        requires = self.upstream_request.api.host.requires_reasoning
        strategy = self._services.config.missing_reasoning_strategy if requires else "placeholder"
        prepared = prepare(self.request, self._history, self._stored, strategy, self._services.memory)
        try:
            self._send_or_recover(prepared)
        except (UpstreamRefused, UpstreamFailed) as error:
            if not self.upstream_request.is_refusal_of_tools(error):
                raise
            refused, request = self.upstream_request.api, self.request
            self._send_without_server_tools(prepared)
            # Without them it works; after an error of a server that may have been luck.
            if not isinstance(error, UpstreamRefused) or error.status not in (500, 502):
                self.upstream.host_choice.record_refused_tools(refused, request, self._context.namespace)

    def _send_or_recover(self, prepared: PreparedRequest) -> None:
        try:
            self._send(prepared)
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            self._send_second_attempt()

    def read(self, *, with_lulls: bool) -> upstream_events.UpstreamEvents:
        """The events of the response; with lulls a stream leaves it to its consumer to wait for DeepSeek."""
        assert self._response is not None
        if isinstance(self._response, UpstreamResponse) and not self.request.stream:
            self.record_sent()
            return upstream_events.read_whole(self._response, self._read_answer)
        if not with_lulls:
            # The first wait for DeepSeek may be long.
            self.record_sent()
        reader = self._open_reader()
        if (written := self._open_written_calls()) is not None:
            reader = written.reader(reader)
        if self.request.sent_names:
            reader = OwnNameReader(reader, self.request.sent_names)
        return upstream_events.read_stream(self._response, reader, self.record_sent, with_lulls=with_lulls)

    def _open_reader(self) -> EventReader:
        return self.upstream_request.api.open_reader()

    def _read_answer(self, body: Mapping[str, Any]) -> list[Delta]:
        deltas = self.upstream_request.api.read_answer(body)
        if (written := self._open_written_calls()) is not None:
            deltas = [each for delta in deltas for each in written.convert(delta, "message")]
        return restore_names(deltas, self.request.sent_names) if self.request.sent_names else deltas

    def _open_written_calls(self) -> "WrittenCalls | None":
        """What makes calls of those that the model writes as text; None if that does not happen here."""
        request, choice = self.request, self.upstream.host_choice
        if not request.tools or request.tool_choice == "none":
            return None
        if request.server_tools or self.upstream_request.api.path != CHAT.path:
            # DeepSeek runs tools itself there, and reads what its models write.
            return None
        if not self._context.reads_written_calls and not choice.may_write_calls:
            return None
        # Only here: few upstreams have no parser for calls, and the proxy is smaller without.
        from deepseek_cursor_proxy.deepseek.tools.written_calls import WrittenCalls

        return WrittenCalls(request, lambda: f"call_{secrets.token_hex(12)}", choice.record_structured_call)

    def end_soon(self) -> None:
        assert self._response is not None
        self._response.end_soon()

    def call_again(self, error: ProxyError, *, has_output: bool, has_delta: bool, has_content: bool) -> bool:
        """Make the call once more if that can help; whether it was made.

        A refusal inside a good answer, as some gateways send it, gets a second attempt if the client has no content. A
        failure that passes by itself is retried only as long as the client has no output at all; another upstream is
        asked as long as the client has no more than heartbeats.
        """
        if self._failover is not None and not _is_reasoning_refusal(error):
            return self._call_elsewhere(error, has_delta=has_delta)
        if not isinstance(error, UpstreamFailed):
            return False
        assert self.prepared is not None
        if _is_reasoning_refusal(error):
            if has_content:
                raise _still_refused()
            self.close()
            self._send_second_attempt()
            return True
        if not has_output and self.upstream_request.is_refusal_in_answer(error):
            self._send_without_server_tools(self.prepared)
            return True
        if has_output or not self._wait_for_retry(error):
            return False
        try:
            self._transmit(self.prepared)
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            self._send_second_attempt()
        return True

    def _call_elsewhere(self, error: ProxyError, *, has_delta: bool) -> bool:
        assert self._failover is not None
        name_upstream(error, self.upstream.name)
        if has_delta:
            self._failover.record_failure(error)
            return False
        if self._wait_for_retry(error) or self._move(error):
            self._send_anywhere()
            return True
        final = self._failover.final_error(error)
        try:
            if final is not error:
                raise final
            return False
        finally:
            # An error that is held by the frame it was raised in is freed by the collector only.
            del final, error

    def record_sent(self) -> None:
        """Record and report that DeepSeek accepted, before the answer ends and the client goes on. Idempotent."""
        if self._sent is not None and self.tracker is not None:
            sent, self._sent = self._sent, None
            self.tracker.record()
            if not self.is_cached:
                self._report.emit(sent)

    def end(self, *, was_complete: bool, has_left: bool) -> None:
        """The exchange is over: its client has the answer, or left, or got an error."""
        self.close(was_complete=was_complete)
        if self._failover is not None:
            self._failover.end(was_complete=was_complete and not self.is_cached)

    def close(self, *, was_complete: bool = False) -> None:
        self.record_sent()
        if self._response is not None:
            self._response.close(was_complete=was_complete)

    def _wait_for_retry(self, error: ProxyError) -> bool:
        """Whether the call may be made again after this error; the wait until then is over."""
        # First, so that others can have the slot meanwhile.
        self.close()
        if self._failover is not None and not self._failover.stays(error):
            return False
        return self.retries.wait(error, self._context.peer)

    def _send(self, prepared: PreparedRequest) -> None:
        assert self.tracker is not None
        find, memory = self._services.reasoning_store.find, self._services.memory
        if self.upstream_request.api.host.form is Form.DETAILS:
            prepared = add_details(prepared, self._context.namespace, find, memory)
        if self.upstream_request.api.runs_server_tools:
            prepared = server_turns.complete(prepared, self._context.namespace, find, memory)
        prepared.check_size(max(rules.MAX_BODY_BYTES, self._services.config.max_request_body_bytes))
        self.prepared = self.tracker.order_tools(prepared)
        self._report.emit(
            Restored(
                self._report.number,
                self.prepared,
                self._is_second_attempt,
                self.upstream_request.api,
                self.divergence,
                self.upstream_request.refused_tools,
            )
        )
        self._transmit(self.prepared)

    def _transmit(self, prepared: PreparedRequest) -> None:
        self._transmit_body(prepared, self.upstream_request.api.encode(prepared.request, self._services.memory))

    def _transmit_body(self, prepared: PreparedRequest, body: bytes) -> None:
        self._response = response = self._send_with_retries(body)
        if prepared.request.stream:
            response.raise_unless_stream()
        self._sent = self._sent_event(prepared, len(body))
        if self._failover is not None:
            self._failover.record_acceptance()
            self._sent = self._sent._replace(upstream=self.upstream.name)

    def _sent_event(self, prepared: PreparedRequest, size: int) -> Sent:
        payload = partial(self.upstream_request.api.payload, prepared.request)
        return Sent(self._report.number, payload, size, time.monotonic() - self._started, self.retries.count)

    def _send_with_retries(self, body: bytes) -> UpstreamResponse:
        while True:
            try:
                slot, destination = self._acquire_slot(), self.upstream_request.destination
                response = self._services.upstream.send(destination, body, self.credential, self._context.peer, slot)
                if self.has_owner_key:
                    response.hide(self.credential)
                return response
            except (UpstreamRefused, UpstreamDropped) as error:
                if not self._wait_for_retry(error):
                    if isinstance(error, UpstreamRefused) and self._failover is None:
                        raise self._explain(error) from None
                    # Among several upstreams it is explained when none is left.
                    raise

    def _acquire_slot(self) -> Slot:
        slot, self._slot = self._slot, None
        limit = self._services.upstream.call_limits.of(self.upstream.limit_name(self.request.model))
        started = time.monotonic()
        try:
            if slot is not None and slot.limit is not limit:
                # It was acquired for the upstream that was asked first.
                slot.release()
                slot = None
            if slot is None:
                (slot,) = limit.acquire(self._context.peer)
            return slot
        finally:
            self.queue_seconds = (self.queue_seconds or 0.0) + time.monotonic() - started

    def _explain(self, refusal: UpstreamRefused) -> ProxyError:
        if refusal.status == 401 and self._context.is_held and self.credential is self._context.credential:
            # As a 401 it would send people to look at a key that has nothing to do with it.
            return UpstreamFailed(
                "DeepSeek does not accept the key of this proxy. Its owner has to set DEEPSEEK_API_KEY anew and start "
                "it again.",
                code="held_key_refused",
            )
        return explain(refusal, len(self.request.tools), self.upstream.name)

    def _send_without_server_tools(self, prepared: PreparedRequest) -> None:
        """Send the request without tools that the upstream refused."""
        self.close()
        self.upstream_request = self.upstream_request.without_refused_tools()
        self._send_or_recover(prepared._replace(request=server_tools.leave_out(prepared.request)))

    def _send_second_attempt(self) -> None:
        """Send the history as a transcript where its reasoning may be missing; once per exchange."""
        assert self.prepared is not None
        if self._is_second_attempt:
            raise _still_refused()
        self._is_second_attempt = True
        if not self.upstream_request.api.host.requires_reasoning:
            # What was learned of the upstream is wrong.
            self.upstream.host_choice.record_required_reasoning()
            self.upstream_request = self.upstream_request.with_current_api()
        strategy = self._services.config.missing_reasoning_strategy
        try:
            self._send(prepare_second_attempt(self.request, self._stored, self.prepared, strategy))
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            raise _still_refused() from None


def _still_refused() -> UpstreamFailed:
    return UpstreamFailed(
        "DeepSeek keeps refusing this history, even with the doubtful turns as a transcript. Start a new chat.",
        code="reasoning_refused",
    )


def _is_reasoning_refusal(error: ProxyError) -> bool:
    status = error.status if isinstance(error, UpstreamRefused) else 400
    return rules.is_reasoning_refusal(status, error.message)
