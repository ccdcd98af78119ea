import json
import re
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.features.sessions import export as rendering
from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in a?"},
    {"role": "assistant", "content": "", "reasoning_content": "I read it.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "é = 1"},
    {"role": "assistant", "content": "A one.", "reasoning_content": "It says 1."},
]
WIRE = Path(__file__).parents[3] / "wire"


MARKS = ("<|im_end|>", "<｜end▁of▁sentence｜>")


class Letters:
    """An encoder with a token for each of some texts and for each other character."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._pattern = re.compile("|".join([*map(re.escape, texts), "(?s:.)"]))
        self.texts: list[str] = []

    def spans(self, text: str) -> list[tuple[int, int]]:
        self.texts = self._pattern.findall(text)
        return [(number, len(each.encode())) for number, each in enumerate(self.texts)]


class TestRendering(unittest.TestCase):
    def test_a_chat_with_tools_is_written_in_chatml_with_the_tags_of_open_models(self) -> None:
        text = rendering.text_of(rendering.render(CHAT, [TOOL]))
        head, tools, rest = text.partition(json.dumps(TOOL["function"]))
        self.assertTrue(tools)
        self.assertTrue(head.startswith("<|im_start|>system\nBe brief.\n\n"))
        self.assertEqual(
            "<|im_start|>user\nWhat is in a?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nI read it.\n</think>\n\n"
            '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>tool\n<tool_response>\né = 1\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\nIt says 1.\n</think>\n\nA one.<|im_end|>\n",
            rest.partition("<|im_end|>\n")[2],
        )

    def test_the_model_wrote_everything_from_its_thoughts_to_the_end_mark(self) -> None:
        written = [piece for piece in rendering.render(CHAT, [TOOL]) if piece.author is not None]
        self.assertEqual([2, 2, 4, 4], [piece.author for piece in written])
        self.assertTrue(all(piece.text.startswith("<think>") for piece in written[::2]))
        self.assertEqual(["<|im_end|>"] * 2, [piece.text for piece in written if piece.is_end])

    def test_a_prompt_ends_where_the_model_continues(self) -> None:
        text = rendering.text_of(rendering.render(CHAT[:2], for_answer=True))
        self.assertTrue(text.endswith("What is in a?<|im_end|>\n<|im_start|>assistant\n"))

    def test_text_and_several_calls_are_lines_of_one_answer(self) -> None:
        odd = {"id": "c2", "type": "function", "function": {"name": "shell", "arguments": "not json"}}
        message = {"role": "assistant", "content": "Both.", "tool_calls": [CALL, odd]}
        (_, piece, _, _) = rendering.render([message])
        self.assertEqual(
            'Both.\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "shell", "arguments": "not json"}\n</tool_call>',
            piece.text,
        )

    def test_pictures_are_named(self) -> None:
        parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
        (piece,) = rendering.render([{"role": "user", "content": parts}])
        self.assertEqual("<|im_start|>user\nSee\n[image_url]<|im_end|>\n", piece.text)


class TestMasks(unittest.TestCase):
    tokenizer: BpeTokenizer
    pieces: list[rendering.Piece]

    @classmethod
    def setUpClass(cls) -> None:
        cls.tokenizer = BpeTokenizer(json.loads((WIRE / "tokenizer.json").read_text(encoding="utf-8")))
        cls.pieces = rendering.render(CHAT, [TOOL])

    def test_tokens_are_those_of_the_whole_text_and_the_lists_have_one_length(self) -> None:
        lists = rendering.mask(self.pieces, {2, 4}, self.tokenizer, {})
        self.assertEqual(self.tokenizer.encode(rendering.text_of(self.pieces)), lists.tokens)
        self.assertEqual({len(lists.tokens)}, {len(each) for each in lists})

    def test_only_what_the_model_wrote_in_this_session_is_not_masked(self) -> None:
        for own in ({2, 4}, {4}, set[int]()):
            with self.subTest(own):
                lists = rendering.mask(self.pieces, own, self.tokenizer, {})
                written = "".join(piece.text for piece in self.pieces if piece.author in own and not piece.is_end)
                free = [token for token in lists.masked_tokens if token != rendering.MASKED]
                self.assertLessEqual(len(free), self.tokenizer.count(written) + 2)
                self.assertGreaterEqual(len(free), self.tokenizer.count(written) - 4 if own else 0)
                masked = {one for one, other in zip(lists.logprobs, lists.masked_tokens, strict=True) if other == -100}
                self.assertEqual({1.0}, masked)

    def test_a_log_probability_is_given_only_for_exactly_its_bytes(self) -> None:
        spans = self.tokenizer.spans("A one.")
        data, tokens = b"A one.", []
        for _, length in spans:
            tokens.append({"bytes": list(data[:length]), "logprob": -0.5, "token": ""})
            data = data[length:]
        lists = rendering.mask(self.pieces, {2, 4}, self.tokenizer, {4: [tokens]})
        known = [value for value in lists.logprobs if value not in (None, 1.0)]
        self.assertLessEqual(len(known), len(tokens))
        self.assertGreaterEqual(len(known), len(tokens) - 2)
        whole = [{"bytes": list(b"A one."), "logprob": -0.5, "token": ""}]
        lists = rendering.mask(self.pieces, {2, 4}, self.tokenizer, {4: [whole]})
        self.assertEqual([], [value for value in lists.logprobs if value not in (None, 1.0)])

    def test_the_end_mark_is_the_templates_unless_the_upstream_sent_one(self) -> None:
        chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
        text = [{"bytes": list(b"Yes"), "logprob": -0.5, "token": "Yes"}]
        ends = {mark: [{"bytes": list(mark.encode()), "logprob": -0.25, "token": mark}] for mark in MARKS}
        # A token per letter, but for the marks of the template.
        template = (*MARKS, "<|im_start|>", "Yes")
        for sent, expected in (
            (text, [("Yes", -0.5)]), ([*text, *ends["<|im_end|>"]], [("Yes", -0.5), ("<|im_end|>", -0.25)]),
            ([*text, *ends["<｜end▁of▁sentence｜>"]], [("Yes", -0.5), ("<|im_end|>", None)]), ([], [("Yes", None)]),
        ):  # fmt: skip
            with self.subTest(sent[-1:]):
                encoder = Letters(template)
                lists = rendering.mask(rendering.render(chat), {1}, encoder, {1: [sent]} if sent else {})
                own = [
                    (encoder.texts[token], logprob)
                    for token, logprob in zip(lists.masked_tokens, lists.logprobs, strict=True)
                    if token != rendering.MASKED
                ]
                self.assertEqual(expected, own)

    def test_words_that_come_twice_get_no_log_probability(self) -> None:
        twice = rendering.render([{"role": "assistant", "content": "Yes", "reasoning_content": "Yes"}])
        tokens = [{"bytes": list(b"Yes"), "logprob": -0.5, "token": "Yes"}]
        lists = rendering.mask(twice, {0}, self.tokenizer, {0: [tokens]})
        self.assertEqual([], [value for value in lists.logprobs if value not in (None, 1.0)])
