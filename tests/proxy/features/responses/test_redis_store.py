import contextlib
import random
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.redis.state import prefix
from deepseek_cursor_proxy.features.responses import redis_store as responses
from deepseek_cursor_proxy.features.responses.redis_store import SharedResponses
from deepseek_cursor_proxy.features.responses.store import ResponseStore, StoredResponse
from tests.support.polling import wait_until
from tests.support.shared_engine import EngineTestCase
from tests.support.width import width

CALLERS = (b"a" * 32, b"b" * 32)
STATUSES = ("queued", "in_progress", "completed", "failed")


def stored(number: int, status: str = "completed", **more: Any) -> StoredResponse:
    body = {"id": f"resp_{number}", "status": status, "output": [f"answer {number}"], **more}
    return StoredResponse(body, [{"text": f"question {number}"}], b"events" if status == "completed" else None)


class TestSharedResponses(EngineTestCase):
    def store(self, name: str, *, is_shared: bool = True) -> ResponseStore:
        instance = self.instance(name)
        store = self.enterContext(contextlib.closing(ResponseStore(instance.reasonings.database)))
        if is_shared:
            store.share(SharedResponses(instance.state, store))
        return store

    def test_two_proxies_return_what_one_file_returns_after_any_sequence_of_changes(self) -> None:
        alone = self.store("alone", is_shared=False)
        both = [self.store("one"), self.store("two")]
        for seed in range(width(40, 1000)):
            rng = random.Random(seed)
            caller, number = rng.choice(CALLERS), rng.randrange(4)
            # A response is changed by the proxy that made it, and deleted by any.
            store = both[number % 2]
            response = stored(number, rng.choice(STATUSES[2:]), count=seed)
            with self.subTest(seed):
                match rng.choice(("put", "update", "delete", "get")):
                    case "put":
                        for each in (alone, store):
                            each.put(caller, response)
                    case "update":
                        alone.update(caller, response)
                        store.update(caller, response)
                    case "delete":
                        id = response.body["id"]
                        self.assertEqual(alone.delete(caller, id), rng.choice(both).delete(caller, id))
                for each in both:
                    for id in (f"resp_{other}" for other in range(4)):
                        self.assertEqual(alone.get(caller, id), each.get(caller, id))

    def test_what_was_deleted_through_another_proxy_stays_deleted(self) -> None:
        one, two = self.store("one"), self.store("two")
        one.put(CALLERS[0], stored(1, "in_progress"))
        self.assertTrue(two.delete(CALLERS[0], "resp_1"))
        one.update(CALLERS[0], stored(1))
        for each in (one, two):
            self.assertIsNone(each.get(CALLERS[0], "resp_1"))

    def fields(self, id: str) -> tuple[bytes, dict[bytes, bytes]]:
        key = prefix(CALLERS[0]) + b"s" + id.encode()
        flat = self.engine.run(b"HGETALL", key)
        return key, dict(flat if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True))

    def test_a_row_that_is_not_as_it_was_written_counts_as_none(self) -> None:
        one, two = self.store("one"), self.store("two")
        for number in (1, 2):
            one.put(CALLERS[0], stored(number))
        (key, row), (_, other) = self.fields("resp_1"), self.fields("resp_2")
        changes: list[dict[bytes, bytes]] = [
            *(other, {b"b": other[b"b"]}, {b"i": other[b"i"]}, {b"e": other[b"e"]}, {b"b": row[b"i"]}),
            *({b"status": b"failed"}, {b"status": b"\xff"}, {b"b": b""}, {b"i": b""}, {b"b": b"x" * 40}),
            *({b"created_at": each} for each in (b"", b"yesterday", b"nan", b"inf", b"\xff")),
        ]
        for change in changes:
            with self.subTest(change):
                self.engine.run(b"HSET", key, *(word for field in change.items() for word in field))
                self.assertIsNone(two.get(CALLERS[0], "resp_1"))
                # The proxy that made it has it in its file.
                self.assertEqual(stored(1), one.get(CALLERS[0], "resp_1"))
                self.engine.run(b"HSET", key, *(word for field in row.items() for word in field))
        self.assertEqual(stored(1), two.get(CALLERS[0], "resp_1"))

    def test_an_older_state_on_the_engine_does_not_hide_what_the_file_has(self) -> None:
        one = self.store("one")
        one.put(CALLERS[0], stored(1, "in_progress"))
        key, row = self.fields("resp_1")
        one.update(CALLERS[0], stored(1))
        for lease in (row[b"u"], b"1"):
            self.engine.run(b"HSET", key, *(word for field in {**row, b"u": lease}.items() for word in field))
            self.assertEqual(stored(1), one.get(CALLERS[0], "resp_1"))

    def test_a_reply_of_another_shape_finds_nothing(self) -> None:
        two = self.store("two")
        for reply in (None, 1, b"text", [], ["OK"], [b"completed"], [None] * 6, [b"completed", b"1", 1, 2, 3, 0]):
            with self.subTest(reply), mock.patch.object(self.instances[0].state, "read", return_value=reply):
                self.assertIsNone(two.get(CALLERS[0], "resp_1"))

    def test_a_running_job_of_another_proxy_is_not_failed_while_its_lease_is_renewed(self) -> None:
        self.enterContext(mock.patch.object(responses, "_SECONDS_BETWEEN_RENEWALS", 0.005))
        one, two = self.store("one"), self.store("two")
        one.put(CALLERS[0], stored(1, "in_progress"))
        [key] = self.engine.run(b"SCAN", b"0", b"MATCH", b"dcp:*}:s*")[1]
        for _ in range(3):
            self.engine.advance(15)
            wait_until(lambda: int(self.engine.run(b"HGET", key, b"u")) > int(self.engine.run(b"TIME")[0]) + 10)
            self.assertEqual(0, two.fail_orphans())
            found = two.get(CALLERS[0], "resp_1")
            assert found is not None
            self.assertEqual("in_progress", found.body["status"])
        one.update(CALLERS[0], stored(1))

    def test_a_lapsed_lease_marks_the_job_failed_unless_it_ends_all_the_same(self) -> None:
        one, two = self.store("one"), self.store("two")
        one.put(CALLERS[0], stored(1, "in_progress"))
        self.engine.advance(30)
        found = two.get(CALLERS[0], "resp_1")
        assert found is not None
        self.assertEqual(("failed", "server_restarted"), (found.body["status"], found.body["error"]["code"]))
        mine = one.get(CALLERS[0], "resp_1")
        assert mine is not None
        self.assertEqual("in_progress", mine.body["status"])
        one.update(CALLERS[0], stored(1))
        self.assert_every_row_expires()
        # One that is finished has no lease.
        self.engine.advance(30)
        self.assertEqual(stored(1), two.get(CALLERS[0], "resp_1"))

    def test_changes_without_the_engine_reach_it_in_order(self) -> None:
        one, two = self.store("one"), self.store("two")
        self.engine.stop()
        one.put(CALLERS[0], stored(1, "in_progress"))
        one.update(CALLERS[0], stored(1))
        one.put(CALLERS[0], stored(2))
        self.assertTrue(one.delete(CALLERS[0], "resp_2"))
        self.assertEqual(stored(1), one.get(CALLERS[0], "resp_1"))
        self.engine.start()
        self.wait_until_shared()
        self.assertEqual(stored(1), two.get(CALLERS[0], "resp_1"))
        self.assertIsNone(two.get(CALLERS[0], "resp_2"))
