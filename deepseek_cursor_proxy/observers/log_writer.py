"""LogWriter: a thread that writes text to a descriptor which may block: Ctrl-S, QuickEdit, a paused pager, a journal.

Other threads and signal handlers only append to a queue. When the queue is full, new text is dropped, and the writer
reports the number of missing lines where they are missing. A failed write (full disk, closed pipe) loses its lines and
nothing else; later lines are written as soon as that works again.
"""

import contextlib
import io
import queue
import threading
import time
from typing import Any

# Some ten thousand lines of the console, or two large requests with `--verbose`.
_MOST_CHARACTERS = 4 * 1024 * 1024
# The memory of a queue entry besides its characters.
_ENTRY = 64
# Lines of one moment are written together: waking the thread for each took longer than the write.
_GATHER_SECONDS = 0.01
# Small, so that `drain` notices a slow reader's progress; also below a Windows console's limit per write.
_PIECE = 16 * 1024
# How long the process waits at its end for a descriptor that takes nothing, and for a slow one.
STUCK_SECONDS = 1.0
_SLOW_SECONDS = 5.0


class LogWriter:
    """The queue and the thread of one stream. Any thread and any signal handler may call `write` and `drain`."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        # A reference, because a stream that is garbage-collected closes its descriptor.
        self._stream = stream
        # Past the buffer: it keeps failed text, and at exit Python aborts if a blocked write still holds its lock.
        self._raw: Any = getattr(stream.buffer, "raw", stream.buffer)
        # Protects the next five fields. Reentrant: a signal handler or finalizer may write while its thread holds it.
        self._lock = threading.RLock()
        self._texts: list[str] = []
        self._size = 0
        self._dropped = 0
        self._is_idle = True
        self._is_writing = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closing = False
        # The number of pieces written when a drain gave up.
        self._stuck_at = -1
        # Lost lines not reported yet, and pieces written; only the thread changes them.
        self._missing = 0
        self._pieces = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue the text, or drop it when the queue is full; never waits for the descriptor."""
        size = len(text)
        with self._lock:
            # Text that is larger than the queue is accepted when the queue is empty.
            if self._size and self._size + size > _MOST_CHARACTERS:
                self._dropped += text.count("\n")
                return size
            self._texts.append(text)
            self._size += size + _ENTRY
            is_idle, self._is_idle = self._is_idle, False
        if is_idle:
            self._wake.put(None)
        return size

    def drain(self, stuck_seconds: float = STUCK_SECONDS) -> bool:
        """Wait until all is written, unless the descriptor takes nothing for `stuck_seconds`; whether all is."""
        began = progress_at = time.monotonic()
        pieces = self._pieces
        if pieces == self._stuck_at:
            # A drain before this one has waited already.
            stuck_seconds = 0
        self._wake.put(None)
        while not (is_drained := self._is_drained()):
            now = time.monotonic()
            if self._pieces != pieces:
                pieces, progress_at = self._pieces, now
            if now - progress_at > stuck_seconds or now - began > _SLOW_SECONDS:
                self._stuck_at = pieces
                break
            time.sleep(0.001)
        return is_drained

    def close(self) -> None:
        """Drain and end the thread; a stuck one ends with the process."""
        self._is_closing = True
        if self.drain():
            self._wake.put(None)
            self._thread.join(STUCK_SECONDS)

    def _is_drained(self) -> bool:
        with self._lock:
            return not (self._texts or self._dropped or self._is_writing)

    # The thread …

    def _run(self) -> None:
        while True:
            self._wake.get()
            while self._write_batch():
                self._gather()
            if self._is_closing and self._is_drained():
                return

    def _gather(self) -> None:
        with contextlib.suppress(queue.Empty):
            if not self._is_closing:
                self._wake.get(timeout=_GATHER_SECONDS)

    def _write_batch(self) -> bool:
        """Write the queue; False when it was empty, and the next `write` has to wake the thread."""
        with self._lock:
            texts, self._texts, self._size = self._texts, [], 0
            dropped, self._dropped = self._dropped, 0
            self._is_writing = bool(texts or dropped)
            self._is_idle = not self._is_writing
            if self._is_idle:
                return False
        self._report_missing()
        self._missing += self._write(*texts)
        # These were dropped after the texts just written.
        self._missing += dropped
        self._report_missing()
        with self._lock:
            self._is_writing = False
        return True

    def _report_missing(self) -> None:
        if self._missing:
            lines = f"{self._missing:,} {'line is' if self._missing == 1 else 'lines are'}"
            if not self._write(f"deepseek-cursor-proxy: {lines} missing here: this log could not be written.\n"):
                self._missing = 0

    def _write(self, *texts: str) -> int:
        """Write the texts as far as possible; the number of lost lines."""
        rest = memoryview(b"")
        try:
            rest = memoryview("".join(texts).encode(self._stream.encoding, self._stream.errors or "strict"))
            while rest:
                written = self._raw.write(rest[:_PIECE])
                if written:
                    rest = rest[written:]
                    self._pieces += 1
                else:
                    # A non-blocking descriptor that is full.
                    time.sleep(0.02)
        except (OSError, ValueError, MemoryError):
            # ValueError: the stream is closed.
            return bytes(rest).count(b"\n")
        return 0


class QueuedStream(io.TextIOBase):
    """A text stream for sys.stdout or sys.stderr that passes all text to a LogWriter."""

    def __init__(self, writer: LogWriter, stream: io.TextIOWrapper) -> None:
        super().__init__()
        self.writer = writer
        self._stream = stream

    def write(self, text: str) -> int:
        return self.writer.write(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
