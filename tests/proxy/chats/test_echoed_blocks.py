"""The thinking block as clients send it back: cut short or with other white space, it never goes upstream as text."""

from typing import Any

from deepseek_cursor_proxy.reasoning import thinking_blocks
from tests.fake_deepseek import Answer
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import TOOLS
from tests.support.raw_streams import streamed

THOUGHT = "Take Vec<String>.\n\n```\n<b> & </details>\n"
TEXT = "Is a < b?\n\nYes."
FORMS = ((thinking_blocks.COLLAPSIBLE, True), (thinking_blocks.PLAIN, False))


class EchoTestCase(SocketTestCase):
    def ask(self, proxy: RunningProxy, *messages: dict[str, Any], stream: bool = False) -> str:
        return self.chat(proxy, {"role": "user", "content": "q"}, *messages, tools=TOOLS, stream=stream).text

    def echo(self, proxy: RunningProxy, content: Any, *behind: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """What DeepSeek gets for an answer that a client sends back like this."""
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
