"""The corridor: one generation, from a client's request to its last delta.

    open       identify, look up, restore (or recover), send: see calling      any failure is a plain HTTP error
    batches    read, remember, hand on                                         any failure is told in the stream
    close      whatever was said so far is remembered, the call is ended, observers are told

What a client saw complete is stored before the batch that completes it is handed on.
"""

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import cached_property

from deepseek_cursor_proxy.conversation import Batch, Batches, Heartbeat, Message, Reply
from deepseek_cursor_proxy.deepseek import forced_tools, rules
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamDropped, UpstreamFailed
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_call import CallContext, GenerationRequest, UpstreamCall
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.lull import BLOCKING, Lull
from deepseek_cursor_proxy.observers.events import Finished, Received
from deepseek_cursor_proxy.protocols.request.custom_tools import echoed_message
from deepseek_cursor_proxy.reasoning.restore import KeyAlias
from deepseek_cursor_proxy.redaction import redact_keys
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

# A shorter key is a word that sentences have for other reasons.
_SHORTEST_SECRET = 8

COMPLETED = "completed"
CLIENT_LEFT = "client left"


class Exchange:
    """One generation. Used by one thread; must be closed."""

    def __init__(self, context: CallContext, generation: GenerationRequest, services: Services) -> None:
        self._services = services
        self._context = context
        self._upstream_api = generation.upstream_api
        self._number = next(services.numbers)
        self._started = time.monotonic()
        self._first_delta: float | None = None
        self._reply = Reply()
        # Choices that are stored as they ended, and those of which a call is.
        self._recorded: set[int] = set()
        self._identified: set[int] = set()
        # By exact key, what was stored of an answer that may still go on thinking.
        self._begun: dict[bytes, str] = {}
        self._has_linked = False
        self._has_relayed = False
        self._outcome = CLIENT_LEFT
        self._status = 499
        self.is_closed = False
        services.observers.emit(
            Received(
                self._number, context.namespace.hex()[:12], generation.request, generation.body, generation.body_bytes
            )
        )
        self._request = generation.request
        self._is_forced = rules.is_forced(generation.request.tool_choice)
        self._calling = UpstreamCall(self._number, context, generation, services)

    @classmethod
    def open(cls, context: CallContext, generation: GenerationRequest, services: Services) -> "Exchange":
        """Prepare the request and send it; raises a ProxyError or ClientGone, and then nothing is left open."""
        exchange = cls(context, generation, services)
        try:
            exchange._calling.open()
        except BaseException as error:
            exchange._fail(error)
            exchange.close()
            raise
        return exchange

    def notice(self, choice: int = 0) -> str:
        """What the client has to be told before the answer; known for sure once the answer has begun."""
        prepared = self._calling.prepared
        return prepared.notice if prepared is not None else ""

    @cached_property
    def _call_id(self) -> str:
        """For a call that DeepSeek only wrote about."""
        return f"call_{secrets.token_hex(12)}"

    # Reading the answer …

    def batches(self, *, with_lulls: bool = False) -> Batches:
        """The answer as it arrives; ends only after a finish_reason, else with the ProxyError that prevented it.

        With lulls it does not wait for DeepSeek: its consumer does. A call that was forced and only written about is
        handed on as the call.
        """
        batches = self._batches(with_lulls)
        if not self._is_forced:
            return batches
        return forced_tools.convert_stream(batches, self._request, self._call_id)

    def _batches(self, with_lulls: bool) -> Batches:
        try:
            while True:
                try:
                    yield from self._read(with_lulls)
                    break
                except UpstreamFailed as error:
                    yield BLOCKING
                    is_unsaid, is_untold = self._reply.is_empty, not self._has_relayed
                    if not self._calling.begin_again(error, is_unsaid=is_unsaid, is_untold=is_untold):
                        # Here, not there: an error that is an argument of the frame it is raised in keeps itself
                        # alive, with megabytes of a broken answer, until the collector comes by.
                        raise
            self._outcome, self._status = COMPLETED, 200
        except (ProxyError, ClientGone) as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def _read(self, with_lulls: bool) -> Batches:
        prepared, answer = self._calling.prepared, self._calling.answer
        assert prepared is not None
        assert answer is not None
        if not (prepared.request.stream and with_lulls):
            # From here on it may be waited for.
            self._calling.settle()
        if prepared.request.stream:
            yield from self._streamed(answer, with_lulls)
        else:
            yield from self._whole(answer)

    def _whole(self, answer: UpstreamResponse) -> Batches:
        """The answer in one batch; before it a sign of life for every one of DeepSeek's."""
        for raw in answer.reading():
            if isinstance(raw, Heartbeat):
                yield [raw]
        assert isinstance(raw, bytes)
        try:
            body = decode_upstream_json(raw)
        except ValueError:
            raise UpstreamFailed("DeepSeek's answer is not JSON.") from None
        if not isinstance(body, dict):
            raise UpstreamFailed("DeepSeek's answer is not a JSON object.")
        batch: Batch = list(self._upstream_api.read_answer(body))
        self._take(batch)
        yield batch

    def _streamed(self, answer: UpstreamResponse, with_lulls: bool) -> Batches:
        reader = self._upstream_api.open_reader()
        with closing(self._pieces(answer, with_lulls)) as pieces:
            try:
                for piece in pieces:
                    if isinstance(piece, Lull):
                        yield piece
                        if piece is BLOCKING:
                            self._calling.settle()
                        continue
                    said = ParsedEvents([piece]) if isinstance(piece, Heartbeat) else reader.read(piece)
                    if said.is_weighty:
                        if early := self._light(said):
                            yield early
                        yield BLOCKING
                        self._calling.settle()
                    self._hear(answer, said)
                    if isinstance(piece, bytes) and not said.is_progress and (said.batch or piece.isspace()):
                        # Nothing but comments and blank lines.
                        answer.note_keep_alive()
                    if said.batch:
                        yield said.batch
                    if said.problem is not None:
                        try:
                            raise said.problem
                        finally:
                            # An error that is held by the frame it was raised in is freed by the collector only.
                            del said
                    if said.is_done:
                        break
            except ProxyError:
                yield BLOCKING
                # Whatever breaks after the finish_reason breaks nothing: the client has the whole answer.
                if not self._reply.is_finished:
                    raise
        if not self._reply.is_finished:
            raise UpstreamDropped("DeepSeek ended the answer without finishing it. Try again.")

    def _pieces(self, answer: UpstreamResponse, with_lulls: bool) -> Generator[bytes | Heartbeat | Lull, None, None]:
        """The stream as it arrives; only its first event is a piece of its own, because nothing is waited for as much.

        What came together with it may be hundreds of others, and all of a piece is read before any of it is handed on.
        """
        with closing(answer.stream(with_lulls=with_lulls)) as pieces:
            for piece in pieces:
                if not isinstance(piece, bytes):
                    self._calling.settle()
                    yield piece
                    continue
                end = piece.find(b"\n\n") + 2
                end = end if end >= 2 else len(piece)
                yield piece[:end]
                yield BLOCKING
                if end < len(piece):
                    yield piece[end:]
                break
            yield from pieces

    def _light(self, said: ParsedEvents) -> Batch:
        """What need not wait until something is stored, taken off the rest."""
        early, said.batch = said.batch[: said.light], said.batch[said.light :]
        if early:
            self._take(early, is_weighty=False)
            self._has_relayed = True
        return early

    def _hear(self, answer: UpstreamResponse, said: ParsedEvents) -> None:
        """Take what was said, and know by it what is still to be waited for."""
        is_weighty = said.is_weighty
        self._take(said.batch, is_weighty=is_weighty)
        self._has_relayed = self._has_relayed or bool(said.batch)
        if said.is_progress:
            answer.note_progress()
        if is_weighty and self._reply.is_finished:
            answer.hurry()

    def _take(self, batch: Batch, *, is_weighty: bool = True) -> None:
        """Add up a batch and, if that may be news to the store, remember every choice it completes."""
        called: set[int] = set()
        for item in batch:
            if not isinstance(item, Heartbeat):
                self._reply.add(item)
                if self._first_delta is None:
                    self._first_delta = time.monotonic() - self._started
                if item.calls and item.calls[-1].arguments.endswith("}"):
                    called.add(item.choice)
        if self._reply.is_too_long and not self._reply.is_finished:
            raise UpstreamFailed(
                f"DeepSeek's answer is longer than {Reply.MAX_CHARACTERS} characters. Start a new chat."
            )
        if is_weighty:
            self._remember([choice for choice in self._reply.choices if self._reply.finish_reason(choice)])
        for choice in called - self._recorded - self._identified:
            self._identify(choice)

    def _identify(self, choice: int) -> None:
        """Store the turn when its first call is whole: some clients start a call as soon as they have all of it.

        Further calls are stored with the end of the answer; until then the first one leads to the reasoning.
        """
        message = self._reply.message(choice)
        if all(rules.is_whole_call(call) for call in message.tool_calls):
            self._identified.add(choice)
            self._record([message])

    def _remember(self, choices: Sequence[int]) -> None:
        new = [choice for choice in choices if choice not in self._recorded]
        self._recorded.update(new)
        thoughts = [self._reply.thought_before_calls(choice) for choice in new]
        self._record([self._reply.message(choice) for choice in new], thoughts)

    def _remember_broken(self) -> None:
        """Store what was said of choices that did not end, also without a call that was cut: clients drop that."""
        for choice in self._reply.choices:
            if self._reply.has_anything(choice) and choice not in self._recorded:
                self._recorded.add(choice)
                message = self._reply.message(choice)
                whole = tuple(call for call in message.tool_calls if rules.is_whole_call(call))
                is_cut = bool(whole) and len(whole) < len(message.tool_calls)
                answers = [message, message._replace(tool_calls=whole)] if is_cut else [message]
                self._record(answers, [self._reply.thought_before_calls(choice)] * len(answers))

    def _record(self, answers: Sequence[Message], shown: Sequence[str | None] = ()) -> None:
        """Store what was thought; `shown` is as much of it as a display could show, where that is not all."""
        prepared = self._calling.prepared
        if answers and prepared is not None:
            history, custom_tools = prepared.history, prepared.request.custom_tools
            if self._is_forced:
                # What was raised is sent back as the call, what was cut short before that as the words.
                called = [forced_tools.convert_message(answer, prepared.request, self._call_id) for answer in answers]
                answers = [*answers, *filter(None, called)]
            has_calls = any(answer.tool_calls for answer in answers)
            known = {tool["function"]["name"] for tool in prepared.request.tools} if has_calls else set()
            echoes = [echoed_message(answer, custom_tools, known) for answer in answers]
            keys = [history.answer_keys(echo) for echo in echoes]
            entries = [(each.record_keys(), echo.reasoning or "") for each, echo in zip(keys, echoes, strict=True)]
            parts = [
                KeyAlias(each.exact, each.partial_key(part), reasoning)
                for each, part, (_, reasoning) in zip(keys, shown, entries, strict=False)
                if part is not None
            ]
            # Most turns with calls are recorded as soon as these are whole, and nothing is added to them afterwards.
            news = [entry for entry in entries if self._begun.get(entry[0][0]) != entry[1]]
            if news:
                self._services.reasoning_store.record(_merged(news), (*prepared.aliases, *parts), self._begun)
                self._has_linked = True
                self._begun.update((keys[0], reasoning) for keys, reasoning in news)

    def _link(self) -> None:
        """Store what was sent as reasoning also if nothing was answered: DeepSeek has it in its cache."""
        prepared = self._calling.prepared
        if prepared is not None and prepared.aliases and not self._has_linked and self._calling.answer is not None:
            self._services.reasoning_store.record((), prepared.aliases)

    # Ending …

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ProxyError):
            credential = self._context.credential
            # Upstream's own words may quote the key it was called with.
            if self._context.is_held or len(credential) >= _SHORTEST_SECRET:
                error.hide(credential)
            self._outcome, self._status = redact_keys(error.message.replace(credential, "***")), error.status
        elif not isinstance(error, (ClientGone, GeneratorExit)):
            self._outcome, self._status = f"unexpected {type(error).__name__}", 500

    def close(self) -> None:
        """Idempotent. Also ends an exchange whose batches were never asked for."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            # The user pressed Stop, or the stream broke: what the model had thought by then is worth keeping.
            self._remember_broken()
            self._link()
        finally:
            # A bug of ours costs an answer, not a place for the next one.
            self._calling.close(was_complete=self._outcome == COMPLETED)
        self._services.observers.emit(self._finished())
        if self._outcome == COMPLETED and self._calling.prepared is not None:
            self._services.counter.learn(self._calling.prepared.request, self._reply.usage)

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
            retries=self._calling.retries,
            divergence=self._calling.divergence,
        )


def _merged(entries: Sequence[tuple[Sequence[bytes], str]]) -> list[tuple[Sequence[bytes], str]]:
    """The entries with each reasoning once, under all its keys: one thought may be echoed in several forms."""
    under: dict[str, tuple[bytes, ...]] = {}
    for keys, reasoning in entries:
        under[reasoning] = (*under.get(reasoning, ()), *keys)
    return [(keys, reasoning) for reasoning, keys in under.items()]
