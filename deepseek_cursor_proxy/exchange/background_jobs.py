"""Jobs: work that goes on when the client that started it leaves, and that any number of clients may follow.

A worker of this file runs a job and appends its events. The job has a Wakeup in place of a client: cancelling the job,
or stopping the proxy, sets it, and every wait of the work ends as if the client had left. The events are held, packed,
until the job is over: at most 16 million characters for each job, which is the bound of an answer. Jobs of unknown
callers (`access`) are limited in number and size, so that they cannot fill the queue. This file knows no protocol, no
store and no exchange.
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
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.responses import EventLog

_log = logging.getLogger(__name__)

# A worker without work ends after this long; the next job starts another.
_IDLE_SECONDS = 5.0
# How often the follower of a silent job checks whether its client is still there.
_CHECK_SECONDS = 0.25
# A job whose peer is set ends within moments; no thread waits longer for it.
_END_SECONDS = 1.0
_RETRY_AFTER_SECONDS = 10
# For the jobs of unknown callers together; their number is also at most half of all jobs.
_MOST_UNACCEPTED = 16
_MOST_UNACCEPTED_BYTES = 16 * 1024 * 1024
# A comment of an event stream, as DeepSeek sends it to calls in its queue.
_HEARTBEAT = b": keep-alive\n\n"


class Job:
    """One piece of work and its events. Written by its worker, read by any thread; `_changed` protects the events.

    A submitted job is closed by its worker, any other by the thread that created it.
    """

    def __init__(self, id: str, caller: bytes, unaccepted_bytes: int = 0) -> None:
        """Raises Overloaded when the system has no descriptors for it."""
        self.id = id
        self.caller = caller
        # The size of the request as long as no upstream has accepted the caller's key; else 0.
        self.unaccepted_bytes = unaccepted_bytes
        try:
            # In place of a client: set, it ends whatever the work waits for.
            self.peer = Wakeup()
        except OSError:
            raise Overloaded("There are no descriptors left. Try again in a moment.", retry_after=1) from None
        self._changed = threading.Condition()
        self._log = EventLog()
        self._has_ended = False
        self._closed = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled before the proxy stopped."""
        return self.peer.has_left()

    @property
    def is_stopping(self) -> bool:
        """Whether the job must end because the proxy stops."""
        return self.peer.close_reason is not None

    # By the worker …

    def append(self, piece: bytes) -> None:
        """Add to the events, for all followers now and later; a piece may be several events, never a part of one."""
        with self._changed:
            if not self._has_ended:
                self._log.append(piece)
                self._changed.notify_all()

    def end(self) -> None:
        """Mark the end of the events; idempotent."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def pack(self, last: bytes = b"") -> bytes:
        """All events so far and a last piece, for `unpack_events`."""
        with self._changed:
            return self._log.pack(last)

    # By others …

    def follow(self, peer: Peer | None = None, heartbeat_seconds: float = math.inf) -> "JobEvents":
        """All events, past and future, for a client that may leave; comments in a long silence keep tunnels open."""
        return JobEvents(self, peer, heartbeat_seconds)

    def read_after(self, count: int, seconds: float) -> bytes | None:
        """Wait for whole pieces after the first `count` bytes; b"" if none came in time, None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._log) > count or self._has_ended, seconds)
            return self._log.read(count) or (None if self._has_ended else b"")

    def interrupt(self) -> bool:
        """End whatever the work waits for. False if it had ended."""
        return self.peer.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the work, its last write included; False if the time is over first."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End the job when its work is over; idempotent. Followers still get the remaining events."""
        self.end()
        self.peer.close()
        self._closed.set()


class JobEvents:
    """The events of a job for one follower. Iterated by one thread; `close` may be called by any."""

    def __init__(self, job: Job, peer: Peer | None, heartbeat_seconds: float) -> None:
        self._job = job
        self._peer = peer
        self._heartbeat_seconds = heartbeat_seconds
        self._is_closed = False
        self._deadline: Deadline | None = None

    def __iter__(self) -> Iterator[bytes]:
        count, heartbeat_deadline = 0, Deadline.after(self._heartbeat_seconds)
        while not self._is_closed:
            events = self._job.read_after(count, min(_CHECK_SECONDS, self._heartbeat_seconds))
            if events is None:
                return
            if not events:
                if self._peer is not None:
                    self._check_client(self._peer)
                if not heartbeat_deadline.is_over:
                    continue
                yield _HEARTBEAT
            else:
                count += len(events)
                yield events
            heartbeat_deadline = Deadline.after(self._heartbeat_seconds)

    def close(self) -> None:
        self._is_closed = True

    def _check_client(self, peer: Peer) -> None:
        """Raise ClientGone when the client is gone."""
        if peer.close_reason is None:
            if peer.has_left():
                raise ClientGone
            return
        # The job is being stopped as well, and its last events are worth a moment.
        self._deadline = self._deadline or Deadline.after(_END_SECONDS)
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
    """A few threads and a queue. Called by the server's workers and the thread that stops the proxy."""

    def __init__(self, workers: int, queue: int) -> None:
        self._max_workers = workers
        self._max_jobs = workers + queue
        # Protects all below; notified when a job comes or is over, and when everything stops.
        self._changed = threading.Condition()
        self._queue: deque[_Task] = deque()
        # Waiting and running tasks.
        self._tasks: dict[tuple[bytes, str], _Task] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_stopping = False

    def check(self, unaccepted_bytes: int = 0) -> None:
        """Raise a ProxyError if no job can be submitted now; for an unknown caller `unaccepted_bytes` is its size."""
        with self._changed:
            if self._is_stopping:
                raise ProxyStopping
            if len(self._tasks) >= self._max_jobs:
                raise QueueFull(
                    "The queue of background responses is full. Try again in a moment.",
                    retry_after=_RETRY_AFTER_SECONDS,
                )
            sizes = [task.job.unaccepted_bytes for task in self._tasks.values() if task.job.unaccepted_bytes]
        most = max(1, min(_MOST_UNACCEPTED, self._max_jobs // 2))
        if unaccepted_bytes and (len(sizes) >= most or sum(sizes) + unaccepted_bytes > _MOST_UNACCEPTED_BYTES):
            raise QueueFull(
                "DeepSeek has not accepted this key yet, and background responses of such keys may only be few and "
                "small. Send one request without background first, or try again in a moment.",
                retry_after=_RETRY_AFTER_SECONDS,
            )

    def submit(self, job: Job, run: Run) -> None:
        """Queue a job; a worker calls `run(job)`, or a thread that cancels it first.

        Raises a ProxyError, and closes the job, if there is no place for it.
        """
        task = _Task(job, run)
        try:
            with self._changed:
                self.check(job.unaccepted_bytes)
                if self._idle <= len(self._queue) and len(self._threads) < self._max_workers:
                    thread = start_thread(self._work, "job")
                    if thread is not None:
                        self._threads.add(thread)
                    elif not self._threads:
                        raise Overloaded("There are no threads left. Try again in a moment.", retry_after=1)
                self._queue.append(task)
                self._tasks[task.key] = task
                self._changed.notify_all()
        except ProxyError:
            job.close()
            raise

    def find(self, caller: bytes, job_id: str) -> Job | None:
        """The caller's job with that id, if it waits or runs."""
        with self._changed:
            task = self._tasks.get((caller, job_id))
        return None if task is None else task.job

    def cancel(self, job: Job) -> bool:
        """End a queued job at once, or interrupt a running one; `job.wait` waits for its end. False if it had ended."""
        with self._changed:
            task = next((queued for queued in self._queue if queued.job is job), None)
            if task is not None:
                self._queue.remove(task)
        is_first = job.interrupt()
        if task is not None:
            self._run_task(task)
        return is_first

    def stop(self, seconds: float) -> None:
        """Accept no more jobs, end the waiting ones, and after so many seconds the running ones. Idempotent."""
        deadline = Deadline.after(seconds)
        with self._changed:
            self._is_stopping = True
            queued, self._queue = self._queue, deque()
            threads = list(self._threads)
            self._changed.notify_all()
        for task in queued:
            task.job.peer.set(ProxyStopping)
            self._run_task(task)
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, max(0.0, deadline.left))
            tasks = list(self._tasks.values())
        for task in tasks:
            task.job.peer.set(ProxyStopping)
        deadline = Deadline.after(_END_SECONDS)
        for thread in threads:
            thread.join(max(0.0, deadline.left))

    # By the threads of jobs …

    def _work(self) -> None:
        while (task := self._next_task()) is not None:
            self._run_task(task)
            # The task holds a whole answer, and the next one may not come for long.
            del task

    def _next_task(self) -> _Task | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._is_stopping, _IDLE_SECONDS)
            self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def _run_task(self, task: _Task) -> None:
        """Run a task; an exception is a bug, logged here because no client gets it."""
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
