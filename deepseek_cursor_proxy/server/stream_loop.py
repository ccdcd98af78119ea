"""StreamLoop: one thread that waits for many streams, where hundreds of threads would keep waking each other.

The thread of its client drives a stream, and waits for it as long as there are few streams. With more, Python's threads
spend most of their time handing the interpreter to each other (three quarters of it, measured with 400 streams of 20
chunks a second), so further streams are given to the loop: its one thread waits for all of them and sends what arrives,
but never blocks for a single one. A stream goes back to its own thread, which sleeps meanwhile, before every step that
may block: a client that does not read, a write to the disk, any kind of end.

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
from deepseek_cursor_proxy.http1.lull import WaitHandle
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import has_left
from deepseek_cursor_proxy.net.wakeup import Wakeup

_log = logging.getLogger(__name__)

# Up to so many streams stay in their own threads, which are quicker while they are few.
_MAX_OWN_THREADS = 8
# The thread ends when it has had no streams for so long, and looks for due streams at least that often.
_IDLE_SECONDS = 0.5
_HAS_EPOLL = hasattr(select, "epoll")
# PyPy has epoll, but no name for this.
_CLIENT_LEAVES = getattr(select, "EPOLLRDHUP", 0x2000)


class Stream(Protocol):
    """A stream to a client, as StreamSender is one; used by one thread at a time."""

    @property
    def peer(self) -> Peer: ...

    def advance(self) -> WaitHandle | None: ...


class StreamLoop:
    """Called by the threads of clients. The lock protects all fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams = 0
        self._is_closed = False
        self._thread: _LoopThread | None = None

    @contextlib.contextmanager
    def count_stream(self) -> Iterator[bool]:
        """Count a stream for as long as it lasts; whether there are so many that the loop should drive it."""
        with self._lock:
            self._streams += 1
            is_crowded = self._streams > _MAX_OWN_THREADS and _HAS_EPOLL
        try:
            yield is_crowded
        finally:
            with self._lock:
                self._streams -= 1

    def drive(self, stream: Stream, wait_handle: WaitHandle) -> bool:
        """Have the loop drive a stream until the calling thread, its own, has to go on; raises what driving it raised.

        False, and nothing is done, when the loop is closed or there are no descriptors or threads left.
        """
        entry = _DrivenStream(stream, wait_handle)
        if not self._add(entry):
            return False
        entry.resume.acquire()
        if entry.error is not None:
            try:
                raise entry.error
            finally:
                # An error that is held by the frame it was raised in is freed by the collector only.
                del entry
        return True

    def _add(self, entry: "_DrivenStream") -> bool:
        with self._lock, contextlib.suppress(OSError, RuntimeError):
            # Again and again: on a machine that was stopped meanwhile, even a new thread may have ended idle.
            while not self._is_closed:
                if self._thread is not None and self._thread.add(entry):
                    return True
                self._thread = _LoopThread()
        return False

    def close(self) -> None:
        """End the thread, if there is one; the streams that it drives go back to their own threads, for good."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()


class _DrivenStream:
    """A stream while the loop drives it."""

    __slots__ = ("error", "fileno", "peer_fileno", "resume", "stream", "wait_handle")

    def __init__(self, stream: Stream, wait_handle: WaitHandle) -> None:
        self.stream = stream
        self.wait_handle = wait_handle
        self.fileno, self.peer_fileno = wait_handle.fileno(), stream.peer.fileno()
        self.error: BaseException | None = None
        # Released when the stream's own thread has to go on.
        self.resume = threading.Lock()
        self.resume.acquire()


class _LoopThread:
    """The thread, until it is idle. The lock protects `_by_fileno`, `_unregistered`, `_is_closing` and `_is_ended`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_fileno: dict[int, _DrivenStream] = {}
        # The descriptors unregistered since the last poll. The system gives a closed number to the next connection, so
        # an event of the last poll may be about its former owner; the next poll repeats what is true of the new one.
        self._unregistered: set[int] = set()
        self._is_closing = self._is_ended = False
        self._active_at = self._due_at = time.monotonic()
        self._epoll = select.epoll()
        self._wakeup = Wakeup()
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._thread = threading.Thread(target=self._drive, name="stream-loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._close_all()
            raise

    def add(self, entry: _DrivenStream) -> bool:
        """Whether the stream is driven from now on; otherwise this thread has ended."""
        with self._lock:
            if self._is_ended or self._is_closing:
                return False
            # Before the loop may advance the stream, which changes it: only one thread may use it at a time.
            until = entry.wait_handle.until
            # Registering takes effect at once, also while the thread polls, so the less likely event comes first.
            self._by_fileno[entry.peer_fileno] = self._by_fileno[entry.fileno] = entry
            try:
                self._epoll.register(entry.peer_fileno, _CLIENT_LEAVES)
                self._epoll.register(entry.fileno, select.EPOLLIN)
            except OSError:
                self._unregister(entry)
                raise
            if until < self._due_at:
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
                self._unregistered.clear()
                for fileno, _ in self._epoll.poll(max(0.0, self._due_at - time.monotonic())):
                    if fileno not in self._unregistered:
                        self._handle(fileno)
                if time.monotonic() >= self._due_at:
                    self._advance_due()
        except BaseException as error:
            _log.error("unexpected %s in the stream loop; its streams go on without it", type(error).__name__)
        finally:
            self._end()

    def _has_ended(self) -> bool:
        if self._by_fileno and not self._is_closing:
            return False
        with self._lock:
            is_idle = not self._by_fileno and time.monotonic() - self._active_at >= _IDLE_SECONDS
            # From here on no stream is added.
            self._is_ended = self._is_closing or is_idle
            return self._is_ended

    def _handle(self, fileno: int) -> None:
        entry = self._by_fileno.get(fileno)
        if entry is None:
            if fileno == self._wakeup.fileno():
                self._wakeup.clear()
                # A new stream is due earlier.
                self._due_at = 0.0
        elif fileno == entry.peer_fileno:
            close_reason = entry.stream.peer.close_reason
            if close_reason is not None or has_left(entry.stream.peer):
                entry.wait_handle.interrupt(close_reason or ClientGone())
                self._give_back(entry)
        else:
            self._advance(entry)

    def _advance(self, entry: _DrivenStream) -> None:
        wait_handle = None
        try:
            wait_handle = entry.stream.advance()
        except BaseException as error:
            entry.error = error
        if wait_handle is entry.wait_handle:
            self._due_at = min(self._due_at, wait_handle.until)
        else:
            self._give_back(entry)

    def _give_back(self, entry: _DrivenStream) -> None:
        with self._lock:
            self._unregister(entry)
            self._active_at = time.monotonic()
        entry.resume.release()

    def _unregister(self, entry: _DrivenStream) -> None:
        for fileno in (entry.fileno, entry.peer_fileno):
            self._unregistered.add(fileno)
            # A descriptor that was closed may be another stream's by now.
            if self._by_fileno.get(fileno) is entry:
                del self._by_fileno[fileno]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(fileno)

    def _advance_due(self) -> None:
        """Advance the streams that are due though nothing arrived, and find out when the next one is."""
        now = time.monotonic()
        for entry in self._entries():
            if entry.wait_handle.until <= now:
                self._advance(entry)
        moments = [entry.wait_handle.until for entry in self._entries()]
        self._due_at = min([now + _IDLE_SECONDS, *moments])

    def _entries(self) -> set[_DrivenStream]:
        with self._lock:
            return set(self._by_fileno.values())

    def _end(self) -> None:
        with self._lock:
            self._is_ended = True
        for entry in self._entries():
            self._give_back(entry)
        self._close_all()

    def _close_all(self) -> None:
        self._epoll.close()
        self._wakeup.close()
