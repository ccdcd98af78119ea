from unittest import mock

from deepseek_cursor_proxy.features.redis import client
from deepseek_cursor_proxy.features.redis.client import ClusterMap, slot_of
from deepseek_cursor_proxy.features.redis.connection import RedisUnavailable
from tests.support.engine_cases import SECONDS, CommandTests, EngineCase
from tests.support.polling import wait_until
from tests.support.resp_commands import CommandError
from tests.support.resp_server import RespCluster, RespServer


class ClusterCase(EngineCase):
    def setUp(self) -> None:
        self.nodes = [self.enterContext(RespServer()) for _ in range(3)]
        self.cluster = RespCluster([*self.nodes])
        self.url = self.cluster.url
        super().setUp()


class TestCommandsOnACluster(ClusterCase, CommandTests):
    pass


class TestCluster(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.engine(self.url)

    def keys(self, count: int) -> list[bytes]:
        return [b"key-%d" % number for number in range(count)]

    def move(self, source: RespServer, target: RespServer) -> None:
        for key in source.run(b"SCAN", b"0")[1]:
            target.run(b"SET", key, source.run(b"GET", key))
        self.cluster.owners = [target if owner is source else owner for owner in self.cluster.owners]

    def test_a_call_is_one_pipeline_per_node(self) -> None:
        keys = self.keys(30)
        self.assertEqual(["OK"] * 30, self.client.run([(b"SET", key, key) for key in keys], SECONDS))
        self.assertEqual(keys, self.client.run([(b"GET", key) for key in keys], SECONDS))
        self.assertTrue(all(node.run(b"DBSIZE") for node in self.nodes))
        # One more, for the map.
        self.assertEqual(4, sum(node.accepted for node in self.nodes))

    def test_a_slot_that_has_moved_is_followed_and_remembered(self) -> None:
        keys = self.keys(30)
        self.client.run([(b"SET", key, key) for key in keys], SECONDS)
        self.move(self.nodes[0], self.nodes[1])
        self.assertEqual(keys, self.client.run([(b"GET", key) for key in keys], SECONDS))
        wait_until(lambda: len(self.client._topology.nodes) == 2)
        before = len(self.nodes[0].commands)
        self.assertEqual(keys, self.client.run([(b"GET", key) for key in keys], SECONDS))
        self.assertEqual(before, len(self.nodes[0].commands))
        wait_until(lambda: not self.nodes[0]._sockets)
        self.assertEqual([], self.changes)

    def test_many_redirections_read_the_map_once(self) -> None:
        self.client.run([(b"GET", key) for key in self.keys(30)], SECONDS)
        with (
            mock.patch.object(client, "_FIRST_CHECK_SECONDS", 30.0),
            mock.patch.object(ClusterMap, "refresh") as refresh,
        ):
            self.move(self.nodes[0], self.nodes[1])
            for key in self.keys(60):
                self.client.run([(b"GET", key)], SECONDS)
            self.client.close()
        self.assertLessEqual(refresh.call_count, 2)

    def test_a_slot_on_its_way_is_asked_for_at_its_new_node(self) -> None:
        slot = slot_of(b"k")
        self.cluster.importing[slot] = next(node for node in self.nodes if node is not self.cluster.owners[slot])
        self.assertEqual(["OK", b"v"], self.client.run([(b"SET", b"k", b"v"), (b"GET", b"k")], SECONDS))
        commands = self.cluster.importing[slot].commands
        self.assertEqual(2, commands.count((b"ASKING",)))

    def test_a_command_is_tried_again_when_the_server_says_so(self) -> None:
        refusals = ["TRYAGAIN Multiple keys request during rehashing of slot"] * 2
        real = RespServer._check

        def check(server: RespServer, session: object, name: str, command: tuple[bytes, ...]) -> None:
            server.refusal = refusals.pop() if name == "GET" and refusals else ""
            real(server, session, name, command)  # type: ignore[arg-type]

        with mock.patch.object(RespServer, "_check", check):
            self.assertEqual([None], self.client.run([(b"GET", b"k")], SECONDS))

    def test_redirections_without_end_are_an_error(self) -> None:
        self.client.run([(b"GET", b"k")], SECONDS)
        with mock.patch.object(RespCluster, "check", side_effect=_moved(self.nodes[1], slot_of(b"k"))):
            with mock.patch.object(self.client._checks, "run"):
                for _ in range(3):
                    with self.assertRaisesRegex(RedisUnavailable, "too many redirections"):
                        self.client.run([(b"GET", b"k")], SECONDS)
        self.assertFalse(self.client.is_available)

    def test_a_cluster_that_is_down_is_an_outage(self) -> None:
        self.client.run([(b"GET", b"k")], SECONDS)
        self.cluster.is_ok = False
        with self.assertRaisesRegex(RedisUnavailable, "CLUSTERDOWN"):
            self.client.run([(b"GET", b"k")], SECONDS)
        self.assertFalse(self.client.is_available)
        self.client._check()
        self.assertFalse(self.client.is_available)
        self.cluster.is_ok = True
        wait_until(lambda: self.client.is_available)
        self.assertEqual(2, len(self.changes))

    def test_a_lost_node_is_an_outage_until_another_has_its_slots(self) -> None:
        keys = self.keys(30)
        self.client.run([(b"SET", key, key) for key in keys], SECONDS)
        lost = self.nodes[0]
        lost.stop()
        with self.assertRaises(RedisUnavailable):
            self.client.run([(b"GET", key) for key in keys], SECONDS)
        self.assertFalse(self.client.is_available)
        # Its replica takes over.
        self.move(lost, self.nodes[2])
        wait_until(lambda: self.client.is_available)
        self.assertEqual(keys, self.client.run([(b"GET", key) for key in keys], SECONDS))
        self.assertEqual(2, len(self.changes))

    def test_any_node_tells_where_the_others_are(self) -> None:
        for node in self.nodes[:2]:
            node.stop()
            self.cluster.owners = [self.nodes[2]] * len(self.cluster.owners)
        self.assertEqual(["OK"], self.engine(self.url).run([(b"SET", b"k", b"v")], SECONDS))

    def test_a_server_that_is_no_cluster_says_so(self) -> None:
        server = self.enterContext(RespServer())
        engine = self.engine(f"redis://127.0.0.1:{server.port}/?cluster=1")
        with self.assertRaisesRegex(RedisUnavailable, "cluster support disabled"):
            engine.run([(b"GET", b"k")], SECONDS)
        self.assertFalse(engine.is_available)


def _moved(node: RespServer, slot: int) -> Exception:
    return CommandError(f"MOVED {slot} 127.0.0.1:{node.port}")


del CommandTests
