"""Functions as DeepSeek accepts them: their names and the JSON schemas of their parameters.

Names have at most 64 letters, digits, `_` and `-`. A tool whose name DeepSeek refuses is sent under another one, in the
tools, the tool_choice and the history, and its calls go to the client under its own:

    mcp.files/read  ->  mcp_files_read_7f22c29aff      the beginning of the name and a hash of the whole

A sent name depends on the name alone unless another tool of the request has it, so a chat has the same bytes every
time, also when tools are added, and a call in its history has a name even if its tool is gone. Identity, the store and
the writers know the client's names only; `chat_stream.read_own_names` puts them into an answer.

DeepSeek refuses a whole request for one schema without `type: "object"` at its root; the Codex app (26.803) sends one
with every request. Changed is:

    root      a missing or other `type` -> "object"; missing `properties` -> {}; allOf, anyOf and oneOf stay, now beside
              the type; parameters that are missing or null -> no parameters
    anywhere  a null `type`, `required`, `properties` or `items` is left out

All else stays, in its order. The result depends on the schema alone, so that DeepSeek's prefix cache hits. Depth is
limited by json_codec.
"""

import hashlib
import json
import marshal
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, TypeVar

from deepseek_cursor_proxy.conversation import Memo

Schema = Mapping[str, Any]
Tools = tuple[Mapping[str, Any], ...]

# In version 2 of the marshal format equal values have equal bytes, and values that differ in JSON do not.
# Later versions encode what is shared, too. It takes a fifth of the time of JSON: 0.1 ms for 40 tools of 1 kB.
_MARSHAL_VERSION = 2
# A value takes some five times its bytes in memory. A generation has room for sixteen agents with 40 tools each.
_MOST_BYTES_OUTLINED = 12 * 1024 * 1024


class ToolsOutline(NamedTuple):
    """What tools are sorted and compared by."""

    tools: Tools
    # The same by name, in whatever order the client sends them.
    by_name: Tools
    # For each of the tools bytes that two tools share if, and only if, they are equal.
    keys: tuple[bytes, ...]
    # By name, a digest of each.
    digests: Mapping[str, int]
    # About how many bytes it takes.
    size: int


def outline_tools(tools: Tools) -> ToolsOutline:
    """Made once for each list: the requests of a chat share theirs."""
    known = _outlines.get(id(tools))
    if known is None:
        names = list(map(tool_name, tools))
        keys = tuple([marshal.dumps(dict(tool), _MARSHAL_VERSION) for tool in tools])
        # Two tools of one name differ by their positions alone.
        by_name = tuple(sorted(tools, key=tool_name)) if len(set(names)) == len(names) else tools
        digests = dict(zip(names, map(hash, keys), strict=True))
        # The memo keeps the list alive, so that no other one gets its id.
        size = 200 + 6 * sum(map(len, keys))
        known = ToolsOutline(tools, tools if by_name == tools else by_name, keys, digests, size)
        _outlines.put(id(tools), known)
    return known


_outlines: Memo[int, ToolsOutline] = Memo(_MOST_BYTES_OUTLINED, lambda id, known: known.size)


def tool_name(tool: Mapping[str, Any]) -> str:
    """The name of a function, the type of a tool that DeepSeek runs itself."""
    function = tool.get("function")
    name: str = tool["type"] if function is None else function["name"]
    return name


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE = frozenset({"items", "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"})
_NEVER_NULL = frozenset({"type", "required", "properties", "items"})


def normalize_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function tool with parameters that DeepSeek accepts."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": normalize(function.get("parameters"))}}


# Keywords that strict mode does not support.
_NOT_STRICT = frozenset({"minLength", "maxLength", "minItems", "maxItems"})


def is_strict(schema: object) -> bool:
    """Whether DeepSeek takes a schema in strict mode: every property is required, and there are no others."""
    if not isinstance(schema, dict):
        return True
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and properties:
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if any(name not in required for name in properties):
            return False
    return _NOT_STRICT.isdisjoint(schema) and all(map(is_strict, _inner_schemas(schema)))


def _inner_schemas(schema: Schema) -> Iterator[object]:
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            yield from value.values()
        elif name in _LISTS and isinstance(value, list):
            yield from value
        elif name in _SINGLE:
            yield value


def normalize(parameters: object) -> Schema:
    """The schema that DeepSeek gets for the parameters of a function."""
    if not isinstance(parameters, dict):
        return {"type": "object", "properties": {}}
    schema: Schema = _clean(parameters)
    if schema.get("type") == "object" and "properties" in schema:
        return schema
    return {**schema, "type": "object", "properties": schema.get("properties", {})}


def _clean(schema: Any) -> Any:
    """A schema without nulls where DeepSeek refuses them."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not (value is None and name in _NEVER_NULL)}
    for keyword, value in kept.items():
        if keyword in _SINGLE:
            kept[keyword] = _clean(value)
        elif keyword in _MAPS and isinstance(value, dict):
            kept[keyword] = {name: _clean(each) for name, each in value.items()}
        elif keyword in _LISTS and isinstance(value, list):
            kept[keyword] = list(map(_clean, value))
    return kept


Key = TypeVar("Key", str, tuple[str, str])

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_SHARE = 10
# At most 64 together: 53 + 1 + 10.
_NAME_SHARE = 53


# Every request brings the same few names.
@lru_cache(maxsize=1024)
def is_accepted(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def sent_name(name: str) -> str:
    """The name to send if no other tool has it. A call without a name stays so."""
    return name if not name or is_accepted(name) else _hashed_name(name, 0)


def sent_names(names: Collection[str]) -> dict[str, str]:
    """The names to send for those of the tools of a request that DeepSeek refuses."""
    refused = [name for name in names if not is_accepted(name)]
    if not refused:
        return {}
    preferred = {name: sent_name(name) for name in sorted(refused)}
    return unique_names(preferred, set(names).difference(refused), _hashed_name)


def unique_names(
    preferred: Mapping[Key, str], reserved: Collection[str], hashed: Callable[[Key, int], str]
) -> dict[Key, str]:
    """A unique name for each key; of two that prefer the same, neither gets it, but hashed ones."""
    uses = Counter([*preferred.values(), *reserved])
    names: dict[Key, str] = {key: name for key, name in preferred.items() if uses[name] == 1}
    used = {*reserved, *names.values()}
    for key in sorted(preferred.keys() - names.keys()):
        names[key] = next(name for name in (hashed(key, attempt) for attempt in count()) if name not in used)
        used.add(names[key])
    return names


def clean(name: str) -> str:
    """A name with `_` in place of the characters that DeepSeek refuses."""
    return _NOT_ALLOWED.sub("_", name)


def digest(value: object) -> str:
    """The hash at the end of a sent name."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_HASH_SHARE]


def _hashed_name(name: str, attempt: int) -> str:
    return f"{clean(name)[:_NAME_SHARE]}_{digest([name, attempt] if attempt else name)}"
