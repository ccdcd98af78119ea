import gc
import json
import unittest
from typing import Any

from deepseek_cursor_proxy.chat_memory import ChatMemory, json_size
from deepseek_cursor_proxy.conversation import (
    CallPiece,
    Delta,
    Memo,
    Message,
    OtherReasoning,
    Reply,
    ServerDelta,
    ServerPiece,
    ToolCall,
    merge_details,
)
from tests.support.traced_memory import traced_memory


class TestSizes(unittest.TestCase):
    def test_the_memory_estimate_of_a_value_is_not_too_small(self) -> None:
        for name, written in {
            "a message": json.dumps({"role": "user", "content": "words " * 500}),
            "a long name": json.dumps({"n" * 50_000: 1}),
            "many names": json.dumps({f"name {number}": None for number in range(5000)}),
            "many lists": json.dumps({"content": [[] for _ in range(5000)]}),
            "many objects": json.dumps({"content": [{} for _ in range(5000)]}),
            "wide characters": json.dumps({"content": [{"text": "\U0001f600" * 20_000}]}),
            "numbers": json.dumps([number + 0.5 for number in range(5000)]),
        }.items():
            with self.subTest(name):
                gc.collect()
                with traced_memory() as memory:
                    value = json.loads(written)
                    taken = memory.held()
                # With what is counted for any message.
                self.assertGreater(json_size(value) + 1000, taken)
                body = b'{"messages": [%b], "tools": [%b]}' % ((written.encode(),) * 2)
                read = ChatMemory(min_body_bytes=0).decode(body).chat.body
                self.assertGreater(read.last.size + 1000, taken)
                self.assertGreater(read.tail.size + 1000, taken)


class TestMemo(unittest.TestCase):
    def setUp(self) -> None:
        self.memo: Memo[str, str] = Memo(100, lambda key, value: len(key) + len(value))

    def test_a_memo_never_holds_more_than_its_bound(self) -> None:
        for number in range(1000):
            self.memo.put(f"{number:05}", "12345")
        held = [number for number in range(1000) if f"{number:05}" in {**self.memo._old, **self.memo._young}]
        self.assertLessEqual(len(held) * 10, 100)
        self.assertEqual(list(range(1000 - len(held), 1000)), held)

    def test_an_entry_in_use_stays_when_others_are_dropped(self) -> None:
        self.memo.put("often", "asked")
        for number in range(1000):
            self.memo.put(f"{number:05}", "12345")
            self.assertEqual("asked", self.memo.get("often"))

    def test_an_entry_that_is_too_large_evicts_nothing(self) -> None:
        self.memo.put("small", "x")
        self.memo.put("large", "x" * 100)
        self.assertIsNone(self.memo.get("large"))
        self.assertEqual("x", self.memo.get("small"))


def reply_of(*deltas: Delta) -> Reply:
    reply = Reply()
    for delta in deltas:
        reply.add(delta)
    return reply


class TestReply(unittest.TestCase):
    def test_pieces_add_up_to_one_message(self) -> None:
        reply = reply_of(
            Delta(reasoning=""), Delta(reasoning="I "), Delta(reasoning="think."), Delta(text="Hel"),
            Delta(text="lo."), Delta(calls=(CallPiece(0, "call_1", "read"),)),
            Delta(calls=(CallPiece(0, "", "", '{"a":'),)), Delta(calls=(CallPiece(0, "", "", "1}"),)),
            Delta(finish_reason="tool_calls", usage={"prompt_tokens": 3}),
        )  # fmt: skip
        expected = Message("assistant", "Hello.", "I think.", (ToolCall("call_1", "read", '{"a":1}'),))
        self.assertEqual(expected, reply.message())
        self.assertEqual("tool_calls", reply.finish_reason)
        self.assertEqual({"prompt_tokens": 3}, reply.usage)

    def test_a_character_cut_in_two_becomes_whole(self) -> None:
        message = reply_of(Delta(text="a\ud83d"), Delta(text="\ude00b"), Delta(text="\ud800")).message()
        self.assertEqual("a\U0001f600b\ud800", message.content)

    def test_a_long_answer_takes_about_as_much_memory_as_its_text(self) -> None:
        for name in ("reasoning", "text", "calls"):
            with self.subTest(name), traced_memory() as memory:
                reply = Reply()
                for number in range(5000):
                    piece = f"{number:05}"
                    reply.add(
                        Delta(calls=(CallPiece(0, arguments=piece),)) if name == "calls" else Delta(**{name: piece})
                    )
                self.assertLess(memory.held(), 2.5 * reply.size)

    def test_the_place_of_a_servers_item_is_between_the_characters_around_it(self) -> None:
        reply = Reply()
        for at in range(300):
            item = ServerDelta((ServerPiece(at, {"at": at}),)) if at in (100, 250) else None
            reply.add(Delta(reasoning="because", text="so", server=item))
        items = json.loads(reply.message().server_items or "{}")["answer"]
        self.assertEqual([707, 202, 1050, 300, 343, 98], [item["length"] for item in items if "length" in item])
        self.assertEqual([2, 5], [at for at, item in enumerate(items) if "at" in item])

    def test_parallel_calls_keep_their_order_and_a_repeated_name_is_not_continued(self) -> None:
        reply = reply_of(
            Delta(calls=(CallPiece(1, "b", "second"),)),
            Delta(calls=(CallPiece(0, "a", "first"),)),
            # Clients know a call by its first id.
            Delta(calls=(CallPiece(1, "b", "second", "{}"), CallPiece(0, "new", "first", "[]"))),
        )
        self.assertEqual((ToolCall("a", "first", "[]"), ToolCall("b", "second", "{}")), reply.message().tool_calls)

    def test_reasoning_that_came_under_two_names_is_under_deepseeks_own(self) -> None:
        for is_native in (True, False):
            reply = reply_of(Delta(reasoning="x", other_reasoning=OtherReasoning("reasoning", is_native=is_native)))
            self.assertEqual((("reasoning",), is_native), (reply.other_reasoning_names, reply.has_mixed_names))

    def test_an_answer_without_reasoning_has_empty_reasoning_not_unknown(self) -> None:
        self.assertEqual("", reply_of(Delta(text="Hi")).message().reasoning)

    def test_a_usage_chunk_is_no_choice(self) -> None:
        reply = reply_of(Delta(usage={"total_tokens": 1}, chunk={"choices": [], "model": "m"}))
        self.assertTrue(reply.is_empty)
        self.assertFalse(reply.is_finished)
        self.assertFalse(reply.is_finished)


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
