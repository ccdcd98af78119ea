"""What holds for an RedisClient on any server: the suite runs it on the stand-in, `tests/interop` on a real one.

A subclass starts the server and sets `url`. The server is empty, and it is the test's own.
"""

import threading
import unittest

from deepseek_cursor_proxy.features.redis.client import RedisClient, Script, ScriptCall
from deepseek_cursor_proxy.features.redis.connection import RedisAddress, Reply, ReplyError
from tests.support.resp_commands import Call, register_twin
from tests.support.threads import run_at_once

# Generous: nothing here waits for it.
SECONDS = 10.0

COUNT_UP = Script(
    """
    local count = redis.call('INCRBY', KEYS[1], ARGV[1])
    if count > tonumber(ARGV[2]) then
        redis.call('INCRBY', KEYS[1], -ARGV[1])
        return {0, false}
    end
    redis.call('EXPIRE', KEYS[1], 60)
    return {count, redis.call('GET', KEYS[1])}
    """
)


def _count_up(call: Call, keys: list[bytes], arguments: list[bytes]) -> list[object]:
    count = call("INCRBY", keys[0], arguments[0])
    if count > int(arguments[1]):
        call("INCRBY", keys[0], -int(arguments[0]))
        return [0, False]
    call("EXPIRE", keys[0], 60)
    return [count, call("GET", keys[0])]


register_twin(COUNT_UP, _count_up)


class EngineCase(unittest.TestCase):
    def engine(self, url: str) -> RedisClient:
        self.changes: list[str] = []
        engine = RedisClient(RedisAddress.parse(url), on_change=self.changes.append)
        self.addCleanup(engine.close)
        return engine


class CommandTests(EngineCase):
    """The replies to every kind of command, the same from the stand-in and from a server."""

    url: str

    def setUp(self) -> None:
        super().setUp()
        self.client = self.engine(self.url)

    def run_command(self, *words: bytes | int) -> Reply:
        [reply] = self.client.run([_command(*words)], SECONDS)
        return reply

    def assert_replies(self, *expected: tuple[Reply, tuple[bytes | int, ...]]) -> None:
        """One after the other, and all in one pipeline on other keys."""
        for reply, words in expected:
            self.assertEqual(reply, self.run_command(*words), words)

    def test_replies_come_in_the_order_of_the_commands(self) -> None:
        commands = [_command(b"SET", b"key-%d" % number, number) for number in range(100)]
        self.assertEqual(["OK"] * 100, self.client.run(commands, SECONDS))
        commands = [_command(b"GET", b"key-%d" % number) for number in range(100)]
        self.assertEqual([b"%d" % number for number in range(100)], self.client.run(commands, SECONDS))
        self.assertEqual([], self.client.run([], SECONDS))

    def test_an_error_stands_in_the_place_of_its_reply(self) -> None:
        commands = [(b"SET", b"{k}", b"a"), (b"HGET", b"{k}", b"x"), (b"NONSENSE", b"{k}"), (b"GET", b"{k}")]
        first, wrong, unknown, last = self.client.run(commands, SECONDS)
        self.assertEqual(("OK", b"a"), (first, last))
        self.assertEqual("WRONGTYPE", wrong.code if isinstance(wrong, ReplyError) else wrong)
        self.assertEqual("ERR", unknown.code if isinstance(unknown, ReplyError) else unknown)
        self.assertTrue(self.client.is_available)

    def test_values_of_any_bytes_and_sizes_come_back(self) -> None:
        for value in (b"", b"\r\n", bytes(range(256)), b"x" * 3_000_000):
            self.assert_replies(("OK", (b"SET", b"k", value)), (value, (b"GET", b"k")))

    def test_every_kind_of_row(self) -> None:
        self.assert_replies(
            *((None, (b"GET", b"k")), ("OK", (b"SET", b"k", b"1", b"NX")), (None, (b"SET", b"k", b"2", b"NX"))),
            *(("OK", (b"SET", b"k", b"2", b"EX", 100)), (100, (b"TTL", b"k")), (5, (b"INCRBY", b"k", 3))),
            *((100, (b"TTL", b"k")), ("OK", (b"SET", b"k", b"8")), (-1, (b"TTL", b"k")), (-2, (b"TTL", b"other"))),
            *((1, (b"EXISTS", b"k")), (0, (b"EXPIRE", b"other", 100)), (1, (b"DEL", b"k")), (0, (b"DEL", b"k"))),
            *((2, (b"HSET", b"h", b"a", b"1", b"b", b"x")), (0, (b"HSET", b"h", b"a", b"2"))),
            *((b"2", (b"HGET", b"h", b"a")), ([b"2", None], (b"HMGET", b"h", b"a", b"z"))),
            *((1, (b"HDEL", b"h", b"b", b"z")), ([b"a", b"2"], (b"HGETALL", b"h"))),
            *((1, (b"HDEL", b"h", b"a")), (0, (b"EXISTS", b"h"))),
            *((3, (b"ZADD", b"z", 3, b"c", 1, b"a", 2, b"b")), ([b"a", b"b", b"c"], (b"ZRANGE", b"z", 0, -1))),
            *((0, (b"ZADD", b"z", b"NX", 9, b"a")), ([b"a", b"b", b"c"], (b"ZRANGE", b"z", 0, -1))),
            *((1, (b"SADD", b"s", b"a")), ([b"a"], (b"SMEMBERS", b"s"))),
        )

    def test_a_script_is_sent_once_and_runs_as_one_step(self) -> None:
        counts: list[Reply] = []

        def count(_: int) -> None:
            counts.extend(self.client.run_scripts([ScriptCall(COUNT_UP, b"k", [b"1", b"10"])], SECONDS))

        run_at_once(count, range(20))
        granted = sorted(count for count in counts if count != [0, None])
        self.assertEqual([[number, b"%d" % number] for number in range(1, 11)], granted)  # type: ignore[type-var]

    def test_scripts_in_one_round_trip_run_in_their_order(self) -> None:
        # The second one is known when it comes, and runs once more after the first, which is not.
        calls = [ScriptCall(COUNT_UP, b"{k}", [b"%d" % number, b"100"]) for number in (1, 10, 20)]
        self.assertEqual([1, 11, 31], [reply[0] for reply in self.client.run_scripts(calls, SECONDS)])  # type: ignore[index]
        self.assertEqual([32, 42, 62], [reply[0] for reply in self.client.run_scripts(calls, SECONDS)])  # type: ignore[index]

    def test_a_script_that_fails_is_an_error_reply(self) -> None:
        self.run_command(b"SET", b"k", b"text")
        [reply] = self.client.run_scripts([ScriptCall(COUNT_UP, b"k", [b"1", b"10"])], SECONDS)
        self.assertIn("not an integer", reply.text if isinstance(reply, ReplyError) else "")

    def test_callers_at_once_get_their_own_replies(self) -> None:
        wrong: list[Reply] = []
        start = threading.Barrier(8)

        def ask(caller: int) -> None:
            start.wait()
            for number in range(40):
                value = b"%d-%d" % (caller, number)
                key = b"caller-%d" % caller
                replies = self.client.run([(b"SET", key, value), (b"GET", key)], SECONDS)
                wrong.extend(replies if replies != ["OK", value] else [])

        run_at_once(ask, range(8))
        self.assertEqual([], wrong)


def _command(*words: bytes | int) -> tuple[bytes, ...]:
    return tuple(word if isinstance(word, bytes) else b"%d" % word for word in words)
