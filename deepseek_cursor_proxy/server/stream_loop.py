"""Many streams at once: one thread waits for all of them, where hundreds would keep waking each other.

A stream is driven by the thread of its client, which also waits for it while there are few streams. Beyond that,
Python's threads spend most of their time handing the interpreter to each other (measured with 400 streams of 20 chunks
a second: three quarters of it), so further streams are given to the pump: one thread that waits for all of these and
passes on what arrives, but never waits for a single one. A stream goes back to its own thread, which sleeps meanwhile,
whenever something may take its time: a client that does not read, a write to the disk, any kind of end.

Where the system has no epoll, every thread waits for itself.
"""

import contextlib
import logging
import select
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.lull import WaitHandle
from deepseek_cursor_proxy.net.wait import has_left
from deepseek_cursor_proxy.net.wakeup import Wakeup

_log = logging.getLogger(__name__)

# So many streams are waited for by their own threads: these are quicker until they get in each other's way.
_FEW = 8
# The pump's thread ends when it has had nothing to do for so long, and looks up at least that often.
_IDLE_SECONDS = 0.5
_CAN_PUMP = hasattr(select, "epoll")
# PyPy has epoll, but no name for this.
_CLIENT_LEAVES = getattr(select, "EPOLLRDHUP", 0x2000)


class Stream(Protocol):
    """What the pump drives; used by one thread at a time."""

    @property
    def peer(self) -> Peer: ...

    def advance(self) -> WaitHandle | None:
        """Pass on what there is, waiting for nobody; what to wait for then, None when its own thread has to go on."""
        ...


class StreamLoop:
    """Called by the threads of clients. The lock protects what changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams = 0
        self._is_closed = False
        self._run: _Run | None = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[bool]:
        """For as long as a stream lasts; whether there are so many that it should be driven here."""
        with self._lock:
            self._streams += 1
            is_crowded = self._streams > _FEW and _CAN_PUMP
        try:
            yield is_crowded
        finally:
            with self._lock:
                self._streams -= 1

    def drive(self, stream: Stream, wait_handle: WaitHandle) -> bool:
        """Have a stream driven until its own thread, which this is, has to go on; raises what driving it raised.

        False, and nothing is done, when the loop is closed or there are no descriptors or threads left.
        """
        job = _Job(stream, wait_handle)
        if not self._is_taken(job):
            return False
        job.is_over.acquire()
        if job.error is not None:
            try:
                raise job.error
            finally:
                # An error that is held by the frame it was raised in is freed by the collector only.
                del job
        return True

    def _is_taken(self, job: "_Job") -> bool:
        with self._lock, contextlib.suppress(OSError, RuntimeError):
            # Again and again: on a machine that stood still meanwhile, even a new one may have ended for want of work.
            while not self._is_closed:
                if self._run is not None and self._run.take(job):
                    return True
                self._run = _Run()
        return False

    def close(self) -> None:
        """End the thread, if there is one; whatever it still drives goes back to its own, and stays there."""
        with self._lock:
            self._is_closed = True
            run, self._run = self._run, None
        if run is not None:
            run.close()


class _Job:
    """A stream while it is driven."""

    __slots__ = ("error", "fileno", "is_over", "peer_fileno", "stream", "wait_handle")

    def __init__(self, stream: Stream, wait_handle: WaitHandle) -> None:
        self.stream = stream
        self.wait_handle = wait_handle
        self.fileno, self.peer_fileno = wait_handle.fileno(), stream.peer.fileno()
        self.error: BaseException | None = None
        # Held until the stream's own thread has to go on.
        self.is_over = threading.Lock()
        self.is_over.acquire()


class _Run:
    """The thread, from its first stream until it has been idle for a while.

    The lock protects `_jobs`, `_forgotten` and its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        # The descriptors unregistered since the last poll. The system gives a closed number to the next connection, so
        # an event of the batch at hand may be about its former owner; what is true of the new one is told again.
        self._forgotten: set[int] = set()
        self._is_closing = self._is_ended = False
        self._busy_at = self._look_up_at = time.monotonic()
        self._epoll = select.epoll()
        self._wakeup = Wakeup()
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._thread = threading.Thread(target=self._drive, name="pump", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._close_all()
            raise

    def take(self, job: _Job) -> bool:
        """Whether it is driven from now on; this thread has ended otherwise."""
        with self._lock:
            if self._is_ended or self._is_closing:
                return False
            # Asked before the pump may advance the stream, which changes it: two threads must not use it at a time.
            until = job.wait_handle.until
            # Takes effect at once, also while the thread waits; which is why the less likely of the two comes first.
            self._jobs[job.peer_fileno] = self._jobs[job.fileno] = job
            try:
                self._epoll.register(job.peer_fileno, _CLIENT_LEAVES)
                self._epoll.register(job.fileno, select.EPOLLIN)
            except OSError:
                self._forget(job)
                raise
            if until < self._look_up_at:
                self._wakeup.notify()
            return True

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            if not self._is_ended:
                self._wakeup.notify()
        self._thread.join()

    # On its thread …

    def _drive(self) -> None:
        try:
            while not self._has_ended():
                self._forgotten.clear()
                for fileno, _ in self._epoll.poll(max(0.0, self._look_up_at - time.monotonic())):
                    if fileno not in self._forgotten:
                        self._react(fileno)
                if time.monotonic() >= self._look_up_at:
                    self._look_after_all()
        except BaseException as error:
            _log.error("unexpected %s in the pump; its streams go on without it", type(error).__name__)
        finally:
            self._end()

    def _has_ended(self) -> bool:
        if self._jobs and not self._is_closing:
            return False
        with self._lock:
            is_idle = not self._jobs and time.monotonic() - self._busy_at >= _IDLE_SECONDS
            # From here on nothing is taken any more.
            self._is_ended = self._is_closing or is_idle
            return self._is_ended

    def _react(self, fileno: int) -> None:
        job = self._jobs.get(fileno)
        if job is None:
            if fileno == self._wakeup.fileno():
                self._wakeup.clear()
                # Somebody cannot wait until then.
                self._look_up_at = 0.0
        elif fileno == job.peer_fileno:
            close_reason = job.stream.peer.close_reason
            if close_reason is not None or has_left(job.stream.peer):
                job.wait_handle.interrupt(close_reason or ClientGone())
                self._give_back(job)
        else:
            self._advance(job)

    def _advance(self, job: _Job) -> None:
        wait_handle = None
        try:
            wait_handle = job.stream.advance()
        except BaseException as error:
            job.error = error
        if wait_handle is job.wait_handle:
            self._look_up_at = min(self._look_up_at, wait_handle.until)
        else:
            self._give_back(job)

    def _give_back(self, job: _Job) -> None:
        with self._lock:
            self._forget(job)
            self._busy_at = time.monotonic()
        job.is_over.release()

    def _forget(self, job: _Job) -> None:
        for fileno in (job.fileno, job.peer_fileno):
            self._forgotten.add(fileno)
            # A descriptor that was closed may be somebody else's by now.
            if self._jobs.get(fileno) is job:
                del self._jobs[fileno]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(fileno)

    def _look_after_all(self) -> None:
        """Advance those that nothing was heard of until it was time, and find out when that is for the next."""
        now = time.monotonic()
        for job in self._driven():
            if job.wait_handle.until <= now:
                self._advance(job)
        moments = [job.wait_handle.until for job in self._driven()]
        self._look_up_at = min([now + _IDLE_SECONDS, *moments])

    def _driven(self) -> set[_Job]:
        with self._lock:
            return set(self._jobs.values())

    def _end(self) -> None:
        with self._lock:
            self._is_ended = True
        for job in self._driven():
            self._give_back(job)
        self._close_all()

    def _close_all(self) -> None:
        self._epoll.close()
        self._wakeup.close()
