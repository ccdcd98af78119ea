"""Responses: stored and background responses in a running proxy.

A Job is work that continues when the client that started it leaves, and that any number of clients may follow.

A thread of its own runs a job and appends its events. The job has a Wakeup in place of a client: cancelling the job,
or stopping the proxy, sets it, and every wait of the work ends as if the client had left. The events are held, packed,
until the job is over: at most 16 million characters for each job, which is the bound of an answer. Jobs of unknown
callers (`access`) are limited in number and size, so that they cannot fill the queue.
"""

import logging
import math
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from deepseek_cursor_proxy.errors import ClientGone, Overloaded, ProxyError, ProxyStopping, QueueFull
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.responses.store import EventLog, ResponseStore
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wait import Deadline, Wakeup, wait_until

_log = logging.getLogger(__name__)

# How often the follower of a silent job checks whether its client is still there.
_CHECK_SECONDS = 0.25
# A job whose peer is set ends within moments; no thread waits longer for it.
_END_SECONDS = 1.0
_RETRY_AFTER_SECONDS = 10
# For the jobs of unknown callers together; their number is also at most half of all jobs.
_MOST_OF_UNKNOWN_CALLERS = 16
_MOST_BYTES_OF_UNKNOWN_CALLERS = 16 * 1024 * 1024
# A comment of an event stream, as DeepSeek sends it to calls in its queue.
_HEARTBEAT = b": keep-alive\n\n"


class Job:
    """One piece of work and its events. Written by its thread, read by any; `_changed` protects the events.

    A submitted job is closed by its thread, any other by the thread that created it.
    """

    def __init__(self, id: str, caller: bytes, unknown_caller_bytes: int = 0) -> None:
        """Raises Overloaded when the system has no descriptors for it."""
        self.id = id
        self.caller = caller
        # The size of the request as long as no upstream has accepted the caller's key; else 0.
        self.unknown_caller_bytes = unknown_caller_bytes
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
    def key(self) -> tuple[bytes, str]:
        return self.caller, self.id

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled before the proxy stopped."""
        return self.peer.has_left()

    @property
    def is_stopping(self) -> bool:
        """Whether the job must end because the proxy stops."""
        return self.peer.close_reason is not None

    # By its thread …

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

    def follow(self, peer: Peer | None = None, heartbeat_seconds: float = math.inf) -> Generator[bytes, None, None]:
        """All events, past and future, for a client that may leave; comments in a long silence keep tunnels open."""
        count, heartbeat, end = 0, Deadline.after(heartbeat_seconds), None
        while (events := self.read_after(count, min(_CHECK_SECONDS, heartbeat_seconds))) is not None:
            if events:
                count += len(events)
                yield events
            else:
                if peer is not None and peer.close_reason is not None:
                    # The job is being stopped as well, and its last events are worth a moment.
                    end = end or Deadline.after(_END_SECONDS)
                if peer is not None and (end.is_over if end is not None else peer.has_left()):
                    raise ClientGone
                if not heartbeat.is_over:
                    continue
                yield _HEARTBEAT
            heartbeat = Deadline.after(heartbeat_seconds)

    def read_after(self, count: int, seconds: float) -> bytes | None:
        """Wait for whole pieces after the first `count` bytes; b"" if none came in time, None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._log) > count or self._has_ended, seconds)
            return self._log.read(count) or (None if self._has_ended else b"")

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the work, its last write included; False if the time is over first."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End the job when its work is over; idempotent. Followers still get the remaining events."""
        self.end()
        self.peer.close()
        self._closed.set()


Run = Callable[[Job], None]


class Jobs:
    """A thread for each job, of which a few work at once; the others wait for their turn. Called by any thread."""

    def __init__(self, at_once: int, queue: int) -> None:
        self._most_at_once = at_once
        self._max_jobs = at_once + queue
        # Protects all below; notified when a job begins, is over or is interrupted.
        self._changed = threading.Condition()
        # Waiting and running, oldest first.
        self._jobs: dict[tuple[bytes, str], Job] = {}
        self._running: set[Job] = set()
        self._threads: list[threading.Thread] = []
        self._is_stopping = False

    def check(self, unknown_caller_bytes: int = 0) -> None:
        """Raise a ProxyError if no job can be submitted now; `unknown_caller_bytes` is as in Job."""
        with self._changed:
            if self._is_stopping:
                raise ProxyStopping
            if len(self._jobs) >= self._max_jobs:
                raise QueueFull("Too many background responses. Try again later.", retry_after=_RETRY_AFTER_SECONDS)
            sizes = [job.unknown_caller_bytes for job in self._jobs.values() if job.unknown_caller_bytes]
        most = max(1, min(_MOST_OF_UNKNOWN_CALLERS, self._max_jobs // 2))
        is_too_much = len(sizes) >= most or sum(sizes) + unknown_caller_bytes > _MOST_BYTES_OF_UNKNOWN_CALLERS
        if unknown_caller_bytes and is_too_much:
            raise QueueFull(
                "DeepSeek has not accepted this key yet, and background responses of such keys may only be few and "
                "small. Send one request without background first, or try again in a moment.",
                retry_after=_RETRY_AFTER_SECONDS,
            )

    def submit(self, job: Job, run: Run) -> None:
        """Have a thread call `run(job)` when its turn comes, or when the job is cancelled before.

        Raises a ProxyError, and closes the job, if there is no place for it.
        """
        try:
            with self._changed:
                self.check(job.unknown_caller_bytes)
                thread = start_thread(partial(self._work, job, run), "job")
                if thread is None:
                    raise Overloaded("There are no threads left. Try again in a moment.", retry_after=1)
                self._jobs[job.key] = job
                self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        except ProxyError:
            job.close()
            raise

    def find(self, caller: bytes, job_id: str) -> Job | None:
        """The caller's job with that id, if it waits or runs."""
        with self._changed:
            return self._jobs.get((caller, job_id))

    def cancel(self, job: Job) -> None:
        """Interrupt a job; `job.wait` waits for its end."""
        with self._changed:
            job.peer.set()
            self._changed.notify_all()

    def stop(self, seconds: float) -> None:
        """Accept no more jobs, end the waiting ones, and after `seconds` the running ones. Idempotent."""
        with self._changed:
            self._is_stopping = True
            threads = self._threads
            self._interrupt([job for job in self._jobs.values() if job not in self._running])
            wait_until(self._changed, lambda: not self._jobs, seconds)
            self._interrupt([*self._jobs.values()])
        deadline = Deadline.after(_END_SECONDS)
        for thread in threads:
            thread.join(max(0.0, deadline.left))

    def _interrupt(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.peer.set(ProxyStopping)
        self._changed.notify_all()

    # By the thread of a job …

    def _work(self, job: Job, run: Run) -> None:
        with self._changed:
            self._changed.wait_for(lambda: job.is_cancelled or job.is_stopping or self._is_next(job))
            self._running.add(job)
            # The next one may have looked before this one began.
            self._changed.notify_all()
        try:
            run(job)
        except Exception as error:
            # A bug, logged here because no client gets it.
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s in a background response", type(error).__name__, exc_info=details)
        finally:
            with self._changed:
                del self._jobs[job.key]
                self._running.discard(job)
                self._changed.notify_all()
            job.close()

    def _is_next(self, job: Job) -> bool:
        first = next(each for each in self._jobs.values() if each not in self._running)
        return job is first and len(self._running) < self._most_at_once


class Responses(Feature):
    name = "responses"

    def __init__(self, store: ResponseStore, jobs: Jobs) -> None:
        self.store = store
        self.jobs = jobs

    def share(self, shared: Any) -> None:
        from deepseek_cursor_proxy.features.responses.redis_store import SharedResponses

        self.store.share(SharedResponses(shared, self.store))

    def start(self, services: Services) -> None:
        if count := self.store.fail_orphans():
            _log.warning("%d stored responses were not finished when the proxy last stopped and are failed now", count)

    def drain(self, seconds: float) -> None:
        self.jobs.stop(seconds)

    def close(self) -> None:
        self.store.close()


def open(services: Services) -> Services:
    config = services.config
    store = ResponseStore(services.reasoning_store.database)
    responses = Responses(store, Jobs(config.background_workers, config.background_queue))
    return services.add(responses, on_accepted=(*services.on_accepted, store.accept))
