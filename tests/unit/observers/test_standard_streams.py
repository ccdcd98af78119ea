import contextlib
import errno
import gc
import io
import logging
import os
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.observers.standard_streams import LogStream
from tests.support.threads import run_at_once


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
        with standard_streams.command_streams():
            self.assertIs(out, sys.stdout)
            self.assertIsInstance(sys.stderr, LogStream)
            with standard_streams.serving_streams():
                self.assertIsInstance(sys.stdout, LogStream)
            self.assertIs(out, sys.stdout)
        self.assertIs(err, sys.stderr)

    @unittest.skipIf(os.name == "nt", "Windows has no numbers for pipes")
    def test_two_streams_to_one_file_keep_the_order_of_lines(self) -> None:
        with tempfile.TemporaryFile("w+") as file, contextlib.ExitStack() as stack:
            for name in ("stdout", "stderr"):
                stream = stack.enter_context(open(os.dup(file.fileno()), "w"))
                stack.enter_context(mock.patch.object(sys, name, stream))
            with standard_streams.command_streams(), standard_streams.serving_streams():
                for number in range(500):
                    print(number, file=(sys.stdout, sys.stderr)[number % 2])
            file.seek(0)
            self.assertEqual([f"{number}\n" for number in range(500)], file.readlines())

    def test_a_stream_that_is_no_terminal_gets_utf_8(self) -> None:
        """A log that Windows redirects was full of escapes."""
        with mock.patch.dict(os.environ):
            os.environ.pop("PYTHONIOENCODING", None)
            self.assertEqual(["┌ 你好".encode()] * 2, self.printed("┌ 你好", "cp1252"))

    def test_the_encoding_of_pythonioencoding_stays(self) -> None:
        with mock.patch.dict(os.environ, PYTHONIOENCODING="ascii"):
            self.assertEqual([b"?", b"\\xfc"], self.printed("ü", "ascii"))

    def printed(self, text: str, encoding: str) -> list[bytes]:
        """The bytes that a command's stdout and stderr get of a text."""
        written = self.streams(encoding)
        with standard_streams.command_streams():
            print(text, flush=True)
            print(text, file=sys.stderr)
            standard_streams.drain(5)
            return [file.getvalue().strip() for file in written]

    def test_missing_standard_streams_are_replaced_while_a_command_runs(self) -> None:
        """Windows' pythonw starts programs so; what stood in their place was collected, and every chat answered 500."""
        self.enterContext(mock.patch.multiple(sys, stdout=None, stderr=None))
        with standard_streams.command_streams(), standard_streams.serving_streams():
            gc.collect()
            print("not read", flush=True)
            print("nor this", file=sys.stderr, flush=True)
            # Windows calls its null device a terminal; it is none that shows colours.
            self.assertFalse(standard_streams.has_colours())
        self.assertEqual((None, None), (sys.stdout, sys.stderr))

    def test_only_a_terminal_that_takes_escapes_has_colours(self) -> None:
        """Asking an absent or closed stderr was the end of every chat."""
        terminal, closed = mock.Mock(**{"isatty.return_value": True}), io.StringIO()
        closed.close()
        for name, stream, system, environment, expected in (
            ("a terminal", terminal, "posix", {}, True),
            ("Windows' Terminal", terminal, "nt", {"WT_SESSION": "1"}, True),
            ("an old console of Windows", terminal, "nt", {}, False), ("a file", io.StringIO(), "posix", {}, False),
            ("absent", None, "posix", {}, False), ("closed", closed, "posix", {}, False),
        ):  # fmt: skip
            with (
                self.subTest(name),
                mock.patch.object(sys, "stderr", stream),
                mock.patch.object(os, "name", system),
                mock.patch.object(standard_streams.os, "environ", environment),
            ):
                self.assertEqual(expected, standard_streams.has_colours())


@unittest.skipIf(os.name == "nt", "limits are a POSIX thing")
class TestLines(unittest.TestCase):
    def setUp(self) -> None:
        self.stream = io.StringIO()
        self.log = logging.getLogger("a_program_of_this_test")
        self.log.propagate = False
        self.log.setLevel(logging.INFO)

    def handle(self) -> None:
        self.log.addHandler(handler := standard_streams.LineHandler(self.stream))
        self.addCleanup(self.log.removeHandler, handler)

    def test_foreign_text_in_a_log_record_stays_on_its_line(self) -> None:
        self.handle()
        self.log.getChild("child").warning("he said %s", "\x1b[2J\r\nforged line")
        self.assertEqual("he said \\x1b[2J\\r\\nforged line\n", self.stream.getvalue())

    def test_a_traceback_in_the_log_keeps_its_lines(self) -> None:
        self.handle()
        try:
            raise LookupError("a bug")
        except LookupError:
            self.log.error("it failed", exc_info=True)
        self.assertRegex(self.stream.getvalue(), r"\Ait failed\nTraceback [\s\S]+LookupError: a bug\n\Z")

    def test_the_line_writer_writes_to_our_handler_directly(self) -> None:
        self.handle()
        standard_streams.line_writer(self.log.getChild("child"))("50 % of it")
        self.assertEqual("50 % of it\n", self.stream.getvalue())

    def test_the_line_writer_logs_records_to_other_handlers(self) -> None:
        with self.assertLogs(self.log, "INFO") as logged:
            standard_streams.line_writer(self.log.getChild("child"))("50 % of it")
        self.assertEqual(["INFO:a_program_of_this_test.child:50 % of it"], logged.output)


PATIENCE = 15.0


class Sink(io.RawIOBase):
    """A descriptor that takes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.released = threading.Event()
        self.reached = threading.Event()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.reached.set()
        self.released.wait(PATIENCE)
        self.written += bytes(data)
        return len(data)


class TestLogStream(unittest.TestCase):
    def writer(self, sink: io.RawIOBase) -> LogStream:
        writer = LogStream(io.TextIOWrapper(io.BufferedWriter(sink), encoding="utf-8"))
        self.addCleanup(writer.finish)
        return writer

    def stuck(self) -> tuple[LogStream, Sink]:
        """A writer whose thread is in the middle of a write."""
        sink = Sink()
        writer = self.writer(sink)
        self.addCleanup(sink.released.set)
        writer.write("first\n")
        self.assertTrue(sink.reached.wait(PATIENCE))
        return writer, sink

    def test_a_write_does_not_wait_for_a_blocked_descriptor(self) -> None:
        writer, sink = self.stuck()
        for number in range(10_000):
            writer.write(f"{number}\n")
        self.assertEqual(b"", sink.written)

    def test_lines_beyond_a_full_queue_are_dropped_and_counted_where_they_are_missing(self) -> None:
        self.enterContext(mock.patch.object(standard_streams, "_MOST_CHARACTERS", 1000))
        writer, sink = self.stuck()
        for number in range(1000):
            writer.write(f"{number}\n")
        sink.released.set()
        self.assertTrue(writer.drain())
        writer.write("later\n")
        self.assertTrue(writer.drain())
        first, *written, missing, later = sink.written.decode().splitlines()
        self.assertEqual(("first", "later"), (first, later))
        self.assertEqual([str(number) for number in range(len(written))], written)
        self.assertTrue(written)
        self.assertEqual(
            f"deepseek-cursor-proxy: {1000 - len(written)} lines are missing here: this log could not be written.",
            missing,
        )

    def test_close_does_not_wait_long_for_a_blocked_descriptor(self) -> None:
        writer, _ = self.stuck()
        began = time.monotonic()
        with mock.patch.object(standard_streams, "_END_SECONDS", 0.05):
            writer.finish()
        self.assertLess(time.monotonic() - began, 3)

    @unittest.skipUnless(os.name == "posix", "pipes of Windows do not work so")
    def test_a_full_non_blocking_descriptor_gets_its_lines_later(self) -> None:
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        os.set_blocking(writing, False)
        writer = LogStream(self.enterContext(open(writing, "w", encoding="utf-8")))
        writer.write("x" * 200_000 + "\n")
        data = b""
        while not data.endswith(b"\n"):
            data += os.read(reading, 65536)
        self.assertEqual(200_001, len(data))
        writer.finish()

    def test_log_lines_of_each_thread_keep_their_order_and_none_is_lost(self) -> None:
        disk = Disk(10**9)
        writer = self.writer(disk)

        def run(name: str) -> None:
            for number in range(2000):
                writer.write(f"{name} {number}\n")

        run_at_once(run, "abcd")
        writer.finish()
        lines = disk.written.decode().splitlines()
        for name in "abcd":
            self.assertEqual(
                [f"{name} {number}" for number in range(2000)], [line for line in lines if line[0] == name]
            )

    # A signal handler and a finalizer run in the middle of any instruction, also of a write …

    def assert_ends(self, action: Callable[[], object]) -> None:
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive(), "it waits for itself")

    def test_a_write_inside_a_write_does_not_deadlock(self) -> None:
        disk = Disk(1000)
        writer = self.writer(disk)

        def nested() -> None:
            with writer._lock:
                writer.write("inner\n")
            writer.write("outer\n")

        self.assert_ends(nested)
        writer.finish()
        self.assertEqual(b"inner\nouter\n", disk.written)

    def test_a_full_disk_loses_lines_and_they_are_counted_once_there_is_space(self) -> None:
        disk = Disk(6)
        writer = self.writer(disk)
        for text in ("kept\nlo", "st\n", "lost\n"):
            writer.write(text)
            self.assertTrue(writer.drain())
        disk.space = 1000
        writer.write("again\n")
        writer.finish()
        self.assertEqual(
            b"kept\nl" + b"deepseek-cursor-proxy: 2 lines are missing here: this log could not be written.\nagain\n",
            disk.written,
        )

    def test_a_write_to_a_closed_descriptor_raises_nothing(self) -> None:
        writer = self.writer(Disk(1000))
        writer._stream.close()
        writer.write("the stream is closed\n")
        writer.finish()
