"""Standard streams and the log handler, made so that they cannot stop the program.

A log may be on a full disk or in a pipe that is not read. A line that cannot be written costs that line alone: not the
start, an answer or the exit code, and no traceback per line. So stderr, and stdout while the proxy serves, are written
by a thread of their own (log_writer).
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
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.exc_info:
            line = self.format(record)
        elif not record.name.startswith("deepseek_cursor_proxy.observers.console"):
            # The console's lines are safe already.
            line = safe_text(line, 1000)
        self.write(line)

    def write(self, line: str) -> None:
        self._stream.write(line + "\n")


def line_writer(log: logging.Logger) -> Callable[[str], object]:
    """A function that writes safe lines to the log's handler directly, or `log.info` if that is not ours."""
    for handler in logging.getLogger(log.name.partition(".")[0]).handlers:
        if isinstance(handler, LineHandler):
            return handler.write
    return log.info
