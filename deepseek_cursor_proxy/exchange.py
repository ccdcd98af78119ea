"""The corridor: one generation, from a client's request to its last delta.

    open       identify, look up, restore (or recover), send        any failure is still a plain HTTP error
    batches    read, remember, hand on                              any failure is an error inside the stream
    close      whatever was said so far is remembered, the call is ended, observers are told

What a client saw complete is stored before the batch that completes it is handed on.
"""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy import deepseek, sse
from deepseek_cursor_proxy.continuation import Continuation
from deepseek_cursor_proxy.conversation import Aside, Batch, Batches, ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.deepseek_errors import explained
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.observers import Finished, Received, Restored, Sent
from deepseek_cursor_proxy.protocols.custom_calls import as_echoed
from deepseek_cursor_proxy.reasoning.identity import History, identify
from deepseek_cursor_proxy.reasoning.restore import Found, Prepared, prepare, prepare_again
from deepseek_cursor_proxy.retries import Retries
from deepseek_cursor_proxy.services import Services
from deepseek_cursor_proxy.upstream_answer import Answer, Item, Silence
from deepseek_cursor_proxy.wire import Peer, decode_foreign_json, encode_json

_SECRET = re.compile(r"sk-[A-Za-z0-9_-]{8,}")

COMPLETED = "completed"
CLIENT_LEFT = "client left"


@dataclass(frozen=True)
class Caller:
    """Who asks: the root of their identities, the key to call DeepSeek with, and how to notice that they left."""

    namespace: bytes
    credential: str
    peer: Peer | None = None


@dataclass(frozen=True)
class Asked:
    """A client's request, parsed and as it came."""

    request: ChatRequest
    body: Mapping[str, Any]
    body_bytes: int


class Exchange:
    """One generation. Used by one thread; must be closed."""

    def __init__(self, caller: Caller, asked: Asked, services: Services) -> None:
        self._services = services
        self._caller = caller
        self._number = next(services.numbers)
        self._started = time.monotonic()
        self._first_delta: float | None = None
        self._reply = Reply()
        self._recorded: set[int] = set()
        self._asked = asked
        self._found: Found = {}
        self._has_retried = False
        self._has_relayed = False
        self._retries = Retries(services.config.retry_budget)
        self._outcome = CLIENT_LEFT
        self._status = 499
        self._is_closed = False
        self._answer: Answer | None = None
        self._continuation: Continuation | None = None
        self.prepared: Prepared | None = None
        services.observers.notice(
            Received(self._number, caller.namespace.hex()[:12], asked.request, asked.body, asked.body_bytes)
        )

    @classmethod
    def open(cls, caller: Caller, asked: Asked, services: Services) -> "Exchange":
        """Prepare the request and send it; raises a ProxyError or ClientGone, and then nothing is left open."""
        exchange = cls(caller, asked, services)
        try:
            exchange._open(asked.request)
        except BaseException as error:
            exchange._fail(error)
            exchange.close()
            raise
        return exchange

    def _open(self, request: ChatRequest) -> None:
        history = identify(self._caller.namespace, request.messages, request.conversation)
        self._found = self._look_up(history)
        self._continuation = Continuation(
            request, history, self._services.conversations, self._services.config.tool_order
        )
        prepared = prepare(request, history, self._found, self._services.config.missing_reasoning_strategy)
        try:
            self._send(prepared)
        except UpstreamRefused as refusal:
            if not deepseek.is_reasoning_refusal(refusal.status, refusal.message):
                raise
            self._send_again()

    def _look_up(self, history: History) -> Found:
        """One query for a chat that only grew; a second for those turns that a client's edits put out of place."""
        store = self._services.reasoning_store
        found = store.find(history.exact_keys())
        if weaker := history.weaker_keys(found):
            found |= store.find(weaker)
        return found

    def _send(self, prepared: Prepared) -> None:
        assert self._continuation is not None
        prepared = self.prepared = self._continuation.place(prepared)
        self._services.observers.notice(Restored(self._number, prepared, self._has_retried))
        self._transmit(prepared)

    def _transmit(self, prepared: Prepared) -> None:
        assert self._continuation is not None
        payload = deepseek.payload(prepared.request)
        body = encode_json(payload)
        self._answer = self._call(body)
        self._continuation.accepted()
        seconds = time.monotonic() - self._started
        self._services.observers.notice(Sent(self._number, payload, len(body), seconds, self._retries.count))

    def _call(self, body: bytes) -> Answer:
        while True:
            try:
                return self._services.upstream.send(body, self._caller.credential, self._caller.peer)
            except (UpstreamRefused, UpstreamDropped) as error:
                if not self._retries.wait(error, self._caller.peer):
                    raise explained(error) if isinstance(error, UpstreamRefused) else error from None

    def _send_again(self) -> None:
        """DeepSeek misses reasoning that we thought it would do without: once more, with those turns as text."""
        assert self.prepared is not None
        self._has_retried = True
        strategy = self._services.config.missing_reasoning_strategy
        try:
            self._send(prepare_again(self._asked.request, self._found, self.prepared, strategy))
        except UpstreamRefused as refusal:
            if not deepseek.is_reasoning_refusal(refusal.status, refusal.message):
                raise
            raise UpstreamFailed(
                "DeepSeek keeps refusing this history for missing reasoning, even as a transcript. Start a new chat.",
                code="reasoning_refused",
            ) from None

    @property
    def notice(self) -> str:
        """What the client has to be told before the answer."""
        return self.prepared.notice if self.prepared is not None else ""

    # Reading the answer …

    def batches(self) -> Batches:
        """The answer as it arrives; ends only after a finish_reason, else with the ProxyError that prevented it."""
        assert self._answer is not None
        assert self.prepared is not None
        try:
            while True:
                try:
                    yield from self._read()
                    break
                except UpstreamFailed as error:
                    self._begin_again(error)
            self._outcome, self._status = COMPLETED, 200
        except (ProxyError, ClientGone) as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def _begin_again(self, error: UpstreamFailed) -> None:
        """Make the call once more if nothing of its answer was said and there is hope; else raise the error."""
        assert self._answer is not None
        assert self.prepared is not None
        # Some gateways put the refusal into a good answer.
        if self._reply.is_empty and not self._has_retried and deepseek.is_reasoning_refusal(400, error.message):
            self._answer.close()
            self._send_again()
        elif not self._has_relayed and self._retries.wait(error, self._caller.peer):
            self._answer.close()
            self._transmit(self.prepared)
        else:
            raise error

    def _read(self) -> Batches:
        assert self._answer is not None
        assert self.prepared is not None
        if self.prepared.request.stream:
            yield from self._streamed(self._answer)
        else:
            yield self._whole(self._answer)

    def _whole(self, answer: Answer) -> Batch:
        raw = answer.read()
        try:
            body = decode_foreign_json(raw)
        except ValueError:
            raise UpstreamFailed("DeepSeek's answer is not JSON.") from None
        if not isinstance(body, dict):
            raise UpstreamFailed("DeepSeek's answer is not a JSON object.")
        batch: Batch = list(deepseek.completion(body))
        self._take(batch)
        return batch

    def _streamed(self, answer: Answer) -> Batches:
        if not answer.is_event_stream:
            raise UpstreamFailed("DeepSeek answered with something that is not an event stream.")
        with closing(answer.events()) as events:
            try:
                for items in events:
                    read = _Reading(items)
                    self._take(read.batch)
                    if read.batch:
                        self._has_relayed = True
                        yield read.batch
                    if read.problem is not None:
                        raise read.problem
                    if read.is_done:
                        break
                    if self._reply.is_finished:
                        answer.hurry()
            except ProxyError:
                # Whatever breaks after the finish_reason breaks nothing: the client has the whole answer.
                if not self._reply.is_finished:
                    raise
        if not self._reply.is_finished:
            raise UpstreamDropped("DeepSeek ended the answer without finishing it. Try again.")

    def _take(self, batch: Batch) -> None:
        """Add up a batch and remember every choice it completes."""
        for item in batch:
            if not isinstance(item, Aside):
                self._reply.add(item)
                if self._first_delta is None:
                    self._first_delta = time.monotonic() - self._started
                self._identify_calls(item)
        self._remember([choice for choice in self._reply.choices if self._reply.finish_reason(choice)])

    def _identify_calls(self, delta: Delta) -> None:
        """Some clients start a call as soon as they have all of it: then its turn has to be known already."""
        if delta.calls and delta.calls[-1].arguments.endswith("}") and delta.choice not in self._recorded:
            message = self._reply.message(delta.choice)
            if all(deepseek.is_whole_call(call) for call in message.tool_calls):
                self._record([message])

    def _remember(self, choices: Sequence[int]) -> None:
        new = [choice for choice in choices if choice not in self._recorded]
        self._recorded.update(new)
        self._record([self._reply.message(choice) for choice in new])

    def _record(self, answers: Sequence[Message]) -> None:
        if answers and self.prepared is not None:
            history, custom_tools = self.prepared.history, self.prepared.request.custom_tools
            echoes = [as_echoed(answer, custom_tools) if custom_tools else answer for answer in answers]
            entries = [(history.answer_keys(echo).all(), echo.reasoning or "") for echo in echoes]
            self._services.reasoning_store.record(entries, self.prepared.links)

    # Ending …

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ProxyError):
            # Upstream's own words may quote the key it was called with.
            self._outcome = _SECRET.sub("sk-***", error.message.replace(self._caller.credential, "***"))
            self._status = error.status
        elif not isinstance(error, (ClientGone, GeneratorExit)):
            self._outcome, self._status = f"unexpected {type(error).__name__}", 500

    def close(self) -> None:
        """Idempotent. Also ends an exchange whose batches were never asked for."""
        if self._is_closed:
            return
        self._is_closed = True
        # The user pressed Stop, or the stream broke: what the model had thought by then is worth keeping.
        self._remember([choice for choice in self._reply.choices if self._reply.has_anything(choice)])
        if self._answer is not None:
            self._answer.close(was_complete=self._outcome == COMPLETED)
        self._services.observers.notice(self._finished())

    def _finished(self) -> Finished:
        return Finished(
            number=self._number,
            outcome=self._outcome,
            status=self._status,
            seconds=time.monotonic() - self._started,
            first_delta_seconds=self._first_delta,
            message=None if self._reply.is_empty else self._reply.message(),
            finish_reason=self._reply.finish_reason(),
            usage=self._reply.usage,
            retries=self._retries.count,
            drift=self.prepared.drift if self.prepared is not None else None,
        )


class _Reading:
    """What one batch of upstream's items says: deltas and asides, then perhaps the end or a problem."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.batch: Batch = []
        self.is_done = False
        self.problem: ProxyError | None = None
        for item in items:
            if isinstance(item, Silence):
                self.batch.append(Aside())
            elif isinstance(item, sse.Comment):
                self.batch.append(Aside(item.line))
            else:
                self._read(item.data)
            if self.is_done or self.problem is not None:
                return

    def _read(self, data: str) -> None:
        if data.strip() == "[DONE]":
            self.is_done = True
            return
        try:
            chunk = decode_foreign_json(data)
            if isinstance(chunk, dict):
                self.batch.extend(deepseek.deltas(chunk))
        except ProxyError as error:
            self.problem = error
        except ValueError:
            self.problem = UpstreamFailed("DeepSeek sent an event that is not JSON.")
