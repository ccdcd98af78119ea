"""One generation, from a client's request to its last delta.

    open       look up the turns and the chat, send (which restores)      a failure is an HTTP error
    deltas     read, add up, store, forward                               a failure is an error in the stream
    close      store an incomplete turn, end the call, report

`_send` is the loop that all calls are made in: an attempt sends, and after a failure `Failover` returns the next one.
`TurnRecorder` stores each turn that is complete.

An answer that ends with neither text nor calls is discarded and the request sent once more, if no content was
forwarded. A turn or call is stored before the batch that completes it is forwarded. A client that wants a plain answer
gets nothing before its end, so that a broken one can be asked for again.
"""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, Batches, ChatRequest, Delta, Heartbeat, Message, Reply
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.chat_stream import join_stream
from deepseek_cursor_proxy.deepseek.error_messages import name_upstream
from deepseek_cursor_proxy.deepseek.history_repair import use_template_roles
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.server_tools import MESSAGES
from deepseek_cursor_proxy.deepseek.tool_definitions import outline_tools
from deepseek_cursor_proxy.deepseek.usage import Tokens, add_usage, read_usage
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamDropped, UpstreamFailed
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.failover import CALL_ERRORS, Failover, Output
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.json_codec import object_in, repair_object
from deepseek_cursor_proxy.observers.events import (
    CLIENT_LEFT,
    COMPLETED,
    DIGEST_LENGTH,
    End,
    Finished,
    Progress,
    Received,
    Repair,
    Timing,
)
from deepseek_cursor_proxy.protocols.tools import echoed_message
from deepseek_cursor_proxy.reasoning import echoes, server_turns
from deepseek_cursor_proxy.reasoning.chats import ChatTracker, PromptTokens, sort_tools
from deepseek_cursor_proxy.reasoning.echoes import find_turns
from deepseek_cursor_proxy.reasoning.identity import details_key
from deepseek_cursor_proxy.reasoning.restore import FoundTurns, PreparedRequest, prepare
from deepseek_cursor_proxy.redaction import SHORTEST_SECRET, hide_secret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore


class Exchange:
    """One generation. Used by one thread at a time; must be closed."""

    @classmethod
    def open(cls, client: ClientRequest, services: Services) -> "Exchange":
        """Prepare the request and send it; raises a ProxyError or ClientGone, and then nothing is left open."""
        exchange = cls(client, services)
        try:
            exchange._failover.check_key()
            exchange._send()
        except BaseException as error:
            exchange.fail(error)
            raise
        return exchange

    def __init__(self, client: ClientRequest, services: Services) -> None:
        """Look up the turns of the request, and find its upstreams; raises a ProxyError if there are none."""
        self.is_closed = False
        self._services = services
        self._report = report = client.report
        found, self._tracker = self._find(client)
        # Codex leaves out all tools when it compacts a chat: they are put back, so that the prompt stays cached.
        if (tools := self._tracker.left_out) is not None:
            client.chat = tools.restore(client.chat)
            client.upstream_api = tools.api if tools.server_tools else client.upstream_api
            found, self._tracker = self._find(client)
            self._tracker.has_old_tools = True
        report.conversation = report.conversation or found.history.conversation.hex()[:DIGEST_LENGTH]
        self._client = client
        self._failover = Failover(client, found, self._tracker, services)
        self._started = time.monotonic()
        try:
            self._attempt = self._failover.new_attempt()
        except BaseException:
            self._failover.end(was_complete=False)
            raise
        request = self._attempt.request
        self._is_streamed = request.stream
        # Never reset: what was forwarded of an answer that failed stays so.
        self._first_delta: float | None = None
        # Whether anything was yielded, even if only a heartbeat.
        self._has_output = False
        self._logprobs = client.logprobs if request.params.get("logprobs") else None
        # The usage of an empty turn after which the request was sent again.
        self._discarded: Mapping[str, Any] | None = None
        # Unless the answer is completed or fails.
        self._end = CLIENT_LEFT
        # Of a call that was sent, but not accepted by the time its client left.
        self._connect_seconds: float | None = None
        # Whether the request was noted, and the form of it that was noted last.
        self._is_noted = False
        self._noted: PreparedRequest | None = None

    def _find(self, client: ClientRequest) -> tuple[FoundTurns, ChatTracker]:
        """The turns of the request that are stored, and the request in its chat."""
        services = self._services
        find = services.reasoning_store.finder(client.namespace)
        found = find_turns(client.namespace, client.chat, find, client.memory)
        return found, ChatTracker(found.request, found.history, services.chats, client.upstream_api)

    def _send(self) -> None:
        """Make calls until an upstream accepts one; `Failover` decides what follows a failure, or raises the error.

        A call that fails is judged as if nothing had been forwarded. What was is no reason to give up: whatever led
        here, an empty turn or the table, found that the client can take another answer.
        """
        while True:
            try:
                self._attempt.send(self._note)
                self._note()
                break
            except CALL_ERRORS as error:
                self._note()
                self._attempt = self._failover.next_attempt(self._attempt, error)
        if not self._attempt.is_cached:
            self._failover.record_acceptance()

    def _note(self) -> None:
        """Emit what was done for the request so far. Idempotent.

        An exchange first sends its request; what it did is emitted while DeepSeek thinks, or before any other wait.
        """
        if not self._is_noted:
            self._is_noted = True
            self._begin_answer()
            client, report, request = self._client, self._report, self._attempt.request
            self._tracker.compare()
            report.emit(Received(report.number, request, client.body, report.body_bytes, report.key, self.progress))
        prepared = self._attempt.prepared
        if prepared is not None and prepared is not self._noted:
            self._noted = prepared
            self._attempt.note(prepared)

    def deltas(self) -> Batches:
        """The answer as it arrives, up to its finish_reason; otherwise raises the ProxyError."""
        batches = self._deltas()
        if self._client.wants_completion:
            batches = join_stream(batches, has_server_tools=bool(self._attempt.request.server_tools))
        return batches

    def _deltas(self) -> Batches:
        try:
            while True:
                try:
                    if not (yield from self._read()):
                        break
                    self._attempt.close(was_complete=True)
                    self._discarded = self._reply.usage or {}
                except ProxyError as error:
                    # An error after the finish_reason does not matter: the client has the whole answer.
                    if self._reply.is_finished:
                        break
                    self._attempt = self._failover.next_attempt(self._attempt, error, self._output, in_answer=True)
                self._begin_answer()
                self._send()
            self._end = COMPLETED
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def _read(self) -> Generator[Batch, None, bool]:
        """The answer to the current attempt, added up and stored as it arrives. Returns whether to ask again."""
        held: Batch = []
        is_plain = self._client.is_plain
        with closing(self._attempt.read()) as steps:
            for events in steps:
                self._add_up(events.batch)
                if events.must_store_first:
                    if self._reply.is_finished and self._attempt.response is not None:
                        self._attempt.response.end_soon()
                    if self._can_repeat():
                        # Only the usage can follow; the stream may as well break.
                        with suppress(ProxyError):
                            for rest in steps:
                                self._add_up(rest.batch)
                        return True
                    self._recorder.record_complete(events.batch, self._attempt)
                if events.batch:
                    self._has_output = True
                if is_plain and self._is_held_back:
                    held += events.batch
                    yield [Heartbeat()]
                elif events.batch:
                    yield [*held, *events.batch] if held else events.batch
                    held = []
                if events.problem is not None:
                    raise events.problem
        if self._is_streamed and not self._reply.is_finished:
            raise UpstreamDropped("DeepSeek ended the answer without finishing it. Try again.")
        if (cache := self._client.cache) is not None:
            tokens = read_usage(self._reply.usage) if self._reply.usage is not None else None
            cache.store_answer(self._reply, tokens, self._cost(tokens, time.time()))
        return False

    def progress(self) -> Progress:
        """The progress of the request. Called by any thread."""
        age = time.monotonic() - self._started
        facts = self._report.facts(self._attempt.request)
        return Progress(facts, age, self.is_sent, self._reply.size, self._first_delta)

    @property
    def cache_state(self) -> str:
        """The value of the header X-Cache: hit or miss; "" if the request does not use the response cache."""
        return self._client.cache.state if self._client.cache is not None else ""

    @property
    def is_sent(self) -> bool:
        """Whether an upstream accepted the request."""
        return self._attempt.response is not None and not self._attempt.is_cached

    def notice(self, choice: int = 0) -> str:
        """The notice before the answer; final once the answer has begun."""
        return self._attempt.prepared.notice if self._attempt.prepared is not None else ""

    def _can_repeat(self) -> bool:
        """Whether the answer ended with neither text nor calls, and a retry may help: an agent would stop."""
        config, reply = self._services.config, self._reply
        if reply.finish_reason != "stop" or not reply.has_no_answer:
            return False
        if config.repair_turns == "off" or not config.retry_budget or self._discarded is not None:
            return False
        # Thinking that was forwarded cannot be taken back.
        is_whole = self._client.is_plain or not self._is_streamed
        return not self._attempt.is_cached and (is_whole or self._output < Output.CONTENT)

    def _begin_answer(self) -> None:
        """Begin with the first answer, or with another one: no content of the last was forwarded."""
        self._reply = reply = Reply()
        self._recorder = TurnRecorder(reply, self._services.reasoning_store, self._client.namespace)
        if self._logprobs is not None:
            self._logprobs.clear()

    def _add_up(self, batch: Batch) -> None:
        reply = self._reply
        for item in batch:
            if isinstance(item, Delta):
                reply.add(item)
                if self._logprobs is not None:
                    self._logprobs.add(item)
                if self._first_delta is None:
                    self._first_delta = time.monotonic() - self._started
        if reply.size > Reply.MAX_CHARACTERS and not reply.is_finished:
            raise UpstreamFailed(
                f"DeepSeek's answer is longer than {Reply.MAX_CHARACTERS} characters. Start a new chat."
            )

    @property
    def _is_held_back(self) -> bool:
        """Whether the client gets nothing yet: until a plain answer is whole, the request may be sent again."""
        return self._client.is_plain and not self._reply.is_finished

    @property
    def _output(self) -> Output:
        """What of the answer was forwarded."""
        if self._is_held_back:
            return Output.NOTHING
        if not self._reply.is_empty:
            return Output.CONTENT
        if self._first_delta is not None:
            return Output.DELTAS
        return Output.HEARTBEATS if self._has_output and self._is_streamed else Output.NOTHING

    def fail(self, error: BaseException) -> None:
        """End the exchange because its consumer failed: the answer could not be written for the client."""
        if not self.is_closed:
            self._fail(error)
            self.close()

    def _fail(self, error: BaseException) -> None:
        self._end = End.of(error)
        if isinstance(error, ClientGone):
            self._connect_seconds = error.connect_seconds
        if isinstance(error, ProxyError):
            name_upstream(error, self._attempt.upstream.name)
            credential = self._attempt.credential
            # The upstream's text may quote the key it was called with.
            if self._attempt.has_owner_key or len(credential) >= SHORTEST_SECRET:
                error.hide(credential)
            self._end = self._end._replace(message=hide_secret(error.message, credential))

    def close(self) -> None:
        """Idempotent. Also ends an exchange whose deltas were never read."""
        if self.is_closed:
            return
        self.is_closed = True
        attempt, is_complete = self._attempt, self._end is COMPLETED
        is_cached = attempt.is_cached
        try:
            self._note()
            # The user pressed Stop, or the stream broke: the reasoning so far is worth keeping.
            if attempt.response is not None:
                self._recorder.record_rest(attempt)
        finally:
            try:
                # Release the slot even if storing raised.
                attempt.close(was_complete=is_complete)
                self._failover.end(was_complete=is_complete and not is_cached)
            finally:
                usage = self._reply.usage
                # Of this answer alone, without a discarded one before it.
                tokens = read_usage(usage) if usage is not None else None
                finished = self._finished_event(tokens)
                self._report.end(finished)
        if is_cached:
            # A cached answer says nothing new about the upstream.
            return
        if tokens is not None:
            prompt = PromptTokens(tokens.prompt, tokens.hit, finished.upstream, finished.facts.model)
            self._tracker.record_tokens(prompt)
        if is_complete:
            attempt.upstream.learn(
                self._reply, has_thinking=attempt.request.thinking, was_transcript=attempt.was_refused_for_reasoning
            )

    def _finished_event(self, tokens: Tokens | None) -> Finished:
        attempt, reply, facts = self._attempt, self._reply, self._report.facts(self._attempt.request)
        seconds, reasons = time.monotonic() - self._started, self._failover.retries.reasons
        written, repair = attempt.written_calls, None
        if self._discarded is not None or (written is not None and written.calls):
            calls, markup = (written.calls, written.markup) if written is not None else ((), ())
            repair = Repair(tuple(calls), tuple(markup), self._discarded is not None)
        usage = reply.usage
        if self._discarded:
            usage = add_usage(usage or {}, self._discarded)
            tokens = read_usage(usage)
        connect = attempt.response.connect_seconds if attempt.response is not None else self._connect_seconds
        timing = Timing(seconds, self._first_delta, attempt.queue_seconds, connect)
        message = None if reply.is_empty else reply.message()
        upstream, divergence, last_prompt = attempt.upstream.name, self._tracker.divergence, self._tracker.last_prompt
        if attempt.is_cached:
            # A cached answer says nothing about DeepSeek's prefix cache.
            upstream, divergence, last_prompt = "", None, None
        cost = self._cost(tokens, facts.started_at + seconds)
        mixed_names = reply.other_reasoning_names if reply.has_mixed_names else ()
        # In the order of the fields: with names it takes twice as long.
        return Finished(
            facts, self._end, timing, message, reply.finish_reason, usage, upstream, attempt.is_cached,
            attempt.prepared, len(reasons), divergence, tokens, last_prompt, cost, mixed_names, (),
            tuple(reasons), tuple(self._failover.rerouted), repair,
        )  # fmt: skip

    def _cost(self, tokens: Tokens | None, at: float) -> Cost | None:
        """The cost of an answer that ended at this Unix time; None if no usage or no price is known."""
        if tokens is None:
            return None
        attempt, lost = self._attempt, 0
        if attempt.is_cached:
            return Cost(0.0, 0.0, 0.0, self._services.prices.currency, "")
        if self._tracker.divergence is not None and (last := self._tracker.last_prompt) is not None:
            lost = max(0, min(last.total, tokens.prompt) - tokens.hit)
        model, is_deepseek = attempt.request.model, attempt.upstream.may_be_deepseek
        return self._services.prices.cost(model, tokens, at, is_deepseek=is_deepseek, lost_tokens=lost)


_Entry = tuple[Sequence[bytes], str]


class TurnRecorder:
    """Stores the turns of one reply. Used by the thread that runs the exchange.

    a turn that ended        when its finish_reason is read, before the client sees it
    a turn with a call       when its first call is whole: some clients run a call as soon as they have all of it;
                             further calls are stored with the end, until then the first one leads to the reasoning
    an interrupted turn      when the exchange closes, as far as it came; and once more without an incomplete call,
                             because clients drop that

    A turn of a tool loop is in the file before the client continues: DeepSeek insists on its reasoning. Any other turn
    may reach the file a moment later.
    """

    def __init__(self, reply: Reply, store: ReasoningStore, namespace: bytes = b"") -> None:
        self._reply = reply
        self._store = store
        self._namespace = namespace
        # Whether the turn was stored when it ended, and with its first call.
        self._has_ended = self._has_called = False
        # Exact keys and texts; a turn stored with its call may get more reasoning until it ends.
        self._stored: set[tuple[bytes, str]] = set()

    def record_complete(self, batch: Batch, attempt: Attempt) -> None:
        """Store what this batch, which is part of the reply by now, completes."""
        if self._has_ended:
            return
        if self._reply.is_finished:
            self._has_ended = True
            self._record([self._reply.message()], attempt)
        elif not self._has_called and any(isinstance(item, Delta) and item.may_end_call for item in batch):
            message = self._reply.message()
            if all(rules.is_whole_call(call) for call in message.tool_calls):
                self._has_called = True
                self._record([message], attempt)

    def record_rest(self, attempt: Attempt) -> None:
        """Store the interrupted turn."""
        if not self._has_ended and not self._reply.is_empty:
            self._has_ended = True
            message = self._reply.message()
            whole = tuple(call for call in message.tool_calls if rules.is_whole_call(call))
            has_incomplete = bool(whole) and len(whole) < len(message.tool_calls)
            turns = [message, message._replace(tool_calls=whole)] if has_incomplete else [message]
            self._record(turns, attempt)

    def _record(self, turns: Sequence[Message], attempt: Attempt) -> None:
        """Store the reasoning of turns, under the keys of every form in which the client may echo them."""
        prepared, host = attempt.prepared, attempt.api.host
        assert prepared is not None
        # Whether an answer without reasoning means that the model thought nothing.
        is_sure = host.silence_means_no_thinking or (host.requires_reasoning and not attempt.request.thinking)
        if not (is_sure or turns[0].reasoning or self._reply.has_empty_reasoning()):
            return
        extras: list[_Entry] = []
        for turn in turns:
            if turn.details is not None and turn.reasoning:
                extras.append(((details_key(self._namespace, turn.reasoning),), turn.details))
        forms = self._echoed_forms(turns, prepared.request)
        has_calls = bool(turns[0].tool_calls)
        names = outline_tools(prepared.request.tools).digests if has_calls else ()
        new: list[_Entry] = []
        for form in forms:
            echo = echoed_message(form, prepared.request.custom_tools, names) if has_calls else form
            keys, reasoning = prepared.history.answer_keys(echo), echo.reasoning or ""
            # Most turns with calls are stored with their first call, and get no reasoning after it.
            if (keys.exact, reasoning) not in self._stored:
                self._stored.add((keys.exact, reasoning))
                new.append(((*keys.record_keys(), *echoes.record_keys(keys, echo)), reasoning))
            if echo.server_items is not None:
                extras.append((server_turns.record_keys(self._namespace, echo, keys), echo.server_items))
        if new:
            # Each text once, under all its keys: one turn may be echoed in several forms.
            keys_of: dict[str, tuple[bytes, ...]] = {}
            for record_keys, text in new + extras:
                keys_of[text] = (*keys_of.get(text, ()), *record_keys)
            merged = [(record_keys, text) for text, record_keys in keys_of.items()]
            is_searched = forms[0].server_items is not None
            can_wait = not (has_calls or is_searched or rules.is_in_tool_loop(prepared.request.messages))
            self._store.record(merged, can_wait=can_wait, caller=self._namespace)

    def _echoed_forms(self, turns: Sequence[Message], request: ChatRequest) -> list[Message]:
        """The turns, and after them the other forms in which the client may echo them."""
        forms = [*turns]
        # Many clients send no search back.
        forms += [form._replace(server_items=None) for form in forms if form.server_items is not None]
        if request.client_api == MESSAGES and any(form.tool_calls for form in forms):
            forms += [other for form in forms for other in _with_objects(form)]
        return forms


def _with_objects(turn: Message) -> list[Message]:
    """The turn with what clients of Messages echo in place of invalid arguments: a repair, or an empty object."""
    invalid = {call.arguments for call in turn.tool_calls if object_in(call.arguments) is None}
    if not invalid:
        return []
    found = []
    for objects in ({text: json.dumps(repair_object(text)) for text in invalid}, dict.fromkeys(invalid, "{}")):
        calls = [call._replace(arguments=objects.get(call.arguments, call.arguments)) for call in turn.tool_calls]
        found.append(turn._replace(tool_calls=tuple(calls)))
    return found


def prepare_request(namespace: bytes, request: ChatRequest, services: Services) -> ChatRequest:
    """The request about as it would be sent, for counting its tokens: restored and repaired, in roles and order."""
    found = find_turns(namespace, request, services.reasoning_store.finder(namespace))
    prepared = prepare(found.request, found, services.config.missing_reasoning_strategy).request
    host = services.upstreams.serving(request.model)[0].upstream.host
    return sort_tools(use_template_roles(prepared, host))
