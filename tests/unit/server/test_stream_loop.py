"""One thread drives many streams; whatever happens to one of them, the others go on."""

import os
import select
import socket
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone, ProxyStopping
from deepseek_cursor_proxy.http1.lull import WaitHandle
from deepseek_cursor_proxy.server import stream_loop
from deepseek_cursor_proxy.server.stream_loop import StreamLoop
from tests.support.driven_streams import needs_stream_loop
from tests.support.polling import eventually
from tests.support.threads import in_background
from tests.unit.net.test_wait import Client, socket_pair

PATIENCE = 10.0


class Input:
    """A wait handle on one end of a socket pair."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self.until = until
        self.interruption: Exception | None = None

    def fileno(self) -> int:
        return self._sock.fileno()

    def interrupt(self, error: Exception) -> None:
        self.interruption = error


class FakeStream:
    """A stream that notes what it reads, and goes back to its own thread at a full stop."""

    def __init__(self, test: unittest.TestCase, seconds: float = PATIENCE) -> None:
        self.sock, self.upstream = socket_pair(test)
        client, self.client = socket_pair(test)
        self.peer = Client(client)
        self.source = Input(self.sock, time.monotonic() + seconds)
        self.received = b""
        self.threads: set[int] = set()

    def advance(self) -> WaitHandle | None:
        self.threads.add(threading.get_ident())
        if not select.select([self.sock], [], [], 0)[0]:
            # It is due, and nothing has arrived.
            return None
        self.received += self.sock.recv(100)
        return None if self.received.endswith(b".") else self.source


class LoopTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.loop = StreamLoop()
        self.addCleanup(self.loop.close)

    def start_threads(self, *streams: FakeStream) -> list[threading.Thread]:
        """The threads of these streams, which sleep until they have to go on."""
        return [in_background(self, self.loop.drive, each, each.source) for each in streams]


@needs_stream_loop
class TestDriving(LoopTestCase):
    def test_many_streams_are_driven_by_one_thread_until_their_own_has_to_go_on(self) -> None:
        streams = [FakeStream(self) for _ in range(20)]
        threads = self.start_threads(*streams)
        for word in (b"one ", b"two ", b"three."):
            for each in streams:
                each.upstream.sendall(word)
            self.assertTrue(eventually(lambda word=word: all(each.received.endswith(word) for each in streams)))  # type: ignore[misc]
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual({b"one two three."}, {each.received for each in streams})
        self.assertEqual(1, len({ident for each in streams for ident in each.threads}))

    def test_an_error_of_one_stream_is_raised_in_its_own_thread_and_leaves_the_others(self) -> None:
        bad, good = FakeStream(self), FakeStream(self)
        (thread,) = self.start_threads(good)
        bad.upstream.sendall(b"x")
        with mock.patch.object(bad, "advance", side_effect=LookupError("a bug")), self.assertRaises(LookupError):
            self.loop.drive(bad, bad.source)
        good.upstream.sendall(b"good.")
        thread.join(PATIENCE)
        self.assertEqual(b"good.", good.received)

    def test_a_silent_stream_ends_when_its_client_leaves_or_the_proxy_ends_it(self) -> None:
        for is_left, expected in ((False, ClientGone), (True, ProxyStopping)):
            stream = FakeStream(self)
            (thread,) = self.start_threads(stream)
            stream.peer.part() if is_left else stream.client.close()
            thread.join(PATIENCE)
            self.assertIsInstance(stream.source.interruption, expected)
            self.assertEqual(b"", stream.received)

    def test_a_client_that_sends_more_has_not_left(self) -> None:
        stream = FakeStream(self)
        (thread,) = self.start_threads(stream)
        stream.client.sendall(b"the next request")
        stream.upstream.sendall(b"here.")
        thread.join(PATIENCE)
        self.assertEqual((b"here.", None), (stream.received, stream.source.interruption))

    def test_a_stream_is_advanced_when_it_is_due_even_if_nothing_arrives(self) -> None:
        for first in (PATIENCE, 0.05):
            # Behind one that waits much longer, and alone.
            patient, hasty = FakeStream(self, first), FakeStream(self, 0.03)
            self.start_threads(patient)
            with mock.patch.object(hasty, "advance", return_value=None):
                self.loop.drive(hasty, hasty.source)
            self.assertGreaterEqual(time.monotonic(), hasty.source.until)
            patient.upstream.sendall(b"over.")

    def test_a_stream_is_used_by_the_loop_alone_as_soon_as_it_may_be_driven(self) -> None:
        stream, loop, both = FakeStream(self), self.loop, []

        class Watched(Input):
            def __getattribute__(self, name: str) -> Any:
                run = loop._thread
                is_loop = threading.current_thread().name == "stream-loop"
                if name == "until" and run is not None and stream.sock.fileno() in run._by_fileno and not is_loop:
                    both.append(name)
                return super().__getattribute__(name)

        stream.source = Watched(stream.sock, stream.source.until)
        (thread,) = self.start_threads(stream)
        stream.upstream.sendall(b"over.")
        thread.join(PATIENCE)
        self.assertEqual((b"over.", []), (stream.received, both))

    def test_the_thread_of_the_loop_ends_when_idle_and_another_is_started(self) -> None:
        before = threading.active_count()
        with mock.patch.object(stream_loop, "_IDLE_SECONDS", 0.02):
            for _ in range(3):
                stream = FakeStream(self)
                stream.upstream.sendall(b"over.")
                self.loop.drive(stream, stream.source)
                self.assertTrue(eventually(lambda: threading.active_count() == before))

    def test_a_thread_that_ended_before_its_first_stream_came_is_replaced(self) -> None:
        add, refused, before = stream_loop._LoopThread.add, [True, True], threading.active_count()
        stream = FakeStream(self)
        stream.upstream.sendall(b"over.")

        def late(run: stream_loop._LoopThread, driven: stream_loop._DrivenStream) -> bool:
            return not refused.pop() if refused else add(run, driven)

        with (
            mock.patch.object(stream_loop, "_IDLE_SECONDS", 0.02),
            mock.patch.object(stream_loop._LoopThread, "add", late),
        ):
            self.loop.drive(stream, stream.source)
            self.assertTrue(eventually(lambda: threading.active_count() == before))
        self.assertEqual(b"over.", stream.received)

    def test_without_descriptors_or_threads_no_stream_is_driven(self) -> None:
        for name, fault in (("select.epoll", OSError(24, "Too many")), ("threading.Thread.start", RuntimeError())):
            stream = FakeStream(self)
            with self.subTest(name), mock.patch(name, side_effect=fault):
                self.assertFalse(self.loop.drive(stream, stream.source))

    def test_closing_the_loop_gives_all_streams_back(self) -> None:
        streams = [FakeStream(self) for _ in range(3)]
        threads = self.start_threads(*streams)
        for each in streams:
            each.upstream.sendall(b"x")
        self.assertTrue(eventually(lambda: all(each.received for each in streams)))
        self.loop.close()
        for thread in threads:
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())

    def test_a_closed_loop_drives_no_stream(self) -> None:
        self.loop.close()
        stream, before = FakeStream(self), threading.active_count()
        self.assertFalse(self.loop.drive(stream, stream.source))
        self.assertEqual(before, threading.active_count())

    def test_a_bug_in_the_loop_gives_all_streams_back(self) -> None:
        stream = FakeStream(self)
        with mock.patch.object(stream_loop._LoopThread, "_handle", side_effect=LookupError("a bug")):
            with self.assertLogs(stream_loop.__name__, "ERROR"):
                (thread,) = self.start_threads(stream)
                stream.upstream.sendall(b"x")
                thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())


@needs_stream_loop
class TestDescriptorReuse(LoopTestCase):
    """The system gives the number of a closed descriptor to the next connection, in the middle of a batch of events."""

    def setUp(self) -> None:
        super().setUp()
        self.holds, self.taken = threading.Event(), threading.Event()
        self.former, self.newcomer = FakeStream(self), FakeStream(self)
        give_back = stream_loop._LoopThread._give_back

        def with_a_newcomer(run: stream_loop._LoopThread, driven: stream_loop._DrivenStream) -> None:
            give_back(run, driven)
            if driven.stream is self.former:
                self.assertTrue(self.taken.wait(PATIENCE))

        self.enterContext(mock.patch.object(stream_loop._LoopThread, "_give_back", with_a_newcomer))

    def replaced(self, former: socket.socket, newcomer: socket.socket) -> socket.socket:
        """The newcomer's socket under the number of the former one's, which is closed."""
        number = former.detach()
        os.dup2(newcomer.fileno(), number)
        newcomer.close()
        sock = socket.socket(fileno=number)
        self.addCleanup(sock.close)
        return sock

    def send_later(self) -> None:
        """Send the newcomer's own end only once everything that is wrong would have happened."""
        timer = threading.Timer(0.1, self.send_whole)
        timer.start()
        self.addCleanup(timer.join)

    def send_whole(self) -> None:
        self.sent_at = time.monotonic()
        self.newcomer.upstream.sendall(b"whole.")

    def drive_in_turn(self, *events: Callable[[], object]) -> None:
        """Have all events in one batch; the first ends the former stream, and the newcomer gets its descriptors."""
        holder, is_held = FakeStream(self), threading.Event()

        def hold() -> None:
            is_held.set()
            self.holds.wait(PATIENCE)

        with mock.patch.object(holder, "advance", side_effect=hold):
            (held,) = self.start_threads(holder)
            former = in_background(self, self.drive_former)
            self.assertTrue(eventually(lambda: len(getattr(self.loop._thread, "_by_fileno", ())) == 4))
            holder.upstream.sendall(b"x")
            self.assertTrue(is_held.wait(PATIENCE))
            for event in events:
                event()
            self.holds.set()
            former.join(PATIENCE)
            held.join(PATIENCE)

    def assert_newcomer_is_whole(self) -> None:
        self.assertEqual((b"whole.", None), (self.newcomer.received, self.newcomer.source.interruption))

    def drive_former(self) -> None:
        self.loop.drive(self.former, self.former.source)
        newcomer, former = self.newcomer, self.former
        newcomer.peer = Client(self.replaced(former.peer.sock, newcomer.peer.sock))
        newcomer.sock = self.replaced(former.sock, newcomer.sock)
        newcomer.source = Input(newcomer.sock, time.monotonic() + PATIENCE)
        add = stream_loop._LoopThread.add

        def taking(run: stream_loop._LoopThread, driven: stream_loop._DrivenStream) -> bool:
            is_taken = add(run, driven)
            self.taken.set()
            return is_taken

        with mock.patch.object(stream_loop._LoopThread, "add", taking):
            self.loop.drive(newcomer, newcomer.source)

    def test_a_client_that_stays_keeps_its_stream_when_another_resets(self) -> None:
        self.newcomer.sock.setblocking(False)
        self.send_later()
        self.drive_in_turn(lambda: self.former.upstream.sendall(b"over."), self.former.client.close)
        self.assert_newcomer_is_whole()

    def test_a_stream_is_not_advanced_by_an_event_of_another_with_the_same_descriptor(self) -> None:
        advanced: list[float] = []
        advance = self.newcomer.advance

        def noting() -> WaitHandle | None:
            advanced.append(time.monotonic())
            return advance()

        self.send_later()
        with mock.patch.object(self.newcomer, "advance", noting):
            self.drive_in_turn(self.former.client.close, lambda: self.former.upstream.sendall(b"x"))
        self.assertEqual(b"whole.", self.newcomer.received)
        self.assertGreaterEqual(min(advanced), self.sent_at)

    def test_an_event_of_a_client_that_has_not_left_ends_no_stream(self) -> None:
        (thread,) = self.start_threads(self.newcomer)
        self.assertTrue(eventually(lambda: self.loop._thread is not None and len(self.loop._thread._by_fileno) == 2))
        run = self.loop._thread
        assert run is not None
        run._handle(self.newcomer.peer.fileno())
        self.assertTrue(thread.is_alive())
        self.send_whole()
        thread.join(PATIENCE)
        self.assert_newcomer_is_whole()


class TestCounting(LoopTestCase):
    def test_a_few_streams_wait_in_their_own_threads(self) -> None:
        found = []

        def enter(count: int) -> None:
            with self.loop.count_stream() as is_crowded:
                found.append(is_crowded)
                if count > 1:
                    enter(count - 1)

        enter(stream_loop._MAX_OWN_THREADS + 2)
        enter(1)
        can = hasattr(select, "epoll")
        self.assertEqual([False] * stream_loop._MAX_OWN_THREADS + [can, can] + [False], found)
