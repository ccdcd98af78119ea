import contextlib
import unittest
import zlib
from unittest import mock

from deepseek_cursor_proxy.conversation import Delta, Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.chat_stream import StreamReader
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.response_cache import feature as response_cache
from deepseek_cursor_proxy.features.response_cache.feature import (
    AnswerRecorder,
    CacheLookup,
    ReplayedResponse,
    cache_key,
    replay,
    unpack,
)
from deepseek_cursor_proxy.features.response_cache.store import CachedAnswers
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
            recorder, first = AnswerRecorder(StreamReader().read), []
            for at in range(0, len(STREAM), size):
                first += recorder.read(STREAM[at : at + size]).batch
            packed = recorder.pack()
            assert packed is not None
            data = b"".join(unpack(packed))
            self.assertEqual(STREAM, data)
            self.assertLess(len(packed), len(STREAM) // 10)
            events = replay(StreamReader().read, STREAM)
            self.assertEqual(text(first), text(events.batch))
            self.assertFalse([item for item in events.batch if isinstance(item, Heartbeat)])
            early = events.take_early().batch
            self.assertTrue(all(isinstance(item, Delta) and item.finish_reason is None for item in early))
            self.assertEqual("stop", events.batch[0].finish_reason)

    def test_what_is_too_much_is_not_kept(self) -> None:
        recorder = AnswerRecorder(StreamReader().read)
        with mock.patch.object(response_cache, "_MOST_BYTES", 100):
            for at in range(0, len(STREAM), 1000):
                recorder.read(STREAM[at : at + 1000])
            self.assertIsNone(recorder.pack())

    def test_a_long_answer_is_never_whole_in_memory(self) -> None:
        packed = zlib.compress(bytes(16 * 1024 * 1024))
        with traced_memory() as memory:
            pieces = ReplayedResponse(packed).stream()
            self.assertEqual(16 * 1024 * 1024, sum(len(each) for each in pieces if isinstance(each, bytes)))
            self.assertLess(memory.peak(), 12 * 1024 * 1024)


QUESTION = (b"caller", "http://upstream/chat/completions", b"{}")


class TestLookups(unittest.TestCase):
    def setUp(self) -> None:
        reasoning = self.enterContext(contextlib.closing(ReasoningStore(":memory:")))
        self.store = CachedAnswers(reasoning.database)
        self.addCleanup(self.store.close)

    def lookup(self) -> CacheLookup:
        return CacheLookup(self.store)

    def answer(self, lookup: CacheLookup, data: bytes = STREAM) -> None:
        lookup.wrap(StreamReader().read)(data)
        reply = Reply()
        reply.add(Delta(text="a", finish_reason="stop"))
        lookup.store_answer(reply, Tokens(1, 2, 4), None)

    def test_a_miss_is_stored_and_found(self) -> None:
        first, second = self.lookup(), self.lookup()
        self.assertIsNone(first.find(*QUESTION))
        self.answer(first)
        found = second.find(*QUESTION)
        assert found is not None
        self.assertEqual(STREAM, b"".join(piece for piece in found.stream() if isinstance(piece, bytes)))
        self.assertEqual(("miss", "hit"), (first.state, second.state))
        self.assertEqual(("USD", 1, 1, 7, 0.0), self.store.stats("USD").totals)

    def test_identical_questions_at_once_are_each_asked_and_the_last_answer_is_kept(self) -> None:
        first, second = self.lookup(), self.lookup()
        self.assertEqual([None, None], [first.find(*QUESTION), second.find(*QUESTION)])
        self.answer(first, b": first\n\n")
        self.answer(second, b": second\n\n")
        self.assertEqual([b": second\n\n"], [*self.lookup().find(*QUESTION).stream()])

    def test_a_retry_that_finds_an_answer_stores_nothing_of_the_call_before_it(self) -> None:
        first, second = self.lookup(), self.lookup()
        first.find(*QUESTION)
        first.wrap(StreamReader().read)(b": broken\n\n")
        second.find(*QUESTION)
        self.answer(second)
        first.find(*QUESTION)
        self.answer(first, b"")
        self.assertEqual([STREAM], [b"".join(self.lookup().find(*QUESTION).stream())])
