"""Work that no client waits for: it goes on when whoever asked for it leaves, and any number of others may follow it.

A job is written by one worker and has a peer of its own in the place of a client: when it is cancelled that peer
leaves, when the proxy stops it is parted with, so whatever the work waits for ends as it does for a client. What a job
says is kept, packed, until it is over; that is as much as one answer may be, which the corridor bounds at 16 million
characters, for each job that runs. This file knows no protocol, no store and no exchange.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deepseek_cursor_proxy.errors import ClientGone, Overloaded, ProxyError, ProxyStopping, QueueFull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.event_log import EventLog
from deepseek_cursor_proxy.threads import start_thread

_log = logging.getLogger(__name__)

# A worker without work ends after this long; the next job starts another.
_IDLE_SECONDS = 5.0
# How often somebody who follows a silent job looks whether anybody still reads.
_LOOK_UP_SECONDS = 0.25
# A job that was told to end does so within moments; nobody waits longer.
_LAST_WORDS_SECONDS = 1.0
_RETRY_AFTER_SECONDS = 10
# A comment of an event stream, as DeepSeek sends it to calls in its queue.
_HEARTBEAT = b": keep-alive\n\n"


class Job:
    """One piece of work. Written by the thread that does it, read by any; `_changed` protects what it said.

    Whoever makes one submits it, which also ends it, or closes it himself.
    """

    def __init__(self, id: str, caller: bytes) -> None:
        """Raises Overloaded when the system has no descriptors for it."""
        self.id = id
        self.caller = caller
        try:
            # Stands in for the client: set, it ends whatever the work waits for.
            self.peer = Wakeup()
        except OSError:
            raise Overloaded("There are no descriptors left. Try again in a moment.", retry_after=1) from None
        self._changed = threading.Condition()
        self._log = EventLog()
        self._has_ended = False
        self._over = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled it, before the proxy stopped it."""
        return self.peer.has_left()

    @property
    def is_stopping(self) -> bool:
        """Whether it has to end because the proxy stops."""
        return self.peer.close_reason is not None

    # By whoever does the work …

    def say(self, piece: bytes) -> None:
        """Add to the log, for all who follow now or later; a piece may be several events, never a part of one."""
        with self._changed:
            if not self._has_ended:
                self._log.append(piece)
                self._changed.notify_all()

    def end(self) -> None:
        """Nothing more will be said; idempotent."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def packed(self, last: bytes = b"") -> bytes:
        """All that was said so far and a last piece, for `event_log.unpack`."""
        with self._changed:
            return self._log.pack(last)

    # By others …

    def follow(self, peer: Peer | None = None, heartbeat_seconds: float = math.inf) -> "JobEvents":
        """All that was and will be said, from the start, for a client that may leave before the end.

        After each silence of so many seconds it is a comment: a tunnel would cut the client off.
        """
        return JobEvents(self, peer, heartbeat_seconds)

    def said_after(self, count: int, seconds: float) -> bytes | None:
        """What was said after so many bytes, waiting that long for some; None when there will not be any.

        It ends where a piece does. There may be more already: what was said long ago comes in parts.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._log) > count or self._has_ended, seconds)
            said = self._log.read(count)
            return None if self._has_ended and not said else said

    def wait(self, seconds: float) -> bool:
        """Whether the work is over by then, its last write included."""
        return self._over.wait(seconds)

    def close(self) -> None:
        """The work is over; idempotent. Whoever follows hears the rest all the same."""
        self.end()
        self.peer.close()
        self._over.set()


class JobEvents:
    """A job's words as the body of a reply. Iterated by one thread; `close` may be called by any."""

    def __init__(self, job: Job, peer: Peer | None, heartbeat_seconds: float) -> None:
        self._job = job
        self._peer = peer
        self._heartbeat_seconds = heartbeat_seconds
        self._is_closed = False
        self._deadline: Deadline | None = None

    def __iter__(self) -> Iterator[bytes]:
        count, heartbeat_deadline = 0, Deadline.after(self._heartbeat_seconds)
        while not self._is_closed:
            said = self._job.said_after(count, min(_LOOK_UP_SECONDS, self._heartbeat_seconds))
            if said is None:
                return
            if not said and self._peer is not None:
                self._look_after(self._peer)
            count += len(said)
            if not said and heartbeat_deadline.is_over:
                said = _HEARTBEAT
            if said:
                yield said
                heartbeat_deadline = Deadline.after(self._heartbeat_seconds)

    def close(self) -> None:
        self._is_closed = True

    def _look_after(self, peer: Peer) -> None:
        """Raises ClientGone when nobody reads any more."""
        if peer.close_reason is None:
            if peer.has_left():
                raise ClientGone
            return
        # The job is being stopped as well, and its last words are worth a moment.
        self._deadline = self._deadline or Deadline.after(_LAST_WORDS_SECONDS)
        if self._deadline.is_over:
            raise ClientGone


Run = Callable[[Job], None]


@dataclass(frozen=True, eq=False)
class _Task:
    job: Job
    run: Run

    @property
    def key(self) -> tuple[bytes, str]:
        return self.job.caller, self.job.id


class Jobs:
    """A few workers and a queue. Called by handler threads and whoever stops the proxy."""

    def __init__(self, workers: int, queue: int) -> None:
        self._most_running = workers
        self._most = workers + queue
        # Protects all below; notified when a job comes or is over, and when everything stops.
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        # Those that wait and those that run.
        self._tasks: dict[tuple[bytes, str], _Task] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_stopping = False

    def submit(self, job: Job, run: Run) -> None:
        """Have `run(job)` called by a worker, or at once by whoever cancels or stops the job while it waits.

        Raises QueueFull, ProxyStopping or Overloaded; then nobody calls it, and the job is closed.
        """
        try:
            self._take(_Task(job, run))
        except ProxyError:
            job.close()
            raise

    def find(self, caller: bytes, job_id: str) -> Job | None:
        """The caller's job with that id, if it waits or runs."""
        with self._changed:
            task = self._tasks.get((caller, job_id))
        return None if task is None else task.job

    def cancel(self, job: Job) -> bool:
        """Have a job end; whether that is news to it. One that waits is run here, cancelled, and is over then.

        One that runs ends within moments; `job.wait` waits for that.
        """
        with self._changed:
            task = next((each for each in self._waiting if each.job is job), None)
            if task is not None:
                self._waiting.remove(task)
        is_news = job.peer.set()
        if task is not None:
            self._do(task)
        return is_news

    def stop(self, seconds: float) -> None:
        """Take no more, let what runs finish for that long, then have it end; what waits ends at once. Idempotent."""
        deadline = Deadline.after(seconds)
        with self._changed:
            self._is_stopping = True
            queued, self._waiting = self._waiting, deque()
            threads = list(self._threads)
            self._changed.notify_all()
        for task in queued:
            task.job.peer.set(ProxyStopping)
            self._do(task)
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, max(0.0, deadline.left))
            running = list(self._tasks.values())
        for task in running:
            task.job.peer.set(ProxyStopping)
        deadline = Deadline.after(_LAST_WORDS_SECONDS)
        for thread in threads:
            thread.join(max(0.0, deadline.left))

    # Workers …

    def _take(self, task: _Task) -> None:
        with self._changed:
            if self._is_stopping:
                raise ProxyStopping
            if len(self._tasks) >= self._most:
                raise QueueFull(
                    "As many background responses wait already as may. Try again in a moment, "
                    "or raise --background-workers or --background-queue.",
                    retry_after=_RETRY_AFTER_SECONDS,
                )
            if self._idle <= len(self._waiting) and len(self._threads) < self._most_running:
                self._start_worker()
            self._waiting.append(task)
            self._tasks[task.key] = task
            self._changed.notify_all()

    def _start_worker(self) -> None:
        thread = start_thread(self._work, "job")
        if thread is not None:
            self._threads.add(thread)
        elif not self._threads:
            raise Overloaded("There are no threads left. Try again in a moment.", retry_after=1)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            self._do(task)
            # It holds the whole answer, and the next one may be long in coming.
            del task

    def _next(self) -> _Task | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._is_stopping, _IDLE_SECONDS)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def _do(self, task: _Task) -> None:
        """Whatever the work raises is a bug, told here: nobody else is there to hear it."""
        try:
            task.run(task.job)
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s in a background response", type(error).__name__, exc_info=details)
        finally:
            with self._changed:
                self._tasks.pop(task.key, None)
                self._changed.notify_all()
            task.job.close()
