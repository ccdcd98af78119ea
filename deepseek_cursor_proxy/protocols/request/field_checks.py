"""Reads single fields of a client's JSON.

A field of the wrong type raises a BadRequest that names it; null counts as absent, as in OpenAI's clients.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import encode_json

Json = Mapping[str, Any]
Kind = TypeVar("Kind")

# Characters in the name of a model (which every chunk repeats), of a tool or of a user. OpenAI allows 64 for most.
LONGEST_NAME = 512

# As `protocols.responses` numbers its items; pi 0.74 cuts the two ids at 64 characters.
_ITEM_ID = re.compile(r"(?<=.{8})_fc_[0-9a-f]{8,32}(?:_\d{0,6})?\Z")


def optional(source: Json, name: str, kind: type[Kind], expected: str, param: str | None = None) -> Kind | None:
    """A field of the given type; absent and null are None, anything else a BadRequest."""
    value = source.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise bad_field(param or name, expected)
    return value


def optional_string(source: Json, name: str, param: str) -> str | None:
    """A string field of the object at `param`; absent and null are None."""
    value = source.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad_field(f"{param}.{name}", "a string")


def call_id(source: Json, name: str, param: str) -> str:
    """The id of a tool call, without that of an item of ours, which pi appends when it leaves the Responses API."""
    found = optional_string(source, name, param) or ""
    return _ITEM_ID.sub("", found) if "_fc_" in found else found


def optional_name(source: Json, name: str, param: str | None = None) -> str | None:
    """A string of at most LONGEST_NAME characters, because it is repeated or stored; absent and null are None."""
    value = optional(source, name, str, "a string", param)
    if value is not None and len(value) > LONGEST_NAME:
        raise too_long(param or name, LONGEST_NAME)
    return value


def too_long(param: str, most: int) -> BadRequest:
    return BadRequest(f"{param} is too long: at most {most} characters.", param=param, code="string_above_max_length")


def object_at(value: Any, param: str) -> Json:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise bad_field(param, "an object")
    return value


def json_text(value: Any) -> str:
    """A value as compact JSON, for values that DeepSeek takes as text only."""
    return encode_json(value).decode()


def bad_field(param: str, expected: str) -> BadRequest:
    return BadRequest(f"{param} must be {expected}.", param=param)
