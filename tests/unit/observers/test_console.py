import logging
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import ChatRequest, Message, ToolCall
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.rules import ReasoningNeed
from deepseek_cursor_proxy.deepseek.usage import Tokens, read_usage
from deepseek_cursor_proxy.observers.console import Console
from deepseek_cursor_proxy.observers.events import (
    CLIENT_LEFT,
    COMPLETED,
    End,
    Event,
    Finished,
    Observers,
    PassedThrough,
    Progress,
    Received,
    Refused,
    Repair,
    RequestFacts,
    Rerouted,
    Restored,
    Result,
    Sent,
    Timing,
    UpstreamChanged,
)
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.chats import PromptTokens
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, Source, Turn, TurnCounts
from tests.support.histories import TOOLS, user

EMPTY_HISTORY = identity.History(b"", ())
REQUEST = ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", (user("secret prompt"),), tuple(TOOLS), stream=True)
TURNS = (
    Turn(1, ReasoningNeed.HARD, Source.STORE, False, False),
    Turn(3, ReasoningNeed.SOFT, Source.MISSING, True, False),
    Turn(5, ReasoningNeed.NONE, Source.MISSING, True, False),
)
COST = Cost(0.0061, 0.01, 0.0, "USD", "2026-09-10")
FACTS = RequestFacts(7, 1000.0, "chat", "abcabcabcabc", body_bytes=1234)
USAGE = {
    "prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 980},
    "completion_tokens_details": {"reasoning_tokens": 30},
}  # fmt: skip


def restored(
    request: ChatRequest = REQUEST, turns: Any = TURNS, is_second: bool = False, recovered: int = 0, **details: Any
) -> Restored:
    counts = TurnCounts.of(turns)._replace(recovered=recovered)
    return Restored(7, PreparedRequest(request, EMPTY_HISTORY, turns, counts, **details), is_second)


def received(**details: Any) -> Received:
    request, body = REQUEST._replace(**details), {"messages": ["secret prompt"]}
    return Received(FACTS.number, request, body, FACTS.body_bytes, FACTS.key, lambda: Progress(FACTS, 0.0))


def finished(outcome: str = "completed", status: int = 200, **details: Any) -> Finished:
    answer = Message("assistant", "secret answer", "secret thought")
    usage = details.pop("usage", USAGE)
    tokens = read_usage(usage) if usage is not None else None
    fields = {"message": answer, "finish_reason": "stop", "usage": usage, "tokens": tokens, "cost": COST, **details}
    fields["cost"] = fields["cost"] if tokens is not None else None
    end = COMPLETED if status == 200 else End(Result.FAILED, status, outcome)
    return Finished(FACTS, end, Timing(8.26, 0.5), **fields)


class TestConsole(unittest.TestCase):
    def lines(self, *events: Event, **settings: bool) -> list[str]:
        console = Observers(Console(**settings).handlers)
        with self.assertLogs("deepseek_cursor_proxy.observers.console", logging.INFO) as logged:
            for event in events:
                console.emit(event)
        return [record.getMessage() for record in logged.records]

    def test_the_console_prints_four_lines_per_request(self) -> None:
        self.assertEqual(
            [
                "┌ #7 deepseek-v4-pro · stream · 1 message · 1 tool · 1 kB",
                "├ #7 reasoning  1 filled · 1 missing",
                "├ #7 sent       231 kB · accepted after 0.42 s",
                "└ #7 completed  1,000 in (98 % cached) · 50 out (30 thinking) · stop · 8.3 s · $0.0061",
            ],
            self.lines(received(), restored(), Sent(7, dict, 231_000, 0.42), finished()),
        )

    def test_a_caller_that_no_upstream_accepts_has_one_line(self) -> None:
        facts = FACTS._replace(key="", requested_model="deepseek-v4-pro")
        new = received()._replace(key="")
        refused = finished("Authentication Fails", 401, usage=None)._replace(facts=facts)
        self.assertEqual(
            ["─ #7 deepseek-v4-pro ended      Authentication Fails (401) · stop · 8.3 s"],
            self.lines(new, restored(), Rerouted(7, "main", "answered 401", "spare"), restored(), refused),
        )
        # The request that an upstream accepts has its four lines, and so has all with --verbose.
        sent = Sent(7, dict, 231_000, 0.42)
        self.assertEqual("┌├├└", "".join(each[0] for each in self.lines(new, restored(), sent, finished())))
        self.assertEqual("┌├└", "".join(each[0] for each in self.lines(new, restored(), finished())))
        found = self.lines(new, restored(), refused, verbose=True)
        self.assertEqual("┌│├└", "".join(each[0] for each in found)[:4])

    def test_a_request_without_an_exchange_has_one_line_without_keys_or_controls(self) -> None:
        key = "sk-0123456789abcdef0123456789abcdef"
        passed = FACTS._replace(number=8, requested_model="gpt-9\n")
        lines = self.lines(
            Refused(FACTS, "chat completions", End(Result.REFUSED, 404, f"There is no \x1b[31m {key}."), 0.1),
            Refused(FACTS, "chat completions", CLIENT_LEFT, 0.1, is_logged_elsewhere=True),
            PassedThrough(passed, "other.example", End(Result.FAILED, 401, f"{key} is wrong"), 1.26),
            PassedThrough(passed, "other.example", End(Result.PASSED_THROUGH, 200, "200"), 1.26),
        )
        self.assertEqual(
            [
                "─ #7 chat completions refused: 404 There is no \\x1b[31m sk-***.",
                "─ #8 gpt-9\\n passed on to other.example · sk-*** is wrong (401) · 1.3 s",
                "─ #8 gpt-9\\n passed on to other.example · 200 · 1.3 s",
            ],
            lines,
        )

    def test_upstreams_that_fail_and_come_back(self) -> None:
        busy = UpstreamChanged("main", False, "answered 503", 10.0)
        self.assertEqual(
            [
                "├ #7 rerouted   main: answered 503 · asking spare",
                "├ #7 sent       231 kB · accepted by spare after 0.42 s",
                "upstream main: answered 503; others are asked first for 10 s",
                "upstream main: answered 402; its key sha256:12… is not used for 600 s",
                "upstream main: answered 401; its key sha256:12… is not used for m for 600 s",
                "upstream main: answered 404; others are asked for odd\\n for 600 s",
                "upstream main answers again",
            ],
            self.lines(
                Rerouted(7, "main", "answered 503", "spare"),
                Sent(7, dict, 231_000, 0.42, upstream="spare"),
                busy,
                busy._replace(reason="answered 402", seconds=600.0, key="sha256:12…"),
                busy._replace(reason="answered 401", seconds=600.0, key="sha256:12…", model="m"),
                busy._replace(reason="answered 404", seconds=600.0, model="odd\n"),
                UpstreamChanged("main", is_ready=True),
            ),
        )

    def test_the_console_names_recovery_a_second_try_repairs_and_thinking_off(self) -> None:
        off = REQUEST._replace(thinking=False)
        self.assertEqual(
            [
                "├ #7 reasoning  1 filled · 1 missing · recovered: 5 messages replayed as text"
                " · second try, DeepSeek refused the first",
                "├ #7 reasoning  1 filled · 1 missing · repaired: 1 cancelled, 2 moved",
                "├ #7 reasoning  thinking is off for this request · repaired: 1 cancelled",
                "├ #7 reasoning  thinking is off for this request",
            ],
            self.lines(
                restored(recovered=5, is_second=True),
                restored(repairs={"cancelled": 1, "moved": 2}),
                restored(off, (), repairs={"cancelled": 1}),
                restored(off, ()),
            ),
        )

    def test_the_console_prints_divergence_next_to_cached_tokens(self) -> None:
        (line,) = self.lines(finished(divergence="message 12 changed (user content)"))
        self.assertIn(
            "(98 % cached) · 50 out (30 thinking) · prefix lost: message 12 changed (user content) · stop", line
        )

    def test_the_console_says_what_was_repaired(self) -> None:
        call = ToolCall("id", "read", "{}")
        for repair, words in (
            (Repair((call,)), "1 call written as text"),
            (Repair((call, call), ("x",), True), "2 calls written as text, empty turn retried"),
        ):
            self.assertIn(f" · repaired: {words} · ", self.lines(finished(repair=repair))[-1])

    def test_the_last_line_ends_with_the_cost_if_something_was_used(self) -> None:
        (yuan,) = self.lines(finished(cost=COST._replace(amount=12.3, currency="CNY")))
        self.assertTrue(yuan.endswith(" · 8.3 s · ¥12.3000"), yuan)
        (unknown,) = self.lines(finished(cost=None))
        self.assertTrue(unknown.endswith(" · 8.3 s · cost unknown"), unknown)
        (failed,) = self.lines(finished("broken", 502, usage=None))
        self.assertTrue(failed.endswith(" · 8.3 s"), failed)

    def test_a_cached_share_that_falls_by_more_than_half_is_named_with_the_reason(self) -> None:
        divergence = "message 12 changed (user content)"
        for last, hit, expected in (
            (PromptTokens(900, 882), 30, "1,000 in (3 % cached, was 98 %)"),
            (PromptTokens(900, 882), 489, "1,000 in (48 % cached, was 98 %)"),
            (PromptTokens(900, 882), 490, "1,000 in (49 % cached)"),
            # Little to lose, nothing known, and another prompt.
            (PromptTokens(900, 90), 0, "1,000 in (0 % cached)"),
            (None, 0, "1,000 in (0 % cached)"),
            (PromptTokens(90_000, 80_000), 0, "1,000 in (0 % cached)"),
        ):
            tokens = Tokens(hit, 1000 - hit, 50)
            (line,) = self.lines(finished(tokens=tokens, last_prompt=last, divergence=divergence))
            self.assertIn(f"{expected} · 50 out · prefix lost: message 12 changed (user content) · stop", line)
            (unchanged,) = self.lines(finished(tokens=tokens, last_prompt=last))
            self.assertEqual("was" in expected, "the chat is unchanged: DeepSeek forgot it" in unchanged)
            moved = last._replace(model="another") if last is not None else None
            (elsewhere,) = self.lines(finished(tokens=tokens, last_prompt=moved))
            self.assertEqual("was" in expected, "another upstream has its own cache" in elsewhere)

    def test_the_console_prints_the_model_behind_an_alias(self) -> None:
        (line,) = self.lines(received(requested_model="gpt-5.6-sol"))
        self.assertIn("#7 gpt-5.6-sol → deepseek-v4-pro · stream", line)

    def test_the_console_names_a_key_that_has_a_name(self) -> None:
        (line,) = self.lines(received()._replace(key="ann"))
        self.assertIn("#7 deepseek-v4-pro · ann · stream", line)
        facts = FACTS._replace(key="ann", requested_model="gpt-9")
        (line,) = self.lines(PassedThrough(facts, "api.openai.com", End(Result.PASSED_THROUGH, 200, "200"), 1.0))
        self.assertIn("#7 gpt-9 · ann passed on to api.openai.com", line)

    def test_the_console_counts_retries(self) -> None:
        failed = finished("DeepSeek is busy.", 503, usage=None, finish_reason=None, retries=1)
        self.assertEqual(
            [
                "├ #7 sent       2 kB · accepted after 1.50 s · 2 retries",
                "└ #7 ended      DeepSeek is busy. (503) · 1 retry · 8.3 s",
            ],
            self.lines(Sent(7, dict, 2000, 1.5, 2), failed),
        )

    def test_the_console_prints_prompt_and_answer_only_with_verbose(self) -> None:
        events = (received(), restored(), Sent(7, lambda: {"a": 1}, 5, 0.1), finished())
        self.assertNotIn("secret", "".join(self.lines(*events)))
        loud = self.lines(*events, verbose=True)
        for words in ("secret prompt", "secret thought", "secret answer", '{"a": 1}'):
            self.assertIn(words, "".join(loud))

    def test_verbose_prints_text_of_any_language_and_no_control_sequence(self) -> None:
        event = Sent(7, lambda: {"content": "你好\x1b[2J\x9b\u202e"}, 5, 0.1)
        self.assertIn('"你好\\u001b[2J\\u009b\\u202e"', self.lines(event, verbose=True)[1])

    def test_the_console_uses_colours_only_when_asked_to(self) -> None:
        self.assertNotIn("\x1b", self.lines(finished())[0])
        self.assertIn("\x1b", self.lines(finished(), colour=True)[0])

    def test_foreign_text_on_the_console_cannot_forge_lines_or_move_the_cursor(self) -> None:
        evil = "x\x1b[2J\n└ #1 completed"
        lines = self.lines(received(requested_model=evil, dropped=(evil,)), finished(finish_reason=evil))
        self.assertNotIn("\x1b", "".join(lines))
        self.assertNotIn("\n", "".join(lines))

    def test_the_console_names_a_dropped_field_once(self) -> None:
        lines = self.lines(received(dropped=("store",)), received(dropped=("store", "metadata")))
        self.assertEqual(4, len(lines))
        self.assertEqual(1, sum("store" in line for line in lines))

    def test_endless_numbers_do_not_fill_the_terminal(self) -> None:
        endless = int("9" * 4300)
        for usage in ({"completion_tokens": endless}, {**USAGE, "prompt_tokens_details": {"cached_tokens": endless}}):
            (line,) = self.lines(finished(usage=usage))
            self.assertLess(len(line), 200)


class TestObservers(unittest.TestCase):
    def test_an_observer_that_raises_stops_no_other(self) -> None:
        broken, works = mock.Mock(side_effect=RuntimeError("broken")), mock.Mock()
        with self.assertLogs("deepseek_cursor_proxy.observers.events", logging.WARNING) as logged:
            Observers({Finished: broken}, {Finished: works}).emit(finished())
        works.assert_called_once_with(finished())
        self.assertIn("Mock id", logged.output[0])
