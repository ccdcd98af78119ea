"""Calls of hosts that leave out or mix up what clients need of them."""

import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta, Message, Reply
from deepseek_cursor_proxy.deepseek.apis import chat_api, chat_stream
from deepseek_cursor_proxy.deepseek.apis.chat_api import AnswerCalls
from deepseek_cursor_proxy.reasoning.identity import is_unique_id
from tests.support.chunks import written_chunk, written_completion


def indexes(*pieces: CallPiece, choice: int = 0, calls: AnswerCalls | None = None) -> list[int]:
    known = calls or AnswerCalls()
    return [known.repair(Delta(choice, calls=(piece,)), "delta").calls[0].index for piece in pieces]


def entry(name: str = "", arguments: str = "", **fields: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {**fields, "function": function}


def chunk(*entries: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {"tool_calls": list(entries)} if entries else {"content": ""}
    return {"id": "c", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def repaired(*chunks: dict[str, Any]) -> tuple[list[dict[str, Any]], Message]:
    """The entries of `tool_calls` that the client gets for these chunks, and the message that is stored."""
    calls, reply, entries = AnswerCalls(), Reply(), []
    for each in chunks:
        for delta in [chat_api.chunk_delta(each)]:
            delta = calls.repair(delta, "delta")
            reply.add(delta)
            entries += written_chunk(delta)["choices"][0]["delta"].get("tool_calls", [])
    return entries, reply.message()


class TestIndexes(unittest.TestCase):
    def test_a_piece_with_another_id_and_a_name_begins_a_call(self) -> None:
        a, b = CallPiece(0, "a", "f"), CallPiece(0, "b", "f")
        self.assertEqual([0, 0, 1, 1, 2], indexes(a, CallPiece(0), b, CallPiece(0), CallPiece(0, "c", "f")))

    def test_a_repeated_or_late_id_continues_the_call(self) -> None:
        a = CallPiece(0, "a", "f")
        self.assertEqual([0, 0, 0], indexes(a, a, CallPiece(0, "other id", "")))
        self.assertEqual([0, 0, 1], indexes(CallPiece(0, "", "f"), a, CallPiece(0, "b", "f")))

    def test_without_ids_another_name_or_whole_arguments_begin_a_call(self) -> None:
        f, g = CallPiece(0, "", "f", "{"), CallPiece(0, "", "g", "{}")
        self.assertEqual([0, 0, 0, 1, 2], indexes(f, CallPiece(0, "", "f", '"a":'), CallPiece(0, "", "", "1}"), f, g))

    def test_calls_of_one_chunk_without_indexes_are_told_apart_by_their_order(self) -> None:
        entries, message = repaired(chunk(entry("f", "{}", id="a"), entry("f", "{}", id="b")))
        self.assertEqual([0, 1], [each["index"] for each in entries])
        self.assertEqual(["a", "b"], [call.id for call in message.tool_calls])
        _, message = repaired(chunk(entry("f", "{"), entry("g", "{")), chunk(entry("", "}"), entry("", "}")))
        self.assertEqual(["{}", "{}"], [call.arguments for call in message.tool_calls])

    def test_a_piece_without_an_index_continues_the_call_with_its_id_or_the_last_one(self) -> None:
        entries, message = repaired(
            chunk(entry("f", "{", id="a", type="function")),
            chunk(entry(arguments="}")),
            chunk(entry("g", "{", id="b", type="function", index=None)),
            chunk(entry("f", "", id="a", type="function")),
            chunk(entry(arguments="}", id="b")),
        )
        self.assertEqual([0, 0, 1, 0, 1], [each["index"] for each in entries])
        self.assertEqual([("a", "f", "{}"), ("b", "g", "{}")], [tuple(call) for call in message.tool_calls])


class TestIds(unittest.TestCase):
    def test_a_call_without_an_id_gets_one_that_is_also_stored(self) -> None:
        entries, message = repaired(
            chunk(entry("f", '{"a":', index=0)), chunk(entry(arguments="1}", index=0)), chunk(entry("f", "{}", index=0))
        )
        first, rest, second = entries
        self.assertEqual(["function", None, "function"], [each.get("type") for each in entries])
        self.assertEqual([0, 0, 1], [each["index"] for each in entries])
        self.assertNotIn("id", rest)
        self.assertTrue(is_unique_id(first["id"]) and is_unique_id(second["id"]))
        calls = [(first["id"], "f", '{"a":1}'), (second["id"], "f", "{}")]
        self.assertEqual(calls, [tuple(call) for call in message.tool_calls])

    def test_an_id_that_comes_after_ours_is_dropped(self) -> None:
        entries, message = repaired(chunk(entry("f", "{", index=0)), chunk(entry(arguments="}", index=0, id="late")))
        self.assertNotIn("id", entries[1])
        self.assertEqual([entries[0]["id"]], [call.id for call in message.tool_calls])

    def test_an_id_before_the_name_is_the_id(self) -> None:
        entries, message = repaired(chunk(entry(index=0)), chunk(entry(index=0, id="a")), chunk(entry("f", index=0)))
        self.assertEqual([None, "a", None], [each.get("id") for each in entries])
        self.assertEqual("a", message.tool_calls[0].id)

    def test_the_calls_of_a_whole_answer_get_what_they_lack(self) -> None:
        calls = [entry("f", "{}"), entry("f", "{}", id=""), entry("g", "{}", id="a", type="function")]
        body = {"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "stop"}]}
        (delta,) = chat_stream.read_completion(body)
        choice = written_completion(delta)["choices"][0]
        found = choice["message"]["tool_calls"]
        self.assertEqual(("tool_calls", "tool_calls"), (delta.finish_reason, choice["finish_reason"]))
        self.assertEqual(["function"] * 3, [each["type"] for each in found])
        self.assertEqual([piece.id for piece in delta.calls], [each["id"] for each in found])
        self.assertEqual(3, len({each["id"] for each in found} - {""}))
        self.assertEqual([0, 1, 2], [piece.index for piece in delta.calls])


class TestFinishReason(unittest.TestCase):
    def finish(self, *chunks: dict[str, Any]) -> str:
        calls = AnswerCalls()
        deltas = [calls.repair(chat_api.chunk_delta(each), "delta") for each in chunks]
        self.assertEqual(deltas[-1].finish_reason, written_chunk(deltas[-1])["choices"][0]["finish_reason"])
        return str(deltas[-1].finish_reason)

    def test_stop_beside_calls_is_tool_calls_and_other_ends_stay(self) -> None:
        call = entry("f", "{}", index=0, id="a", type="function")
        for said, expected in (("stop", "tool_calls"), ("length", "length"), ("tool_calls", "tool_calls")):
            self.assertEqual(expected, self.finish(chunk(call), chunk(finish=said)))
            self.assertEqual(expected, self.finish(chunk(call, finish=said)))
