"""Standard streams and the log handler, made so that they cannot stop the program.

A log may be on a full disk, in a pipe that is not read, or on a terminal that is paused (Ctrl-S, QuickEdit). A line
that cannot be written costs that line alone: not the start, an answer or the exit code, and no traceback per line. So
stderr, and stdout while the proxy serves, are written by a thread of their own: the LogWriter. Other threads and signal
handlers only append to its queue; it also formats the console's lines, many at a time. When the queue is full, new text
is dropped, and the writer reports the number of missing lines where they are missing. Later lines are written as soon
as that works again.
"""

import contextlib
import io
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from deepseek_cursor_proxy.redaction import safe_text

# Some ten thousand lines of the console, or two large requests with `--verbose`.
_MOST_CHARACTERS = 4 * 1024 * 1024
# The memory of a queue entry besides its characters, and that of a line that is not formatted yet.
_ENTRY = 64
_LINE = 256
# Lines of one moment are written together: waking the thread takes longer than the write, and the request beside it
# waits for the interpreter. The first line after a pause is written at once.
_GATHER_SECONDS = 0.1
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
        self._entries: list[str | _Line] = []
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
        self._append(text, len(text))
        return len(text)

    def write_line(self, format: Callable[..., str], *values: Any) -> None:
        """Queue a line for the thread to format."""
        self._append((format, values), _LINE)

    def _append(self, entry: "str | _Line", size: int) -> None:
        with self._lock:
            # Text that is larger than the queue is accepted when the queue is empty.
            if self._size and self._size + size > _MOST_CHARACTERS:
                self._dropped += entry.count("\n") if isinstance(entry, str) else 1
                return
            self._entries.append(entry)
            self._size += size + _ENTRY
            is_idle, self._is_idle = self._is_idle, False
        if is_idle:
            self._wake.put(None)

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
            return not (self._entries or self._dropped or self._is_writing)

    # The thread …

    def _run(self) -> None:
        while True:
            self._wake.get()
            while self._write_batch():
                with contextlib.suppress(queue.Empty):
                    if not self._is_closing:
                        self._wake.get(timeout=_GATHER_SECONDS)
            if self._is_closing and self._is_drained():
                return

    def _write_batch(self) -> bool:
        """Write the queue; False when it was empty, and the next `write` has to wake the thread."""
        with self._lock:
            entries, self._entries, self._size = self._entries, [], 0
            dropped, self._dropped = self._dropped, 0
            self._is_writing = bool(entries or dropped)
            self._is_idle = not self._is_writing
            if self._is_idle:
                return False
        self._report_missing()
        texts = [entry if isinstance(entry, str) else _format(*entry) for entry in entries]
        self._missing += self._write("".join(texts))
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

    def _write(self, text: str) -> int:
        """Write the text as far as possible; the number of lost lines."""
        rest = memoryview(b"")
        try:
            rest = memoryview(text.encode(self._stream.encoding, self._stream.errors or "strict"))
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


_Line = tuple[Callable[..., str], tuple[Any, ...]]


def _format(format: Callable[..., str], values: tuple[Any, ...]) -> str:
    try:
        return format(*values) + "\n"
    except Exception as error:
        # A bug costs its line alone.
        return f"deepseek-cursor-proxy: unexpected {type(error).__name__} in a line of the log\n"


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


@contextlib.contextmanager
def command_streams() -> Iterator[None]:
    """Standard streams for a command: both exist, both can print any text, and stderr never blocks or raises."""
    _occupy_descriptors()
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                # Windows' pythonw, or started with the descriptor closed.
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.callback(setattr, sys, name, None)
                setattr(sys, name, nowhere)
        _encode_any_text()
        stack.enter_context(_install_queue("stderr"))
        yield


@contextlib.contextmanager
def serving_streams() -> Iterator[None]:
    """Streams for the running proxy: stdout never blocks or raises either. In commands it may: `config show | less`."""
    shared = sys.stderr.writer if isinstance(sys.stderr, QueuedStream) and _is_same_file() else None
    with _install_queue("stdout", shared):
        yield


@contextlib.contextmanager
def _install_queue(name: str, shared: LogWriter | None = None) -> Iterator[None]:
    """Put a queue in front of a standard stream; `shared` with the other if both are one file, to keep the order."""
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):
        # The program that embeds us has replaced it.
        yield
        return
    stream.flush()
    writer = shared or LogWriter(stream)
    setattr(sys, name, QueuedStream(writer, stream))
    try:
        yield
    finally:
        if writer is not shared:
            writer.close()
        setattr(sys, name, stream)


def drain(stuck_seconds: float = STUCK_SECONDS) -> None:
    """Wait until all queued text is written, unless that takes too long."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, QueuedStream):
            stream.writer.drain(stuck_seconds)


def has_colours() -> bool:
    """Whether stderr is a terminal that takes escape sequences for colours."""
    try:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        # The stream is closed.
        return False
    return is_terminal and (os.name != "nt" or _understands_escapes())


def _understands_escapes() -> bool:
    """Switch escape sequences on in a Windows console; whether that worked."""
    if sys.platform != "win32":
        return False
    import ctypes

    kernel32 = ctypes.windll.kernel32
    mode = ctypes.c_uint32()
    # -12: stderr; 4: ENABLE_VIRTUAL_TERMINAL_PROCESSING.
    handle = kernel32.GetStdHandle(-12)
    return bool(kernel32.GetConsoleMode(handle, ctypes.byref(mode)) and kernel32.SetConsoleMode(handle, mode.value | 4))


def _occupy_descriptors() -> None:
    """Keep descriptors 0, 1 and 2 from becoming a client's connection, into which a print would write."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                null = os.open(os.devnull, os.O_RDWR)
                if null > 2:
                    os.close(null)


def _encode_any_text() -> None:
    """Replace characters that a terminal lacks instead of raising; files and pipes get UTF-8."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            is_chosen = "PYTHONIOENCODING" in os.environ or stream.isatty()
            stream.reconfigure(encoding=stream.encoding if is_chosen else "utf-8", errors=errors)


def _is_same_file() -> bool:
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    # Windows reports 0 for consoles.
    return out.st_ino != 0 and (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


class LineHandler(logging.Handler):
    """Writes records as lines that cannot be forged: foreign text in one has no line breaks or control characters."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.exc_info:
            line = self.format(record)
        elif not record.name.startswith("deepseek_cursor_proxy.observers.console"):
            # The console's lines are safe already.
            line = safe_text(line, 1000)
        self.stream.write(line + "\n")


def line_writer(log: logging.Logger) -> Callable[..., object]:
    """A function that takes a format and its values, and writes the safe line to our handler, or else to `log`."""
    for handler in logging.getLogger(log.name.partition(".")[0]).handlers:
        if isinstance(handler, LineHandler):
            stream = handler.stream
            if isinstance(stream, QueuedStream):
                return stream.writer.write_line
            return lambda format, *values: stream.write(format(*values) + "\n")
    return lambda format, *values: log.info("%s", format(*values))
