import hashlib
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.redis import client, state
from deepseek_cursor_proxy.features.redis.client import RedisClient
from deepseek_cursor_proxy.features.redis.connection import RedisAddress, RedisUnavailable
from deepseek_cursor_proxy.features.redis.state import SharedState
from tests.support.polling import wait_until
from tests.support.resp_commands import CommandError
from tests.support.resp_server import RespServer
from tests.support.shared_engine import SECRET, EngineTestCase, Instance, key


class TestOutages(EngineTestCase):
    """While the engine is away nothing is lost: what is recorded is found here, and everywhere when it is back."""

    def waiting(self) -> int:
        return waiting(self.place / "one.sqlite3")

    def order(self) -> list[str]:
        """The texts under one key, oldest first, as an instance without a file of its own finds them."""
        return self.instance("stranger").find(1)[1]

    def test_what_was_recorded_without_the_engine_follows_in_order(self) -> None:
        one = self.instance()
        one.record("before", 1)
        self.engine.stop()
        for text in ("a", "b", "c"):
            self.assertTrue(one.record(text, 1))
            self.assertEqual(text, one.find(1)[1][-1])
        self.assertEqual(3, self.waiting())
        self.engine.start()
        one.wait_until_shared()
        self.assertEqual(0, self.waiting())
        self.assertEqual(["before", "a", "b", "c"], self.order())

    def test_an_engine_that_is_absent_at_the_start_gets_everything_later(self) -> None:
        self.engine.stop()
        for text in ("left by a process that is gone", "early"):
            one = self.instance()
            one.record(text, 1)
            one.close()
        self.assertIn("onnection refused", self.log[0])
        self.engine.start()
        self.instance().wait_until_shared()
        self.assertEqual(["left by a process that is gone", "early"], self.order())

    def test_a_write_that_was_late_counts_once(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        with short_deadlines():
            self.engine.pause()
            one.record("late", 1)
            self.assertEqual(1, self.waiting())
        self.engine.resume()
        # The stopped engine has run it meanwhile.
        wait_until(lambda: two.shared.find(b"c" * 32, [bytes(31) + b"\1"]))
        two.record("newer", 1)
        one.wait_until_shared()
        self.assertEqual(["late", "newer"], self.order())

    def test_an_engine_without_memory_gets_what_waits_when_it_has_some(self) -> None:
        one = self.instance()
        self.wait_until_shared()
        for number, code in enumerate(("OOM", "MISCONF", "NOREPLICAS", "NOPERM"), 1):
            with self.subTest(code), refused(self.engine, f"{code} not now"):
                self.log.clear()
                one.record("large", number)
                self.assertEqual({number: ["large"]}, one.find(number))
                wait_until(lambda: one.state.stalled)
                self.assertIn(code, one.state.fault)
            one.wait_until_shared()
            self.assertEqual({number: ["large"]}, self.instance(f"stranger {number}").find(number))
            self.assertEqual(["takes no writes", "has what waited"], [_between(line) for line in self.log])

    def test_a_write_that_the_engine_never_takes_is_in_the_file_alone(self) -> None:
        one = self.instance()
        self.wait_until_shared()
        with refused(self.engine, "ERR never"):
            self.assertFalse(one.shared.record(b"c" * 32, [((key(1),), b"lost")]))
            self.assertTrue(one.record("kept", 2))
        self.assertEqual(0, self.waiting())
        self.assertIn("lost for the other proxies: ERR never", self.log[0])

    def test_no_write_overtakes_one_that_waits(self) -> None:
        one = self.instance()
        with mock.patch.object(one.state._catcher, "wake"):
            with refused(self.engine, "OOM command not allowed when used memory > 'maxmemory'."):
                one.record("first", 1)
            # A lookup that finds it missing there does not add it once more.
            one.find(1)
            one.record("second", 1)
            self.assertEqual(2, self.waiting())
        one.state._catcher.wake()
        one.wait_until_shared()
        self.assertEqual(["first", "second"], self.order())

    def test_a_wrong_password_is_an_outage_and_is_never_shown(self) -> None:
        self.engine.password = "hunter2"
        one = Instance(self.place / "wrong.sqlite3", f"redis://:guess@127.0.0.1:{self.engine.port}/", bytes(32))
        self.addCleanup(one.close)
        one.record("alone", 1)
        self.assertEqual({1: ["alone"]}, one.find(1))
        self.assertIn("WRONGPASS", self.log[0])
        self.assertNotIn("guess", " ".join(self.log))


class TestBacklog(EngineTestCase):
    """What waits in the file; a write goes there as long as anything does, so that none overtakes another."""

    def test_nothing_is_written_or_read_before_the_secret_is_compared(self) -> None:
        with mock.patch.object(SharedState, "_catch_up", return_value=True):
            one = self.instance()
            one.state.backlog._has_rows = False
            one.record("early", 1)
            self.assertIsNone(one.shared.find(b"c" * 32, [key(1)]))
            self.assertEqual("it does not answer", one.state.fault)
        self.assertEqual([], list(self.engine.run(b"SCAN", b"0")[1]))

    def test_the_secret_is_compared_again_when_the_engine_is_back(self) -> None:
        """It may be another engine by now."""
        one = self.instance()
        self.wait_until_shared()
        with mock.patch.object(one.state._catcher, "wake"):
            self.engine.stop()
            wait_until(lambda: one.state.fault and not one.state.engine.is_available)
            # Although a comparison that was under way has succeeded.
            one.state._is_verified = True
            self.assertEqual("it does not answer", one.state.fault)
            self.engine.start()
            wait_until(lambda: one.state.engine.is_available and len(self.log) == 2)
            self.assertIsNone(one.shared.find(b"c" * 32, [key(1)]))

    def test_a_lookup_that_is_late_is_tried_once_more(self) -> None:
        one = self.instance()
        self.wait_until_shared()
        one.record("late", 1)
        run, calls = one.state.engine.run_scripts, itertools.count()

        def late(*arguments: Any) -> Any:
            if next(calls) % 2 == 0:
                raise RedisUnavailable("no reply in time")
            return run(*arguments)

        with mock.patch.object(one.state.engine, "run_scripts", late):
            self.assertEqual([(key(1), b"late")], one.shared.find(b"c" * 32, [key(1)]))


class TestSecret(EngineTestCase):
    def test_an_instance_with_another_secret_says_so_and_shares_nothing(self) -> None:
        self.instance("one").record("first", 1)
        other = self.instance("other", secret=b"x" * 32)
        self.assertIn("is NOT shared: another installation secret", self.log[0])
        before = len(self.engine.commands)
        other.record("second", 1)
        self.assertEqual({1: ["second"]}, other.find(1))
        self.assertEqual(before, len(self.engine.commands))
        self.assertEqual(0, waiting(self.place / "other.sqlite3"))
        self.assertIn("another installation secret", other.state.fault)

    def test_the_value_of_another_name_is_refused(self) -> None:
        one = self.instance("one")
        self.assertEqual(b"a" * 32, one.state.set_if_absent("ann", b"a" * 32))
        self.assertEqual(b"a" * 32, one.state.set_if_absent("ann", b"b" * 32))
        keys = self.engine.run(b"SCAN", b"0", b"MATCH", b"dcp:first:*")[1]
        one.state.set_if_absent("bob", b"b" * 32)
        [ann], [bob] = keys, set(self.engine.run(b"SCAN", b"0", b"MATCH", b"dcp:first:*")[1]) - set(keys)
        for value in (self.engine.run(b"GET", bob), b"b" * 32, b""):
            self.engine.run(b"SET", ann, value)
            self.assertIsNone(one.state.set_if_absent("ann", b"a" * 32))

    def test_what_waits_is_not_written_with_another_secret(self) -> None:
        self.engine.stop()
        one = self.instance("one")
        one.record("waits", 1)
        one.close()
        self.engine.start()
        self.instance("other", secret=b"x" * 32).wait_until_shared()
        one = self.instance("one")
        wait_until(lambda: one.state.refusal)
        one.state._thread.wait(30)
        self.assertEqual(1, waiting(self.place / "one.sqlite3"))
        self.assertEqual([b"dcp:check"], list(self.engine.run(b"SCAN", b"0")[1]))

    def test_a_comparison_alone_writes_nothing(self) -> None:
        engine = RedisClient(RedisAddress.parse(self.engine.url))
        self.addCleanup(engine.close)
        self.assertTrue(state.is_shared_with(engine, SECRET, may_write=False))
        self.assertEqual([], list(self.engine.run(b"SCAN", b"0")[1]))

    def test_the_engine_never_has_the_secret(self) -> None:
        secret = hashlib.sha256(b"secret").digest()
        self.instance("one", secret=secret).record("why", 1)
        sent = b"".join(word for command in self.engine.commands for word in command)
        self.assertNotIn(secret, sent)
        self.assertNotIn(secret.hex().encode(), sent)

    def test_a_bad_address_is_refused_in_words(self) -> None:
        with self.assertRaisesRegex(StartupError, "several servers"):
            SharedState("redis://a,b", bytes(32), self.instance().reasonings.database)


@contextmanager
def short_deadlines() -> Iterator[None]:
    """Calls end after 20 ms."""
    with mock.patch.object(client, "CALL_SECONDS", 0.02):
        yield


def waiting(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM backlog").fetchone()[0])


def refused(engine: RespServer, text: str) -> Any:
    error = mock.Mock(side_effect=CommandError(text))
    return mock.patch.multiple(type(engine), _do_evalsha=error, _do_eval=error, create=True)


def _between(line: str) -> str:
    return next(words for words in ("takes no writes", "has what waited", line) if words in line)
