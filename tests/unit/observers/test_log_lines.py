"""What cannot be printed costs nothing but itself."""

import errno
import gc
import io
import logging
import os
import sys
import unittest
from unittest import mock

from deepseek_cursor_proxy.observers import log_lines
from deepseek_cursor_proxy.observers.log_writer import QueuedStream


class Disk(io.RawIOBase):
    """A file on a disk with so much space, which takes a few bytes at a time."""

    def __init__(self, space: int, piece: int = 1000) -> None:
        super().__init__()
        self.space, self.piece, self.written = space, piece, b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.space:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = bytes(data[: min(self.space, self.piece)])
        self.written += taken
        self.space -= len(taken)
        return len(taken)


class TestStreams(unittest.TestCase):
    def streams(self, encoding: str = "ascii") -> tuple[io.BytesIO, io.BytesIO]:
        written = io.BytesIO(), io.BytesIO()
        for name, file in zip(("stdout", "stderr"), written, strict=True):
            self.enterContext(mock.patch.object(sys, name, io.TextIOWrapper(file, encoding)))
        return written

    def test_only_stderr_is_queued_unless_the_proxy_serves(self) -> None:
        """Whoever reads our output through `head` must be noticed, and a pager is waited for."""
        self.streams()
        out, err = sys.stdout, sys.stderr
        with log_lines.command_streams():
            self.assertIs(out, sys.stdout)
            self.assertIsInstance(sys.stderr, QueuedStream)
            with log_lines.serving_streams():
                self.assertIsInstance(sys.stdout, QueuedStream)
            self.assertIs(out, sys.stdout)
        self.assertIs(err, sys.stderr)

    def test_a_stream_that_is_no_terminal_gets_utf_8(self) -> None:
        """A log that Windows redirects was full of escapes."""
        with mock.patch.dict(os.environ):
            os.environ.pop("PYTHONIOENCODING", None)
            written = self.streams("cp1252")
            with log_lines.command_streams():
                print("┌ 你好")
                print("┌ 你好", file=sys.stderr)
                sys.stdout.flush()
                line = "┌ 你好".encode()
                self.assertEqual([line] * 2, [written[0].getvalue().strip(), self.drained(written[1]).strip()])

    def test_the_encoding_of_pythonioencoding_stays(self) -> None:
        with mock.patch.dict(os.environ, PYTHONIOENCODING="ascii"):
            written = self.streams("ascii")
            with log_lines.command_streams():
                print("ü")
                print("ü", file=sys.stderr)
                sys.stdout.flush()
                self.assertEqual([b"?", b"\\xfc"], [written[0].getvalue().strip(), self.drained(written[1]).strip()])

    def drained(self, file: io.BytesIO) -> bytes:
        log_lines.drain(5)
        return file.getvalue()

    def test_missing_standard_streams_are_replaced_while_a_command_runs(self) -> None:
        """Windows' pythonw starts programs so; what stood in their place was collected, and every chat answered 500."""
        self.enterContext(mock.patch.object(sys, "stdout", None))
        self.enterContext(mock.patch.object(sys, "stderr", None))
        with log_lines.command_streams(), log_lines.serving_streams():
            gc.collect()
            print("not read", flush=True)
            print("nor this", file=sys.stderr, flush=True)
            # Windows calls its null device a terminal; it is none that shows colours.
            self.assertFalse(log_lines.has_colours())
        self.assertIsNone(sys.stdout)
        self.assertIsNone(sys.stderr)


class TestColours(unittest.TestCase):
    def colours(self, stream: object, name: str = "posix", understands: bool = False) -> bool:
        with (
            mock.patch.object(sys, "stderr", stream),
            mock.patch.object(os, "name", name),
            mock.patch.object(log_lines, "_understands_escapes", return_value=understands),
        ):
            return log_lines.has_colours()

    def test_only_a_terminal_has_colours(self) -> None:
        self.assertTrue(self.colours(mock.Mock(**{"isatty.return_value": True})))
        self.assertFalse(self.colours(io.StringIO()))

    def test_a_windows_console_has_colours_when_it_takes_escapes(self) -> None:
        terminal = mock.Mock(**{"isatty.return_value": True})
        for understands in (True, False):
            self.assertEqual(understands, self.colours(terminal, "nt", understands))

    def test_an_absent_or_closed_stderr_has_no_colours(self) -> None:
        """Asking it was the end of every chat."""
        closed = io.StringIO()
        closed.close()
        for stream in (None, closed):
            self.assertFalse(self.colours(stream))


@unittest.skipIf(os.name == "nt", "limits are a POSIX thing")
class TestLines(unittest.TestCase):
    def setUp(self) -> None:
        self.stream = io.StringIO()
        self.log = logging.getLogger("a_program_of_this_test")
        self.log.propagate = False
        self.log.setLevel(logging.INFO)

    def handle_by(self, handler: logging.Handler) -> None:
        self.log.addHandler(handler)
        self.addCleanup(self.log.removeHandler, handler)

    def test_foreign_text_in_a_log_record_stays_on_its_line(self) -> None:
        self.handle_by(log_lines.LineHandler(self.stream))
        self.log.getChild("child").warning("he said %s", "\x1b[2J\r\nforged line")
        self.assertEqual("he said \\x1b[2J\\r\\nforged line\n", self.stream.getvalue())

    def test_a_traceback_in_the_log_keeps_its_lines(self) -> None:
        self.handle_by(log_lines.LineHandler(self.stream))
        try:
            raise LookupError("a bug")
        except LookupError:
            self.log.error("it failed", exc_info=True)
        self.assertRegex(self.stream.getvalue(), r"\Ait failed\nTraceback [\s\S]+LookupError: a bug\n\Z")

    def test_the_line_writer_writes_to_our_handler_directly(self) -> None:
        self.handle_by(log_lines.LineHandler(self.stream))
        log_lines.line_writer(self.log.getChild("child"))("50 % of it")
        self.assertEqual("50 % of it\n", self.stream.getvalue())

    def test_the_line_writer_logs_records_to_other_handlers(self) -> None:
        with self.assertLogs(self.log, "INFO") as logged:
            log_lines.line_writer(self.log.getChild("child"))("50 % of it")
        self.assertEqual(["INFO:a_program_of_this_test.child:50 % of it"], logged.output)
