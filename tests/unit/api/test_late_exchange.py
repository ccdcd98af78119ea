import unittest
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.api.reply import LateExchange
from deepseek_cursor_proxy.conversation import Batches, Delta, Heartbeat
from deepseek_cursor_proxy.errors import ClientGone, ProxyStopping, UpstreamFailed
from deepseek_cursor_proxy.http1.lull import BLOCKING, Steps
from deepseek_cursor_proxy.net.wait import finish


class Texts:
    """Are there when the last of their waits returns True; an exception among them is raised."""

    def __init__(self, *waits: bool | BaseException) -> None:
        self._waits = iter(waits)
        self.seconds: list[float] = []
        self.is_closed = False

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        result = next(self._waits)
        if isinstance(result, BaseException):
            raise result
        return result

    def generation(self) -> str:
        return "the request in words"

    def close(self) -> None:
        self.is_closed = True


class Answered:
    """An exchange with one batch."""

    def __init__(self) -> None:
        self.is_closed = False
        self.errors: list[BaseException] = []

    def notice(self, choice: int) -> str:
        return f"notice {choice}"

    def deltas(self) -> Batches:
        yield [Delta(text="Hello.")]
        self.is_closed = True

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    def close(self) -> None:
        self.is_closed = True


REFUSAL = UpstreamFailed("refused")


class TestLateExchange(unittest.TestCase):
    def late(self, *waits: bool | BaseException, refusal: Exception | None = None) -> LateExchange:
        """A late exchange; what it opens is `exchange` unless it is refused."""
        self.texts, self.exchange = Texts(*waits), Answered()
        self.refused: list[BaseException] = []

        def open_exchange(generation: Any) -> Steps[Answered]:
            yield from ()
            self.assertEqual("the request in words", generation)
            if refusal is not None:
                raise refusal
            return self.exchange

        texts: Any = self.texts
        return LateExchange(texts, open_exchange, self.refused.append, 15.0)

    def test_texts_that_are_there_in_time_leave_the_exchange_as_it_is(self) -> None:
        opened = finish(self.late(True).open_in_time())
        self.assertIs(self.exchange, opened)
        self.assertEqual(([15.0], True), (self.texts.seconds, self.texts.is_closed))
        self.assertFalse(self.exchange.is_closed)

    def test_a_failure_in_time_is_raised_for_the_caller_to_report(self) -> None:
        for waits, refusal in (((True,), REFUSAL), ((ClientGone(),), None)):
            late = self.late(*waits, refusal=refusal)
            with self.assertRaises((UpstreamFailed, ClientGone)):
                finish(late.open_in_time())
            self.assertEqual((True, []), (self.texts.is_closed, self.refused))

    def test_a_late_exchange_has_heartbeats_then_the_answer(self) -> None:
        late = self.late(False, False, True)
        self.assertIsNone(finish(late.open_in_time()))
        waits: list[object] = [[Heartbeat()], BLOCKING, [Heartbeat()], BLOCKING]
        self.assertEqual([*waits, [Delta(text="Hello.")]], list(late.deltas()))
        self.assertEqual("notice 1", late.notice(1))
        self.assertTrue(late.is_closed and self.exchange.is_closed and self.texts.is_closed)
        self.assertEqual([], self.refused)

    def test_a_late_failure_is_raised_in_the_answer_and_reported(self) -> None:
        stopping = ProxyStopping()
        for last, refusal in ((True, REFUSAL), (stopping, None)):
            late = self.late(last, refusal=refusal)
            with self.assertRaises((UpstreamFailed, ProxyStopping)):
                list(late.deltas())
            self.assertTrue(late.is_closed and self.texts.is_closed)
            self.assertIs(refusal or stopping, self.refused[0])

    def test_a_failure_of_the_consumer_goes_to_the_exchange_if_there_is_one(self) -> None:
        for steps, count in ((2, 0), (5, 1)):
            late = self.late(False, True)
            batches = late.deltas()
            _take(batches, steps)
            late.fail(REFUSAL)
            batches.close()
            self.assertEqual([REFUSAL] * count, self.exchange.errors)
            self.assertEqual([REFUSAL] * (1 - count), self.refused[:1])

    def test_closing_ends_what_is_open_at_any_point(self) -> None:
        for steps in range(6):
            with self.subTest(steps):
                late = self.late(False, True)
                batches = late.deltas()
                _take(batches, steps)
                batches.close()
                late.close()
                self.assertTrue(late.is_closed and self.texts.is_closed)
                self.assertEqual(steps == 5, self.exchange.is_closed)
                self.assertEqual(steps < 5, any(isinstance(each, ClientGone) for each in self.refused))


def _take(batches: Iterable[object], count: int) -> None:
    for _, _ in zip(range(count), batches, strict=False):
        pass
