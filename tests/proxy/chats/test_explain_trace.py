"""What `explain` says of a recorded exchange."""

import contextlib
import json
import random
from typing import Any

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers.trace import explain
from tests.fake_deepseek import Answer, Call, Failure
from tests.proxy.chats.test_trace import CALLED
from tests.support.harness import SocketTestCase
from tests.unit.observers.test_trace import trace

ID = "call_00_abcdefghijklmnopqrstuv12"


def turn(**details: Any) -> dict[str, Any]:
    fields = {"message": 2, "says": "Looking.", "calls": [], "need": "hard", "source": "store", "proof": "exact"}
    return {**fields, "is_empty": False, **details}


class ExplainTestCase(SocketTestCase):
    def report(self, written: object) -> str:
        path = self.folder / "written.json"
        path.write_text(json.dumps(written), encoding="utf-8")
        return explain(path)

    def last_report(self) -> str:
        return explain(sorted(self.folder.iterdir())[-1])


class TestExchanges(ExplainTestCase):
    def test_explain_reports_the_reasoning_of_a_tool_loop(self) -> None:
        self.fake.answer(
            Answer(reasoning="r", content="Let me look.", calls=(Call(ID, "read_file", "{}"),)),
            Answer(reasoning="r2", content="Done."),
        )
        self.client(self.proxy(trace_dir=self.folder)).ask("hi")
        report = self.last_report()
        self.assertRegex(report, r"\A#2 · 20\d\d-.* · deepseek-v4-pro · completed \(200\)\n")
        self.assertRegex(report, r"\ntokens +\d+ in \(\d+ % cached\) · ")
        self.assertIn("\n      2  “Let me look.” read_file(…)\n", report)
        self.assertIn("reasoning required, found by exact: this message after exactly this history", report)
        self.assertNotIn("<details>", report)

    def test_explain_reports_weaker_proofs_repairs_and_recovery(self) -> None:
        proxy = self.proxy(trace_dir=self.folder, display_reasoning=False)
        self.fake.answer(Answer(reasoning="r", calls=(Call(ID, "read_file", "{}"),)))
        client = self.client(proxy)
        client.ask("hi")
        client.messages[1]["content"] = "an edited question"
        client.messages += [CALLED]
        client.ask("more")
        report = self.last_report()
        self.assertIn("found by call: the id of one of its calls", report)
        self.assertIn("no source has it (unknown: never seen by this proxy, or forgotten)", report)
        self.assertRegex(report, r"\nrepaired +1 cancelled\n")
        self.assertRegex(report, r"\nrecovered +\d messages replayed as text, and the client was told\n")

    def test_explain_reports_where_a_chat_diverged(self) -> None:
        client = self.client(self.proxy(trace_dir=self.folder))
        client.ask("hi")
        client.ask("more")
        client.messages[3]["content"] = "less"
        client.ask("again")
        self.assertRegex(self.last_report(), r"\nprefix lost message 3 changed \(user content\)\n")

    def test_explain_reports_two_tries_and_a_failure(self) -> None:
        proxy = self.proxy(trace_dir=self.folder)
        refusal = "The `reasoning_content` in the thinking mode must be passed back to the API."
        self.fake.answer(Failure(400, refusal), Answer(content="ok"), Failure(402, "no\x1bmoney"))
        client = self.client(proxy)
        client.messages += [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        client.ask("hi")
        self.assertEqual(2, self.last_report().count("assistants  1"))
        client.ask("and now?")
        self.assertIn("no\\x1bmoney", self.last_report())


class TestWords(ExplainTestCase):
    def test_explain_has_words_for_every_need_source_and_proof(self) -> None:
        for expected, details in (
            ("required, found by exact: ", {}),
            ("wanted, found by near: ", {"need": "soft", "proof": "near"}),
            ("not needed, the client sent it", {"need": "none", "source": "client", "proof": ""}),
            ("required, from the thinking block in its text (unknown: ", {"source": "display", "proof": "unknown"}),
            ("required, no source has it (unknown: ", {"source": "missing", "proof": "unknown"}),
            ("history; the model had thought nothing", {"is_empty": True}),
        ):  # fmt: skip
            with self.subTest(expected):
                self.assertIn(expected, self.report(trace(restored=[{"turns": [turn(**details)]}])))

    def test_foreign_text_in_a_trace_is_cut_and_cannot_move_the_cursor(self) -> None:
        evil = "x\x1b[2J\n" * 500
        fields = turn(says=evil, calls=[evil], proof=evil)
        report = self.report(
            trace(restored=[{"turns": [fields], "divergence": evil, "repairs": {evil: 1}}], outcome=evil)
        )
        self.assertNotIn("\x1b", report)
        self.assertLess(max(map(len, report.splitlines())), 600)
        self.assertEqual(7, len(report.splitlines()))

    def test_a_trace_with_odd_fields_is_explained_or_refused_in_one_line(self) -> None:
        odd = [None, True, -1, 1.5, "x", [], {}, [[]], {"a": {}}, ["x", 1]]
        for seed in range(300):
            rng = random.Random(seed)
            fields = {name: rng.choice(odd) for name in turn()}
            restored = {
                name: rng.choice([*odd, [fields]]) for name in ("divergence", "repairs", "transcribed", "turns")
            }
            fields = ("number", "received_at", "client_request", "outcome", "status", "usage", "restored")
            with self.subTest(seed=seed), contextlib.suppress(StartupError):
                self.report(trace(**{name: rng.choice([*odd, [restored]]) for name in fields}))
