"""Which functions DeepSeek refuses: their number, their names and the JSON schemas of their parameters.

    rule                                                       seen
    more than 128 functions                                    reference of 2026-09-10
    a name with other characters than a-z A-Z 0-9 _ -          reference of 2026-09-10, 2026-09-12
    a name of more than 64 characters                          reference of 2026-09-10 (others say 128)
    two functions of one name                                  reference of 2026-09-12
    parameters: null                                           cc-switch#5300, 2026-07-13
    a root whose `type` is missing, null or not "object"       dots-hyprland#3640, codex#36441, 2026-04-30 to 2026-09-19
    `required` that is null                                    DeepSeek-Reasonix#4086, 2026-06-12
    `required` with other wrong values                         not seen
    a root without `properties`, or with `$ref`                not seen: the fake refuses what might be
    `properties` that are no map, a null `type`                not seen, but the same validator
    true, false and other values in place of a schema          not seen

`additionalProperties` and its like may be booleans. Omitted `parameters` mean no arguments. Names of calls in the
history are checked as well, which was not seen either.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST = 128
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMAS_OR_BOOLEANS = ("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems")


def problems(functions: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = [function["name"] for function in functions]
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
    if len(names) > _MOST:
        yield f"Invalid 'tools': expected at most {_MOST} functions, got {len(names)}"
    # A call without a name has been accepted so far.
    if wrong := [name for name in (*names, *filter(None, calls)) if not _NAME.fullmatch(name)]:
        yield f"Invalid function name '{wrong[0]}': string does not match pattern"
    if len(set(names)) < len(names):
        yield "Tool names must be unique."
    for function in functions:
        if "parameters" in function:
            for problem in _root_problems(function["parameters"]):
                yield f"Invalid schema for function '{function['name']}': {problem}"


def _root_problems(schema: Any) -> Iterator[str]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {json.dumps(kind)}'."
    if "properties" not in schema:
        yield "object schema missing properties"
    if "$ref" in schema:
        yield "unexpected $ref at the root"
    yield from _problems(schema)


def _problems(schema: Any) -> Iterator[str]:
    yield from _misfit(schema, dict, "object")
    for keyword, value in schema.items():
        if keyword == "type" and value is None:
            yield 'null is not of type "string"'
        elif keyword == "required":
            yield from _required_problems(value)
        elif keyword in _SCHEMA_MAPS:
            yield from _misfit(value, dict, "object")
            for inner in value.values():
                yield from _problems(inner)
        elif keyword in _SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
            yield from _misfit(value, list, "array")
            for inner in value:
                yield from _problems(inner)
        elif keyword in _SCHEMAS or (keyword in _SCHEMAS_OR_BOOLEANS and not isinstance(value, bool)):
            yield from _problems(value)


def _required_problems(required: Any) -> Iterator[str]:
    yield from _misfit(required, list, "array")
    for name in required:
        yield from _misfit(name, str, "string")
    if len(set(required)) < len(required):
        yield f"{json.dumps(required)} has non-unique elements"


def _misfit(value: Any, kind: type, name: str) -> Iterator[str]:
    if not isinstance(value, kind):
        yield f'{json.dumps(value)} is not of type "{name}"'
