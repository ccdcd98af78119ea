"""Content with a leading <think> block, fed whole and in pieces."""

import unittest

from deepseek_cursor_proxy.conversation import Delta, Reply
from deepseek_cursor_proxy.deepseek.apis.api import chat_api_for
from deepseek_cursor_proxy.deepseek.apis.chat_stream import ThinkSplitter
from deepseek_cursor_proxy.deepseek.hosts import UNKNOWN, ReasoningForm
from tests.support.chunks import written_chunk, written_completion

# By content: the reasoning and the text in it.
CONTENTS = {
    "<think>r</think>\n\na": ("r", "a"), " \n<think>\nr\n</think>a": ("\nr\n", "a"), "<think></think>a": ("", "a"),
    "<think>r": ("r", ""), "<think>r</thin": ("r</thin", ""), "<think>a < b </ c</think>d": ("a < b </ c", "d"),
    "<think>r</think>a <think>b</think>": ("r", "a <think>b</think>"),
    "a <think>b</think>": ("", "a <think>b</think>"), "<thinking>a": ("", "<thinking>a"), "<th": ("", "<th"),
    "  a": ("", "  a"), "<think>r</think>  ": ("r", ""), "": ("", ""),
}  # fmt: skip


def read(*pieces: str) -> tuple[str | None, object]:
    splitter, reply = ThinkSplitter(), Reply()
    for at, piece in enumerate(pieces):
        finish = "stop" if at == len(pieces) - 1 else None
        chunk = {"choices": [{"delta": {"content": piece}, "finish_reason": finish}]}
        delta = splitter.split(Delta(text=piece, finish_reason=finish, chunk=chunk))
        fields = written_chunk(delta)["choices"][0]["delta"]
        assert (fields.get("reasoning_content"), fields["content"]) == (delta.reasoning, delta.text), fields
        reply.add(delta)
    message = reply.message()
    return message.reasoning, message.content


class TestThinkSplitter(unittest.TestCase):
    def test_a_leading_block_becomes_reasoning_however_it_is_cut(self) -> None:
        for content, expected in CONTENTS.items():
            with self.subTest(content):
                self.assertEqual(expected, read(content))
                self.assertEqual(expected, read(*content, ""))
                for at in range(len(content)):
                    self.assertEqual(expected, read(content[:at], content[at:]))

    def test_a_whole_message_needs_no_finish_reason(self) -> None:
        chunk = {"choices": [{"message": {"content": "<think>r</think>a"}}]}
        delta = ThinkSplitter().split(Delta(text="<think>r</think>a", chunk=chunk), is_whole=True)
        self.assertEqual(("r", "a"), (delta.reasoning, delta.text))

    def test_the_completion_of_a_whole_message_has_its_reasoning(self) -> None:
        host = UNKNOWN._replace(form=ReasoningForm.THINK)
        message = {"role": "assistant", "content": "<think>r</think>a"}
        (delta,) = chat_api_for(host).read_answer(
            {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )
        # As a display that shows it in the text leaves it.
        shown = written_completion(delta._replace(reasoning=None))["choices"][0]["message"]
        self.assertEqual(("r", "a"), (shown["reasoning_content"], shown["content"]))
