"""One generation, from a client's request to its last delta.

    open       identify, look up, restore, track the chat, send       any failure is a plain HTTP error
    deltas     read, add up, remember, hand on                        any failure is an error in the stream
    close      store an incomplete turn, end the call, report

A turn or call is stored before the batch that completes it is handed on.
"""

import time

from deepseek_cursor_proxy.conversation import Batches, ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.apis.chat_stream import ParsedEvents
from deepseek_cursor_proxy.deepseek.error_messages import name_upstream
from deepseek_cursor_proxy.deepseek.tools import answer_calls
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs, Tokens, read_usage
from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamFailed
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.next_step import Output
from deepseek_cursor_proxy.exchange.recorder import TurnRecorder
from deepseek_cursor_proxy.exchange.request_report import RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_call import UpstreamCall
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull
from deepseek_cursor_proxy.observers.events import (
    CLIENT_LEFT,
    COMPLETED,
    End,
    Finished,
    Progress,
    Received,
    RequestFacts,
    Timing,
)
from deepseek_cursor_proxy.reasoning.chats.store import PromptTokens
from deepseek_cursor_proxy.reasoning.chats.tracker import ChatTracker
from deepseek_cursor_proxy.reasoning.echoes import FoundTurns, find_turns
from deepseek_cursor_proxy.reasoning.restore import prepare
from deepseek_cursor_proxy.redaction import SHORTEST_SECRET, redact_keys
from deepseek_cursor_proxy.usage.prices import Cost


class Exchange:
    """One generation. Used by one thread at a time; must be closed."""

    @classmethod
    def open(cls, context: CallContext, generation: GenerationRequest, services: Services) -> "Exchange":
        """Prepare the request and send it; raises a ProxyError or ClientGone, and then nothing is left open."""
        find, memory = services.reasoning_store.find, services.memory
        found = find_turns(context.namespace, generation.request, find, memory, generation.client_messages)
        exchange = cls(context, generation._replace(request=found.request), found, services)
        try:
            exchange._upstream_call.send()
        except BaseException as error:
            exchange._fail(error)
            exchange.close()
            raise
        return exchange

    def deltas(self, *, with_lulls: bool = False) -> Batches:
        """The answer as it arrives; ends only after a finish_reason, else with the ProxyError that prevented it.

        With lulls its consumer waits for DeepSeek. Text that means a forced call becomes the call.
        """
        batches = self._deltas(with_lulls)
        if self._is_joined:
            # Only here: hardly any plain answer comes as a stream, and the proxy is smaller without.
            from deepseek_cursor_proxy.deepseek.apis.chat_stream import join_stream

            batches = join_stream(batches, has_server_tools=bool(self._request.server_tools))
        return answer_calls.convert_stream(batches, self._request, self._tool_call_id)

    def _deltas(self, with_lulls: bool) -> Batches:
        try:
            while True:
                try:
                    steps = self._upstream_call.read(with_lulls=with_lulls)
                    try:
                        for events in steps:
                            if isinstance(events, Lull):
                                yield events
                                continue
                            self._add(events)
                            if events.batch:
                                yield events.batch
                            if events.problem is not None:
                                events.raise_problem()
                    finally:
                        steps.close()
                    if self._request.stream and not self._reply.is_finished:
                        raise UpstreamDropped("DeepSeek ended the answer without finishing it. Try again.")
                    if self.cache_state:
                        yield BLOCKING
                        self._store_answer()
                    break
                except ProxyError as error:
                    yield BLOCKING
                    # After the finish_reason nothing can break: the client has the whole answer.
                    if self._reply.is_finished:
                        break
                    if not self._upstream_call.call_again(error, self._output):
                        # Here, not there: an error that is an argument of the frame it is raised in keeps itself
                        # alive, with megabytes of a broken answer, until the collector comes by.
                        raise self._upstream_call.final_error(error, self._output) from None
            self._end = COMPLETED
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def __init__(
        self, context: CallContext, generation: GenerationRequest, found: FoundTurns, services: Services
    ) -> None:
        """Sends nothing yet; see `open`."""
        self.is_closed = False
        self._services = services
        self._context = context
        self._report = context.report or open_report(context, generation, services)
        self._upstream_call = _call_type(generation)(self._report, context, generation, found, services)
        self._request = self._upstream_call.request
        self._started = time.monotonic()
        self._first_delta: float | None = None
        # The id of a forced call that DeepSeek writes as text.
        self._tool_call_id = answer_calls.new_call_id() if rules.is_forced(self._request.tool_choice) else ""
        self._reply = Reply()
        self._logprobs = TokenLogprobs() if self._request.params.get("logprobs") else None
        self._recorder = TurnRecorder(self._reply, services.reasoning_store, self._tool_call_id, context.namespace)
        # Whether anything of a stream was handed on, if only a heartbeat.
        self._has_output = False
        self._end = CLIENT_LEFT
        self._is_joined = generation.is_joined
        report, body = self._report, generation.body
        received = Received(report.number, self._request, body, report.body_bytes, report.key, self.progress)
        self._report.emit(received)

    def progress(self) -> Progress:
        """How far the request is; any thread may ask."""
        age = time.monotonic() - self._started
        return Progress(self._facts(), age, self.is_sent, self._reply.size, self._first_delta)

    def _facts(self) -> RequestFacts:
        prepared = self._upstream_call.prepared
        conversation = prepared.history.conversation if prepared is not None else b""
        return self._report.facts(self._upstream_call.request, conversation)

    @property
    def has_owner_key(self) -> bool:
        """Whether DeepSeek is called with a key of the owner."""
        return self._upstream_call.plan.has_owner_key

    @property
    def cache_state(self) -> str:
        """What the response cache has to do with the answer, in the word of its header; "" if it is not used."""
        return self._upstream_call.cache_state

    @property
    def is_sent(self) -> bool:
        """Whether an upstream accepted the request."""
        return self._upstream_call.is_accepted and not self._upstream_call.is_cached

    def notice(self, choice: int = 0) -> str:
        """The notice before the answer; known for sure once the answer has begun."""
        prepared = self._upstream_call.prepared
        return prepared.notice if prepared is not None else ""

    def _add(self, events: ParsedEvents) -> None:
        """Add up a batch, and store what it completes."""
        reply = self._reply
        for item in events.batch:
            if isinstance(item, Delta):
                reply.add(item)
                if self._logprobs is not None:
                    self._logprobs.add(item)
                if self._first_delta is None:
                    self._first_delta = time.monotonic() - self._started
        if reply.is_too_long and not reply.is_finished:
            raise UpstreamFailed(
                f"DeepSeek's answer is longer than {Reply.MAX_CHARACTERS} characters. Start a new chat."
            )
        if events.is_durable:
            assert self._upstream_call.prepared is not None
            self._recorder.absence_means_none = self._upstream_call.upstream_request.absence_means_none
            self._recorder.record_complete(events.batch, self._upstream_call.prepared)
            if reply.is_finished:
                self._upstream_call.end_soon()
        if events.batch and self._request.stream:
            self._has_output = True

    @property
    def _output(self) -> Output:
        """What the client has of the answer."""
        if not self._reply.is_empty:
            return Output.CONTENT
        if self._first_delta is not None:
            return Output.DELTAS
        return Output.HEARTBEATS if self._has_output else Output.NOTHING

    def _store_answer(self) -> None:
        """Have the response cache keep the answer, which is complete, with what it cost."""
        tokens = read_usage(self._reply.usage) if self._reply.usage is not None else None
        cost = self._cost(tokens, time.time()) if tokens is not None else None
        self._upstream_call.store_answer(self._reply, tokens, cost)

    def fail(self, error: Exception) -> None:
        """End the exchange for a reason that lies behind it: the answer could not be written for the client."""
        if not self.is_closed:
            self._fail(error)
            self.close()

    def _fail(self, error: BaseException) -> None:
        self._end = End.of(error)
        if isinstance(error, ProxyError):
            name_upstream(error, self._upstream_call.upstream.name)
            credential = self._upstream_call.plan.credential
            # Upstream's own words may quote the key it was called with.
            if self.has_owner_key or len(credential) >= SHORTEST_SECRET:
                error.hide(credential)
            self._end = self._end._replace(message=redact_keys(error.message.replace(credential, "***")))

    def close(self) -> None:
        """Idempotent. Also ends an exchange whose deltas were never read."""
        if self.is_closed:
            return
        self.is_closed = True
        upstream_call, is_complete = self._upstream_call, self._end is COMPLETED
        try:
            # The user pressed Stop, or the stream broke: what the model had thought by then is worth keeping.
            if upstream_call.is_accepted and upstream_call.prepared is not None:
                self._recorder.absence_means_none = upstream_call.upstream_request.absence_means_none
                self._recorder.record_rest(upstream_call.prepared)
        finally:
            try:
                # A bug of ours costs an answer, not a slot for the next one.
                upstream_call.end(was_complete=is_complete, has_left=self._end is CLIENT_LEFT)
            finally:
                finished = self._finished_event()
                self._report.end(finished)
        if upstream_call.is_cached:
            # It says nothing new about the upstream, and nothing about its prefix cache.
            return
        tokens = finished.tokens
        if tokens is not None:
            prompt = PromptTokens(tokens.prompt, tokens.hit, finished.upstream, finished.facts.model)
            upstream_call.tracker.record_tokens(prompt)
        if is_complete:
            upstream_call.learn(self._reply)
        if is_complete and upstream_call.prepared is not None:
            self._services.counter.learn(upstream_call.prepared.request, self._reply.usage)

    def _finished_event(self) -> Finished:
        upstream_call, prepared = self._upstream_call, self._upstream_call.prepared
        queue, connect = upstream_call.queue_seconds, upstream_call.connect_seconds
        facts = self._facts()
        seconds = time.monotonic() - self._started
        usage, is_cached, retry_reasons = self._reply.usage, upstream_call.is_cached, upstream_call.plan.retries.reasons
        tokens = read_usage(usage) if usage is not None else None
        # What DeepSeek has of the chat does not matter to an answer of the response cache.
        tracker = upstream_call.tracker if not is_cached else None
        # In the order of the fields: with names it takes three times as long.
        return Finished(
            facts,
            self._end,
            Timing(seconds, self._first_delta, queue, connect),
            None if self._reply.is_empty else self._reply.message(),
            self._reply.finish_reason(),
            usage,
            "" if is_cached else upstream_call.upstream.name,
            is_cached,
            prepared,
            len(retry_reasons),
            tracker.divergence if tracker is not None else None,
            tokens,
            tracker.last_prompt if tracker is not None else None,
            self._cost(tokens, facts.started_at + seconds) if tokens is not None else None,
            self._reply.foreign_names if self._reply.is_foreign and self._reply.has_mixed_names else (),
            (),
            tuple(retry_reasons),
            tuple(upstream_call.rerouted),
            self._report.caller,
            self._report.session,
            self._logprobs,
        )

    def _cost(self, tokens: Tokens, at: float) -> Cost | None:
        """What the answer cost, which ended at that Unix time; None if the price is not known."""
        upstream_call, lost = self._upstream_call, 0
        if upstream_call.is_cached:
            return Cost(0.0, 0.0, 0.0, self._services.prices.currency, "")
        tracker = upstream_call.tracker
        if tracker.divergence is not None and (last := tracker.last_prompt) is not None:
            lost = max(0, min(last.total, tokens.prompt) - tokens.hit)
        model, is_deepseek = upstream_call.request.model, upstream_call.upstream.may_be_deepseek
        return self._services.prices.cost(model, tokens, at, is_deepseek=is_deepseek, lost_tokens=lost)


def _call_type(generation: GenerationRequest) -> type[UpstreamCall]:
    if not generation.uses_cache:
        return UpstreamCall
    # Only here: most requests do not, and the proxy is smaller without.
    from deepseek_cursor_proxy.exchange.cached_call import CachedUpstreamCall

    return CachedUpstreamCall


def open_report(context: CallContext, generation: GenerationRequest, services: Services) -> RequestReport:
    """The report of an exchange that no endpoint opened."""
    report = services.open_report("chat")
    report.add_caller(context.namespace)
    report.add_body(generation.body, generation.body_bytes)
    return report


def prepare_request(namespace: bytes, request: ChatRequest, services: Services) -> ChatRequest:
    """What a request would send, without sending it: its history restored and repaired, its tools in order."""
    config, memory = services.config, services.memory
    request, history, stored = find_turns(namespace, request, services.reasoning_store.find, memory)
    prepared = prepare(request, history, stored, config.missing_reasoning_strategy, memory)
    return ChatTracker(request, history, services.chats, config.tool_order).order_tools(prepared).request
