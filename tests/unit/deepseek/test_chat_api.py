import json
import unittest
from typing import Any
from unittest.mock import patch

from deepseek_cursor_proxy import json_codec
from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Message, Reply, ToolCall
from deepseek_cursor_proxy.deepseek import chat_api, chat_stream, rules
from deepseek_cursor_proxy.deepseek.chat_api import AnswerCalls
from deepseek_cursor_proxy.deepseek.rules import ReasoningNeed
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.reasoning.identity import is_unique_id
from tests.support.chunks import written_chunk, written_completion
from tests.support.histories import TOOLS, assistant, new_chat, result, system, user

CALL = ("call_1", "read_file", "{}")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def request(*messages: Message, **details: object) -> ChatRequest:
    return ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", messages, **details)  # type: ignore[arg-type]


class TestReasoningNeeds(unittest.TestCase):
    def test_each_message_gets_its_reasoning_need(self) -> None:
        chat = (system("s"), user("u"), assistant("plain"), user("u"), assistant("", CALL), result("call_1"))
        after = (assistant("final"), user("u"), assistant("later"))
        called = (user("u"), assistant("", CALL), result("call_1"))
        none, soft, hard = ReasoningNeed.NONE, ReasoningNeed.SOFT, ReasoningNeed.HARD
        table = {
            "a tool loop without tools in the request": (chat + after, {}, [none, hard, hard, none]),
            "everybody when there are tools": (chat + after, {"tools": TOOLS}, [soft, hard, hard, soft]),
            "nobody while thinking is off": (chat + after, {"tools": TOOLS, "thinking": False}, [none] * 4),
            "two assistants after one result": ((*called, assistant("a"), assistant("b")), {}, [hard, hard, hard]),
            "a system message ends the tool loop": ((*called, system("s"), assistant("a")), {}, [hard, none]),
        }
        for name, (messages, details, expected) in table.items():
            with self.subTest(name):
                found = rules.reasoning_needs(request(*messages, **details))
                self.assertEqual(expected, [n for n, m in zip(found, messages, strict=True) if m.role == "assistant"])


class TestPayload(unittest.TestCase):
    def test_thinking_is_always_sent_and_effort_only_while_thinking(self) -> None:
        self.assertEqual({"type": "enabled"}, chat_api.payload(request(user("u")))["thinking"])
        self.assertEqual("max", chat_api.payload(request(user("u"), effort="max"))["reasoning_effort"])
        off = chat_api.payload(request(user("u"), assistant("a", reasoning="r"), thinking=False))
        self.assertEqual({"type": "disabled"}, off["thinking"])
        self.assertNotIn("reasoning_effort", off)
        self.assertNotIn("reasoning_content", off["messages"][1])

    def test_each_role_is_sent_with_its_own_fields_only(self) -> None:
        messages = (
            Message("system", "s", name="n"), Message("user", "u", reasoning="x", name="n"),
            Message("assistant", "a", "r", (), name="n", prefix=True), assistant("", CALL, reasoning="r"),
            Message("tool", "t", reasoning="x", tool_call_id="call_1", name="n"),
        )  # fmt: skip
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        self.assertEqual(
            [
                {"role": "system", "content": "s", "name": "n"},
                {"role": "user", "content": "u", "name": "n"},
                {"role": "assistant", "content": "a", "name": "n", "reasoning_content": "r", "prefix": True},
                {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "t"},
            ],
            chat_api.payload(request(*messages))["messages"],
        )

    def test_images_are_sent_to_models_that_see_them_and_as_placeholders_to_others(self) -> None:
        other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
        message = Message("user", ({"type": "text", "text": "look"}, IMAGE))
        sees = ChatRequest("deepseek-flash", "deepseek-flash", (message,))
        self.assertEqual(IMAGE, chat_api.payload(sees)["messages"][0]["content"][1])
        words = chat_api.payload(request(message))["messages"][0]["content"]
        self.assertRegex(words, r"^look\n\[image: image/png, 3 B, [0-9a-f]{12}\]$")
        self.assertEqual(words, chat_api.payload(request(message))["messages"][0]["content"])
        self.assertNotEqual(words, chat_api.plain_text((message.content[0], other)))  # type: ignore[arg-type]

    def test_images_of_a_tool_are_sent_in_a_user_message_after_its_results(self) -> None:
        tool_message = Message("tool", ({"type": "text", "text": "shot"}, IMAGE), tool_call_id="call_1")
        other = ("call_2", "read_file", "{}")
        chat = (user("u"), assistant("", CALL, other, reasoning="r"), tool_message, result("call_2"))
        sent = chat_api.payload(ChatRequest("m", "deepseek-flash", chat))["messages"]
        self.assertRegex(sent[2]["content"], r"^shot\n\[image: image/png, 3 B, ")
        lead, seen = sent[4]["content"]
        self.assertIn("tools returned", lead["text"])
        self.assertEqual(("user", IMAGE), (sent[4]["role"], seen))
        for more in ((assistant("a", reasoning="r"), user("and now?")), (user("at once"),)):
            after = chat_api.payload(ChatRequest("m", "deepseek-flash", (*chat, *more)))["messages"]
            self.assertEqual(sent, after[:5])
        blind = chat_api.payload(request(*chat))["messages"]
        self.assertTrue(all(isinstance(each["content"], str) for each in blind))

    def test_a_json_schema_is_sent_as_text_after_the_system_prompt(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        body = chat_api.payload(request(system("s"), user("u"), params={"response_format": form}))
        self.assertEqual({"type": "json_object"}, body["response_format"])
        self.assertEqual(["system", "system", "user"], [each["role"] for each in body["messages"]])
        self.assertIn('{"name":"n","schema":{"type":"object"}}', body["messages"][1]["content"])

    def test_a_tool_choice_is_forced_unless_the_model_may_decline(self) -> None:
        for choice, is_forced in ((None, False), ("auto", False), ("none", False), ("required", True), ({}, True)):
            self.assertEqual(is_forced, rules.is_forced(choice))


class TestDeltas(unittest.TestCase):
    def test_a_chunk_becomes_one_delta_with_its_source(self) -> None:
        call = {"index": 2, "id": "c", "function": {"name": "n", "arguments": "{"}}
        fields = {"content": None, "reasoning_content": "We", "tool_calls": [call]}
        chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}
        delta = chat_api.chunk_delta(chunk)
        self.assertEqual(("We", None, (CallPiece(2, "c", "n", "{"),)), (delta.reasoning, delta.text, delta.calls))
        self.assertIs(chunk, delta.chunk)
        # A valid chunk is not copied.
        fields = {"content": None, "tool_calls": None}
        ended = {"choices": [{"index": 0, "delta": fields, "finish_reason": "stop"}]}
        self.assertIs(ended, chat_api.chunk_delta(ended).chunk)

    def test_damaged_fields_of_a_chunk_are_left_out(self) -> None:
        for odd in (
            {"choices": 7},
            {"choices": [7, None]},
            {"choices": [{"delta": 7}]},
            {"choices": [{"delta": {"content": 7, "reasoning_content": [], "tool_calls": 3}}]},
            {"choices": [{"index": "x", "delta": {"tool_calls": [{"index": 400_000}]}}]},
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": 5, "function": {"arguments": {}}}]}}]},
            {"usage": 3},
            {},
        ):
            with self.subTest(odd):
                for delta in [chat_api.chunk_delta(odd)]:
                    self.assertIsNone(delta.text)
                    self.assertLessEqual([(piece.index, piece.id) for piece in delta.calls], [(0, "")])
                    self.assertEqual((0, None), (delta.choice, delta.finish_reason))

    def test_a_chunk_with_an_empty_finish_reason_ends_no_block_of_an_answer(self) -> None:
        delta = chat_api.chunk_delta({"choices": [{"delta": {"content": "x"}, "finish_reason": ""}]})
        self.assertEqual(("x", None), (delta.text, delta.finish_reason))

    def test_an_error_inside_a_stream_raises_upstream_failed(self) -> None:
        for body in ({"error": {"message": "overloaded"}}, {"error": "overloaded"}):
            with self.assertRaises(UpstreamFailed) as caught:
                chat_api.chunk_delta(body)
            self.assertIn("overloaded", caught.exception.message)
        # A null error is none.
        delta = chat_api.chunk_delta({"choices": [{"delta": {"content": "x"}}], "error": None})
        self.assertEqual("x", delta.text)

    def test_a_tool_call_is_complete_when_its_arguments_are_an_object(self) -> None:
        self.assertTrue(rules.is_whole_call(ToolCall("a", "f", '{"x": {}}')))
        for arguments in ('{"x": {}', "", "[" * 16_000, '{"x": "' + "y" * 100_000 + '"}'):
            self.assertFalse(rules.is_whole_call(ToolCall("a", "f", arguments)))
        for call_id, name in (("", "f"), ("a", "")):
            self.assertFalse(rules.is_whole_call(ToolCall(call_id, name, "{}")))

    def test_cached_tokens_get_openais_name_in_usage(self) -> None:
        for usage, cached in (
            ({"prompt_cache_hit_tokens": 5}, 5),
            ({"cached_tokens": 4, "prompt_cache_hit_tokens": 5}, 4),
            ({"prompt_tokens_details": {"cached_tokens": 3}, "cached_tokens": 4}, 3),
            ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": 0}, 0),
        ):
            delta = chat_api.chunk_delta({"choices": [], "usage": usage})
            assert delta.usage is not None
            self.assertEqual(cached, delta.usage["prompt_tokens_details"]["cached_tokens"])
            rest = {name: delta.usage[name] for name in usage if name != "prompt_tokens_details"}
            self.assertEqual({name: usage[name] for name in rest}, rest)

    def test_a_refusal_for_missing_reasoning_is_recognised_in_every_spelling(self) -> None:
        for field in ("`reasoning_text`", "`reasoning_content`", "reasoning_content"):
            message = f"The {field} in the thinking mode must be passed back to the API."
            self.assertTrue(rules.is_reasoning_refusal(400, message))
        self.assertFalse(rules.is_reasoning_refusal(400, "The `text` must be passed back to the API."))
        self.assertFalse(rules.is_reasoning_refusal(400, "Model Not Exist"))
        self.assertFalse(rules.is_reasoning_refusal(500, message))


CHAT = (
    system("be … brief"), Message("user", 'say "hi"\n', name="me"),
    assistant("", ("call_1", "read_file", '{"a":1}'), reasoning="why not?"),
    result("call_1", "text\twith\x00 everything 😀"), assistant("done", reasoning=" ")._replace(prefix=True),
    Message("user", ({"type": "text", "text": "look"}, IMAGE)),
)  # fmt: skip
REQUEST = ChatRequest("m", "deepseek-v4-pro", CHAT, tuple(TOOLS), "auto", params={"temperature": 0.5})
TOOL_IMAGE = Message("tool", (IMAGE,), tool_call_id="call_1")
LONG, OWN_NAME = (*CHAT, *CHAT), {"logit_bias": {"tools": 0}}
FORM = {"type": "json_schema", "json_schema": {"name": "x"}}


class TestEncode(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = new_chat()

    def body(self, request: ChatRequest) -> bytes:
        return chat_api.encode(request, self.memory)

    def test_the_upstream_body_is_the_json_of_the_payload_every_time(self) -> None:
        for name, request in {
            "a chat": REQUEST,
            "without thinking": REQUEST._replace(thinking=False),
            "streamed": REQUEST._replace(stream=True),
            "nothing but a question": ChatRequest("m", "m", (user("hi"),)),
            "a model that sees": REQUEST._replace(model="deepseek-flash"),
            "what a tool returned": REQUEST._replace(model="deepseek-flash", messages=(*CHAT[:3], TOOL_IMAGE)),
            "a schema": REQUEST._replace(params={"response_format": FORM}),
            "names of its own fields": REQUEST._replace(model='"messages":0,"tools":0', params=OWN_NAME),
            "a longer chat": REQUEST._replace(messages=LONG),
            "the same, grown": REQUEST._replace(messages=(*LONG, user("go on"), assistant("why", reasoning="a"))),
            "the same without thinking": REQUEST._replace(messages=(*LONG, user("and on")), thinking=False),
        }.items():
            for when in ("first", "again"):
                self.assertEqual(encode_json(chat_api.payload(request)), self.body(request), (name, when))

    def test_a_long_text_is_sent_in_slices_with_the_same_bytes(self) -> None:
        with patch.object(chat_api, "LONG_TEXT", 3), patch.object(json_codec, "LONG_TEXT", 3):
            self.test_the_upstream_body_is_the_json_of_the_payload_every_time()
            self.test_half_a_surrogate_pair_is_sent_unchanged()

    def test_half_a_surrogate_pair_is_sent_unchanged(self) -> None:
        request = REQUEST._replace(messages=(user("half \ud800"), user("whole 😀")))
        for _ in range(2):
            self.assertEqual(chat_api.payload(request), json.loads(self.body(request)))

    def test_tools_that_differ_in_json_but_compare_equal_are_encoded_apart(self) -> None:
        def offering(parameters: dict[str, Any]) -> ChatRequest:
            tool = {"type": "function", "function": {"name": "a", "parameters": parameters}}
            return REQUEST._replace(tools=(tool,))

        for parameters in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}, {"a": True, "b": 2}):
            request = offering(parameters)
            self.assertEqual(encode_json(chat_api.payload(request)), self.body(request))


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
            chunk(entry("f", "{", id="a", type="function")), chunk(entry(arguments="}")),
            chunk(entry("g", "{", id="b", type="function", index=None)),
            chunk(entry("f", "", id="a", type="function")), chunk(entry(arguments="}", id="b")),
        )  # fmt: skip
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
