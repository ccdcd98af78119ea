"""Streams for what people read, that cannot stop the program.

A log often lies on the same disk as everything else. When that is full, a line that cannot be written must cost that
line alone: not the start, not an answer, not the exit code, and no traceback per line. Lines come again as soon as
there is room for them, so nothing is switched off.
"""

import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from deepseek_cursor_proxy.wire import safe_text


def make_ready() -> None:
    """Have somewhere to print, and print what can be printed."""
    # Without a window, as Windows' pythonw runs it, there is nothing to print on.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that an old code page lacks is worth a question mark, not a traceback; stderr does so by itself.
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper) and not isinstance(sys.stderr.buffer, Unfailing):
        sys.stderr = unfailing(sys.stderr)


def unfailing(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, except that writing to it never raises; `stream` has to live as long."""
    stream.flush()
    # Past its buffer, which keeps what failed and fails with it again, at the latest at exit.
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return io.TextIOWrapper(Unfailing(raw), stream.encoding, stream.errors, write_through=True)  # type: ignore[arg-type]


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
        self._stream.flush()


def line_writer(log: logging.Logger) -> Callable[[str], object]:
    """How to write many lines that need no looking after: past the records where they would be written anyway."""
    for handler in logging.getLogger(log.name.partition(".")[0]).handlers:
        if isinstance(handler, LineHandler):
            return handler.write
    return log.info


class Unfailing(io.RawIOBase):
    """Writes whole what it is given, or drops the rest of it. Called by any thread, one line at a time."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self._raw = raw

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self._raw.isatty())

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            # None: a pipe that does not block and is full.
            while rest and (written := self._raw.write(rest)):
                rest = rest[written:]
        except (OSError, ValueError):
            # ValueError: somebody has closed it.
            pass
        return len(data)
