"""The details of streamed reasoning, put together."""

import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, OtherReasoning, Reply, merge_details

TEXT: dict[str, Any] = {"type": "reasoning.text", "format": "x"}


def merge(*chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = []
    for chunk in chunks:
        merge_details(known, chunk)
    return known


class TestMergeDetails(unittest.TestCase):
    def test_pieces_with_the_same_type_and_index_are_joined(self) -> None:
        first, second = {**TEXT, "index": 0}, {**TEXT, "index": 1}
        self.assertEqual(
            [{**first, "text": "ab", "signature": "s"}, {**second, "text": "cd"}],
            merge(
                [{**first, "text": "a"}],
                [{**first, "text": "b"}, {**second, "text": "c"}],
                [{**second, "text": "d"}, {**first, "text": "", "signature": "s"}],
            ),
        )

    def test_pieces_without_an_index_continue_the_last_one_of_their_type(self) -> None:
        summary = {"type": "reasoning.summary", "summary": "s"}
        self.assertEqual(
            [{**TEXT, "text": "ab"}, summary, {**TEXT, "text": "c"}],
            merge([{**TEXT, "text": "a"}], [{**TEXT, "text": "b"}], [summary], [{**TEXT, "text": "c"}]),
        )

    def test_the_entries_of_one_list_stay_apart(self) -> None:
        entries = [{**TEXT, "text": "a"}, {**TEXT, "text": "b"}]
        self.assertEqual(entries, merge(entries))

    def test_null_does_not_erase_what_came_before(self) -> None:
        piece = {**TEXT, "index": 0}
        self.assertEqual(
            [{**piece, "text": "ab", "id": "1"}],
            merge([{**piece, "text": "a", "id": "1"}], [{**piece, "text": "b", "id": None}]),
        )

    def test_a_reply_has_the_whole_list(self) -> None:
        reply = Reply()
        for text in "ab":
            details = ({**TEXT, "index": 0, "text": text},)
            reply.add(Delta(reasoning=text, other_reasoning=OtherReasoning("reasoning_details", details)))
        message = reply.message()
        self.assertEqual("ab", message.reasoning)
        self.assertEqual([{**TEXT, "index": 0, "text": "ab"}], json.loads(message.details or ""))
        self.assertGreater(reply.size, 2)
