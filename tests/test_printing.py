"""What cannot be printed costs nothing but itself."""

import errno
import io
import logging
import os
import signal
import sys
import unittest
from unittest import mock

from deepseek_cursor_proxy import printing
from tests.test_serve import ServeTest


class Disk(io.RawIOBase):
    """A file on a disk that has so much room, and takes a few bytes at a time."""

    def __init__(self, room: int, piece: int = 1000) -> None:
        super().__init__()
        self.room, self.piece, self.kept = room, piece, b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = bytes(data[: min(self.room, self.piece)])
        self.kept += taken
        self.room -= len(taken)
        return len(taken)


class TestUnfailing(unittest.TestCase):
    def test_a_line_is_written_whole_at_once(self) -> None:
        disk = Disk(1000, piece=3)
        stream = printing.unfailing(io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8"))
        print("Grüße", file=stream)
        self.assertEqual("Grüße\n".encode(), disk.kept)

    def test_a_full_disk_loses_lines_and_raises_nothing(self) -> None:
        disk = Disk(3)
        before = io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8")
        stream = printing.unfailing(before)
        for _ in range(3):
            print("lost", file=stream, flush=True)
        disk.room = 1000
        print("again", file=stream)
        self.assertEqual(b"losagain\n", disk.kept)
        before.close()
        print("somebody closed it", file=stream)

    def test_only_stderr_is_unfailing_and_only_once(self) -> None:
        """Whoever reads our output through `head` must be noticed."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace") for _ in range(2))
        with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", err):
            printing.make_ready()
            first = sys.stderr
            printing.make_ready()
            self.assertIs(first, sys.stderr)
            self.assertIs(out, sys.stdout)
            print("ü", file=sys.stderr)
        self.assertEqual(b"\\xfc\n", err.buffer.getvalue())  # type: ignore[attr-defined]


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

    def test_what_a_stranger_got_into_a_record_stays_on_its_line(self) -> None:
        self.handle_by(printing.LineHandler(self.stream))
        self.log.getChild("room").warning("he said %s", "\x1b[2J\r\nforged line")
        self.assertEqual("he said \\x1b[2J\\r\\nforged line\n", self.stream.getvalue())

    def test_a_traceback_keeps_its_lines(self) -> None:
        self.handle_by(printing.LineHandler(self.stream))
        try:
            raise LookupError("a bug")
        except LookupError:
            self.log.error("it failed", exc_info=True)
        self.assertRegex(self.stream.getvalue(), r"\Ait failed\nTraceback [\s\S]+LookupError: a bug\n\Z")

    def test_many_lines_go_past_the_records_where_they_are_lines_anyway(self) -> None:
        self.handle_by(printing.LineHandler(self.stream))
        printing.line_writer(self.log.getChild("room"))("50 % of it")
        self.assertEqual("50 % of it\n", self.stream.getvalue())

    def test_elsewhere_they_are_records_like_others(self) -> None:
        with self.assertLogs(self.log, "INFO") as logged:
            printing.line_writer(self.log.getChild("room"))("50 % of it")
        self.assertEqual(["INFO:a_program_of_this_test.room:50 % of it"], logged.output)


class TestFullDisk(ServeTest):
    def test_a_log_on_a_full_disk_keeps_nobody_from_serving(self) -> None:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Inherited by the process, whose stderr is a file; this one writes nothing meanwhile.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            process = self.launch("--port", "0")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        process.read_until("Stop with Ctrl-C.\n")
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual("", process.errors)
