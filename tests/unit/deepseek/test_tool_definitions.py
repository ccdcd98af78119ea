import json
import random
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Message, ToolCall
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.chat_stream import restore_names
from deepseek_cursor_proxy.deepseek.tool_definitions import (
    is_accepted,
    is_strict,
    normalize,
    normalize_tool,
    outline_tools,
    sent_name,
    sent_names,
)
from deepseek_cursor_proxy.features.web_search import responses_api
from tests.fake_deepseek import contract
from tests.support.chunks import written_chunk
from tests.unit.protocols.test_tools import LEGAL, PIECES

READ, SENT = "fs.read", "fs_read_6aacb1df95"


def generated(rng: random.Random, size: int) -> set[str]:
    return {"".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(size)}


class TestOutlines(unittest.TestCase):
    def test_equal_tools_and_no_others_have_equal_keys(self) -> None:
        written = ["{}", "[]", "1", "1.0", "true", '"1"', '{"a":{"b":[1,null]}}', '{"a":{"b":[1,0]}}']
        tools = tuple({"type": "x", "schema": json.loads(text)} for text in written for _ in range(2))
        keys = outline_tools(tools).keys
        self.assertEqual([at // 2 for at in range(len(tools))], [keys.index(key) // 2 for key in keys])

    def test_a_list_is_outlined_once_and_an_equal_one_alike(self) -> None:
        lists = [tuple({"type": "function", "function": {"name": name}} for name in names) for names in ("ba", "ba")]
        first, second = map(outline_tools, lists)
        self.assertIs(first, outline_tools(lists[0]))
        self.assertEqual(first[1:], second[1:])
        self.assertIs(first.by_name, outline_tools(first.by_name).by_name)


class TestSentNames(unittest.TestCase):
    def test_an_accepted_name_is_sent_as_it_is(self) -> None:
        for name in ("read_file", "a", "-", "a" * 64, "multi_agent_v1__spawn_agent"):
            self.assertEqual(name, sent_name(name))
        self.assertEqual({}, sent_names(["read_file", "a" * 64]))

    def test_a_refused_name_is_hashed_alike_in_every_release(self) -> None:
        """Another hash would cost running chats their cache."""
        for name, sent in (
            (READ, SENT), ("a" * 65, "a" * 53 + "_7db9df3798"), ("工具", "___98a34d4764"), ("\ud800", "__8c0c59dd0d"),
            ("a\n", "a__0a38bb8c01"),
        ):  # fmt: skip
            self.assertEqual(sent, sent_name(name), name)

    def test_every_sent_name_is_accepted_and_belongs_to_one_tool(self) -> None:
        for seed in range(200):
            names = generated(random.Random(seed), 40)
            sent = sent_names(names)
            self.assertEqual({name for name in names if not is_accepted(name)}, set(sent))
            everything = [sent.get(name, name) for name in names]
            self.assertEqual(len(names), len(set(everything)))
            for name in everything:
                self.assertRegex(name, rf"\A{LEGAL.pattern}\Z")

    def test_a_tool_with_the_sent_name_of_another_keeps_its_own(self) -> None:
        second = sent_names([READ, SENT])[READ]
        self.assertNotIn(second, (READ, SENT))
        self.assertTrue(is_accepted(second))
        self.assertEqual(sent_names([READ, SENT]), sent_names([SENT, READ]))
        third = sent_names([READ, SENT, second])[READ]
        self.assertEqual(3, len({SENT, second, third}))


class TestBodies(unittest.TestCase):
    def test_tools_choice_and_history_have_the_sent_name_in_both_apis(self) -> None:
        calls = tuple(ToolCall(f"call_{index}", name, "{}") for index, name in enumerate((READ, "gone tool", "ok", "")))
        tools = tuple({"type": "function", "function": {"name": name}} for name in (READ, "ok"))
        choice = {"type": "function", "function": {"name": READ}}
        request = ChatRequest("m", "m", (Message("assistant", tool_calls=calls),), tools, choice)
        request = request._replace(sent_names=sent_names([READ, "ok"]))
        expected = [SENT, sent_name("gone tool"), "ok", ""]
        body, native = chat_api.payload(request), responses_api.payload(request)
        self.assertEqual([SENT, "ok"], [tool["function"]["name"] for tool in body["tools"]])
        self.assertEqual(expected, [call["function"]["name"] for call in body["messages"][0]["tool_calls"]])
        self.assertEqual({"type": "function", "function": {"name": SENT}}, body["tool_choice"])
        self.assertEqual([SENT, "ok"], [tool["name"] for tool in native["tools"]])
        self.assertEqual(expected, [item["name"] for item in native["input"] if item["type"] == "function_call"])
        self.assertEqual({"type": "function", "name": SENT}, native["tool_choice"])


class TestAnswers(unittest.TestCase):
    def test_a_call_gets_the_clients_name_in_its_piece_and_in_its_chunk(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": SENT, "arguments": ""}, "x": 1}
        chunk = {"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call, {"index": 1}], "y": 2}}]}
        delta = restore_names(chat_api.chunk_delta(chunk), {SENT: READ})
        self.assertEqual((CallPiece(0, "c", READ), CallPiece(1)), delta.calls)
        renamed = {**call, "type": "function", "function": {"name": READ, "arguments": ""}}
        expected = {"index": 0, "delta": {"tool_calls": [renamed, {"index": 1}], "y": 2}}
        self.assertEqual([expected], written_chunk(delta)["choices"])
        # The chunk that came is not changed.
        self.assertEqual(SENT, call["function"]["name"])


EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = {"type": "string"}
OBJECT = {"type": "object", "properties": {"path": TEXT}, "required": ["path"]}
# As the Codex app (26.803) declares automation_update.
AUTOMATION: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "oneOf": [OBJECT, {"$ref": "#/$defs/view"}],
    "$defs": {"view": {"type": "object", "properties": {"id": TEXT}}},
}
ROOTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": (None, EMPTY),
    "an empty schema": ({}, EMPTY),
    "no properties": ({"type": "object"}, EMPTY),
    "a null type": ({"type": None, "properties": {"a": TEXT}}, {"type": "object", "properties": {"a": TEXT}}),
    "two types": ({"type": ["object", "null"], "properties": {}}, EMPTY),
    "null fields": ({**EMPTY, "properties": None, "required": None}, EMPTY),
    "only alternatives": (AUTOMATION, {**AUTOMATION, **EMPTY}),
    "all of them": ({"allOf": [OBJECT]}, {"allOf": [OBJECT], **EMPTY}),
    "null fields further in": (
        {**EMPTY, "properties": {"a": {"type": None, "required": None, "properties": None, "items": None}}},
        {**EMPTY, "properties": {"a": {}}},
    ),
}
ACCEPTED: tuple[dict[str, Any], ...] = (
    EMPTY,
    OBJECT,
    {**OBJECT, "additionalProperties": False},
    {**EMPTY, "properties": {"required": TEXT, "type": {"type": "null"}, "$ref": TEXT}},
    {**EMPTY, "properties": {"a": {"default": None, "enum": [None, True], "const": {"required": None}}}},
    {**EMPTY, "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"items": {"$ref": "#/$defs/node"}}}},
)


def refusal(schema: Any) -> contract.Refusal | None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return contract.refusal({"model": "deepseek-flash", "messages": [{"role": "user", "content": ""}], "tools": [tool]})


class TestNormalize(unittest.TestCase):
    def test_a_refused_schema_becomes_one_that_deepseek_accepts(self) -> None:
        for name, (before, after) in ROOTS.items():
            with self.subTest(name):
                self.assertIsNotNone(refusal(before))
                self.assertEqual(after, normalize(before))
                self.assertIsNone(refusal(normalize(before)))

    def test_an_accepted_schema_stays_as_it_is(self) -> None:
        for schema in ACCEPTED:
            self.assertIsNone(refusal(schema))
            self.assertEqual(json.dumps(schema), json.dumps(normalize(schema)))

    def test_a_schema_that_is_no_schema_never_raises_and_is_not_changed(self) -> None:
        for value in (None, True, 0, "x", [], [None], {"a": None}, {"$ref": 7}, {"items": [None, {"type": None}]}):
            for keyword in ("type", "required", "properties", "$defs", "items", "allOf", "not", "default", "$ref"):
                schema = {"properties": {"a": {keyword: value}}, keyword: value}
                before = json.dumps(schema)
                after = normalize(schema)
                self.assertEqual(before, json.dumps(schema))
                self.assertEqual(after, normalize(after))

    def test_which_schemas_strict_mode_takes(self) -> None:
        text, closed = {"type": "string"}, {"type": "object", "additionalProperties": False}
        whole = {**closed, "properties": {"a": text, "minLength": text}, "required": ["a", "minLength"]}
        for schema, is_taken in (
            (None, True), ({}, True), (closed, True), (whole, True), ({**whole, "additionalProperties": True}, False),
            ({**whole, "required": ["a"]}, False), ({**whole, "required": None}, False),
            ({"properties": {"a": text}, "required": ["a"]}, False),
            ({"type": "array", "items": whole, "$defs": {"b": whole}, "anyOf": [whole, True]}, True),
            ({"type": "array", "items": {**text, "maxLength": 5}}, False),
            ({"anyOf": [whole, {"type": "array", "minItems": 1}]}, False),
            ({"$defs": {"b": {"properties": {"c": text}}}}, False),
        ):  # fmt: skip
            self.assertIs(is_taken, is_strict(schema), schema)

    def test_a_tool_keeps_everything_but_its_parameters(self) -> None:
        tool = {"type": "function", "x": 1, "function": {"parameters": {}, "name": "f", "strict": True}}
        expected = {"type": "function", "x": 1, "function": {"parameters": EMPTY, "name": "f", "strict": True}}
        self.assertEqual(json.dumps(expected), json.dumps(normalize_tool(tool)))
        self.assertEqual(expected, normalize_tool(expected))
        self.assertEqual({"name": "f", "parameters": EMPTY}, normalize_tool({"function": {"name": "f"}})["function"])
