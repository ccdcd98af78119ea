"""SessionRecorder: writes the turns of sessions, on a thread of its own.

A turn is queued when its request has ended, so no answer waits for the file. A turn is written at once, unless one was
written a moment ago: those of a busy proxy are written together, which takes half the time. Turns wait for a file that
cannot be written, up to a limit, and are written when it can. `flush` waits until what was queued is written: a client
that reads a session sees the turn that it has just got.

A request that named no session is recorded in one of its chat.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.observers.events import Finished, Result
from deepseek_cursor_proxy.sessions.store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, TurnOfSession, UnnamedSession
from deepseek_cursor_proxy.storage.engine.faults import FaultGuard, Unusable, fault_of
from deepseek_cursor_proxy.storage.engine.reopener import OutageLog
from deepseek_cursor_proxy.threads import start_thread

_log = logging.getLogger(__name__)

# Turns that wait for the file; each holds its history, most of which it shares with others.
_MOST_WAITING = 1000
# In one transaction, which others that write to the file wait for.
_MOST_TOGETHER = 100
_TURNS_BETWEEN_PRUNINGS = 256
# Shorter than any turn of a model: of a chat, a killed process loses the last turn at most.
_SECONDS_BETWEEN_WRITES = 0.1
_SECONDS_AFTER_A_FAULT = 0.25
# Once the recorder is closed: another process that writes to the file is soon done.
_LAST_TRIES = 4
_LONGEST_TITLE = 80
_BEGIN_OF_OUTAGE = "turns of sessions are kept in memory only until %s can be used: %s"
_END_OF_OUTAGE = "%s is usable again; turns written: %d"


class SessionRecorder:
    """Called by handler threads; the lock protects the fields below it. Only its thread records into the store."""

    def __init__(self, store: Callable[[], SessionStore], path: str) -> None:
        """`store` opens the file at this path with the first turn."""
        self._store = store
        self._faults = FaultGuard(_log, "sessions")
        self._outage = OutageLog(_log, path, _BEGIN_OF_OUTAGE, _END_OF_OUTAGE)
        self._unpruned = 0
        self._lock = threading.Lock()
        # Notified when the thread has something to do, and when turns are written or cannot be.
        self._has_work, self._has_written = threading.Condition(self._lock), threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._waiting: list[Finished] = []
        # Since the beginning: the requests that were queued, and those of them that are written.
        self._queued, self._written = 0, 0
        # Whether the last write met a fault of the file, and nobody has asked for another since.
        self._has_fault = False
        self._is_urgent = self._is_closed = False
        self._last_tries = _LAST_TRIES

    def record(self, event: Finished) -> None:
        """Queue the turn of a request that was sent and answered, if only in part."""
        with self._lock:
            if self._is_closed:
                return
            is_full = self._queued - self._written >= _MOST_WAITING
            if not is_full:
                self._waiting.append(event)
                self._queued += 1
            if len(self._waiting) == 1:
                self._has_work.notify()
            if self._thread is None:
                self._thread = start_thread(self._run, "sessions")
        if is_full:
            self._faults.warn("record a turn", OverflowError("too many wait for the file"))

    def flush(self, seconds: float = 5.0) -> None:
        """Wait until all turns that were queued are written or cannot be, but no longer than that."""
        with self._lock:
            queued = self._queued
            if self._written < queued:
                self._is_urgent, self._has_fault = True, False
                self._has_work.notify()
                self._has_written.wait_for(lambda: self._written >= queued or self._has_fault, seconds)

    def close(self) -> None:
        """Write what waits, if the file can be used within a second, and end the thread; idempotent."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while events := self._take():
            try:
                self._write(events)
            except Unusable as fault:
                self._put_back(events, fault)
            else:
                self._prune_now_and_then(len(events))
                self._count_written(len(events))
            del events
            self._pause()

    def _take(self) -> list[Finished]:
        """The turns that wait longest, once there are any; none when the recorder is closed."""
        with self._lock:
            self._has_work.wait_for(lambda: self._waiting or self._is_closed)
            events = self._waiting[:_MOST_TOGETHER]
            del self._waiting[:_MOST_TOGETHER]
            return events

    def _write(self, events: Sequence[Finished]) -> None:
        """Write turns; raises Unusable, and has written none of them then."""
        try:
            self._store().record(turn for event in events for turn in _turns(event))
        except Exception as error:
            if (fault := fault_of(error)) is not None:
                raise fault from None
            if len(events) == 1:
                self._faults.warn("record a turn", RuntimeError(f"{type(error).__name__}: {error}"))
                return
            # A bug of ours costs its own turn.
            for event in events:
                with suppress(Unusable):
                    self._write([event])

    def _put_back(self, events: Sequence[Finished], fault: Unusable) -> None:
        """Have turns wait for the file, unless the recorder is closed and has tried often enough."""
        self._outage.report_fault(fault)
        lost = 0
        with self._lock:
            self._waiting[:0] = events
            self._has_fault, self._is_urgent = True, False
            self._has_written.notify_all()
            if self._is_closed:
                self._last_tries -= 1
                if self._last_tries == 0:
                    lost = len(self._waiting)
                    self._waiting.clear()
        if lost:
            _log.warning("%d turns of sessions were not recorded: %s", lost, fault)

    def _prune_now_and_then(self, written: int) -> None:
        self._unpruned += written
        if self._unpruned >= _TURNS_BETWEEN_PRUNINGS:
            self._unpruned = 0
            try:
                self._store().prune()
            except Exception as error:
                self._faults.warn("prune", error)

    def _count_written(self, written: int) -> None:
        self._outage.count(written)
        with self._lock:
            self._written += written
            self._has_fault = False
            is_end = not self._waiting
            self._has_written.notify_all()
        if is_end:
            self._outage.report_end()

    def _pause(self) -> None:
        """Wait until a moment has passed, or the recorder is to go on at once."""
        with self._lock:
            seconds = _SECONDS_AFTER_A_FAULT if self._has_fault else _SECONDS_BETWEEN_WRITES
            has_more = len(self._waiting) >= _MOST_TOGETHER and not self._has_fault
            self._has_work.wait_for(
                lambda: has_more or self._is_urgent or (self._is_closed and not self._has_fault), seconds
            )
            self._is_urgent = self._is_urgent and len(self._waiting) > _MOST_TOGETHER


def _title(messages: Sequence[Message]) -> str:
    """The name of a session that was made for a chat: the beginning of its first question."""
    texts = (each.content for each in messages if each.role == "user" and isinstance(each.content, str))
    return " ".join(next(texts, "").split())[:_LONGEST_TITLE]


def _turns(event: Finished) -> Iterator[TurnOfSession]:
    """The turns of a request: one for each answer; the first has the tokens and the cost of all."""
    prepared, tokens = event.prepared, event.tokens
    assert prepared is not None
    assert event.message is not None
    request, model = prepared.request, event.facts.model
    session = event.recorded_in or UnnamedSession(prepared.history.conversation, _title(request.messages), model)
    cost = event.cost.amount if event.cost is not None else None
    total = tokens.prompt + tokens.output if tokens is not None else 0
    logprobs = [each for each in (event.logprobs.text, event.logprobs.reasoning) if each] if event.logprobs else []
    answers: tuple[Message, ...] = (event.message, *event.other_messages)
    for index, answer in enumerate(answers):
        is_first = index == 0
        turn = RecordedTurn(
            request.messages,
            request.tools,
            answer,
            _info(event, cost if is_first else None),
            request.requested_model,
            total if is_first else 0,
            cost if is_first else None,
            logprobs if is_first and len(answers) == 1 else (),
        )
        yield TurnOfSession(event.caller, session, turn)


def _info(event: Finished, cost: float | None) -> dict[str, object]:
    assert event.prepared is not None
    facts = event.facts
    return {
        "usage": event.usage,
        "cost": cost,
        "model": facts.model,
        "started": facts.started_at,
        "finished": facts.started_at + event.timing.total,
        "metadata": {
            "finish_reason": event.finish_reason,
            "is_complete": event.end.result is Result.COMPLETED,
            "api": facts.api,
            "request_numbers": [facts.number],
            "requested_model": facts.requested_model,
            "recovered": event.prepared.transcript_count,
            "missing_reasoning": event.prepared.missing_count,
        },
    }
