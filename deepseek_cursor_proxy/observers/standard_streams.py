"""Standard streams and the log handler, made so that they cannot stop the program.

A log may be on a full disk, in a pipe that is not read, or on a terminal that is paused (Ctrl-S, QuickEdit). A line
that cannot be written costs that line alone: not the start, an answer or the exit code. So stderr, and stdout while
the proxy serves, are LogStreams: other threads and signal handlers only append to a queue, which a thread writes. When
the queue is full, new text is dropped; the thread reports the number of missing lines before the next one.
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
from functools import partial
from typing import Any, TextIO

from deepseek_cursor_proxy.redaction import safe_text

# Some ten thousand lines of the console, or two large requests with `--verbose`.
_MOST_CHARACTERS = 4 * 1024 * 1024
# The memory of a text besides its characters.
_TEXT = 64
# Lines of one moment are written together: waking the thread takes longer than the write, and the request beside it
# waits for the interpreter. The first line after a pause is written at once.
_GATHER_SECONDS = 0.1
# Below a Windows console's limit per write.
_PIECE = 16 * 1024
# How long the process waits at its end for a descriptor that takes nothing.
_END_SECONDS = 1.0


class LogStream(io.TextIOBase):
    """A standard stream that is written by a thread. Any thread and signal handler may call `write` and `drain`."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__()
        stream.flush()
        # A reference, because a stream that is garbage-collected closes its descriptor.
        self._stream = stream
        # Past the buffer: it keeps failed text, and at exit Python aborts if a blocked write still holds its lock.
        self._raw: Any = getattr(stream.buffer, "raw", stream.buffer)
        # Texts, events to set when all before them is written, and None at the end. Putting is reentrant.
        self._queue: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        # Has an entry while a caller waits until all is written.
        self._hurry: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Protects the next two. Reentrant: a signal handler or finalizer may write while its thread holds it.
        self._lock = threading.RLock()
        self._size = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Queue the text, or drop it when the queue is full; never waits for the descriptor."""
        with self._lock:
            # Text that is larger than the queue is accepted when the queue is empty.
            if self._size and self._size + len(text) > _MOST_CHARACTERS:
                self._dropped += text.count("\n")
                return len(text)
            self._size += len(text) + _TEXT
        self._queue.put(text)
        return len(text)

    def drain(self, seconds: float = _END_SECONDS) -> bool:
        """Wait until all is written, for `seconds` at most; returns whether it is."""
        is_written = threading.Event()
        self._queue.put(is_written)
        self._hurry.put(None)
        return is_written.wait(seconds)

    def finish(self) -> None:
        """Write the rest and end the thread; a stuck one ends with the process."""
        self._queue.put(None)
        self._hurry.put(None)
        self._thread.join(_END_SECONDS)

    # The thread …

    def _run(self) -> None:
        missing, is_open = 0, True
        while is_open:
            entries = [self._queue.get()]
            entries += [self._queue.get() for _ in range(self._queue.qsize())]
            with self._lock:
                # These are dropped after the texts that are written now.
                dropped, self._dropped, self._size = self._dropped, 0, 0
            if missing and not self._write(_missing_text(missing)):
                missing = 0
            missing += dropped + self._write("".join([each for each in entries if isinstance(each, str)]))
            for each in entries:
                if isinstance(each, threading.Event):
                    each.set()
            is_open = None not in entries
            with contextlib.suppress(queue.Empty):
                self._hurry.get(timeout=_GATHER_SECONDS if is_open else 0)

    def _write(self, text: str) -> int:
        """Write the text as far as possible; the number of lost lines."""
        rest = memoryview(b"")
        try:
            rest = memoryview(text.encode(self._stream.encoding, self._stream.errors or "strict"))
            while rest:
                written = self._raw.write(rest[:_PIECE])
                if not written:
                    # A non-blocking descriptor that is full.
                    time.sleep(0.02)
                rest = rest[written or 0 :]
        except (OSError, ValueError, MemoryError):
            # ValueError: the stream is closed.
            return bytes(rest).count(b"\n")
        return 0


def _missing_text(count: int) -> str:
    lines = "1 line is" if count == 1 else f"{count:,} lines are"
    return f"deepseek-cursor-proxy: {lines} missing here: this log could not be written.\n"


@contextlib.contextmanager
def command_streams() -> Iterator[None]:
    """Standard streams for a command: both exist, both can print any text, and stderr never blocks or raises."""
    with contextlib.ExitStack() as stack:
        for name, errors in (("stdout", "replace"), ("stderr", "backslashreplace")):
            stream = getattr(sys, name)
            if stream is None:
                # Windows' pythonw, or started with the descriptor closed.
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.callback(setattr, sys, name, None)
                setattr(sys, name, nowhere)
            elif isinstance(stream, io.TextIOWrapper):
                # Files and pipes get UTF-8.
                is_chosen = "PYTHONIOENCODING" in os.environ or stream.isatty()
                stream.reconfigure(encoding=stream.encoding if is_chosen else "utf-8", errors=errors)
        stack.enter_context(_queued("stderr"))
        yield


@contextlib.contextmanager
def serving_streams() -> Iterator[None]:
    """Streams for the running proxy: stdout never blocks or raises either. In commands it may: `config show | less`."""
    shared = sys.stderr if isinstance(sys.stderr, LogStream) and _is_same_file() else None
    with _queued("stdout", shared):
        yield


@contextlib.contextmanager
def _queued(name: str, shared: LogStream | None = None) -> Iterator[None]:
    """Put a LogStream in place of a standard stream: `shared` with the other if both are one file, in order."""
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):
        # The program that embeds us has replaced it.
        yield
        return
    queued = shared or LogStream(stream)
    setattr(sys, name, queued)
    try:
        yield
    finally:
        if queued is not shared:
            queued.finish()
        setattr(sys, name, stream)


def _is_same_file() -> bool:
    with contextlib.suppress(OSError, ValueError):
        # Windows has no numbers for consoles and pipes.
        return os.name == "posix" and os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    return False


def drain(seconds: float = _END_SECONDS) -> None:
    """Wait until all queued text is written, unless that takes too long."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogStream):
            stream.drain(seconds)


def has_colours() -> bool:
    """Whether stderr is a terminal that takes escape sequences for colours; on Windows only its Terminal does."""
    try:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        # The stream is closed.
        return False
    return is_terminal and (os.name != "nt" or "WT_SESSION" in os.environ)


class LineHandler(logging.Handler):
    """Writes records as lines that cannot be forged: text from outside gets no line breaks or control characters."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.exc_info:
            line = self.format(record)
        elif not record.name.startswith("deepseek_cursor_proxy.observers.console"):
            # The console's lines are safe already.
            line = safe_text(line, 1000)
        self.write_line(line)

    def write_line(self, line: str) -> None:
        self._stream.write(line + "\n")


def line_writer(log: logging.Logger) -> Callable[[str], object]:
    """A function that writes a safe line to our handler, or else to `log`."""
    for handler in logging.getLogger(log.name.partition(".")[0]).handlers:
        if isinstance(handler, LineHandler):
            return handler.write_line
    return partial(log.info, "%s")
