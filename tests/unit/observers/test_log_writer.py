"""Text for a descriptor that stands still, fails, or is slow."""

import io
import os
import threading
import time
import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.observers.standard_streams import LogStream
from tests.support.threads import run_at_once
from tests.unit.observers.test_standard_streams import Disk

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
