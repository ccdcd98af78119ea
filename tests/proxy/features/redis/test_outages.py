import _socket
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

from deepseek_cursor_proxy.features.redis import client
from deepseek_cursor_proxy.features.redis.client import RedisClient
from deepseek_cursor_proxy.features.redis.connection import RedisUnavailable, Reply, ReplyError
from tests.support.engine_cases import SECONDS, CommandTests, EngineCase
from tests.support.fuzzing import cases
from tests.support.polling import wait_until
from tests.support.raw_upstream import CERTIFICATE
from tests.support.resources import descriptors
from tests.support.resp_server import RespServer
from tests.support.threads import in_background, run_at_once
from tests.support.width import width

# A deadline that passes; its test checks that the call ends sooner than by the usual one.
SHORT = 0.03
SOON = SECONDS - 2


class OutageCase(EngineCase):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.enterContext(RespServer())
        self.client = self.engine(self.server.url)

    def get(self, seconds: float = SECONDS) -> Reply:
        [reply] = self.client.run([(b"GET", b"k")], seconds)
        return reply

    def assert_down(self, words: str, seconds: float = SECONDS) -> None:
        started = time.monotonic()
        with mock.patch.object(client, "CALL_SECONDS", SHORT) if seconds == SHORT else nullcontext():
            with self.assertRaises(RedisUnavailable) as caught:
                self.get(seconds)
        self.assertLess(time.monotonic() - started, SOON)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def wait_until_back(self) -> None:
        wait_until(lambda: self.client.is_available)
        self.assertIsNone(self.get())


class TestOutages(OutageCase):
    def test_a_call_ends_by_its_deadline(self) -> None:
        self.get()
        self.server.pause()
        self.assert_down("no reply in time", SHORT)

    def test_a_late_reply_reaches_no_other_caller(self) -> None:
        self.client.run([(b"SET", b"k", b"secret")], SECONDS)
        self.server.pause()
        self.assert_down("no reply in time", SHORT)
        self.server.resume()
        wait_until(lambda: self.client.is_available)
        self.assertEqual([None], self.client.run([(b"GET", b"other")], SECONDS))

    def test_a_server_that_is_gone_costs_one_call_and_no_more_connects(self) -> None:
        self.get()
        with (
            mock.patch.object(client, "_MOST_CHECK_SECONDS", 30.0),
            mock.patch.object(client, "_FIRST_CHECK_SECONDS", 30.0),
        ):
            self.server.stop()
            self.assert_down("refused")
            wait_until(lambda: not self.client.is_available)
            connecting: list[str] = []
            with mock.patch.object(socket, "create_connection", side_effect=_refuse(connecting)):
                for _ in range(100):
                    self.assert_down("refused")
        self.assertLessEqual({*connecting}, {"engine-check"})
        self.assertEqual(1, len(self.changes))

    def test_one_line_when_it_goes_and_one_when_it_is_back(self) -> None:
        self.server.stop()
        run_at_once(lambda _: self.assert_down("refused"), range(8))
        self.server.start()
        self.wait_until_back()
        self.assertEqual(2, len(self.changes), self.changes)
        self.assertRegex(
            self.changes[0], r"^redis://127.0.0.1:\d+/ is not available: 127.0.0.1:\d+: Connection refused$"
        )
        self.assertRegex(self.changes[1], "is available again$")

    def test_a_server_that_hangs_is_left_alone_until_it_answers(self) -> None:
        self.get()
        self.server.pause()
        self.assert_down("no reply in time", SHORT)
        wait_until(lambda: not self.client.is_available)
        started = time.monotonic()
        for _ in range(50):
            self.assert_down("no reply in time")
        self.assertLess(time.monotonic() - started, SOON)
        self.server.resume()
        self.wait_until_back()

    def test_three_timeouts_in_a_row_are_an_outage_though_a_check_passes(self) -> None:
        """A server that answers PING, but no command in time."""
        with mock.patch.object(RedisClient, "_check_node", return_value=""):
            self.get()
            self.server.pause()
            with mock.patch.object(self.client._checks, "run"):
                for _ in range(2):
                    self.assert_down("no reply in time", SHORT)
                self.server.resume()
                self.get()
                self.server.pause()
                for _ in range(3):
                    self.assertTrue(self.client.is_available)
                    self.assert_down("no reply in time", SHORT)
                self.assertFalse(self.client.is_available)
            self.server.resume()
            self.client._checks.run(self.client._check)
            self.wait_until_back()

    def test_the_connections_of_a_server_that_hangs_are_closed(self) -> None:
        self.open_connections(6)
        self.server.pause()
        self.assert_down("no reply in time", SHORT)
        # The server still holds those on which it got a command.
        wait_until(lambda: len(self.server._sockets) < 6)

    def test_few_connections_are_kept(self) -> None:
        with mock.patch.object(client, "_MOST_IDLE", 2):
            self.open_connections(6)
            wait_until(lambda: len(self.server._sockets) == 2)

    def open_connections(self, count: int) -> None:
        self.server.pause()
        calls = [in_background(self, self.get) for _ in range(count)]
        wait_until(lambda: self.server.accepted == count)
        self.server.resume()
        for call in calls:
            call.join()

    def test_a_reply_that_trickles_ends_by_the_deadline(self) -> None:
        self.client.run([(b"SET", b"k", b"x" * 200)], SECONDS)
        stop = threading.Event()
        self.addCleanup(stop.set)

        def trickle(sock: socket.socket, data: bytes) -> None:
            for byte in data:
                stop.wait(SHORT / 3)
                sock.sendall(bytes([byte]))

        with mock.patch.object(self.server, "send", trickle):
            self.assert_down("no reply in time", SHORT)

    def test_a_connection_that_was_closed_while_idle_is_replaced(self) -> None:
        self.get()
        self.server.disconnect()
        wait_until(lambda: not self.server._sockets)
        self.assertIsNone(self.get())
        self.assertEqual((2, []), (self.server.accepted, self.changes))

    def test_a_write_whose_reply_is_lost_is_sent_once(self) -> None:
        self.get()

        def lose(sock: socket.socket, _data: bytes) -> None:
            sock.shutdown(socket.SHUT_RDWR)

        with mock.patch.object(self.server, "send", lose), self.assertRaises(RedisUnavailable):
            self.client.run([(b"INCRBY", b"k", b"1")], SECONDS)
        wait_until(lambda: self.client.is_available)
        self.assertEqual([b"1"], self.client.run([(b"GET", b"k")], SECONDS))

    def test_replies_that_say_not_now_are_outages(self) -> None:
        codes = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOAUTH")
        # What a server says instead of NOAUTH to a long command, and to one connection too many.
        whole = [
            "ERR Protocol error: unauthenticated multibulk length",
            "ERR max number of clients reached",
            # Redis 6.2, of a command in a script.
            "ERR Error running script (call to f_0a9a51): @user_script:9: @user_script: 9: -READONLY You can't write.",
        ]
        for refusal in (*(f"{code} so it is" for code in codes), *whole):
            with self.subTest(refusal):
                self.server.refusal = refusal
                self.assert_down(refusal)
                self.client._check()
                self.assertFalse(self.client.is_available)
                self.server.refusal = ""
                self.wait_until_back()

    def test_errors_about_a_command_are_no_outage(self) -> None:
        for code in ("OOM", "MISCONF", "NOPERM", "NOREPLICAS", "ERR"):
            self.server.refusal = f"{code} no"
            self.assertEqual(ReplyError(f"{code} no"), self.get())
        self.assertEqual((True, []), (self.client.is_available, self.changes))

    def test_a_replica_is_not_used_before_it_is_a_master(self) -> None:
        self.server.role, self.server.refusal = b"slave", "READONLY You can't write against a read only replica."
        self.assert_down("READONLY")
        self.server.refusal = ""
        self.client._check()
        self.assert_down("replica")
        self.server.role = b"master"
        self.wait_until_back()

    def test_more_replies_than_commands_end_the_connection(self) -> None:
        self.get()
        with mock.patch.object(self.server, "send", lambda sock, data: sock.sendall(data + b"+stray\r\n")):
            self.assert_down("more replies")
        wait_until(lambda: self.client.is_available)
        self.assertIsNone(self.get())

    def test_a_server_that_is_none_is_an_outage(self) -> None:
        for data in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03", b"$99999999999\r\n", b"*1\r\n" * 50):
            with self.subTest(data), RespServer() as other:
                engine = self.engine(other.url)
                with mock.patch.object(other, "send", lambda sock, _, data=data: sock.sendall(data)):
                    with self.assertRaises(RedisUnavailable):
                        engine.run([(b"PING",)], SHORT)
                engine.close()

    def test_close_leaves_nothing_behind(self) -> None:
        before = descriptors()
        engine = self.engine(self.server.url)
        run_at_once(lambda _: engine.run([(b"GET", b"k")], SECONDS), range(8))
        self.server.stop()
        with self.assertRaises(RedisUnavailable):
            engine.run([(b"GET", b"k")], SECONDS)
        engine.close()
        engine.close()
        wait_until(lambda: descriptors() <= before)
        self.assertNotIn("engine-check", [thread.name for thread in threading.enumerate()])
        with self.assertRaisesRegex(RedisUnavailable, "closed"):
            engine.run([(b"GET", b"k")], SECONDS)


class TestDeadlines(OutageCase):
    def test_a_call_and_its_connect_have_the_usual_time_and_a_call_may_have_more(self) -> None:
        here, allowed = threading.current_thread(), list[float]()

        def settimeout(sock: socket.socket, seconds: float | None) -> None:
            if threading.current_thread() is here and seconds is not None:
                allowed.append(seconds)
            _socket.socket.settimeout(sock, seconds)

        self.enterContext(mock.patch.object(client, "CALL_SECONDS", 40.0))
        for seconds, expected in ((0.0, 40.0), (30.0, 40.0), (300.0, 300.0)):
            with self.subTest(seconds=seconds):
                self.server.disconnect()
                wait_until(lambda: not self.server._sockets)
                allowed.clear()
                with mock.patch.object(socket.socket, "settimeout", settimeout, create=True):
                    self.get(seconds)
                for most, given in ((40.0, allowed[0]), (expected, allowed[-1])):
                    self.assertLessEqual(given, most)
                    self.assertGreater(given, most / 2)

    def test_what_has_arrived_of_a_long_reply_gives_the_rest_more_time(self) -> None:
        self.client.run([(b"SET", b"k", b"x" * 1_200_000)], SECONDS)
        stop = threading.Event()
        self.addCleanup(stop.set)

        def send(sock: socket.socket, data: bytes) -> None:
            for start in range(0, len(data), 300_000):
                sock.sendall(data[start : start + 300_000])
                stop.wait(0.3)

        with mock.patch.object(self.server, "send", send):
            self.assertEqual(1_200_000, len(bytes(self.get(1.0))))  # type: ignore[arg-type]


class TestLogins(OutageCase):
    def test_a_wrong_password_is_an_outage_that_ends(self) -> None:
        self.server.password = "right"
        self.client = self.engine(f"redis://:wrong@127.0.0.1:{self.server.port}/")
        self.assert_down("WRONGPASS")
        self.assertNotIn("wrong", self.changes[0])
        self.server.password = "wrong"
        self.wait_until_back()

    def test_a_password_that_changes_at_run_time(self) -> None:
        self.server.password = "one"
        self.client = self.engine(self.server.url)
        self.get()
        self.server.password = "two"
        self.server.disconnect()
        wait_until(lambda: not self.server._sockets)
        self.assert_down("WRONGPASS")
        self.server.password = "one"
        self.wait_until_back()
        self.assertEqual(2, len(self.changes))

    def test_a_user_of_a_server_with_users(self) -> None:
        self.server.users["ann"] = "p@ss"
        self.client = self.engine(f"redis://ann:p%40ss@127.0.0.1:{self.server.port}/4")
        self.assertIsNone(self.get())
        self.assertIn((b"SELECT", b"4"), self.server.commands)

    def test_a_password_alone_is_the_default_users(self) -> None:
        self.server.password = "pw"
        self.client = self.engine(self.server.url)
        self.assertIsNone(self.get())
        self.assertIn((b"AUTH", b"default", b"pw"), self.server.commands)

    def test_a_database_that_there_is_not(self) -> None:
        self.client = self.engine(f"redis://127.0.0.1:{self.server.port}/99")
        self.assert_down("DB index is out of range")


class TestTls(EngineCase):
    def test_a_certificate_is_checked(self) -> None:
        server = self.enterContext(RespServer(has_tls=True))
        engine = self.engine(f"rediss://localhost:{server.port}/?ca={CERTIFICATE}")
        self.assertEqual(["PONG", "OK"], engine.run([(b"PING",), (b"SET", b"k", b"x" * 300_000)], SECONDS))
        self.assertEqual([b"x" * 300_000], engine.run([(b"GET", b"k")], SECONDS))
        stranger = self.engine(f"rediss://localhost:{server.port}/")
        with self.assertRaisesRegex(RedisUnavailable, "certificate verify failed"):
            stranger.run([(b"PING",)], SECONDS)


class TestParallelCallers(OutageCase):
    """Replies in random pieces, late ones and lost connections."""

    def test_callers_never_get_the_replies_of_others(self) -> None:
        for name, generator in cases(10):
            with self.subTest(name):
                self.check(generator)

    def check(self, generator: random.Random) -> None:
        stop = threading.Event()

        def send(sock: socket.socket, data: bytes) -> None:
            choice = generator.random()
            if choice < 0.02:
                sock.shutdown(socket.SHUT_RDWR)
            elif choice < 0.2:
                stop.wait(generator.random() * 0.02)
            end = generator.randrange(len(data) + 1)
            sock.sendall(data[:end])
            sock.sendall(data[end:])

        wrong: list[object] = []
        answered: list[int] = []

        def ask(caller: int) -> None:
            for number in range(width(12, 40)):
                value = b"%d-%d" % (caller, number)
                try:
                    replies = self.client.run([(b"PING", value), (b"PING", value)], 0.01)
                except RedisUnavailable:
                    continue
                answered.append(caller)
                wrong.extend([replies] if replies != [value, value] else [])

        with mock.patch.object(self.server, "send", send), mock.patch.object(client, "_MOST_FAILURES", 10**6):
            run_at_once(ask, range(8))
        stop.set()
        self.assertEqual([], wrong)
        wait_until(lambda: self.client.is_available)


def _refuse(names: list[str]) -> Callable[..., None]:
    """Refuse to connect, and note the threads that try."""

    def refuse(*_: object) -> None:
        names.append(threading.current_thread().name)
        raise ConnectionRefusedError(111, "Connection refused")

    return refuse


class TestCommandsOnTheStandIn(CommandTests):
    def setUp(self) -> None:
        self.server = self.enterContext(RespServer())
        self.url = self.server.url
        super().setUp()


del CommandTests
