"""Reads tools of every shape, mixed in one list, as functions for DeepSeek.

    nested      {type: function, function: {…}}                     chat completions: stays as it is
    flat        {type: function, name, parameters, strict}          Responses
    bare        {name, description, input_schema}                   Anthropic
    custom      {type: custom, name, description, format}           free text, perhaps with a grammar: becomes a
                                                                    function with one string field; chat completions
                                                                    nest it: {type: custom, custom: {…}}
    namespace   {type: namespace, name, description, tools}         Codex: each tool inside is one of the above and
                                                                    gets an upstream name (see upstream_name)
    server      web_search, …                                       DeepSeek runs them itself: as they are
    others      file_search, tool_search, …                         DeepSeek cannot run them: left out, in `dropped`

A tool_choice may name any of them; forcing an unsupported tool is a 400. A namespace inside a namespace is unsupported
as well: a call names one namespace, so its calls could not be translated back.

The call of a custom tool is free text to the client, and a JSON object with one field to DeepSeek: CustomCallUnwrapper
takes the text out of the object for the client, and `wrap_text` puts it back for DeepSeek. A call comes back as its
tool was declared: OpenAI's chat completions have {type: custom, custom: {name, input}}; Cursor (3.14), whose tools are
flat, takes and sends `type: function` with the raw text as its arguments. The round trip may change the bytes (a model
spaces its JSON, or is stopped), so a turn is stored as `echoed_message`: as the client will send it back.
"""

import copy
import itertools
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import CallPiece, Delta, Message, join_pieces
from deepseek_cursor_proxy.deepseek import server_tools, tool_definitions
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import (
    LONGEST_NAME,
    Json,
    bad_field,
    is_json,
    json_text,
    object_at,
    object_in,
    optional,
    optional_string,
    too_long,
)
from deepseek_cursor_proxy.redaction import safe_text

_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_NAMED_CHOICES = ("function", "custom", "tool")
# Of the description, parameters and `strict` of a function.
_PLAIN_TYPES = frozenset(itertools.product((str, NoneType), (dict, NoneType), (bool, NoneType)))
FIELDS = frozenset({"tools", "functions", "tool_choice", "function_call"})
# Here, the type of a custom tool that is declared as chat completions have it.
_OPENAI_CUSTOM = "openai custom"

# The namespace and the name in it.
QualifiedName = tuple[str, str]

# At most 64 together: 20 + 2 + 31 + 1 + 10. A tool's own name says more than its namespace.
_NAMESPACE_SHARE = 20
_NAME_SHARE = 31
# Of the names and the functions that are made of one.
_BYTES_PER_TOOL = 500
# Characters. Each function of a namespace repeats its description, and each costs tokens.
_MAX_DESCRIPTION = 200


class ToolSet:
    """The tools of a request as functions, in their order, the names of custom ones, and of what was left out.

    Requests share it, so it is never changed once it is read: `with_choice` adds the choice of one to a copy.
    """

    def __init__(self, server_api: str | None = None) -> None:
        """`server_api` is the API whose endpoint may run tools of DeepSeek's own; None if they are left out."""
        self.tools: list[Json] = []
        # Their names; those of tools inside namespaces are known when all others are.
        self.names: set[str] = set()
        self.custom: set[str] = set()
        # Those of them that are declared as chat completions have them.
        self.nested: set[str] = set()
        self.choice: str | Json | None = None
        self.dropped: list[str] = []
        # Kinds and names of tools that DeepSeek cannot run.
        self.unsupported: set[str] = set()
        # Tools that DeepSeek runs itself, and the choice of one of them that forces it.
        self.server: list[Json] = []
        self.server_choice: Json | None = None
        self.server_api = server_api
        # The upstream names of tools inside namespaces, and the reverse; until they are known, the indexes in `tools`.
        self.upstream_names: dict[QualifiedName, str] = {}
        self.namespaces: dict[str, QualifiedName] = {}
        self.inner: dict[QualifiedName, int] = {}
        # By `finish`: one tuple for all requests, the names by which calls in the history are read, and those sent.
        self.functions: tuple[Json, ...] = ()
        self.call_names = NO_TOOLS
        self.sent_names: Mapping[str, str] = {}

    def finish(self, *, keep_strict: bool) -> None:
        if self.inner:
            self.name_inner_tools()
        # Only DeepSeek's beta path accepts strict functions, and there it takes all of them so or none.
        strict = [tool["function"] for tool in self.tools if tool["function"].get("strict")]
        are_kept = keep_strict and len(strict) == len(self.tools)
        if strict and not (are_kept and all(tool_definitions.is_strict(each.get("parameters")) for each in strict)):
            for index, tool in enumerate(self.tools):
                function = {name: value for name, value in tool["function"].items() if name != "strict"}
                self.tools[index] = {**tool, "function": function}
            self.dropped.append("tools strict")
        self.functions = tuple(self.tools)
        self.call_names = ToolNames(frozenset(self.custom), frozenset(self.names), self.upstream_names)
        self.sent_names = tool_definitions.sent_names(self.names)

    def with_choice(self, body: Json) -> "ToolSet":
        chosen = copy.copy(self)
        chosen.dropped = self.dropped.copy()
        chosen.choice = _choice(body, chosen)
        return chosen

    def read(self, tool: Any, param: str) -> None:
        """Add a tool of any shape; a namespace is several."""
        if _is_plain(tool):
            self.add(tool)
        elif isinstance(tool, dict) and tool.get("type") == "namespace":
            self._add_namespace(tool, param)
        elif (function := _read_tool(tool, param, self)) is not None:
            self.add(function)

    def add(self, tool: Json) -> None:
        name = tool["function"]["name"]
        if name in self.names:
            # DeepSeek refuses two tools of one name.
            self.dropped.append(f"second tool {safe_text(name, 60)}")
            return
        self.names.add(name)
        self.tools.append(tool if tool["type"] == "function" else self._as_function(tool))

    def _add_namespace(self, group: Json, param: str) -> None:
        namespace = _name(group, param)
        about = optional_string(group, "description", param)
        tools = group.get("tools")
        if not isinstance(tools, list):
            raise bad_field(f"{param}.tools", "a list")
        for index, value in enumerate(tools):
            tool = _read_tool(value, f"{param}.tools[{index}]", self)
            if tool is None:
                continue
            function = tool["function"]
            inner = namespace, function["name"]
            if inner in self.inner:
                self.dropped.append(f"second tool {safe_text(upstream_name(inner), 60)}")
                continue
            description = describe_inner(function.get("description"), namespace, about)
            self.inner[inner] = len(self.tools)
            self.tools.append(tool if description is None else _replace_fields(tool, description=description))

    def name_inner_tools(self) -> None:
        self.upstream_names = upstream_names(self.inner, self.names)
        for inner, name in self.upstream_names.items():
            index = self.inner[inner]
            self.tools[index] = self._as_function(_replace_fields(self.tools[index], name=name))
            self.names.add(name)
            self.namespaces[name] = inner

    def _as_function(self, tool: Json) -> Json:
        """A tool as a function; the name of a custom one is added to `custom`."""
        if tool["type"] != "function":
            self.custom.add(tool["function"]["name"])
        if tool["type"] == _OPENAI_CUSTOM:
            self.nested.add(tool["function"]["name"])
        return {**tool, "type": "function"}


# The tools of a body, without its choice: an agent has up to a hundred, and the same in every request.
_TOOLS: Stage[Any, ToolSet] = Stage("tools", is_of_json=True)


def read(
    body: Json,
    declared: Sequence[tuple[Any, str]] = (),
    memory: Chat = NO_CHAT,
    *,
    keep_strict: bool = False,
    server_api: str | None = None,
) -> ToolSet:
    """The tools and the choice of a body; `declared` are tools inside its history, each with its path."""
    tools = optional(body, "tools", list, "a list") or []
    legacy = optional(body, "functions", list, "a list") or []
    lookup = (NO_CHAT if legacy or declared else memory).look_up(_TOOLS, tools, (keep_strict, server_api))
    known = lookup.result
    if known is None or lookup.count < len(tools):
        known = ToolSet(server_api)
        for index, tool in enumerate(tools):
            known.read(tool, f"tools[{index}]")
        for tool, param in declared:
            known.read(tool, param)
        for index, function in enumerate(legacy):
            known.add(_function(function, f"functions[{index}]"))
        known.finish(keep_strict=keep_strict)
        # The tools themselves are in the body.
        lookup.store(known, _BYTES_PER_TOOL * len(tools))
    has_choice = body.get("tool_choice") is not None or body.get("function_call") is not None
    return known.with_choice(body) if has_choice else known


def upstream_name(qualified: QualifiedName) -> str:
    """The upstream name of a tool inside a namespace if no other tool has it; DeepSeek has functions only.

        multi_agent_v1__spawn_agent     both names, if deepseek/tool_definitions would accept that
        clock_v1__now_d18367a464        else, as for `now` of `clock.v1`, the beginnings of both and a hash of the whole

    It depends on the two names alone unless it collides, and never on the order of the tools. So a chat has the same
    bytes every time, and a call in its history has a name even if its tool is gone.
    """
    name = "__".join(qualified)
    return name if tool_definitions.is_accepted(name) else _hashed_name(qualified, 0)


def upstream_names(qualified: Iterable[QualifiedName], reserved: Collection[str]) -> dict[QualifiedName, str]:
    """A unique name for each tool; of two that collide (`a__b` with `c`, `a` with `b__c`) neither gets that name."""
    return tool_definitions.unique_names({name: upstream_name(name) for name in qualified}, reserved, _hashed_name)


def describe_inner(description: str | None, namespace: str, about: str | None) -> str | None:
    """A function's description after that of its namespace, `about`."""
    purpose = " ".join((about or "").split())
    if not purpose:
        return description
    group = f"Part of {_shorten(namespace)}: {_shorten(purpose)}"
    return f"{group}\n\n{description}" if description else group


def _hashed_name(qualified: QualifiedName, attempt: int) -> str:
    """The beginnings of both names and a hash, another with every attempt."""
    namespace, name = map(tool_definitions.clean, qualified)
    digest = tool_definitions.digest([*qualified, attempt] if attempt else qualified)
    return f"{namespace[:_NAMESPACE_SHARE]}__{name[:_NAME_SHARE]}_{digest}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"


def _replace_fields(tool: Json, **fields: str) -> Json:
    return {**tool, "function": {**tool["function"], **fields}}


def _read_tool(tool: Any, param: str, tool_set: ToolSet) -> Json | None:
    """A tool in its nested form, of type custom or _OPENAI_CUSTOM if it is one; None if DeepSeek cannot run it."""
    tool = object_at(tool, param)
    kind = optional_string(tool, "type", param)
    if "input_schema" in tool and kind in (None, "custom"):
        return _anthropic_tool(tool, param)
    if kind in (None, "function"):
        if "function" not in tool and "name" in tool:
            return _function({key: value for key, value in tool.items() if key != "type"}, param)
        return {**tool, **_function(tool.get("function"), f"{param}.function")}
    if kind == "custom":
        nested = tool.get("custom")
        if isinstance(nested, dict):
            return {**_custom(nested, f"{param}.custom"), "type": _OPENAI_CUSTOM}
        return _custom(tool, param)
    name = optional_string(tool, "name", param)
    if tool_set.server_api is not None and server_tools.is_run_by_deepseek(kind, tool_set.server_api):
        if tool not in tool_set.server:
            tool_set.server.append(tool)
        return None
    tool_set.unsupported |= {kind} if name is None else {kind, name}
    tool_set.dropped.append(f"tool {safe_text(kind, 60)}")
    return None


def _is_plain(tool: Any) -> bool:
    """Whether a tool stays as it is: nearly all are nested functions, whose fields have the usual types."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        return False
    others = type(function.get("description")), type(function.get("parameters")), type(function.get("strict"))
    return 0 < len(name) <= LONGEST_NAME and others in _PLAIN_TYPES


def _function(function: Any, param: str) -> Json:
    function = object_at(function, param)
    _name(function, param)
    optional_string(function, "description", param)
    function = _without_boolean(function, "parameters")
    optional(function, "parameters", dict, "an object", f"{param}.parameters")
    optional(function, "strict", bool, "true or false", f"{param}.strict")
    return {"type": "function", "function": function}


def _without_boolean(tool: Json, field: str) -> Json:
    """A tool with an object as its schema in place of true or false, which are JSON schemas as well."""
    return {**tool, field: {}} if isinstance(tool.get(field), bool) else tool


def _name(tool: Json, param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise bad_field(f"{param}.name", "a non-empty string")
    if len(name) > LONGEST_NAME:
        raise too_long(f"{param}.name", LONGEST_NAME)
    return name


def _anthropic_tool(tool: Json, param: str) -> Json:
    name, description = _name(tool, param), optional_string(tool, "description", param)
    tool = _without_boolean(tool, "input_schema")
    schema = optional(tool, "input_schema", dict, "an object", f"{param}.input_schema")
    fields = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": {name: value for name, value in fields.items() if value is not None}}


def _custom(tool: Json, param: str) -> Json:
    texts = (
        optional_string(tool, "description", param),
        f'This tool takes free text. Put the whole text, exactly as it should be, into "{FIELD}".',
        _grammar(tool, param),
    )
    text = {"type": "string", "description": "The whole text."}
    parameters = {"type": "object", "properties": {FIELD: text}, "required": [FIELD], "additionalProperties": False}
    name, description = _name(tool, param), "\n\n".join(filter(None, texts))
    return {"type": "custom", "function": {"name": name, "description": description, "parameters": parameters}}


def _grammar(tool: Json, param: str) -> str | None:
    """The grammar as an instruction; chat completions nest it once more than Responses."""
    form = optional(tool, "format", dict, "an object", f"{param}.format")
    if form is None:
        return None
    nested = form.get("grammar")
    grammar, at = (nested, f"{param}.format.grammar") if isinstance(nested, dict) else (form, f"{param}.format")
    definition = optional_string(grammar, "definition", at)
    syntax = optional_string(grammar, "syntax", at)
    if not definition:
        return None
    return f"The text must follow this {syntax + ' ' if syntax else ''}grammar:\n{definition}"


def _choice(body: Json, tool_set: ToolSet) -> str | Json | None:
    choice = body.get("tool_choice")
    if choice is None:
        choice = body.get("function_call")
        if isinstance(choice, dict):
            choice = {"type": "function", "function": choice}
    if isinstance(choice, dict):
        if _is_server_choice(choice, tool_set):
            tool_set.server_choice = choice
            return None
        choice = _choice_object(choice, tool_set)
    if isinstance(choice, dict):
        return choice
    if choice is not None and not (isinstance(choice, str) and choice in _CHOICES):
        raise bad_field("tool_choice", "none, auto, required or an object that names a tool")
    chosen = None if choice is None else _CHOICES[choice]
    if not tool_set.tools and not tool_set.server:
        if chosen == "required" and tool_set.unsupported:
            raise _cannot_force(" and ".join(sorted(tool_set.unsupported)))
        # DeepSeek refuses "required" without tools.
        return None
    return chosen


def _is_server_choice(choice: Json, tool_set: ToolSet) -> bool:
    """Whether a choice forces a tool that DeepSeek runs itself: by its type or, as Messages do, by its name."""
    kind, name = choice.get("type"), choice.get("name")
    if any(tool["type"] == kind for tool in tool_set.server):
        return True
    if kind != "tool" or not isinstance(name, str) or name in tool_set.names:
        return False
    return any(tool.get("name") == name for tool in tool_set.server)


def _choice_object(choice: Json, tool_set: ToolSet) -> str | Json:
    kind = optional_string(choice, "type", "tool_choice")
    if kind is None:
        raise bad_field("tool_choice.type", "a string")
    if kind in _CHOICES:
        return kind
    if kind == "allowed_tools":
        nested = choice.get("allowed_tools")
        # Leaving out the others would lose DeepSeek's prefix cache for the whole chat.
        tool_set.dropped.append("tool_choice allowed_tools")
        return optional_string(nested if isinstance(nested, dict) else choice, "mode", "tool_choice") or "auto"
    if kind not in _NAMED_CHOICES:
        if tool_set.server_api and server_tools.is_run_by_deepseek(kind, tool_set.server_api):
            raise _unknown_choice(kind)
        raise _cannot_force(kind)
    nested = choice.get("custom" if kind == "custom" else "function")
    source, at = (nested, f"tool_choice.{kind}") if isinstance(nested, dict) else (choice, "tool_choice")
    name = _name(source, at)
    namespace = optional_string(source, "namespace", at)
    if namespace:
        upstream_name = tool_set.upstream_names.get((namespace, name))
    else:
        upstream_name = name if name in tool_set.names else None
    if upstream_name is None and name in tool_set.unsupported:
        raise _cannot_force(name)
    if upstream_name is None:
        raise _unknown_choice(f"{namespace}.{name}" if namespace else name)
    return {"type": "function", "function": {"name": upstream_name}}


def _unknown_choice(name: str) -> BadRequest:
    return BadRequest(f"tool_choice names {safe_text(name, 60)}, which is not among the tools.", param="tool_choice")


def _cannot_force(name: str) -> BadRequest:
    return BadRequest(
        f"tool_choice forces {safe_text(name, 60)}, which DeepSeek cannot run here. Leave the choice out, or force a "
        "function.",
        param="tool_choice",
    )


FIELD = "input"

_HEAD = re.compile(rf'\s*{{\s*"{FIELD}"\s*:\s*"')
_SQUEEZED_HEAD = f'{{"{FIELD}":"'
# Up to the end of the string, or to an escape that has not come as a whole.
_INSIDE = re.compile(r'(?:[^"\\]++|\\(?!u[0-9a-fA-F]{0,3}\Z).)*+', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


def wrap_text(arguments: str) -> str:
    """Raw text as the arguments of the function that DeepSeek has; arguments in this form stay."""
    read = object_in(arguments) if arguments.lstrip()[:1] == "{" else None
    if read is not None and read.keys() == {FIELD} and isinstance(read[FIELD], str):
        return arguments
    return json_text({FIELD: arguments})


class ToolNames(NamedTuple):
    """The names of a request's tools, by which calls in its history are read."""

    custom: Container[str] = frozenset()
    # All of them.
    known: Container[str] = frozenset()
    # The upstream names of tools inside namespaces, by namespace and name.
    upstream: Mapping[tuple[str, str], str] = MappingProxyType({})

    def wrap_custom_calls(self, message: Message) -> Message:
        """A message with its custom calls wrapped.

        A custom tool may be gone from the request (Cursor's modes differ in their tools). Its calls are then recognized
        by their arguments: text that cannot begin an object or, for a tool that is not known, anything that is no
        object. Incomplete arguments of a known function stay.
        """
        for call in message.tool_calls:
            # Nearly every call is one of a known function with an object: the fast path for all of a history.
            if call.arguments[:1] != "{" or call.name in self.custom or call.name not in self.known:
                break
        else:
            return message
        calls = []
        for call in message.tool_calls:
            text = call.arguments.strip()
            is_custom = call.name in self.custom or (bool(text) and text[0] != "{" and not is_json(text))
            if is_custom or (call.name not in self.known and not _is_object(call.arguments)):
                call = call._replace(arguments=wrap_text(call.arguments))
            calls.append(call)
        return message._replace(tool_calls=tuple(calls))


NO_TOOLS = ToolNames()


def echoed_message(answer: Message, names: Collection[str], known: Container[str] = ()) -> Message:
    """An answer of DeepSeek with its custom calls as the client will send them back."""
    if names:
        calls = [
            call._replace(arguments=read_free_text(call.arguments)) if call.name in names else call
            for call in answer.tool_calls
        ]
        answer = answer._replace(tool_calls=tuple(calls))
    return ToolNames(names, known).wrap_custom_calls(answer)


class CustomCallUnwrapper:
    """Takes the text out of the custom calls of one answer, fragment by fragment."""

    def __init__(self, names: Container[str], nested: Container[str] = ()) -> None:
        """`names` are all custom tools, `nested` those whose calls come back in OpenAI's shape."""
        self._names = names
        self._nested = nested
        # By choice and call; None for a call of an ordinary function.
        self._readers: dict[tuple[int, int], FreeTextReader | None] = {}
        self._nested_calls: set[tuple[int, int]] = set()

    def unwrap(self, delta: Delta, *, is_whole: bool = False) -> Delta:
        """The delta with raw text in place of arguments; the last delta brings the text that was held back."""
        is_last = is_whole or delta.finish_reason is not None
        calls = [self._unwrap(delta.choice, piece, is_last) for piece in delta.calls]
        if is_last:
            for (choice, index), reader in self._readers.items():
                if choice == delta.choice and reader is not None and (rest := reader.end()):
                    calls.append(CallPiece(index, arguments=rest))
        return delta._replace(calls=tuple(calls)) if calls else delta

    def _unwrap(self, choice: int, piece: CallPiece, is_last: bool) -> CallPiece:
        key = choice, piece.index
        if key not in self._readers and piece.name:
            self._readers[key] = FreeTextReader() if piece.name in self._names else None
            if piece.name in self._nested:
                self._nested_calls.add(key)
        reader = self._readers.get(key)
        if reader is None:
            return piece
        text = reader.feed(piece.arguments)
        return replace(piece, arguments=text + reader.end() if is_last else text)

    def nest(self, entry: Mapping[str, Any], choice: int, index: int) -> Mapping[str, Any]:
        """An entry of `tool_calls`, with raw text as its arguments, in the shape that the client knows."""
        if (choice, index) not in self._nested_calls:
            return entry
        nested = {name: value for name, value in entry.items() if name != "function"}
        function = entry.get("function") or {}
        name = {"name": function["name"]} if function.get("name") else {}
        kind = {"type": "custom"} if "type" in entry else {}
        return {**nested, **kind, "custom": {**name, "input": function.get("arguments") or ""}}


def _is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object, or a client's way of writing none: blank, null or []."""
    return arguments.strip() in ("", "null", "[]") or object_in(arguments) is not None


class FreeTextReader:
    r"""Reads the free text in the arguments of one call; `feed` and `end` return the next text for the client.

    Fragments may end anywhere: in the key, inside an escape, inside `\uXXXX`, between the halves of a surrogate pair.

        head     `{"input":"` with white space wherever JSON allows it; no text yet
        inside   the text, unescaped; an incomplete escape or character waits for its rest
        after    the closing quote was read; the rest of the object is not part of the text
        other    not the declared arguments: held until the end, then parsed as a whole or returned unchanged

    Arguments that break off give the text up to there. Escapes that JSON does not have are taken literally.
    """

    def __init__(self) -> None:
        self._state = "head"
        # What has come and is not read: of other arguments all of it.
        self._unread = ""

    def feed(self, fragment: str) -> str:
        if self._state == "after":
            return ""
        self._unread += fragment
        if self._state == "head":
            self._read_head()
        return self._read_inside() if self._state == "inside" else ""

    def end(self) -> str:
        """The rest of the text, when no more fragments come."""
        state, self._state = self._state, "after"
        if state != "other":
            return ""
        # Other fields may precede the text.
        text = (object_in(self._unread) or {}).get(FIELD)
        return text if isinstance(text, str) else self._unread

    def _read_head(self) -> None:
        if (head := _HEAD.match(self._unread)) is not None:
            self._state, self._unread = "inside", self._unread[head.end() :]
            return
        squeezed = "".join(self._unread.split())
        if squeezed == _SQUEEZED_HEAD or not _SQUEEZED_HEAD.startswith(squeezed):
            self._state = "other"

    def _read_inside(self) -> str:
        whole = _INSIDE.match(self._unread)
        assert whole is not None
        text, rest = join_pieces([_ESCAPE.sub(_unescape, whole[0])]), self._unread[whole.end() :]
        if rest[:1] == '"':
            self._state = "after"
        elif "\ud800" <= text[-1:] <= "\udbff":
            # The first half of a pair of surrogates.
            text, rest = text[:-1], text[-1] + rest
        self._unread = rest
        return text


def read_free_text(arguments: str) -> str:
    reader = FreeTextReader()
    return reader.feed(arguments) + reader.end()


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPES.get(escape[2], escape[0])
