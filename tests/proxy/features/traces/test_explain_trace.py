"""What `explain` says of a recorded exchange."""

from deepseek_cursor_proxy.features.traces.trace import explain
from tests.fake_deepseek import Answer, Call, Failure
from tests.proxy.features.traces.test_trace import CALLED
from tests.support.harness import SocketTestCase

ID = "call_00_abcdefghijklmnopqrstuv12"


class TestExchanges(SocketTestCase):
    def last_report(self) -> str:
        return explain(sorted(self.folder.iterdir())[-1])

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
