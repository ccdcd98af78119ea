"""Streams for what people read, that cannot stop the program.

A log may stand on a full disk or behind a reader that does not read. A line that cannot be written must cost that line
alone: not the start, not an answer, not the exit code, and no traceback per line. So stderr, and stdout while the proxy
serves, are written by a thread of their own (log_writer).
"""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from deepseek_cursor_proxy.observers.log_writer import STUCK_SECONDS, LogWriter, QueuedStream
from deepseek_cursor_proxy.redaction import safe_text


@contextlib.contextmanager
def command_streams() -> Iterator[None]:
    """Standard streams for a command: both exist, both can print any text, and stderr never blocks or raises."""
    _occupy_descriptors()
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                # Without a window (Windows' pythonw), or started with the descriptor closed.
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.callback(setattr, sys, name, None)
                setattr(sys, name, nowhere)
        _encode_any_text()
        stack.enter_context(_queued("stderr"))
        yield


@contextlib.contextmanager
def serving_streams() -> Iterator[None]:
    """Streams for the running proxy: stdout never blocks or raises either. Elsewhere it does: `config show | less`."""
    shared = sys.stderr.writer if isinstance(sys.stderr, QueuedStream) and _is_same_file() else None
    with _queued("stdout", shared):
        yield


@contextlib.contextmanager
def _queued(name: str, shared: LogWriter | None = None) -> Iterator[None]:
    """Put a queue in front of a standard stream; `shared` with the other one if both are the same file, for order."""
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):
        # A program that runs us has put something of its own there.
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
    """Have written what is queued, unless that takes too long."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, QueuedStream):
            stream.writer.drain(stuck_seconds)


def has_colours() -> bool:
    """Whether stderr is a terminal that takes escape sequences for colours."""
    try:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        # Somebody has closed it.
        return False
    return is_terminal and (os.name != "nt" or _understands_escapes())


def _understands_escapes() -> bool:
    """Ask a Windows console to; one that is too old for it shows them as they are."""
    if sys.platform != "win32":
        return False
    import ctypes

    kernel32 = ctypes.windll.kernel32
    mode = ctypes.c_uint32()
    # -12: stderr; 4: ENABLE_VIRTUAL_TERMINAL_PROCESSING.
    handle = kernel32.GetStdHandle(-12)
    return bool(kernel32.GetConsoleMode(handle, ctypes.byref(mode)) and kernel32.SetConsoleMode(handle, mode.value | 4))


def _occupy_descriptors() -> None:
    """Keep 0, 1 and 2 from becoming a client's connection, into which somebody prints."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened > 2:
                    os.close(opened)


def _encode_any_text() -> None:
    """A character that a terminal lacks is worth a question mark, not a traceback; files and pipes get UTF-8."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            is_chosen = "PYTHONIOENCODING" in os.environ or stream.isatty()
            stream.reconfigure(encoding=stream.encoding if is_chosen else "utf-8", errors=errors)


def _is_same_file() -> bool:
    """Whether stdout and stderr end in the same place."""
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    # Windows has no numbers for consoles.
    return out.st_ino != 0 and (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


class LineHandler(logging.Handler):
    """Writes records as lines. They cannot be forged: what a stranger got into one stays on it and moves no cursor."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.exc_info:
            line = self.format(record)
        elif not record.name.startswith("deepseek_cursor_proxy.observers.console"):
            # The console looks after its own.
            line = safe_text(line, 1000)
        self.write(line)

    def write(self, line: str) -> None:
        self._stream.write(line + "\n")


def line_writer(log: logging.Logger) -> Callable[[str], object]:
    """How to write many lines that need no looking after: past the records where they would be written anyway."""
    for handler in logging.getLogger(log.name.partition(".")[0]).handlers:
        if isinstance(handler, LineHandler):
            return handler.write
    return log.info
