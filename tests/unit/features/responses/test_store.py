import contextlib
import logging
import random
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.responses import store as responses
from deepseek_cursor_proxy.features.responses.endpoints import follow
from deepseek_cursor_proxy.features.responses.store import EventLog, ResponseStore, StoredResponse, unpack_events
from deepseek_cursor_proxy.storage.table import compress
from tests.support.databases import StoreTestCase
from tests.support.threads import leave_no_thread
from tests.support.traced_memory import traced_memory

ME, YOU = b"m" * 32, b"y" * 32
NOISE = "".join(chr(0x4E00 + n * n % 20000) for n in range(3000))


def response(name: str, status: str = "completed", events: bytes | None = None, **fields: Any) -> StoredResponse:
    return StoredResponse({"id": name, "status": status, **fields}, [{"role": "user", "content": "Hi"}], events)


class ResponseStoreTestCase(StoreTestCase):
    store_type = ResponseStore

    def setUp(self) -> None:
        leave_no_thread(self)
        super().setUp()

    def ids(self) -> list[str]:
        return [name for (name,) in self.select("SELECT id FROM responses ORDER BY created_at, number")]

    def status(self, name: str, store: ResponseStore | None = None) -> str | None:
        found = (store or self.store).get(ME, name)
        return None if found is None else str(found.body["status"])

    def found(self, name: str = "r", store: ResponseStore | None = None, **options: bool) -> StoredResponse:
        found = (store or self.store).get(ME, name, **options)
        assert found is not None
        return found


class TestPutAndGet(ResponseStoreTestCase):
    def test_a_stored_response_is_found_whole_and_survives_a_restart(self) -> None:
        stored = StoredResponse(
            {"id": "r", "status": "completed", "output": [{"type": "message"}]},
            [{"role": "user", "content": "Grüße"}, {"role": "assistant", "content": "漢字 \ud800 \x00 \U0001f600"}],
            b"event: response.created\ndata: {}\n\n",
        )
        self.store.put(ME, stored)
        for _ in range(2):
            self.assertEqual(stored, self.store.get(ME, "r"))
            self.assertEqual(replace(stored, events=None), self.store.get(ME, "r", with_events=False))
            self.restart()
        [(held,)] = self.select("SELECT length(body) + length(input) + length(events) FROM responses")
        self.assertEqual((1, held), self.store.totals())

    def test_a_caller_neither_sees_nor_deletes_another_callers_responses(self) -> None:
        self.store.put(ME, response("r"))
        self.assertIsNone(self.store.get(YOU, "r"))
        self.assertFalse(self.store.delete(YOU, "r"))
        self.store.update(YOU, response("r", "failed"))
        self.assertIsNone(self.store.get(YOU, "r"))
        self.store.put(YOU, response("r", "incomplete"))
        self.assertEqual("completed", self.status("r"))

    def test_an_updated_response_keeps_its_age(self) -> None:
        self.store.put(ME, response("r", "queued"))
        self.store.put(ME, response("younger"))
        self.now += 1
        for status in ("in_progress", "completed"):
            self.store.update(ME, response("r", status))
            self.assertEqual(status, self.status("r"))
        self.store.put(ME, response("r"))
        self.assertEqual(["r", "younger"], self.ids())


class TestCallersThatAreNotKnown(ResponseStoreTestCase):
    """Their responses are in memory until an upstream has accepted the key."""

    def test_a_response_is_found_replaced_and_deleted_in_memory(self) -> None:
        self.store.put(ME, response("r", "queued"), is_known=False)
        self.store.update(ME, response("r", "failed"))
        self.assertEqual("failed", self.status("r"))
        self.assertIsNone(self.store.get(YOU, "r"))
        self.assertEqual([], self.ids())
        self.assertEqual([True, False], [self.store.delete(ME, "r") for _ in range(2)])
        self.assertIsNone(self.store.get(ME, "r"))

    def test_accepting_a_key_stores_its_responses_and_no_others(self) -> None:
        self.store.put(ME, response("mine", "in_progress"), is_known=False)
        self.store.put(YOU, response("yours"), is_known=False)
        self.store.accept(ME)
        self.assertEqual(["mine"], self.ids())
        self.store.update(ME, response("mine"))
        self.restart()
        self.assertEqual("completed", self.status("mine"))
        self.assertIsNone(self.store.get(YOU, "yours"))

    def test_their_number_and_bytes_are_bounded_and_those_that_ended_go_first(self) -> None:
        self.store.put(ME, response("running", "queued"), is_known=False)
        for number in range(100):
            self.store.put(ME, response(f"r{number}"), is_known=False)
        kept = [number for number in range(100) if self.status(f"r{number}") is not None]
        self.assertEqual(list(range(100 - responses._MOST_OF_UNKNOWN_CALLERS + 1, 100)), kept)
        with mock.patch.object(responses, "_MOST_BYTES_OF_UNKNOWN_CALLERS", 20_000):
            for number in range(10):
                self.store.put(ME, response(f"large{number}", text=f"{number}{NOISE}"), is_known=False)
            self.assertLessEqual(sum(row.size for row in self.store._of_unknown_callers.values()), 20_000)
        self.assertEqual(("queued", "completed"), (self.status("running"), self.status("large9")))

    def test_one_that_ended_has_a_short_life(self) -> None:
        self.store.put(ME, response("running", "queued"), is_known=False)
        self.store.put(ME, response("ended"), is_known=False)
        with mock.patch.object(responses, "_SECONDS_OF_UNKNOWN_CALLERS", 0.0):
            self.assertEqual(("queued", None), (self.status("running"), self.status("ended")))
            self.store.accept(ME)
        self.assertEqual(["running"], self.ids())


class TestChains(ResponseStoreTestCase):
    def test_a_response_changed_by_another_process_is_read_from_the_file(self) -> None:
        self.store.put(ME, response("resp_1"))
        other = self.store_on(self.open())
        other.update(ME, response("resp_1", "failed"))
        self.assertEqual("failed", self.status("resp_1"))
        other.delete(ME, "resp_1")
        self.assertIsNone(self.store.get(ME, "resp_1"))
        self.assertIsNone(self.store.get(YOU, "resp_1"))


class TestPruning(ResponseStoreTestCase):
    def fill(self, count: int, size: int = 0) -> None:
        for number in range(count):
            # Random enough that packing takes nothing off.
            noise = "".join(chr(0x4E00 + (number * 7919 + each * 104729) % 20000) for each in range(size))
            self.store.put(ME, response(str(number), text=noise))
            self.now += 1

    def test_a_response_that_is_too_old_is_not_found_even_before_pruning(self) -> None:
        self.store = self.store_on(self.database, max_age_seconds=10)
        self.store.put(ME, response("r"))
        self.now += 10
        self.assertEqual("completed", self.status("r"))
        self.now += 0.1
        self.assertIsNone(self.store.get(ME, "r"))
        self.assertEqual(["r"], self.ids())
        self.assertFalse(self.store.delete(ME, "r"))
        self.assertEqual([], self.ids())

    def test_an_unfinished_response_is_not_pruned(self) -> None:
        self.store = self.store_on(self.database, max_rows=2, max_age_seconds=10)
        for status in ("queued", "in_progress"):
            self.store.put(ME, response(status, status))
        self.fill(5)
        sum(self.store.prune())
        self.assertEqual(["queued", "in_progress"], self.ids())
        self.store.update(ME, response("queued", "completed"))
        self.now += 10
        sum(self.store.prune())
        self.assertEqual(["in_progress"], self.ids())


class TestOrphans(ResponseStoreTestCase):
    def test_unfinished_responses_of_a_dead_process_are_failed(self) -> None:
        self.store.put(ME, response("a", "queued", background=True))
        self.store.put(YOU, response("b", "in_progress"))
        self.store.put(ME, response("c", "completed"))
        self.restart()
        self.assertEqual(2, self.store.fail_orphans())
        self.assertEqual(0, self.store.fail_orphans())
        found = self.found("a")
        self.assertEqual(("failed", True), (found.body["status"], found.body["background"]))
        self.assertEqual("server_restarted", found.body["error"]["code"])
        self.assertTrue(found.body["error"]["message"])
        self.assertEqual([{"role": "user", "content": "Hi"}], found.input)
        self.assertEqual("completed", self.status("c"))


class TestFaults(ResponseStoreTestCase):
    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Another process writes; then the file is reopened, as the reopener of the reasoning store does."""
        locker = self.lock("BEGIN IMMEDIATE")
        yield
        locker.execute("ROLLBACK")
        self.database.reopen()

    def test_changes_in_a_locked_file_are_found_and_written_when_it_reopens(self) -> None:
        for name in ("old", "gone"):
            self.store.put(ME, response(name, "in_progress"))
        expected = {"old": "completed", "gone": None, "a": "completed", "b": None, "c": "queued", "never": None}
        with self.locked():
            for name in ("a", "b", "c"):
                self.store.put(ME, response(name, "queued"))
            for name in ("a", "old", "never"):
                self.store.update(ME, response(name))
            for name in ("b", "gone"):
                self.assertEqual([True, False], [self.store.delete(ME, name) for _ in range(2)])
                self.store.update(ME, response(name))
            self.assertEqual(expected, {name: self.status(name) for name in expected})
            self.assertIsNone(self.store.get(YOU, "a"))
            self.assertEqual(["old", "gone"], self.ids())
        self.assertEqual({"old", "a", "c"}, set(self.ids()))
        self.restart()
        self.assertEqual(expected, {name: self.status(name) for name in expected})

    def test_close_warns_about_responses_that_never_reached_the_file(self) -> None:
        self.database.close()
        with self.assertLogs(responses.__name__, logging.WARNING) as warnings:
            self.store.put(ME, response("r"))
            self.assertEqual("completed", self.status("r"))
            self.store.close()
            self.store.close()
        [warning] = warnings.output
        self.assertIn("1 of the responses in memory never reached the store", warning)

    def test_a_damaged_response_is_not_found(self) -> None:
        self.store.put(ME, response("r"))
        for damage in (b"", b"\x00", compress(b"[]")[:-2], b"x\x9c"):
            with self.database.transaction() as connection:
                connection.execute("UPDATE responses SET input = ?", (damage,))
            self.store._faults._warned_at = float("-inf")
            with self.assertLogs(responses.__name__, logging.WARNING):
                self.assertIsNone(self.store.get(ME, "r"))


DELTA = (
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,"item_id":'
    '"msg_0123456789abcdef0123456789abcdef_1","output_index":1,"content_index":0,"delta":"%s","logprobs":[]}\n\n'
)


def events(count: int) -> list[bytes]:
    draw = random.Random(4)
    return [(DELTA % (number, f"w{draw.randrange(10_000)} ")).encode() for number in range(count)]


def filled(pieces: Iterable[bytes]) -> EventLog:
    log = EventLog()
    for piece in pieces:
        log.append(piece)
    return log


class TestEventLog(unittest.TestCase):
    def test_appended_events_are_read_from_any_offset(self) -> None:
        pieces = (b"", *events(1000), b"x" * 200_000, b"\n\n", *events(3))
        log, whole = filled(pieces), b"".join(pieces)
        self.assertEqual(len(whole), len(log))
        for start in (0, 1, 65_536, 100_000, len(whole) - 1, len(whole)):
            found = b""
            while part := log.read(start + len(found)):
                found += part
            self.assertEqual(whole[start:], found)

    def test_unpack_yields_whole_events(self) -> None:
        *pieces, last = events(3000)
        found = list(unpack_events(filled(pieces).pack(last)))
        self.assertEqual(b"".join([*pieces, last]), b"".join(found))
        self.assertGreater(len(found), 1)
        self.assertTrue(all(part.endswith(b"}\n\n") for part in found))
        self.assertEqual([], list(unpack_events(EventLog().pack())))

    def test_unpack_raises_a_value_error_for_damaged_events(self) -> None:
        for damaged in (b"no zlib", b"\x78\x01" + b"\xff" * 50):
            with self.assertRaises(ValueError):
                list(unpack_events(damaged))

    def test_damaged_events_end_in_an_error_event(self) -> None:
        *pieces, last = events(3000)
        packed = filled(pieces).pack(last)
        with self.assertLogs(level=logging.ERROR):
            found = b"".join(follow(unpack_events(packed + b"no zlib")))
        self.assertTrue(found.startswith(pieces[0]) and b"event: error\n" in found, found[-300:])

    def test_a_megabyte_of_text_in_small_deltas_takes_a_few_megabytes(self) -> None:
        packed = filled(events(50_000)).pack()
        self.assertLess(len(packed), 6 * 6 * 50_000)
        with traced_memory() as memory:
            for _ in unpack_events(packed):
                pass
            self.assertLess(memory.peak(), 2_000_000)
