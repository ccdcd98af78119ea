"""SessionRecorder: writes the turns of sessions, on a thread of its own.

A turn is queued when its request has ended, so no answer waits for the file; a file that cannot be written loses turns,
with one warning now and then, and nothing else. `flush` waits until what was queued is written: a client that reads a
session sees the turn that it has just got.

A request that named no session is recorded in one of its chat.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.observers.events import Finished, Result
from deepseek_cursor_proxy.sessions.store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn
from deepseek_cursor_proxy.storage.engine.faults import FaultGuard
from deepseek_cursor_proxy.threads import start_thread

_log = logging.getLogger(__name__)

# Turns that wait for the file; each holds its history, most of which it shares with others.
_MOST_WAITING = 1000
_TURNS_BETWEEN_PRUNINGS = 256
_LONGEST_TITLE = 80


class SessionRecorder:
    """Called by handler threads; the lock protects `_thread`. Only its thread records into the store."""

    def __init__(self, store: Callable[[], SessionStore]) -> None:
        """`store` opens the file with the first turn."""
        self._store = store
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._queue: queue.Queue[Finished | None] = queue.Queue(_MOST_WAITING)
        self._faults = FaultGuard(_log, "sessions")
        self._turns = 0

    def record(self, event: Finished) -> None:
        """Queue the turn of a request that was sent and answered, if only in part."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._faults.warn("record a turn", OverflowError("too many wait for the file"))
            return
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._run, "sessions")

    def flush(self, seconds: float = 5.0) -> None:
        """Wait until all turns that were queued are written, but no longer than that."""
        with self._queue.all_tasks_done:
            self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, seconds)

    def close(self) -> None:
        """Write what waits and end the thread; idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                with self._faults.guard("record a turn"):
                    self._record(event)
            except Exception as error:
                # A bug of ours costs a turn, not all that follow.
                _log.warning("sessions: a turn was not recorded (%s: %s)", type(error).__name__, error)
            finally:
                self._queue.task_done()
            del event
        self._queue.task_done()

    def _record(self, event: Finished) -> None:
        store, prepared = self._store(), event.prepared
        assert prepared is not None
        session = event.recorded_in or store.of_chat(
            event.caller, prepared.history.conversation, _title(prepared.request.messages), event.facts.model
        )
        for turn in _turns(event):
            store.record(event.caller, session, turn)
        self._turns += 1
        if self._turns % _TURNS_BETWEEN_PRUNINGS == 0:
            store.prune()


def _title(messages: Sequence[Message]) -> str:
    """The name of a session that was made for a chat: the beginning of its first question."""
    texts = (each.content for each in messages if each.role == "user" and isinstance(each.content, str))
    return " ".join(next(texts, "").split())[:_LONGEST_TITLE]


def _turns(event: Finished) -> Iterator[RecordedTurn]:
    """The turns of a request: one for each answer; the first has the tokens and the cost of all."""
    cost = event.cost.amount if event.cost is not None else None
    assert event.prepared is not None
    assert event.message is not None
    request, tokens = event.prepared.request, event.tokens
    total = tokens.prompt + tokens.output if tokens is not None else 0
    logprobs = [each for each in (event.logprobs.text, event.logprobs.reasoning) if each] if event.logprobs else []
    answers: tuple[Message, ...] = (event.message, *event.other_messages)
    for index, answer in enumerate(answers):
        is_first = index == 0
        yield RecordedTurn(
            request.messages,
            request.tools,
            answer,
            _info(event, cost if is_first else None),
            request.requested_model,
            total if is_first else 0,
            cost if is_first else None,
            logprobs if is_first and len(answers) == 1 else (),
        )


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
