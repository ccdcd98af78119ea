"""Functions that DeepSeek refuses, as a table: the functions, and the words they earn."""

import unittest
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import contract, native

OBJECT = {"type": "object", "properties": {}}
ROOT = "schema must be a JSON Schema of 'type: \"object\"', got 'type: "


def inside(schema: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    (ROOT + "null'.", {"name": "f", "parameters": {}}),
    (ROOT + "null'.", {"name": "f", "parameters": None}),
    (ROOT + "null'.", {"name": "f", "parameters": {"type": None, "properties": {}}}),
    (ROOT + "null'.", {"name": "f", "parameters": {"oneOf": [OBJECT]}}),
    (ROOT + "null'.", {"name": "f", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": OBJECT}}}),
    (ROOT + '"string"', {"name": "f", "parameters": {"type": "string"}}),
    (ROOT + '["object", "null"]', {"name": "f", "parameters": {**OBJECT, "type": ["object", "null"]}}),
    ("missing properties", {"name": "f", "parameters": {"type": "object"}}),
    ("unexpected $ref", {"name": "f", "parameters": {**OBJECT, "$ref": "#/$defs/a"}}),
    ('null is not of type "array"', {"name": "f", "parameters": {**OBJECT, "required": None}}),
    ('null is not of type "object"', {"name": "f", "parameters": {**OBJECT, "properties": None}}),
    ('1 is not of type "string"', {"name": "f", "parameters": {**OBJECT, "required": [1]}}),
    ("non-unique", {"name": "f", "parameters": {**OBJECT, "required": ["a", "a"]}}),
    ('null is not of type "array"', inside({"anyOf": [{"required": None}]})),
    ('null is not of type "string"', inside({"items": {"type": None}})),
    ('true is not of type "object"', inside(True)),
    ('false is not of type "object"', inside({"items": [False]})),
    ('null is not of type "array"', inside({"allOf": None})),
    ('null is not of type "object"', inside({"additionalProperties": None})),
    ("Invalid function name 'a.b'", {"name": "a.b"}),
    ("Invalid function name ''", {"name": ""}),
    ("Invalid function name 'aaa", {"name": "a" * 65}),
)
ACCEPTED: tuple[dict[str, Any], ...] = (
    {"name": "a" * 64},
    {"name": "f", "parameters": OBJECT},
    {"name": "f", "parameters": {**OBJECT, "anyOf": [{"required": ["a"]}], "additionalProperties": False}},
    inside({"additionalProperties": True, "default": None, "enum": [None]}),
)


def refusals(function: dict[str, Any]) -> list[str | None]:
    """What chat completions and Responses say."""
    tools = [{"type": "function", "function": function}]
    chat = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "q"}], "tools": tools}
    read = native.read(
        encode_json({"model": "deepseek-flash", "input": "q", "tools": [{"type": "function", **function}]})
    )
    assert isinstance(read, dict), read
    found = contract.refusal(chat), native.refusal(read, contract.NEWEST_RULES)
    return [None if each is None else each.message for each in found]


class TestToolRules(unittest.TestCase):
    def test_both_apis_refuse_the_same_functions(self) -> None:
        for words, function in REFUSED:
            for message in refusals(function):
                with self.subTest(words, function=str(function)[:80]):
                    self.assertIn(words, message or "")

    def test_both_apis_accept_the_same_functions(self) -> None:
        for function in ACCEPTED:
            self.assertEqual([None, None], refusals(function), function)

    def test_a_call_in_the_history_needs_a_valid_name(self) -> None:
        for name, words in (("a.b", "Invalid function name 'a.b'"), ("ab", "")):
            call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
            turn = {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]}
            result = {"role": "tool", "tool_call_id": "c", "content": ""}
            body = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "q"}, turn, result]}
            found = contract.refusal(body)
            self.assertIn(words, found.message if found else "")
            self.assertEqual(bool(words), found is not None)
