"""The client on real servers: the tests of the stand-in once more, then what only a real server does."""

import threading
import time
from contextlib import ExitStack

from deepseek_cursor_proxy.features.redis.client import RedisClient
from deepseek_cursor_proxy.features.redis.connection import RedisUnavailable, ReplyError
from tests.interop.engine.redis_servers import RedisCluster, RedisServer
from tests.support.engine_cases import SECONDS, CommandTests, EngineCase
from tests.support.polling import wait_until
from tests.support.raw_upstream import CERTIFICATE, KEY
from tests.support.threads import in_background

# Deadlines of the product: a lookup, a write, and a connect that may come before either.
LOOKUP, WRITE, CONNECT = 0.05, 0.25, 0.25
# What a busy machine may add; a call that waited for the outage to end would take two seconds.
SLACK = 1.25


class TestCommandsOnAServer(CommandTests):
    server: RedisServer

    def setUp(self) -> None:
        self.server = RedisServer(self.enterContext(ExitStack()))
        self.url = f"redis://{self.server.node}/"
        super().setUp()


class TestCommandsOnACluster(CommandTests):
    """One cluster for all tests, because it takes seconds to agree."""

    cluster: RedisCluster

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.cluster = RedisCluster(cls.enterClassContext(ExitStack()))

    def setUp(self) -> None:
        self.url = self.cluster.url
        super().setUp()
        for server in self.cluster.masters:
            server.run("FLUSHALL")


class Load:
    """Callers that write and read, each its own keys, until they are stopped; what was acknowledged is remembered."""

    def __init__(self, test: EngineCase, engine: RedisClient, callers: int = 4) -> None:
        self.engine = engine
        self.acknowledged: dict[bytes, bytes] = {}
        self.slowest = 0.0
        self.failures = 0
        self.wrong: list[object] = []
        self._stopping = threading.Event()
        self._threads = [in_background(test, self._work, caller) for caller in range(callers)]
        test.addCleanup(self._stopping.set)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, caller: int) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            key, value = b"load-%d-%d" % (caller, number % 200), b"%d-%d" % (caller, number)
            started = time.monotonic()
            try:
                replies = self.engine.run([(b"SET", key, value), (b"GET", key)], WRITE)
                self.wrong += [replies] if replies != ["OK", value] else []
                self.acknowledged[key] = value
            except RedisUnavailable:
                # It may have been written or not.
                self.acknowledged.pop(key, None)
                self.failures += 1
                self._stopping.wait(0.002)
            self.slowest = max(self.slowest, time.monotonic() - started)
            self._stopping.wait(0.001)


class TestOneServer(EngineCase):
    def setUp(self) -> None:
        super().setUp()
        self.server = RedisServer(self.enterContext(ExitStack()))
        self.client = self.engine(f"redis://{self.server.node}/")

    def test_calls_on_a_suspended_server_end_by_their_deadline(self) -> None:
        load = Load(self, self.client)
        wait_until(lambda: len(load.acknowledged) > 100)
        self.server.suspend()
        wait_until(lambda: not self.client.is_available)
        threading.Event().wait(2)
        before = load.failures
        self.server.resume()
        wait_until(lambda: self.client.is_available)
        seen = len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > seen)
        load.stop()
        self.assertGreater(before, 0)
        self.assertEqual([], load.wrong)
        self.assertLess(load.slowest, CONNECT + WRITE + SLACK)
        self.assertEqual(2, len(self.changes), self.changes)

    def test_a_server_that_is_killed_and_started_again_is_found(self) -> None:
        self.client.run([(b"SET", b"k", b"v")], SECONDS)
        self.server.kill()
        with self.assertRaises(RedisUnavailable):
            self.client.run([(b"GET", b"k")], LOOKUP)
        self.server.start()
        wait_until(lambda: self.client.is_available)
        self.assertEqual([None], self.client.run([(b"GET", b"k")], SECONDS))
        self.assertEqual(2, len(self.changes), self.changes)

    def test_a_full_memory_is_an_error_of_the_write(self) -> None:
        self.server.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.server.run("CONFIG", "SET", "maxmemory", "1")
        written, read = self.client.run([(b"SET", b"k", b"v"), (b"GET", b"k")], SECONDS)
        self.assertEqual("OOM", written.code if isinstance(written, ReplyError) else written)
        self.assertIsNone(read)
        self.assertEqual((True, []), (self.client.is_available, self.changes))

    def test_a_password_that_is_set_and_changed_at_run_time(self) -> None:
        self.client.run([(b"PING",)], SECONDS)
        self.server.run("CONFIG", "SET", "requirepass", "one")
        self.server.run("CLIENT", "KILL", "TYPE", "normal", login=(b"default", b"one"))
        with self.assertRaisesRegex(RedisUnavailable, "NOAUTH"):
            self.client.run([(b"PING",)], SECONDS)
        with self.assertRaisesRegex(RedisUnavailable, "unauthenticated"):
            self.engine(f"redis://{self.server.node}/").run([(b"DEL", *[b"k"] * 20)], SECONDS)
        client = self.engine(f"redis://:one@{self.server.node}/")
        client.run([(b"PING",)], SECONDS)
        self.server.run("CONFIG", "SET", "requirepass", "two", login=(b"default", b"one"))
        self.server.run("CLIENT", "KILL", "TYPE", "normal", login=(b"default", b"two"))
        with self.assertRaisesRegex(RedisUnavailable, "WRONGPASS"):
            client.run([(b"PING",)], SECONDS)
        self.server.run("CONFIG", "SET", "requirepass", "one", login=(b"default", b"two"))
        wait_until(lambda: client.is_available)
        self.assertEqual(["PONG"], client.run([(b"PING",)], SECONDS))

    def test_a_user_has_its_own_permissions(self) -> None:
        self.server.run("ACL", "SETUSER", "ann", "on", ">p@ss", "~chat:*", "+get", "+set", "+ping")
        client = self.engine(f"redis://ann:p%40ss@{self.server.node}/")
        written, refused = client.run([(b"SET", b"chat:1", b"v"), (b"DEL", b"chat:1")], SECONDS)
        self.assertEqual("OK", written)
        self.assertEqual("NOPERM", refused.code if isinstance(refused, ReplyError) else refused)
        # The check in the background needs no permission but PING.
        self.server.suspend()
        with self.assertRaises(RedisUnavailable):
            client.run([(b"GET", b"chat:1")], LOOKUP)
        wait_until(lambda: not client.is_available)
        self.server.resume()
        wait_until(lambda: client.is_available)

    def test_a_replica_is_refused_until_it_is_promoted(self) -> None:
        self.server.run("REPLICAOF", "127.0.0.1", "1")
        with self.assertRaisesRegex(RedisUnavailable, "READONLY"):
            self.client.run([(b"SET", b"k", b"v")], SECONDS)
        self.client._check()
        self.assertFalse(self.client.is_available)
        self.server.run("REPLICAOF", "NO", "ONE")
        wait_until(lambda: self.client.is_available)
        self.assertEqual(["OK"], self.client.run([(b"SET", b"k", b"v")], SECONDS))

    def test_a_script_that_runs_too_long_is_an_outage_until_it_is_killed(self) -> None:
        self.server.run("CONFIG", "SET", "busy-reply-threshold", "10")
        endless = (b"EVAL", b"while true do end", b"1", b"k")
        with self.assertRaises(RedisUnavailable):
            self.client.run([endless], LOOKUP)
        wait_until(lambda: not self.client.is_available)
        wait_until(lambda: self.server.run("SCRIPT", "KILL") == "OK")
        wait_until(lambda: self.client.is_available)


class TestTls(EngineCase):
    def test_a_server_with_a_certificate_of_its_own(self) -> None:
        options = {"tls-cert-file": str(CERTIFICATE), "tls-key-file": str(KEY), "tls-auth-clients": "no"}
        server = RedisServer(
            self.enterContext(ExitStack()), {**options, "tls-ca-cert-file": str(CERTIFICATE), "requirepass": "pw"}
        )
        port = server.port + 10000
        server.run("CONFIG", "SET", "tls-port", str(port), login=(b"default", b"pw"))
        client = self.engine(f"rediss://:pw@localhost:{port}/2?ca={CERTIFICATE}")
        self.assertEqual(["OK", b"x" * 10**6], client.run([(b"SET", b"k", b"x" * 10**6), (b"GET", b"k")], SECONDS))
        with self.assertRaisesRegex(RedisUnavailable, "certificate verify failed"):
            self.engine(f"rediss://:pw@localhost:{port}/").run([(b"PING",)], SECONDS)


class TestFailover(EngineCase):
    """An engine without its master for a while: nothing hangs, and what was acknowledged is there afterwards.

    A replica may miss the last writes before its master died, so the load pauses a moment before that.
    """

    def test_a_cluster_that_loses_a_master(self) -> None:
        cluster = RedisCluster(self.enterContext(ExitStack()))
        client = self.engine(cluster.url)
        load = Load(self, client)
        wait_until(lambda: len(load.acknowledged) > 300)
        settled = dict(load.acknowledged)
        for master in cluster.masters:
            master.run("WAIT", "1", "1000")
        cluster.masters[0].kill()
        wait_until(lambda: not client.is_available)
        wait_until(lambda: client.is_available)
        load.stop()
        self.assertEqual([], load.wrong)
        self.assertGreater(load.failures, 0)
        self.assertLess(load.slowest, CONNECT + WRITE + SLACK)
        self.assert_kept(client, {**settled, **load.acknowledged}, settled)
        self.assertEqual(2, len(self.changes), self.changes)

    def assert_kept(self, client: RedisClient, written: dict[bytes, bytes], settled: dict[bytes, bytes]) -> None:
        """Every key that was written before is still there, with that value or a later one."""
        keys = sorted(written)
        replies = client.run([(b"GET", key) for key in keys], SECONDS)
        for key, reply in zip(keys, replies, strict=True):
            self.assertIsInstance(reply, bytes, key)
            if key in settled and isinstance(reply, bytes):
                self.assertGreaterEqual(int(reply.split(b"-")[1]), int(settled[key].split(b"-")[1]), key)

    def test_a_slot_that_moves_under_load(self) -> None:
        cluster = RedisCluster(self.enterContext(ExitStack()))
        client = self.engine(cluster.url)
        load = Load(self, client)
        wait_until(lambda: len(load.acknowledged) > 300)
        _move_slots(cluster, range(0, 2000, 100))
        load.stop()
        self.assertEqual(([], 0, []), (load.wrong, load.failures, self.changes))
        keys = sorted(load.acknowledged)
        self.assertEqual([load.acknowledged[key] for key in keys], client.run([(b"GET", key) for key in keys], SECONDS))


def _move_slots(cluster: RedisCluster, slots: range) -> None:
    """Move slots from the first master to the second one, as redis-cli --cluster reshard does."""
    source, target = cluster.masters[:2]
    names = [server.run("CLUSTER", "MYID") for server in (source, target)]
    source_name, target_name = (name for name in names if isinstance(name, bytes))
    for slot in map(str, slots):
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source_name)
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target_name)
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, "10"):
            assert isinstance(keys, list)
            for key in keys:
                assert isinstance(key, bytes)
                source.run("MIGRATE", "127.0.0.1", str(target.port), key, "0", "5000")
        for server in (target, source, cluster.masters[2]):
            server.run("CLUSTER", "SETSLOT", slot, "NODE", target_name)


del CommandTests
