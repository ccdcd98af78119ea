import json
import unittest
from typing import Any

from deepseek_cursor_proxy.deepseek.tools.tool_definitions import is_strict, normalize, normalize_tool
from tests.fake_deepseek import contract

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
            (None, True),
            ({}, True),
            (closed, True),
            (whole, True),
            ({**whole, "additionalProperties": True}, False),
            ({**whole, "required": ["a"]}, False),
            ({**whole, "required": None}, False),
            ({"properties": {"a": text}, "required": ["a"]}, False),
            ({"type": "array", "items": whole, "$defs": {"b": whole}, "anyOf": [whole, True]}, True),
            ({"type": "array", "items": {**text, "maxLength": 5}}, False),
            ({"anyOf": [whole, {"type": "array", "minItems": 1}]}, False),
            ({"$defs": {"b": {"properties": {"c": text}}}}, False),
        ):
            with self.subTest(schema):
                self.assertIs(is_taken, is_strict(schema))

    def test_a_tool_keeps_everything_but_its_parameters(self) -> None:
        tool = {"type": "function", "x": 1, "function": {"parameters": {}, "name": "f", "strict": True}}
        expected = {"type": "function", "x": 1, "function": {"parameters": EMPTY, "name": "f", "strict": True}}
        self.assertEqual(json.dumps(expected), json.dumps(normalize_tool(tool)))
        self.assertEqual(expected, normalize_tool(expected))
        self.assertEqual({"name": "f", "parameters": EMPTY}, normalize_tool({"function": {"name": "f"}})["function"])
