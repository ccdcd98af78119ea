import contextlib
import unittest
import zlib
from unittest import mock

from deepseek_cursor_proxy.conversation import Delta, Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.apis.chat_stream import StreamReader
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange import response_cache
from deepseek_cursor_proxy.exchange.response_cache import (
    AnswerRecorder,
    CacheLookup,
    CacheState,
    ReplayedResponse,
    ReplayReader,
    ResponseCache,
    cache_key,
    is_damaged,
    unpack,
)
from deepseek_cursor_proxy.storage.answers import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.traced_memory import traced_memory

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n: bye\n\ndata: [DONE]\n\n'
STREAM = b": wait\n\n" + b"".join(CHUNK % b"%d" % at for at in range(2000)) + LAST


class TestKeys(unittest.TestCase):
    def test_parts_are_told_apart(self) -> None:
        cases = [(b"a", "b", b"1"), (b"ab", "", b"1"), (b"", "ab", b"1"), (b"b", "a", b"1"), (b"a", "b", b"2")]
        self.assertEqual(len(cases), len({cache_key(*parts) for parts in cases}))

    def test_the_order_of_keys_in_a_body_does_not_matter(self) -> None:
        self.assertEqual(cache_key(b"a", "b", b'{"c": 1, "d": 2}'), cache_key(b"a", "b", b'{"d":2,"c":1}'))


class TestReplay(unittest.TestCase):
    def test_a_recorded_stream_reads_the_same_however_it_came_but_for_heartbeats(self) -> None:
        def text(items: list[Delta | Heartbeat]) -> str:
            return "".join(item.text or "" for item in items if isinstance(item, Delta))

        for size in (7, 1000, len(STREAM)):
            recorder, first = AnswerRecorder(StreamReader()), []
            for at in range(0, len(STREAM), size):
                first += recorder.read(STREAM[at : at + size]).batch
            packed = recorder.pack()
            assert packed is not None
            data = b"".join(unpack(packed))
            self.assertEqual(STREAM, data)
            self.assertLess(len(packed), len(STREAM) // 10)
            events = ReplayReader(StreamReader()).read(STREAM)
            self.assertEqual(text(first), text(events.batch))
            self.assertFalse([item for item in events.batch if isinstance(item, Heartbeat)])
            early = events.take_early().batch
            self.assertTrue(all(isinstance(item, Delta) and item.finish_reason is None for item in early))
            self.assertEqual("stop", events.batch[0].finish_reason)

    def test_what_is_too_much_is_not_kept(self) -> None:
        recorder = AnswerRecorder(StreamReader())
        with mock.patch.object(response_cache, "_MOST_BYTES", 100):
            for at in range(0, len(STREAM), 1000):
                recorder.read(STREAM[at : at + 1000])
            self.assertIsNone(recorder.pack())

    def test_damaged_bytes_are_no_answer(self) -> None:
        packed = zlib.compress(STREAM)
        for damaged in (b"damaged", b"", packed[:-5], packed[:100] + b"?" * 50 + packed[150:]):
            self.assertTrue(is_damaged(damaged))
        self.assertFalse(is_damaged(packed))

    def test_a_long_answer_is_never_whole_in_memory(self) -> None:
        packed = zlib.compress(bytes(16 * 1024 * 1024))
        with traced_memory() as memory:
            pieces = ReplayedResponse(packed).stream()
            self.assertEqual(16 * 1024 * 1024, sum(len(each) for each in pieces if isinstance(each, bytes)))
            self.assertLess(memory.peak(), 12 * 1024 * 1024)


class TestLookups(unittest.TestCase):
    def setUp(self) -> None:
        reasoning = self.enterContext(contextlib.closing(ReasoningStore(":memory:")))
        self.store = CachedAnswers(reasoning.database)
        self.cache = ResponseCache(self.store)
        self.addCleanup(self.cache.close)

    def lookup(self) -> CacheLookup:
        lookup = CacheLookup(self.cache, None, 0)
        self.addCleanup(lookup.end)
        return lookup

    def answer(self, lookup: CacheLookup, data: bytes = STREAM) -> None:
        lookup.open_reader(StreamReader()).read(data)
        reply = Reply()
        reply.add(Delta(text="a", finish_reason="stop"))
        lookup.store_answer(reply, Tokens(1, 2, 4), None)

    def test_a_miss_is_stored_and_found(self) -> None:
        first, second = self.lookup(), self.lookup()
        self.assertIsNone(first.find(b"1"))
        self.answer(first)
        found = second.find(b"1")
        assert found is not None
        self.assertEqual(STREAM, b"".join(piece for piece in found.stream() if isinstance(piece, bytes)))
        self.assertEqual((CacheState.MISS, CacheState.HIT), (first.state, second.state))
        self.assertEqual(("USD", 1, 1, 7, 0.0), self.store.stats("USD").totals)

    def test_a_damaged_answer_is_a_miss(self) -> None:
        self.store.record(b"1", CachedAnswer(b"damaged"))
        lookup = self.lookup()
        self.assertIsNone(lookup.find(b"1"))
        self.assertEqual((CacheState.MISS, False), (lookup.state, lookup.is_waiting))

    def test_a_retry_leads_on_and_another_question_gives_the_first_up(self) -> None:
        leader, waiter = self.lookup(), self.lookup()
        self.assertIsNone(leader.find(b"1"))
        self.assertIsNone(waiter.find(b"1"))
        self.assertEqual((True, CacheState.SHARED), (waiter.is_waiting, waiter.state))
        self.assertIsNone(leader.find(b"1"))
        self.assertFalse(waiter.wait())
        self.assertIsNone(leader.find(b"2"))
        self.assertTrue(waiter.wait())
        self.assertIsNone(waiter.take())
        self.assertIsNone(waiter.find(b"1"))
        self.assertEqual((False, CacheState.MISS), (waiter.is_waiting, waiter.state))

    def test_a_waiter_gets_an_answer_that_could_not_be_stored(self) -> None:
        leader, waiter = self.lookup(), self.lookup()
        leader.find(b"1")
        waiter.find(b"1")
        with mock.patch.object(self.store, "record"):
            self.answer(leader)
        self.assertTrue(waiter.wait())
        self.assertIsNotNone(waiter.take())
        self.assertIs(CacheState.HIT, waiter.state)

    def test_after_two_failures_a_waiter_waits_for_nobody(self) -> None:
        waiter = self.lookup()
        for _ in range(2):
            leader = self.lookup()
            leader.find(b"1")
            self.assertIsNone(waiter.find(b"1"))
            self.assertTrue(waiter.is_waiting)
            leader.end(has_failed=True)
            self.assertIsNone(waiter.take())
        leader = self.lookup()
        leader.find(b"1")
        self.assertIsNone(waiter.find(b"1"))
        self.assertFalse(waiter.is_waiting)
        # Its answer is kept all the same.
        self.answer(waiter)
        self.assertIsNotNone(self.lookup().find(b"1"))
