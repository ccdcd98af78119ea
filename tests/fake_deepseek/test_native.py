"""The fake DeepSeek is as strict on its Responses API as on chat completions."""

import json
import unittest
from typing import Any

from tests.fake_deepseek import Answer, Call, contract, native
from tests.fake_deepseek.contract import FORCED_TOOL, Refusal
from tests.fake_deepseek.test_fake_deepseek import FakeCase

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def thought(text: str = "Hm.") -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "blue"}


def body(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "deepseek-flash", "input": list(items) or [USER], **fields}


def refused(asked: Any) -> str | None:
    """The words in which a body is refused."""
    read = native.read(json.dumps(asked).encode())
    found = read if isinstance(read, Refusal) else native.refusal(read, contract.NEWEST_RULES)
    return None if found is None else found.message


class TestRefusals(unittest.TestCase):
    def test_native_bodies_of_a_careful_client_are_accepted(self) -> None:
        picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
        for name, asked in {
            "a question": body(),
            "a string": {"model": "deepseek-flash", "input": "Hello?"},
            "instructions alone": {"model": "deepseek-flash", "instructions": "Be brief."},
            "a tool loop": body(USER, thought(), SAID, call("a"), call("b"), output("a"), output("b"), tools=[TOOL]),
            "reasoning before each": body(USER, thought(), call("a"), output("a"), thought(), call("b"), output("b")),
            "a plain chat without tools": body(USER, SAID, USER),
            "not thinking": body(USER, call("a"), output("a"), tools=[TOOL], reasoning={"effort": "none"}),
            "items of unknown kinds": body(USER, {"type": "web_search_call"}),
            "a picture": body({"role": "user", "content": [picture]}),
            "a schema": body(text={"format": {"type": "json_schema", "name": "n", "schema": {}}}),
            "apply_patch": body(tools=[{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]),
            "what it ignores": body(store=True, include=[], metadata={}, previous_response_id="x"),
        }.items():
            with self.subTest(name):
                self.assertIsNone(refused(asked))

    def test_a_native_body_without_its_reasoning_is_refused(self) -> None:
        no_summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
        for name, items in {
            "none before a call": (USER, call("a"), output("a")),
            "none in a plain turn": (USER, SAID, USER),
            "an empty one": (USER, thought(""), call("a"), output("a")),
            "a summary": (USER, no_summary, call("a"), output("a")),
            "encrypted": (USER, {**no_summary, "encrypted_content": "x"}, call("a"), output("a")),
            "calls one by one": (USER, thought(), call("a"), output("a"), call("b"), output("b")),
        }.items():
            with self.subTest(name):
                self.assertEqual(native.MISSING_REASONING_TEXT, refused(body(*items, tools=[TOOL])))

    def test_other_wrong_native_bodies_are_refused(self) -> None:
        both = {"type": "input_image", "image_url": "x", "file_id": "y"}
        for name, asked, words in (
            ("wedged in", body(USER, thought(), call("a"), SAID, output("a")), native.NO_OUTPUT),
            ("unanswered", body(USER, thought(), call("a")), native.NO_OUTPUT),
            ("an unknown model", {**body(), "model": "gpt-5"}, "Model Not Exist"),
            ("a forced tool", body(tools=[TOOL], tool_choice={"type": "function", "name": "look"}), FORCED_TOOL),
            ("nothing", {"model": "deepseek-flash"}, "one of `input`"),
            ("null", body(USER, {**thought(), "encrypted_content": None}), "invalid type: null"),
            ("no summary", body(USER, {"type": "reasoning"}), "summary"),
            ("two pictures in one", body({"role": "user", "content": [both]}), "exactly one"),
            ("another custom tool", body(tools=[{"type": "custom", "name": "grep"}]), "apply_patch"),
            ("a nested tool", body(tools=[{"type": "function", "function": TOOL}]), "missing field `name`"),
            ("an unknown format", body(text={"format": {"type": "xml"}}), "unknown variant"),
            ("a schema that is none", body(text={"format": {"type": "json_schema"}}), "schema"),
            ("a number", body(7), "expected a sequence"),
            ("an object as a tool", body(tools=[None]), "Failed to deserialize"),
            ("too many tokens", body(max_output_tokens=10**6), "Invalid max_tokens"),
        ):
            with self.subTest(name):
                self.assertIn(words, refused(asked) or "taken")


class TestAnswers(FakeCase):
    def told(self, **fields: Any) -> list[dict[str, Any]]:
        data = self.send(body(stream=True, **fields), path="/responses").read().decode()
        self.assertNotIn("[DONE]", data)
        return [json.loads(block.partition("\ndata: ")[2]) for block in data.split("\n\n") if block]

    def test_a_native_plain_answer_has_all_its_items(self) -> None:
        self.fake.answer(Answer(reasoning="Hm.", content="Hi.", calls=(Call("call_a", "look", "{}"),)))
        whole = self.ask(body(), path="/v1/responses")
        self.assertEqual(("response", "completed"), (whole["object"], whole["status"]))
        self.assertEqual(["reasoning", "message", "function_call"], [item["type"] for item in whole["output"]])
        self.assertTrue(all(len(item["id"]) == 36 for item in whole["output"]))
        self.assertEqual(
            whole["usage"]["input_tokens"] + whole["usage"]["output_tokens"], whole["usage"]["total_tokens"]
        )

    def test_a_native_stream_has_all_its_events(self) -> None:
        self.fake.answer(Answer(reasoning="Hm, hm.", content="Hi.", calls=(Call("call_a", "look", "{}"),), piece=2))
        events = self.told()
        self.assertEqual(list(range(len(events))), [event["sequence_number"] for event in events])
        self.assertEqual(["response.created", "response.in_progress"], [event["type"] for event in events[:2]])
        for kind, text in (("reasoning_text", "Hm, hm."), ("output_text", "Hi."), ("function_call_arguments", "{}")):
            said = [event["delta"] for event in events if event["type"] == f"response.{kind}.delta"]
            self.assertEqual(text, "".join(said))
        self.assertEqual("response.completed", events[-1]["type"])
        self.assertEqual(3, len(events[-1]["response"]["output"]))

    def test_a_custom_tool_is_called_with_text_which_comes_back_as_it_is(self) -> None:
        self.fake.answer(Answer("Hm.", None, (Call("call_a", "apply_patch", '{"input": "*** Begin"}'),), piece=4))
        tools = [{"type": "custom", "name": "apply_patch"}]
        events = self.told(tools=tools)
        said = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
        self.assertEqual("*** Begin", "".join(said))
        reasoning, called = events[-1]["response"]["output"]
        self.assertEqual(("custom_tool_call", "*** Begin"), (called["type"], called["input"]))
        result = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "Done."}
        usage = self.ask(body(USER, reasoning, called, result, tools=tools), path="/responses")["usage"]
        self.assertGreater(usage["input_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(native.NO_OUTPUT, refused(body(USER, reasoning, called, tools=tools)))

    def test_a_native_answer_that_ends_early_is_incomplete_or_failed(self) -> None:
        for finish, kind in (("length", "incomplete"), ("content_filter", "incomplete"), ("aborted", "failed")):
            self.fake.answer(Answer(content="Hi", finish_reason=finish))
            last = self.told()[-1]
            self.assertEqual((f"response.{kind}", kind), (last["type"], last["response"]["status"]))

    def test_a_native_request_is_seen_as_a_chat(self) -> None:
        self.ask(body(USER, thought(), SAID, USER), path="/responses")
        (seen,) = self.fake.seen
        self.assertEqual("/responses", seen.path)
        self.assertEqual(["user", "assistant", "user"], [each["role"] for each in seen.payload["messages"]])
        self.assertEqual("Hm.", seen.payload["messages"][1]["reasoning_content"])

    def test_both_apis_share_the_prefix_cache(self) -> None:
        chat = {"role": "user", "content": "Hello?"}
        self.send({"model": "deepseek-flash", "messages": [chat]}).read()
        usage = self.ask(body(), path="/responses")["usage"]
        self.assertEqual(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
