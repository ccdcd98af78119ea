import json
import random
import unittest
from typing import Any

from deepseek_cursor_proxy.deepseek.tools.tool_definitions import is_strict, normalize, normalize_tool
from deepseek_cursor_proxy.json_codec import MAX_JSON_DEPTH
from tests.fake_deepseek import contract
from tests.support.width import width

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
    "true": (True, EMPTY),
    "false": (False, EMPTY),
    "an empty schema": ({}, EMPTY),
    "no properties": ({"type": "object"}, EMPTY),
    "a null type": ({"type": None, "properties": {"a": TEXT}}, {"type": "object", "properties": {"a": TEXT}}),
    "two types": ({"type": ["object", "null"], "properties": {}}, EMPTY),
    "null fields": ({**EMPTY, "properties": None, "required": None}, EMPTY),
    "only alternatives": (AUTOMATION, {**AUTOMATION, **EMPTY}),
    "all of them": ({"allOf": [OBJECT]}, {"allOf": [OBJECT], **EMPTY}),
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": OBJECT}}, {**OBJECT, "$defs": {"a": OBJECT}}),
    "an old reference": (
        {"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": OBJECT}},
        {**OBJECT, "definitions": {"a/b c": OBJECT}},
    ),
    "a reference to a reference": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": OBJECT}},
        {**OBJECT, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": OBJECT}},
    ),
    "a title beside a reference": (
        {"$ref": "#/$defs/a", "title": "mine", "$defs": {"a": {**OBJECT, "title": "its"}}},
        {**OBJECT, "title": "mine", "$defs": {"a": {**OBJECT, "title": "its"}}},
    ),
    "properties beside a reference": (
        {"$ref": "#/$defs/a", "properties": {"b": TEXT}, "$defs": {"a": OBJECT}},
        {**EMPTY, "properties": {"b": TEXT}, "$defs": {"a": OBJECT}, "allOf": [{"$ref": "#/$defs/a"}]},
    ),
    "a reference to itself": ({"$ref": "#"}, EMPTY),
    "references in a circle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {**EMPTY, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ),
    "a reference into nothing": ({"$ref": "#/$defs/a/b", "$defs": {"a": TEXT}}, {**EMPTY, "$defs": {"a": TEXT}}),
    "a reference elsewhere": ({"$ref": "https://example.com/a.json"}, EMPTY),
    "a reference that is none": ({"$ref": 7}, EMPTY),
    "booleans in place of schemas": (
        {**EMPTY, "properties": {"a": True, "b": False, "c": None, "d": {"items": True}}},
        {**EMPTY, "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {"items": {}}}},
    ),
    "null fields further in": (
        {**EMPTY, "properties": {"a": {"type": None, "required": None, "properties": None, "items": None}}},
        {**EMPTY, "properties": {"a": {}}},
    ),
    "odd requirements": ({**OBJECT, "required": ["path", 1, None, "path"]}, OBJECT),
}
ACCEPTED: tuple[dict[str, Any], ...] = (
    EMPTY,
    OBJECT,
    {**OBJECT, "additionalProperties": False},
    {**EMPTY, "properties": {"required": TEXT, "type": {"type": "null"}, "$ref": TEXT}},
    {**EMPTY, "properties": {"a": {"default": None, "enum": [None, True], "const": {"required": None}}}},
    {**EMPTY, "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"items": {"$ref": "#/$defs/node"}}}},
)
KEYWORDS = [
    *("type", "required", "properties", "patternProperties", "$defs", "definitions", "items", "prefixItems", "allOf"),
    *("anyOf", "oneOf", "not", "if", "then", "additionalProperties", "unevaluatedItems", "$ref", "description", "enum"),
    *("default", "a", "b"),
]
REFERENCES = ("#", "#/$defs/a", "#/$defs/b", "#/definitions/a", "#/properties/a", "#/", "x", "#/$defs/a/allOf/0")
WRONG = (None, True, False, 0, 1.5, "", "object", [], {}, [None], ["a", "a", 1], [[]], {"a": None})


def generated(rng: random.Random, depth: int = 4) -> Any:
    """A schema, or something else."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(WRONG)
    names = rng.sample(KEYWORDS, rng.randint(0, 5))
    return {name: _value(rng, name, depth - 1) for name in names}


def _value(rng: random.Random, name: str, depth: int) -> Any:
    if rng.random() < 0.15:
        return rng.choice(WRONG)
    if name == "type":
        return rng.choice(("object", "object", "string", "array", ["object", "null"]))
    if name == "$ref":
        return rng.choice(REFERENCES)
    if name == "required":
        return rng.sample(("a", "b", "c"), rng.randint(0, 3))
    if name in ("properties", "patternProperties", "$defs", "definitions"):
        return {each: generated(rng, depth) for each in rng.sample(("a", "b", "required", "type"), rng.randint(0, 3))}
    if name in ("allOf", "anyOf", "oneOf", "prefixItems"):
        return [generated(rng, depth) for _ in range(rng.randint(0, 3))]
    return generated(rng, depth)


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

    def test_an_accepted_schema_stays_the_same_object(self) -> None:
        for schema in ACCEPTED:
            self.assertIsNone(refusal(schema))
            self.assertIs(schema, normalize(schema))

    def test_any_schema_becomes_one_that_deepseek_accepts_and_then_stays(self) -> None:
        changed = 0
        for seed in range(width(800, 4000)):
            schema = generated(random.Random(seed))
            text = json.dumps(schema)
            after = normalize(schema)
            with self.subTest(seed=seed, schema=text[:200]):
                self.assertIsNone(refusal(after))
                self.assertIs(after, normalize(after))
                self.assertEqual(text, json.dumps(schema))
                # Keys in the same order as well: DeepSeek's prefix cache compares text.
                self.assertEqual(json.dumps(after), json.dumps(normalize(json.loads(text))))
                if refusal(schema) is None:
                    self.assertIs(schema, after)
                else:
                    changed += 1
        self.assertGreater(changed, width(200, 1000))

    def test_the_deepest_and_the_widest_schema_are_normalized(self) -> None:
        deep: Any = True
        for level in range(MAX_JSON_DEPTH):
            deep = {"not": deep} if level % 2 else {"properties": {"a": deep}, "required": None}
        wide = {"properties": {f"p{index}": True for index in range(20_000)}, "$ref": "#/properties/p1"}
        for schema in (deep, wide):
            self.assertIsNone(refusal(normalize(schema)))

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
        self.assertIs(expected, normalize_tool(expected))
        self.assertEqual({"name": "f", "parameters": EMPTY}, normalize_tool({"function": {"name": "f"}})["function"])
