"""The corridor: one generation, from a client's request to its last delta.

    open       identify, look up, restore (or recover), send        any failure is still a plain HTTP error
    batches    read, remember, hand on                              any failure is an error inside the stream
    close      whatever was said so far is remembered, the call is ended, observers are told

What a client saw complete is stored before the batch that completes it is handed on.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy import deepseek, sse
from deepseek_cursor_proxy.conversation import Aside, Batch, Batches, ChatRequest, Reply
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.observers import Finished, Received, Restored, Sent
from deepseek_cursor_proxy.reasoning.identity import History, identify
from deepseek_cursor_proxy.reasoning.restore import Found, Prepared, prepare, prepare_again
from deepseek_cursor_proxy.services import Services
from deepseek_cursor_proxy.upstream_answer import Answer, Item, Silence
from deepseek_cursor_proxy.wire import Peer, encode_json

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
        self._outcome = CLIENT_LEFT
        self._status = 499
        self._is_closed = False
        self._answer: Answer | None = None
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
        strategy = self._services.config.missing_reasoning_strategy
        history = identify(self._caller.namespace, request.messages, request.conversation)
        found = self._look_up(history)
        prepared = prepare(request, history, found, strategy)
        try:
            self._send(prepared)
        except UpstreamRefused as refusal:
            if not deepseek.is_reasoning_refusal(refusal.status, refusal.message):
                raise
            self._send_again(request, history, found, prepared)

    def _look_up(self, history: History) -> Found:
        """One query for a chat that only grew; a second for those turns that a client's edits put out of place."""
        store = self._services.reasoning_store
        found = store.find(history.exact_keys())
        if weaker := history.weaker_keys(found):
            found |= store.find(weaker)
        return found

    def _send(self, prepared: Prepared, *, is_retry: bool = False) -> None:
        self.prepared = prepared
        self._services.observers.notice(Restored(self._number, prepared, is_retry))
        payload = deepseek.payload(prepared.request)
        body = encode_json(payload)
        self._answer = self._services.upstream.send(body, self._caller.credential, self._caller.peer)
        self._services.observers.notice(Sent(self._number, payload, len(body), time.monotonic() - self._started))

    def _send_again(self, request: ChatRequest, history: History, found: Found, refused: Prepared) -> None:
        """DeepSeek misses reasoning that we thought it would do without: once more, with those turns as text."""
        strategy = self._services.config.missing_reasoning_strategy
        try:
            self._send(prepare_again(request, history, found, refused, strategy), is_retry=True)
        except UpstreamRefused as refusal:
            if not deepseek.is_reasoning_refusal(refusal.status, refusal.message):
                raise
            raise UpstreamFailed(
                "DeepSeek keeps refusing this history for missing reasoning, even as a transcript. Start a new chat.",
                code="reasoning_refused",
            ) from None

    # Reading the answer …

    def batches(self) -> Batches:
        """The answer as it arrives; ends only after a finish_reason, else with the ProxyError that prevented it."""
        assert self._answer is not None
        assert self.prepared is not None
        try:
            if self.prepared.request.stream:
                yield from self._streamed(self._answer)
            else:
                yield self._whole(self._answer)
            self._outcome, self._status = COMPLETED, 200
        except (ProxyError, ClientGone) as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def _whole(self, answer: Answer) -> Batch:
        raw = answer.read()
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
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
            raise UpstreamFailed("DeepSeek ended the answer without finishing it. Try again.")

    def _take(self, batch: Batch) -> None:
        """Add up a batch and remember every choice it completes."""
        for item in batch:
            if not isinstance(item, Aside):
                self._reply.add(item)
                if self._first_delta is None:
                    self._first_delta = time.monotonic() - self._started
        self._remember([choice for choice in self._reply.choices if self._reply.finish_reason(choice)])

    def _remember(self, choices: Sequence[int]) -> None:
        assert self.prepared is not None
        entries = []
        for choice in choices:
            if choice not in self._recorded:
                self._recorded.add(choice)
                message = self._reply.message(choice)
                entries.append((self.prepared.history.answer_keys(message).all(), message.reasoning or ""))
        if entries:
            self._services.reasoning_store.record(entries)

    # Ending …

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ProxyError):
            self._outcome, self._status = error.message, error.status
        elif not isinstance(error, (ClientGone, GeneratorExit)):
            self._outcome, self._status = f"unexpected {type(error).__name__}", 500

    def close(self) -> None:
        """Idempotent. Also ends an exchange whose batches were never asked for."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.prepared is not None:
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
            chunk = json.loads(data)
            if isinstance(chunk, dict):
                self.batch.extend(deepseek.deltas(chunk))
        except ProxyError as error:
            self.problem = error
        except (ValueError, RecursionError):
            self.problem = UpstreamFailed("DeepSeek sent an event that is not JSON.")
