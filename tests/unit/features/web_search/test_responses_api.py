import random
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.web_search import responses_api
from deepseek_cursor_proxy.features.web_search.responses_api import payload, response_deltas
from deepseek_cursor_proxy.protocols import input_items
from deepseek_cursor_proxy.reasoning.identity import is_unique_id
from tests.support.histories import TOOLS, assistant, result, system, user

CALL = ("call_1", "read_file", '{"at":1}')
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


def request(*messages: Message, model: str = "deepseek-v4-pro", **details: Any) -> ChatRequest:
    return ChatRequest(model, model, messages, **details)


def message_item(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def reasoning_item(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call_item(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


class TestInputItems(unittest.TestCase):
    def items(self, *messages: Message, **details: Any) -> list[Any]:
        found: list[Any] = payload(request(*messages, **details))["input"]
        return found

    def test_a_history_becomes_items_of_the_native_responses_api(self) -> None:
        other = ("call_2", "read_file", "{}")
        chat = (system("s"), user("u"), assistant("look", CALL, other, reasoning="hm"))
        chat += (result("call_1", "one"), result("call_2", "two"), assistant("done", reasoning="ah"))
        self.assertEqual(
            [
                message_item("system", "input_text", "s"), message_item("user", "input_text", "u"),
                reasoning_item("hm"), message_item("assistant", "output_text", "look"), call_item(*CALL),
                call_item(*other), {"type": "function_call_output", "call_id": "call_1", "output": "one"},
                {"type": "function_call_output", "call_id": "call_2", "output": "two"}, reasoning_item("ah"),
                message_item("assistant", "output_text", "done"),
            ],
            self.items(*chat),
        )  # fmt: skip

    def test_an_assistant_without_text_has_no_message_item(self) -> None:
        for name, message, kinds in (
            ("a call without words", assistant("", CALL, reasoning="r"), ["reasoning", "function_call"]),
            ("no reasoning", assistant("a"), ["message"]),
            ("an empty one is refused like none", assistant("a", reasoning=""), ["message"]),
            ("a single space is the filler", assistant("a", reasoning=" "), ["reasoning", "message"]),
            ("nothing at all is still a turn", assistant(""), ["message"]),
        ):
            self.assertEqual(kinds, [item["type"] for item in self.items(message)], name)

    def test_images_become_items_only_for_models_that_see_them(self) -> None:
        parts = ({"type": "text", "text": "look"}, IMAGE, {"type": "file", "file": {"file_id": "file-1"}})
        inline_file = {"type": "file", "file": {"file_data": "data:text/plain;base64,AAAA", "filename": "a.txt"}}
        (item,) = self.items(Message("user", (*parts, inline_file)), model="deepseek-flash")
        text, image, file, words = item["content"]
        self.assertEqual({"type": "input_text", "text": "look"}, text)
        self.assertEqual({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}, image)
        self.assertEqual({"type": "input_image", "file_id": "file-1"}, file)
        self.assertRegex(words["text"], r"^\[file: a\.txt, text/plain, 3 B, ")
        (blind,) = self.items(Message("user", parts))
        self.assertEqual(["input_text"], [part["type"] for part in blind["content"]])

    def test_images_of_a_tool_follow_its_results_in_a_user_item(self) -> None:
        shown = Message("tool", ({"type": "text", "text": "shot"}, IMAGE), tool_call_id="call_1")
        items = self.items(user("u"), assistant("", CALL, reasoning="r"), shown, model="deepseek-flash")
        self.assertRegex(items[3]["output"], r"^shot\n\[image: ")
        self.assertEqual(["input_text", "input_image"], [part["type"] for part in items[4]["content"]])

    def test_native_items_read_back_as_the_same_history(self) -> None:
        for seed in range(200):
            chat = history(random.Random(seed))
            self.assertEqual(chat, input_items.read(self.items(*chat)).messages, seed)


def history(rng: random.Random) -> tuple[Message, ...]:
    """A repaired chat: every result right after its call, and reasoning wherever it is required."""
    chat = [system("Be brief.")] if rng.random() < 0.5 else []
    for number in range(rng.randint(1, 5)):
        chat.append(user(rng.choice(("Go on.", "äöü \U0001f600\n", f"Question {number}"))))
        for loop in range(rng.randrange(3)):
            calls = [(f"call_{number}_{loop}_{each}", "look", "{}") for each in range(rng.randint(1, 3))]
            chat.append(assistant(rng.choice(("", "Let me see.")), *calls, reasoning=rng.choice((" ", "Hm."))))
            chat += [result(call[0], rng.choice(("", "found"))) for call in calls]
        chat.append(assistant(f"Answer {number}", reasoning=rng.choice(("Thought.", None))))
    return tuple(chat)


class TestRequestFields(unittest.TestCase):
    def test_request_fields_get_their_native_responses_names(self) -> None:
        params = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "user_id": "me", "stop": ["x"], "seed": 1}
        body = payload(request(user("u"), tools=tuple(TOOLS), stream=True, effort="max", params=params))
        del body["input"]
        schema = {"type": "object", "properties": {}}
        expected = {"model": "deepseek-v4-pro", "stream": True, "max_output_tokens": 5, "temperature": 0.5}
        tool = {"type": "function", "name": "read_file", "parameters": schema}
        self.assertEqual(
            {**expected, "top_p": 0.9, "user": "me", "reasoning": {"effort": "max"}, "tools": [tool]}, body
        )

    def test_a_native_tool_choice_names_its_tool_without_nesting(self) -> None:
        named = {"type": "function", "function": {"name": "read_file"}}
        for choice, sent in (("auto", "auto"), ("none", "none"), (named, {"type": "function", "name": "read_file"})):
            self.assertEqual(sent, payload(request(user("u"), tool_choice=choice))["tool_choice"])
        self.assertNotIn("tool_choice", payload(request(user("u"))))

    def test_a_json_schema_becomes_the_native_text_format(self) -> None:
        inner = {"name": "n", "schema": {"type": "object"}, "strict": True}
        form = {"type": "json_schema", "json_schema": inner}
        body = payload(request(system("s"), user("u"), params={"response_format": form}))
        self.assertEqual({"format": {"type": "json_schema", **inner}}, body["text"])
        self.assertEqual(2, len(body["input"]))
        plain = payload(request(user("u"), params={"response_format": {"type": "json_object"}}))
        self.assertEqual({"format": {"type": "json_object"}}, plain["text"])


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "object": "response", "status": "completed", "error": None, "output": list(output), **fields}


class TestResponseDeltas(unittest.TestCase):
    def test_a_native_response_is_a_delta_per_item_and_one_for_the_end(self) -> None:
        items = (reasoning_item("hm"), message_item("assistant", "output_text", "look"), call_item(*CALL))
        self.assertEqual(
            [
                Delta(reasoning="hm"), Delta(text="look"), Delta(calls=(CallPiece(0, "call_1", "read_file"),)),
                Delta(calls=(CallPiece(0, arguments='{"at":1}'),)), Delta(finish_reason="tool_calls"),
            ],
            response_deltas(response(*items)),
        )  # fmt: skip

    def test_a_native_status_becomes_the_finish_reason(self) -> None:
        words = message_item("assistant", "output_text", "a")
        reasons = (("max_output_tokens", "length"), ("content_filter", "content_filter"), ("the weather", "aborted"))
        details = ((None, "length"), *(({"reason": reason}, ending) for reason, ending in (*reasons, ([], "length"))))
        incomplete = (({"status": "incomplete", "incomplete_details": each}, ending) for each, ending in details)
        for fields, expected in (({}, "stop"), ({"status": None}, "stop"), *incomplete):
            self.assertEqual(expected, response_deltas(response(words, **fields))[-1].finish_reason, fields)

    def test_a_failed_native_response_raises_its_own_message(self) -> None:
        for body, words in (
            (response(status="failed", error={"code": "server_error", "message": "Too hot."}), "Too hot."),
            (response(status="failed"), "no reason given"),
            (response(status="cancelled"), "no reason given"),
            ({"error": {"message": "Too cold."}}, "Too cold."),
            (response(status="in_progress"), "not finished"),
            ({"status": "completed"}, "no output"),
            ({"output": {}}, "no output"),
        ):
            with self.subTest(words), self.assertRaisesRegex(UpstreamFailed, words):
                response_deltas(body)

    def test_damaged_native_items_are_left_out(self) -> None:
        text = {"type": "output_text", "text": "whole"}
        thoughts = ("no list", [None, {"type": "reasoning_text", "text": 5}])
        items = (
            *(None, "text", {"type": "mcp_call"}, {"type": 7}),
            *({"type": "reasoning", "content": content} for content in thoughts),
            {"type": "message", "content": [7, {"type": "output_text"}, text]},
            {"type": "function_call", "call_id": 1, "name": None, "arguments": {}},
        )
        reply = Reply()
        for delta in response_deltas(response(*items)):
            reply.add(delta)
        # The call gets an id, as every call does.
        call_id = reply.message().tool_calls[0].id
        self.assertTrue(is_unique_id(call_id))
        self.assertEqual(assistant("whole", (call_id, "", ""), reasoning=""), reply.message())


class TestUsage(unittest.TestCase):
    def test_native_usage_gets_the_names_of_chat_completions(self) -> None:
        cached, thought = {"cached_tokens": 8}, {"reasoning_tokens": 3}
        native = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        native |= {"input_tokens_details": cached, "output_tokens_details": thought}
        chat = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        chat |= {"prompt_tokens_details": cached, "completion_tokens_details": thought}
        chat |= {"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2}
        self.assertEqual(chat, responses_api.usage(native))

    def test_native_usage_without_numbers_is_left_out(self) -> None:
        self.assertIsNone(responses_api.usage(None))
        self.assertIsNone(responses_api.usage([]))
        self.assertEqual({"prompt_tokens": 1}, responses_api.usage({"input_tokens": 1, "output_tokens": "5"}))
