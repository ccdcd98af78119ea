import functools
import select
import socket
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone, ProxyError, ProxyStopping
from deepseek_cursor_proxy.net import wait as waiting
from deepseek_cursor_proxy.net.wait import (
    Deadline,
    ReadWaiter,
    Wakeup,
    pause,
    wait_readable,
    wait_until_client_reads,
    wait_writable,
)

SOON = 10.0


def systems() -> dict[str, dict[str, Any]]:
    """What systems have to wait with, as far as this one can do the same."""
    found = {
        "Linux": {"_CAN_POLL": True, "_CLIENT_LEAVES": getattr(select, "POLLRDHUP", 0)},
        "macOS": {"_CAN_POLL": True, "_CLIENT_LEAVES": 0},
        "Windows": {"_CAN_POLL": False, "_CLIENT_LEAVES": 0},
    }
    return {name: what for name, what in found.items() if hasattr(select, "poll") or not what["_CAN_POLL"]}


class Client:
    """A peer made of one end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.close_reason: ProxyError | None = None

    def part(self) -> None:
        """What the server does to end an answer."""
        self.close_reason = ProxyStopping()
        self.sock.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        return self.sock.fileno()

    def has_left(self) -> bool:
        try:
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False


def socket_pair(test: unittest.TestCase) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for sock in pair:
        test.addCleanup(sock.close)
    return pair


@contextmanager
def soon(call: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(0.02, call)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def drain(sock: socket.socket) -> None:
    """Read all there is: a pair of sockets is TCP on Windows, which asks for more only after a good part was read."""
    sock.settimeout(0.05)
    with suppress(TimeoutError):
        while sock.recv(1 << 20):
            pass


class TestWaiting(unittest.TestCase):
    def pair(self) -> tuple[socket.socket, socket.socket]:
        return socket_pair(self)

    def client(self) -> tuple[Client, socket.socket]:
        ours, theirs = self.pair()
        return Client(ours), theirs

    def systems(self) -> Iterator[str]:
        """What every system has to do, on this one."""
        for name, system in systems().items():
            with self.subTest(name), mock.patch.multiple(waiting, **system):
                yield name

    def ways(self, sock: socket.socket) -> Iterator[Callable[[float, Client], bool]]:
        """Every way to wait until a socket can be read."""
        yield functools.partial(wait_readable, sock)
        yield lambda seconds, peer: ReadWaiter(sock, peer).wait(seconds)

    def test_a_socket_is_readable_when_data_has_arrived(self) -> None:
        for _ in self.systems():
            one, two = self.pair()
            client, _theirs = self.client()
            for readable in self.ways(one):
                self.assertEqual([False, False], [readable(seconds, client) for seconds in (0.01, -1.0)])
                two.sendall(b"x")
                self.assertEqual([True, True], [readable(seconds, client) for seconds in (SOON, -1.0)])
                one.recv(1)
                with soon(functools.partial(two.sendall, b"x")):
                    self.assertTrue(readable(SOON, client))
                one.recv(1)

    def full_client(self) -> tuple[Client, socket.socket]:
        """A client that has not read what fills the buffers between."""
        client, theirs = self.client()
        client.sock.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                client.sock.send(bytes(65536))
        return client, theirs

    def test_a_socket_is_writable_until_its_buffers_are_full_whether_it_is_readable_or_not(self) -> None:
        for _ in self.systems():
            client, theirs = self.client()
            self.assertTrue(wait_writable(client.sock, SOON, None) and wait_until_client_reads(client, SOON))
            client, theirs = self.full_client()
            self.assertFalse(wait_writable(client.sock, 0.01, None))
            theirs.sendall(b"x")
            self.assertFalse(wait_until_client_reads(client, 0.01))
            with soon(functools.partial(drain, theirs)):
                self.assertTrue(wait_until_client_reads(client, SOON))

    def test_a_client_that_half_closes_and_does_not_read_has_left_unless_the_proxy_ends_its_answer(self) -> None:
        if not getattr(select, "POLLRDHUP", 0):
            self.skipTest("only Linux tells")
        client, theirs = self.full_client()
        with soon(functools.partial(theirs.shutdown, socket.SHUT_WR)), self.assertRaises(ClientGone):
            wait_until_client_reads(client, SOON)
        parted, _theirs = self.full_client()
        parted.part()
        self.assertFalse(wait_until_client_reads(parted, 0.01))

    def test_a_busy_upstream_hides_neither_a_client_that_left_nor_a_close_reason(self) -> None:
        for _ in self.systems():
            one, two = self.pair()
            two.sendall(b"there is always something to read")
            for readable in self.ways(one):
                (client, theirs), (parted, _theirs) = self.client(), self.client()
                theirs.close()
                with self.assertRaises(ClientGone):
                    readable(SOON, client)
                parted.part()
                with self.assertRaises(ProxyStopping):
                    readable(SOON, parted)

    def test_a_client_that_leaves_or_a_close_reason_interrupts_every_wait(self) -> None:
        for _ in self.systems():
            one, _two = self.pair()
            for wait in (*self.ways(one), pause):
                (client, theirs), (parted, _theirs) = self.client(), self.client()
                with soon(theirs.close), self.assertRaises(ClientGone):
                    wait(SOON, client)
                with soon(parted.part), self.assertRaisesRegex(ProxyStopping, "Ask again"):
                    wait(SOON, parted)

    def test_a_client_that_leaves_is_noticed_at_once_and_not_when_it_is_looked_at_again(self) -> None:
        if not getattr(select, "POLLRDHUP", 0):
            self.skipTest("elsewhere the client is looked at now and then")
        one, _two = self.pair()
        with mock.patch.object(waiting, "_RECHECK_SECONDS", 2 * SOON):
            for wait in (*self.ways(one), pause):
                client, theirs = self.client()
                with soon(theirs.close), self.assertRaises(ClientGone):
                    wait(SOON, client)

    def test_a_client_that_sends_more_has_not_left(self) -> None:
        for _ in self.systems():
            one, two = self.pair()
            client, theirs = self.client()
            theirs.sendall(b"the next request")
            watch = ReadWaiter(one, client)
            for _ in range(2):
                self.assertFalse(watch.wait(0.01) or wait_readable(one, 0.01, client))
            two.sendall(b"x")
            self.assertTrue(watch.wait(SOON))
            one.recv(1)
            # What it sent hides nothing of what it does next, once that has been read.
            client.sock.recv(100)
            with soon(theirs.close), self.assertRaises(ClientGone):
                watch.wait(SOON)

    def test_a_client_that_sent_another_request_and_closed_has_left(self) -> None:
        if not getattr(select, "POLLRDHUP", 0):
            self.skipTest("only Linux tells")
        client, theirs = self.client()
        theirs.sendall(b"the next request")
        self.assertFalse(waiting.has_left(client))
        theirs.close()
        self.assertTrue(waiting.has_left(client))


class TestWakeup(unittest.TestCase):
    def setUp(self) -> None:
        self.wakeup = Wakeup()
        self.addCleanup(self.wakeup.close)

    def test_a_wakeup_that_is_set_ends_every_kind_of_wait_of_its_peer_now_and_later(self) -> None:
        for name, system in systems().items():
            with self.subTest(name), mock.patch.multiple(waiting, **system), closing(Wakeup()) as wakeup:
                silent, _ = socket_pair(self)
                waiter = ReadWaiter(silent, wakeup)
                self.assertFalse(waiter.wait(0.0) or wait_readable(silent, 0.0, wakeup))
                for end in (functools.partial(wait_readable, silent), lambda *_: waiter.wait(SOON), pause):  # noqa: B023
                    with soon(wakeup.set), self.assertRaises(ClientGone):
                        end(SOON, wakeup)

    def test_a_wakeup_set_with_a_reason_ends_each_wait_with_a_new_error(self) -> None:
        self.wakeup.set(ProxyStopping)
        errors = []
        for _ in range(2):
            with self.assertRaises(ProxyStopping) as caught:
                pause(SOON, self.wakeup)
            errors.append(caught.exception)
        self.assertIsNot(*errors)
        self.assertFalse(self.wakeup.has_left())

    def test_only_the_first_set_of_a_wakeup_counts_and_none_after_close(self) -> None:
        self.assertEqual([True, False], [self.wakeup.set(), self.wakeup.set(ProxyStopping)])
        self.assertEqual((True, None), (self.wakeup.has_left(), self.wakeup.close_reason))
        closed = Wakeup()
        closed.close()
        self.assertEqual((False, False), (closed.set(), closed.has_left()))


class TestDeadline(unittest.TestCase):
    def test_a_deadline_is_over_when_no_time_is_left(self) -> None:
        for seconds, is_over in ((20, False), (0, True), (-1, True)):
            later = Deadline.after(seconds)
            self.assertEqual((is_over, is_over), (later.is_over, later.left <= 0))
        self.assertAlmostEqual(20, Deadline.after(20).left, delta=1)

    def test_the_earliest_of_several_is_a_deadline(self) -> None:
        self.assertTrue(min(Deadline.after(20), Deadline.after(-1)).is_over)
