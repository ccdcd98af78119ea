"""The thinking block as clients send it back: cut short or with other white space, it never goes upstream as text."""

from typing import Any

from deepseek_cursor_proxy.reasoning import thinking_blocks
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import TOOLS
from tests.support.raw_streams import streamed
from tests.unit.api.test_clients import WITHOUT_BLOCK

THOUGHT = "Take Vec<String>.\n\n```\n<b> & </details>\n"
TEXT = "Is a < b?\n\nYes."
FORMS = ((thinking_blocks.COLLAPSIBLE, True), (thinking_blocks.PLAIN, False))


class EchoTestCase(SocketTestCase):
    def ask(self, proxy: RunningProxy, *messages: dict[str, Any], stream: bool = False) -> str:
        return self.chat(proxy, {"role": "user", "content": "q"}, *messages, tools=TOOLS, stream=stream).text

    def echo(self, proxy: RunningProxy, content: Any, *behind: dict[str, Any], **fields: Any) -> dict[str, Any]:
        answer = {"role": "assistant", "content": content, **fields}
        self.ask(proxy, answer, *(behind or ({"role": "user", "content": "go on"},)))
        return self.sent()[1]


class TestEchoedBlocks(EchoTestCase):
    def test_a_thinking_block_is_removed_however_the_client_sends_it(self) -> None:
        for form, is_collapsible in FORMS:
            for stream in (True, False):
                proxy = self.proxy(collapsible_reasoning=is_collapsible)
                self.fake.answer(Answer(reasoning=THOUGHT, content=TEXT, piece=3))
                shown = self.ask(proxy, stream=stream)
                self.assertTrue(shown.startswith(form.opening))
                for name, content in self.variants(shown).items():
                    for store in (True, False):
                        with self.subTest(name, form=form.tag, stream=stream, store=store):
                            sent = self.echo(proxy if store else self.proxy(), content)
                            self.assertEqual((TEXT, THOUGHT), (sent["content"].rstrip(), sent["reasoning_content"]))

    def variants(self, shown: str) -> dict[str, Any]:
        return {
            "as it is": shown,
            "as a part": [{"type": "text", "text": shown}],
            "with a line break more": "\n" + shown + "\n",
        }

    def test_a_thinking_block_that_a_stop_cut_short_is_removed(self) -> None:
        for form, is_collapsible in FORMS:
            proxy = self.proxy(collapsible_reasoning=is_collapsible)
            thought = "A thought about <b> that nobody waited for, and then some more."
            self.fake.answer(Answer(reasoning=thought, content="", piece=5))
            shown = self.ask(proxy, stream=True)
            whole = shown[: shown.index(form.end)]
            for cut in (len(form.opening), len(form.opening) + 5, len(whole) - 3, len(whole)):
                with self.subTest(form=form.tag, cut=cut):
                    sent = self.echo(proxy, whole[:cut])
                    self.assertEqual(("", thought), (sent["content"], sent["reasoning_content"]))
            sent = self.echo(self.proxy(), form.opening + "nobody knows this th")
            self.assertEqual(("", "nobody knows this th"), (sent["content"], sent["reasoning_content"]))


class TestReasoningAfterACall(EchoTestCase):
    def test_a_thinking_block_is_removed_when_reasoning_went_on_after_a_call(self) -> None:
        function = {"name": "read_file", "arguments": "{}"}
        call = {"id": "call_0", "type": "function", "function": function}
        piece = {"tool_calls": [{"index": 0, **call}]}
        result = {"role": "tool", "tool_call_id": "call_0", "content": "ok"}
        for form, is_collapsible in FORMS:
            for spans in (("Hm.",), ("Hm.", "Oh")):
                deltas = [each for span in spans for each in ({"reasoning_content": span}, {"content": "Well, "})]
                proxy = self.proxy(collapsible_reasoning=is_collapsible)
                self.fake.answer(streamed(*deltas, piece, {"reasoning_content": " And now this."}, finish="tool_calls"))
                shown = self.ask(proxy, stream=True)
                self.assertIn(form.opening, shown)
                with self.subTest(form=form.tag, spans=spans):
                    sent = self.echo(proxy, shown, result, tool_calls=[call])
                    self.assertEqual("Well, " * len(spans), sent["content"])
                    self.assertEqual("".join(spans) + " And now this.", sent["reasoning_content"])


BLOCK = "<details>\n<summary>Thinking</summary>\n\nHm.\n</details>\n\n"
SDK = ("User-Agent: OpenAI/Python 2.54.0", "x-stainless-lang: python")
CURSOR = ("User-Agent: Cursor/3.17.21",)
ID = "call_00_abcdefghijklmnopqrstuvwx"


class TestDisplay(SocketTestCase):
    def told(self, proxy: RunningProxy, headers: tuple[str, ...], **body: Any) -> tuple[str, str]:
        history = body.pop("messages", [user("hi")])
        reply = self.chat(proxy, *history, headers=headers, stream=True, **body)
        deltas = [chunk["choices"][0]["delta"] for chunk in reply.chunks]
        return reply.text, "".join(delta.get("reasoning_content") or "" for delta in deltas)

    def test_an_agent_that_runs_code_never_finds_a_thought_in_the_text(self) -> None:
        thought = "Perhaps\n```bash\nrm -rf /\n```\nNo!"
        for name, (agent, headers) in WITHOUT_BLOCK.items():
            lines = (f"User-Agent: {agent}", *(f"{key}: {value}" for key, value in headers.items()))
            self.fake.answer(Answer(reasoning=thought, content="Done."), Answer(reasoning=thought, content="Done."))
            with self.subTest(name):
                self.assertEqual(("Done.", thought), self.told(self.running, lines))
                message = self.chat(self.running, user("hi"), headers=lines).value["choices"][0]["message"]
                self.assertEqual(("Done.", thought), (message["content"], message["reasoning_content"]))

    def test_the_setting_decides_for_every_client(self) -> None:
        hidden, shown = ("Hi.", "Hm."), (BLOCK + "Hi.", "")
        for setting, headers, expected in (
            ("auto", SDK, hidden), ("auto", CURSOR, shown), ("auto", (), shown), ("on", SDK, shown), (True, SDK, shown),
            ("off", CURSOR, hidden), (False, (), hidden),
        ):  # fmt: skip
            self.fake.answer(Answer(reasoning="Hm.", content="Hi."))
            with self.subTest(setting, headers=headers):
                self.assertEqual(expected, self.told(self.proxy(display_reasoning=setting), headers))

    def test_a_chat_continues_in_another_client_with_the_same_reasoning(self) -> None:
        call = Call(ID, "read_file", '{"path": "a.py"}')
        sent = {"id": ID, "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
        for first, second in ((CURSOR, SDK), (SDK, CURSOR), ((), SDK)):
            proxy = self.proxy()
            self.fake.answer(Answer(reasoning="Hm.", content="Looking.", calls=(call,)))
            text, _ = self.told(proxy, first, tools=TOOLS)
            history = [
                user("hi"),
                {"role": "assistant", "content": text, "tool_calls": [sent]},
                {"role": "tool", "tool_call_id": ID, "content": "42"},
            ]
            bodies = []
            for headers in (first, second):
                self.told(proxy, headers, messages=history, tools=TOOLS)
                bodies.append(self.fake.accepted[-1])
            with self.subTest(first=first):
                self.assertEqual(bodies[0], bodies[1])
                turn = bodies[1]["messages"][1]
                self.assertEqual(("Looking.", "Hm."), (turn["content"], turn["reasoning_content"]))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
