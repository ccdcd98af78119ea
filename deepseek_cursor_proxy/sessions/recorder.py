"""SessionRecorder: writes the turns of sessions, on a thread of its own.

A turn is queued when its request has ended, so no answer waits for the store, and written a moment later, together with
others, which takes half the time. Meanwhile it is in the journal, or it is written at once. Turns wait for a file that
cannot be written, up to a limit, and are written when it can. `flush` waits until what was queued is written: a client
that reads a session sees the turn that it has just got.

A request that named no session is recorded in one of its chat.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek.usage import add_usage
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.observers.events import Finished, Result
from deepseek_cursor_proxy.sessions.journal import Journal
from deepseek_cursor_proxy.sessions.session_store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, TurnOfSession, UnnamedSession
from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable
from deepseek_cursor_proxy.storage.store import OutageLog

_log = logging.getLogger(__name__)

# Limit for turns that wait for the file; each holds its history, most of it shared with other turns.
_MOST_WAITING = 1000
# Turns in one transaction: other writers of the file wait for it.
_MOST_TOGETHER = 100
_TURNS_BETWEEN_PRUNINGS = 256
_SECONDS_BEFORE_WRITING = 0.25
_SECONDS_AFTER_A_FAULT = 0.25
# After close: another process that writes to the file is soon done.
_LAST_TRIES = 4
_LONGEST_TITLE = 80
_BEGIN_OF_OUTAGE = "turns of sessions wait until %s is usable again: %s"
_END_OF_OUTAGE = "%s is usable again; turns written: %d"


class SessionRecorder:
    """Called by workers; the lock protects the fields below it. Only its thread writes what was queued."""

    def __init__(self, store: Callable[[], SessionStore], path: str, journal: Journal | None) -> None:
        """`store` opens the file at this path with the first turn; one in memory has no journal."""
        self._store = store
        self._faults = FaultGuard(_log, "sessions")
        self._outage = OutageLog(_log, path, _BEGIN_OF_OUTAGE, _END_OF_OUTAGE)
        self._unpruned = 0
        self._lock = threading.Lock()
        # Notified when the thread has something to do, and when turns are written or cannot be.
        self._has_work, self._has_written = threading.Condition(self._lock), threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._journal = journal
        # Whether no turn is added to the journal until it is empty.
        self._is_emptying = False
        self._waiting: list[TurnOfSession] = []
        self._written_at = float("-inf")
        # Since the beginning: the turns that were queued, and those of them that are written.
        self._queued, self._written = 0, 0
        # Whether the last write met a fault of the file, and no flush has asked for another since.
        self._has_fault = False
        self._is_urgent = self._is_closed = False
        self._last_tries = _LAST_TRIES

    def record(self, event: Finished) -> None:
        """Queue the turn of a request that was sent and answered, if only in part."""
        turns = tuple(_turns(event))
        with self._lock:
            if self._is_closed:
                return
            is_full = self._queued - self._written >= _MOST_WAITING
            for turn in turns if not is_full else ():
                number = self._add_to_journal(turn)
                self._queued += 1
                self._waiting.append(turn._replace(number=number))
                # While the file is at fault, it is tried now and then.
                self._is_urgent |= not number and not self._has_fault
            if self._is_urgent or len(self._waiting) in (len(turns), _MOST_TOGETHER):
                self._has_work.notify()
            if self._thread is None:
                self._thread = start_thread(self._run, "sessions")
        if is_full:
            self._faults.warn("record a turn", OverflowError("too many wait for the file"))

    def _add_to_journal(self, turn: TurnOfSession) -> int:
        if self._journal is None or self._is_emptying:
            return 0
        # A slow chat writes each turn to the store alone, a busy one many at a time.
        is_slow = time.monotonic() - self._written_at >= _SECONDS_BEFORE_WRITING
        return self._journal.add(turn, is_store_idle=is_slow and self._queued == self._written)

    def flush(self, seconds: float = 5.0, *, empties_journal: bool = False) -> None:
        """Wait until all queued turns are written or a fault stops that, for at most `seconds`."""
        with self._lock:
            queued = self._queued
            if empties_journal:
                self._is_emptying = self._journal is not None and not self._journal.is_empty
            if self._written < queued:
                self._is_urgent, self._has_fault = True, False
                self._has_work.notify()
                self._has_written.wait_for(
                    lambda: (self._written >= queued and not self._is_emptying) or self._has_fault, seconds
                )

    def close(self) -> None:
        """Write waiting turns, if the file is usable within a second, and end the thread; idempotent."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify()
            thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join()
        if (journal := self._journal) is not None:
            if journal.is_empty:
                # Before its file is gone: nothing else has its name.
                with self._faults.guard("forget the journal"), suppress(Unusable):
                    self._store().forget_journal(journal.name)
            journal.close()

    def _run(self) -> None:
        while turns := self._take():
            try:
                self._store().record(turns, self._journal.name if self._journal is not None else "")
                self._prune_now_and_then(len(turns))
            except Unusable as fault:
                self._put_back(turns, fault)
                continue
            except Exception as error:
                # A bug of ours, which would end the thread.
                self._faults.warn("record turns", RuntimeError(f"{type(error).__name__}: {error}"))
            self._count_written(turns)
            del turns

    def _take(self) -> list[TurnOfSession]:
        """The oldest waiting turns, a moment after the first was queued; none once the recorder is closed."""
        with self._lock:
            self._has_work.wait_for(lambda: self._waiting or self._is_closed)
            self._has_work.wait_for(
                self._is_due, _SECONDS_AFTER_A_FAULT if self._has_fault else _SECONDS_BEFORE_WRITING
            )
            turns = self._waiting[:_MOST_TOGETHER]
            del self._waiting[:_MOST_TOGETHER]
            self._is_urgent = self._is_urgent and bool(self._waiting)
            return turns

    def _is_due(self) -> bool:
        is_much = self._is_closed or len(self._waiting) >= _MOST_TOGETHER
        return self._is_urgent or (is_much and not self._has_fault)

    def _put_back(self, turns: Sequence[TurnOfSession], fault: Unusable) -> None:
        """Put turns back into the queue, unless the recorder is closed and has tried often enough."""
        self._outage.report_fault(fault)
        left: Sequence[TurnOfSession] = ()
        with self._lock:
            self._waiting[:0] = turns
            self._has_fault, self._is_urgent, self._is_emptying = True, False, False
            self._has_written.notify_all()
            if self._is_closed:
                self._last_tries -= 1
                if self._last_tries == 0:
                    left, self._waiting = self._waiting, []
        if kept := sum(turn.number > 0 for turn in left):
            _log.warning("%d turns of sessions are written when the proxy starts again: %s", kept, fault)
        if lost := len(left) - kept:
            _log.warning("%d turns of sessions were not recorded: %s", lost, fault)

    def _prune_now_and_then(self, written: int) -> None:
        self._unpruned += written
        if self._unpruned >= _TURNS_BETWEEN_PRUNINGS:
            self._unpruned = 0
            with self._faults.guard("prune"):
                store = self._store()
                # Another process may have been killed since.
                store.recover()
                store.prune()

    def _count_written(self, turns: Sequence[TurnOfSession]) -> None:
        self._outage.count(len(turns))
        with self._lock:
            if self._journal is not None:
                self._journal.clear(max(turn.number for turn in turns))
                self._is_emptying = self._is_emptying and not self._journal.is_empty
            self._written += len(turns)
            self._written_at = time.monotonic()
            self._has_fault = False
            is_end = not self._waiting
            self._has_written.notify_all()
        if is_end:
            self._outage.report_end()


def _turns(event: Finished) -> Iterator[TurnOfSession]:
    """The turns of a request: one for each answer; the first has the tokens and the cost of all."""
    prepared, facts, tokens = event.prepared, event.facts, event.tokens
    assert prepared is not None
    assert event.message is not None
    request = prepared.request
    cost = event.cost.amount if event.cost is not None else None
    info = {
        "usage": add_usage({}, event.usage) if event.usage is not None else None,
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
            "recovered": prepared.transcript_count,
            "missing_reasoning": prepared.missing_count,
        },
    }
    total = tokens.prompt + tokens.output if tokens is not None else 0
    # With several answers it is not known whose they are.
    parts = (event.logprobs.text, event.logprobs.reasoning) if event.logprobs and not event.other_messages else ()
    turn = RecordedTurn(
        request.messages,
        request.tools,
        event.message,
        info,
        request.requested_model,
        total,
        cost,
        [part for part in parts if part],
    )
    session = event.recorded_in or _unnamed_session(prepared.history.conversation, request.messages, facts.model)
    yield TurnOfSession(event.caller, session, turn)
    other = turn._replace(info={**info, "cost": None}, tokens=0, cost=None)
    for answer in event.other_messages:
        yield TurnOfSession(event.caller, session, other._replace(answer=answer))


def _unnamed_session(chat: bytes, messages: Sequence[Message], model: str) -> UnnamedSession:
    """The session of a chat; its name is the beginning of the first question."""
    questions = (message.content for message in messages if message.role == "user" and isinstance(message.content, str))
    return UnnamedSession(chat, " ".join(next(questions, "").split())[:_LONGEST_TITLE], model)
