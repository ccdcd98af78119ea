import logging
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.rules import ReasoningNeed
from deepseek_cursor_proxy.deepseek.usage import read_usage
from deepseek_cursor_proxy.features.request_log.feature import (
    RequestLog,
    RequestRecord,
    TurnCounts,
    TurnMark,
    make_record,
)
from deepseek_cursor_proxy.observers.events import (
    COMPLETED,
    End,
    Finished,
    Progress,
    Received,
    Refused,
    RequestFacts,
    Result,
    Timing,
)
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, Source, Turn
from tests.support.histories import user
from tests.support.traced_memory import traced_memory

REQUEST = ChatRequest("gpt-5", "deepseek-v4-pro", (user("secret"),))
HISTORY = identity.History(b"me", REQUEST.messages)
USAGE = {"prompt_tokens": 100, "prompt_cache_hit_tokens": 90, "completion_tokens": 5}


def facts(number: int = 1, **fields: Any) -> RequestFacts:
    return RequestFacts(number, 1000.0, "chat", "0123456789ab", "gpt-5", "deepseek-v4-pro", **fields)


def prepared(*turns: Turn, recovered: int = 0, **fields: Any) -> PreparedRequest:
    return PreparedRequest(REQUEST, HISTORY, turns, TurnCounts.of(turns)._replace(recovered=recovered), **fields)


def finished(number: int = 1, **fields: Any) -> Finished:
    usage = fields.pop("usage", USAGE)
    fields = {"message": None, "finish_reason": "stop", "usage": usage, "tokens": read_usage(usage), **fields}
    return Finished(facts(number), COMPLETED, Timing(2.5, 0.5, 0.0, 0.1), **fields)


def turn(index: int, source: Source, need: ReasoningNeed = ReasoningNeed.HARD, proof: str = "", **fields: Any) -> Turn:
    return Turn(index, need, source, **{"is_empty": False, "has_notice": False, **fields}, proof=proof)


def _state(progress: Progress) -> tuple[str, float, int]:
    return progress.phase, progress.age_seconds, progress.output_tokens_estimate


class TestRequestLog(unittest.TestCase):
    def test_a_request_runs_from_its_first_event_to_its_last(self) -> None:
        log, so_far = RequestLog(), [Progress(facts(), 0.1)]
        log.begin(Received(1, REQUEST, {}, 10, "key", lambda: so_far[0]))
        self.assertEqual(("queued", 0.1, 0), _state(log.running()[0]))
        so_far[0] = Progress(facts(stream=True), 0.2, is_sent=True)
        self.assertEqual(("sent", 1), (log.running()[0].phase, sum(each.facts.stream for each in log.running())))
        so_far[0] = Progress(facts(), 0.4, True, 400, 0.3)
        [running] = log.running()
        self.assertEqual(("streaming", 0.4, 100), _state(running))
        self.assertEqual(0.3, running.first_delta_seconds)
        log.end(finished())
        self.assertEqual([], log.running())
        record = log.find(1)
        assert record is not None
        self.assertEqual((1002.5, (90, 10, 5, 0, 0)), (record.ended_at, record.tokens))

    def test_the_newest_come_first_in_pages_and_the_oldest_are_forgotten(self) -> None:
        log = RequestLog(most_records=10)
        # Request 12 is overtaken by 13.
        for number in (*range(1, 12), 13, 12):
            log.end(finished(number))
        first = [each.number for each in log.ended()[:4]]
        self.assertEqual([12, 13, 11, 10], first)
        self.assertEqual([9, 8, 7, 6, 5, 4], [each.number for each in log.ended(before=first[-1])])
        self.assertEqual([], log.ended(before=3))
        self.assertIsNone(log.find(1))

    def test_callers_that_are_not_known_push_no_request_out(self) -> None:
        log = RequestLog(most_records=10)
        log.end(finished(1))
        for number in range(2, 1000):
            log.end(Refused(facts(number)._replace(key=""), "chat", End(Result.REFUSED, 401, "no"), 0.1))
        log.end(finished(1000))
        numbers = [each.number for each in log.ended()]
        self.assertEqual([1000, *range(999, 979, -1), 1], numbers)
        self.assertEqual([True, True, False], [log.find(number) is not None for number in (1, 999, 900)])

    def test_listeners_are_called_and_their_failures_stay_theirs(self) -> None:
        log = RequestLog()
        ended: list[RequestRecord] = []

        def fail(record: RequestRecord) -> None:
            raise KeyError("x")

        log.subscribe(fail)
        log.subscribe(ended.append)
        with self.assertLogs("deepseek_cursor_proxy.features.request_log.feature", logging.WARNING) as logs:
            log.begin(Received(7, REQUEST, {}, 10, "key", lambda: Progress(facts(7), 0.0)))
            log.end(finished(7))
        self.assertEqual([7], [each.number for each in ended])
        self.assertIn("fail failed: KeyError", logs.output[0])


class TestRecord(unittest.TestCase):
    def test_a_record_counts_turns_and_marks_where_each_reasoning_came_from(self) -> None:
        turns = (
            turn(1, Source.STORE, proof="exact"), turn(3, Source.CLIENT), turn(5, Source.DISPLAY),
            turn(7, Source.STORE, is_empty=True, proof="near"), turn(9, Source.MISSING, proof="unknown"),
            turn(100_000, Source.MISSING, ReasoningNeed.NONE),
        )  # fmt: skip
        record = make_record(
            finished(
                prepared=prepared(*turns, repairs={"moved": 2}, recovered=3),
                divergence="message 12 changed (user content)",
                retries=1,
            )
        )
        self.assertEqual(TurnCounts(2, 1, 1, 1, 3), record.turns)
        self.assertEqual(
            [
                TurnMark(1, "store", "exact"), TurnMark(3, "client", ""), TurnMark(5, "display", ""),
                TurnMark(7, "empty", "near"), TurnMark(9, "missing", "unknown"), TurnMark(100_000, "none", ""),
            ],
            record.strip,
        )  # fmt: skip
        self.assertEqual(
            ({"moved": 2}, "message 12 changed (user content)", 1), (record.repairs, record.divergence, record.retries)
        )

    def test_words_of_strangers_are_short_and_safe_and_without_keys(self) -> None:
        evil = "\x1b[2J\n sk-0123456789abcdef " + "x" * 100_000
        asked = facts()._replace(requested_model=evil, model=evil)
        dropped = prepared()._replace(request=REQUEST._replace(dropped=(evil,) * 5000))
        events = (
            Refused(asked, "chat", End(Result.REFUSED, 400, evil), 0.1),
            finished(finish_reason=evil, prepared=dropped)._replace(facts=asked),
        )
        for event in events:
            text = str(make_record(event))
            self.assertNotIn("0123456789abcdef", text)
            self.assertNotIn("\x1b", text)
            self.assertLess(len(text), 4000)

    def test_a_thousand_records_of_long_chats_take_less_than_five_megabytes(self) -> None:
        long = prepared(*(turn(n, Source.STORE, proof="near") for n in range(1000)), repairs={"moved": 2})
        long = long._replace(request=REQUEST._replace(dropped=tuple(f"field {n}" for n in range(30))))
        # A tenth of what is kept, because tracing makes it slow.
        log = RequestLog(most_records=100)
        with traced_memory() as memory:
            for number in range(110):
                counts = ("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens")
                asked = facts(number, conversation=f"{number:012x}")._replace(requested_model=f"model-{number}" * 20)
                ended = finished(prepared=long, usage=dict.fromkeys(counts, 100_000 + number))
                log.end(ended._replace(facts=asked))
            self.assertLess(memory.held(), 500_000)
        self.assertEqual(100, len(log.ended()))
