"""The calls of one exchange: send the prepared request, send it again while that can help, read the response.

One loop sends. After a failure, `next_step` says what follows, `plan` has paused or turned to the next upstream or key,
and this file brings the request into the form of the next call: as it is; with the turns in doubt as a transcript; or
without the tools that DeepSeek runs itself, as web search. For another upstream it is prepared anew, because its host
may want it otherwise. An answer that breaks before the client has any of it is followed by the same loop.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, OwnNameReader, restore_names
from deepseek_cursor_proxy.deepseek.error_messages import explain, name_upstream
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange import upstream_events
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.next_step import CALL_ERRORS, Next, Output, name_refusal
from deepseek_cursor_proxy.exchange.plan import open_plan
from deepseek_cursor_proxy.exchange.request_report import RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_request import UpstreamRequest
from deepseek_cursor_proxy.exchange.upstreams.upstreams import Upstream
from deepseek_cursor_proxy.observers.events import Rerouted, Restored, Sent
from deepseek_cursor_proxy.reasoning import server_turns
from deepseek_cursor_proxy.reasoning.chats.tracker import ChatTracker
from deepseek_cursor_proxy.reasoning.echoes import FoundTurns
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, add_details, prepare, prepare_second_attempt
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

if TYPE_CHECKING:
    from deepseek_cursor_proxy.deepseek.tools.written_calls import WrittenCalls
    from deepseek_cursor_proxy.deepseek.usage import Tokens
    from deepseek_cursor_proxy.exchange.response_cache.replay import ReplayedResponse
    from deepseek_cursor_proxy.usage.prices import Cost


class UpstreamCall:
    """The calls of one exchange, and the response of the last. Used by the thread that runs the exchange."""

    def __init__(
        self,
        report: RequestReport,
        context: CallContext,
        generation: GenerationRequest,
        found: FoundTurns,
        services: Services,
    ) -> None:
        """`found` is the request of the client, with what is stored for its turns."""
        self._report = report
        self._context = context
        self._services = services
        self._generation = generation
        self._found = found
        self.tracker = ChatTracker(found.request, found.history, services.chats, services.config.tool_order)
        self.plan = open_plan(context, generation, services)
        self._use_current()
        self._started = time.monotonic()
        self._slot = context.slot
        # The upstreams that failed, for which others were asked.
        self.rerouted: list[str] = []
        # The event of the accepted call, until it is emitted.
        self._sent: Sent | None = None
        # The request with its reasoning, and the same as it is sent, in the form of the upstream's API.
        self._restored: PreparedRequest | None = None
        self.prepared: PreparedRequest | None = None
        self._response: UpstreamResponse | ReplayedResponse | None = None
        # Whether the answer is one of the response cache; see CachedUpstreamCall.
        self.is_cached = False
        # Waited for slots, by all calls; None as long as none was asked for.
        self.queue_seconds: float | None = None

    def _use_current(self) -> None:
        """Send the request to the current upstream from now on, without tools that it does not run."""
        (upstream, model), _ = self.plan.current
        request = self._found.request
        if model != request.model:
            request = request._replace(model=model)
        is_native = self._services.config.responses_upstream == "native"
        is_native = is_native and request.client_api == server_tools.RESPONSES
        wanted_api = self._generation.upstream_api
        self.upstream_request = UpstreamRequest.of(upstream, request, wanted_api, is_native=is_native)
        self._is_second_attempt = False
        # The request whose tools the upstream refused, until it accepts the one without.
        self._refused_request: UpstreamRequest | None = None
        if not self.upstream_request.can_run_tools(self._context.namespace):
            self.upstream_request = self.upstream_request.without_server_tools()

    @property
    def upstream(self) -> Upstream:
        return self.upstream_request.upstream

    @property
    def request(self) -> ChatRequest:
        """As it is sent, without tools that the upstream does not run."""
        return self.upstream_request.request

    @property
    def cache_state(self) -> str:
        """What the response cache has to do with the answer, in the word of its header; "" if it is not used."""
        return ""

    @property
    def connect_seconds(self) -> float | None:
        """How long the connection of the accepted call took; 0 if it was open already."""
        return self._response.connect_seconds if self._response is not None else None

    def learn(self, reply: Reply) -> None:
        """Learn from a complete answer how its upstream writes reasoning."""
        choice = self.upstream.host_choice
        if self._is_second_attempt and not choice.chat_api().host.requires_reasoning:
            choice.record_required_reasoning()
        choice.learn(reply, has_thinking=self.request.thinking)

    @property
    def is_accepted(self) -> bool:
        """Whether there is an answer, if only to break off: DeepSeek accepted the request, or it is a cached one."""
        return self._response is not None

    def send(self) -> None:
        """Have an upstream accept the request; raises a ProxyError or ClientGone otherwise."""
        self.plan.check_key()
        self._restore()
        self._send_until_accepted()

    def _send_until_accepted(self) -> None:
        while True:
            try:
                self._send_once()
                break
            except CALL_ERRORS as error:
                refuses_tools = self.upstream_request.is_refusal_of_tools(error)
                if not self._take_next_step(error, Output.NOTHING, refuses_tools=refuses_tools):
                    raise self.final_error(error) from None
        if (refused := self._refused_request) is not None:
            self._refused_request = None
            self.upstream.host_choice.record_refused_tools(refused.api, refused.request, self._context.namespace)

    def call_again(self, error: ProxyError, output: Output) -> bool:
        """Make the call again after its answer broke, if that can help; else the client gets the `final_error`."""
        name_upstream(error, self.upstream.name)
        # Of several upstreams the next one is asked instead.
        refuses_tools = self.plan.is_only and self.upstream_request.is_refusal_in_answer(error)
        if not self._take_next_step(error, output, refuses_tools=refuses_tools):
            return False
        # An upstream that accepted these tools is not remembered as one that refuses them.
        self._refused_request = None
        self._send_until_accepted()
        return True

    def _take_next_step(self, error: ProxyError, output: Output, *, refuses_tools: bool) -> bool:
        """Prepare the call that follows a failure; False if none does."""
        # First, so that others can have the slot meanwhile.
        self.close()
        failed = self.upstream.name
        step = self.plan.after(error, output, is_transcript=self._is_second_attempt, refuses_tools=refuses_tools)
        if step is Next.GIVE_UP:
            return False
        if step is Next.TRANSCRIPT:
            self._use_transcript()
        elif step is Next.WITHOUT_TOOLS:
            self._leave_out_tools(error)
        elif step is not Next.RETRY:
            self._use_current()
            if self.upstream.name != failed:
                self.rerouted.append(failed)
                reason = self.plan.failures[failed]
                self._report.emit(Rerouted(self._report.number, failed, reason, self.upstream.name))
            self._restore()
        return True

    def final_error(self, error: ProxyError, output: Output = Output.NOTHING) -> ProxyError:
        """The error that the client gets when no call follows."""
        error = name_refusal(error)
        if isinstance(error, UpstreamRefused):
            error = self._explain(error)
        return self.plan.final_error(error) if output <= Output.HEARTBEATS else error

    def _explain(self, refusal: UpstreamRefused) -> ProxyError:
        if refusal.status == 401 and self._context.is_held and self.plan.current.lease is None:
            # As a 401 it would send people to look at a key that has nothing to do with it.
            return UpstreamFailed(
                "DeepSeek does not accept the key of this proxy. Its owner has to set DEEPSEEK_API_KEY anew and start "
                "it again.",
                code="held_key_refused",
            )
        return explain(refusal, len(self.request.tools), self.upstream.name)

    # The forms of a request …

    def _restore(self) -> None:
        """Restore the reasoning of the history, as the upstream needs it."""
        # A host that does not insist on reasoning gets the history as it is.
        requires = self.upstream_request.api.host.requires_reasoning
        strategy = self._services.config.missing_reasoning_strategy if requires else "placeholder"
        self._prepare(prepare(self.request, self._found.history, self._found.stored, strategy, self._services.memory))

    def _use_transcript(self) -> None:
        """Have the history sent as a transcript where its reasoning may be missing."""
        assert self.prepared is not None
        self._is_second_attempt = True
        if not self.upstream_request.api.host.requires_reasoning:
            # What was learned of the upstream is wrong, if it answers now.
            self.upstream_request = self.upstream_request.with_strict_api()
        strategy = self._services.config.missing_reasoning_strategy
        self._prepare(prepare_second_attempt(self.request, self._found.stored, self.prepared, strategy))

    def _leave_out_tools(self, error: ProxyError) -> None:
        """Have the request sent without the tools that the upstream refused."""
        assert self._restored is not None
        # Without them it works; after an error of a server that may have been luck.
        is_sure = not isinstance(error, UpstreamRefused) or error.status not in (500, 502)
        self._refused_request = self.upstream_request if is_sure else None
        self.upstream_request = self.upstream_request.without_refused_tools()
        self._prepare(self._restored._replace(request=server_tools.leave_out(self._restored.request)))

    def _prepare(self, restored: PreparedRequest) -> None:
        """Bring the request into the form of the upstream's API, and its tools in order."""
        self._restored = prepared = restored
        form, find, memory = self.upstream_request, self._services.reasoning_store.find, self._services.memory
        if form.api.host.form is ReasoningForm.DETAILS:
            prepared = add_details(prepared, self._context.namespace, find, memory)
        if form.api.runs_server_tools:
            prepared = server_turns.complete(prepared, self._context.namespace, find, memory)
        prepared.check_size(max(rules.MAX_BODY_BYTES, self._services.config.max_request_body_bytes))
        self.prepared = self.tracker.order_tools(prepared)
        number, is_second, divergence = self._report.number, self._is_second_attempt, self.tracker.divergence
        self._report.emit(Restored(number, self.prepared, is_second, form.api, divergence, form.refused_tools))

    # One call …

    def _send_once(self) -> None:
        assert self.prepared is not None
        self._transmit(self.upstream_request.api.encode(self.prepared.request, self._services.memory))

    def _transmit(self, body: bytes) -> None:
        """Make one call: a slot, a connection, the head of a response."""
        slot, destination, credential = self._acquire_slot(), self.upstream_request.destination, self.plan.credential
        response = self._services.upstream.send(destination, body, credential, self._context.peer, slot)
        self._response = response
        if self.plan.has_owner_key:
            response.hide(credential)
        if self.request.stream:
            response.raise_unless_stream()
        self._sent = self._sent_event(len(body))
        self.plan.record_acceptance()

    def _sent_event(self, size: int) -> Sent:
        assert self.prepared is not None
        payload = partial(self.upstream_request.api.payload, self.prepared.request)
        seconds, upstream = time.monotonic() - self._started, "" if self.plan.is_only else self.upstream.name
        return Sent(self._report.number, payload, size, seconds, self.plan.retries.count, upstream)

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

    # Its answer …

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

    def store_answer(self, reply: Reply, tokens: "Tokens | None", cost: "Cost | None") -> None:
        """Have the response cache keep an answer that came to its end, if it is used."""

    def end_soon(self) -> None:
        assert self._response is not None
        self._response.end_soon()

    def record_sent(self) -> None:
        """Record and report that DeepSeek accepted, before the answer ends and the client goes on. Idempotent."""
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self.tracker.record()
            if not self.is_cached:
                self._report.emit(sent)

    def end(self, *, was_complete: bool, has_left: bool) -> None:
        """The exchange is over: its client has the answer, or left, or got an error."""
        self.close(was_complete=was_complete)
        self.plan.end(was_complete=was_complete and not self.is_cached)

    def close(self, *, was_complete: bool = False) -> None:
        self.record_sent()
        if self._response is not None:
            self._response.close(was_complete=was_complete)
