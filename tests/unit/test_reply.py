import unittest

from deepseek_cursor_proxy.conversation import CallPiece, Delta, Message, OtherReasoning, Reply, ToolCall


def reply_of(*deltas: Delta) -> Reply:
    reply = Reply()
    for delta in deltas:
        reply.add(delta)
    return reply


class TestReply(unittest.TestCase):
    def test_pieces_add_up_to_one_message(self) -> None:
        reply = reply_of(
            Delta(reasoning=""),
            Delta(reasoning="I "),
            Delta(reasoning="think."),
            Delta(text="Hel"),
            Delta(text="lo."),
            Delta(calls=(CallPiece(0, "call_1", "read"),)),
            Delta(calls=(CallPiece(0, "", "", '{"a":'),)),
            Delta(calls=(CallPiece(0, "", "", "1}"),)),
            Delta(finish_reason="tool_calls", usage={"prompt_tokens": 3}),
        )
        expected = Message("assistant", "Hello.", "I think.", (ToolCall("call_1", "read", '{"a":1}'),))
        self.assertEqual(expected, reply.message())
        self.assertEqual("tool_calls", reply.finish_reason)
        self.assertEqual({"prompt_tokens": 3}, reply.usage)

    def test_a_character_cut_in_two_becomes_whole(self) -> None:
        message = reply_of(Delta(text="a\ud83d"), Delta(text="\ude00b"), Delta(text="\ud800")).message()
        self.assertEqual("a\U0001f600b\ud800", message.content)

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
