"""Tools of every shape, in one list, as the functions DeepSeek runs.

    nested      {type: function, function: {…}}                     chat completions: kept as they are
    flat        {type: function, name, parameters, strict}          Responses
    bare        {name, description, input_schema}                   Anthropic
    custom      {type: custom, name, description, format}           free text, perhaps with a grammar: lowered to a
                                                                    function with one string field
    namespace   {type: namespace, name, description, tools}         Codex: each tool inside is one of the above, under
                                                                    a lowered name (see namespaces)
    others      web_search, tool_search, …                          nobody runs them here: left out and named

Cursor mixes these in one request. A tool_choice may name any of them; one that forces a tool we cannot offer is a 400.
A namespace inside a namespace is one of the others: a call names one namespace, so none of its calls could be given
back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.request import tool_namespaces
from deepseek_cursor_proxy.protocols.request.fields import (
    LONGEST_NAME,
    Json,
    bad_field,
    object_at,
    optional,
    optional_string,
    too_long,
)
from deepseek_cursor_proxy.protocols.request.free_text import FIELD
from deepseek_cursor_proxy.redaction import safe_text

_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_NAMING_CHOICES = ("function", "custom", "tool")
_FIELDS = frozenset({"tools", "functions", "tool_choice", "function_call"})


@dataclass
class ToolSet:
    """The tools of a request: what DeepSeek is sent, which of them are custom, and what was left out."""

    tools: list[Json] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    choice: str | Json | None = None
    dropped: list[str] = field(default_factory=list)
    # Names of tools that were asked for and cannot be offered.
    refused: set[str] = field(default_factory=set)
    # What the tools inside namespaces are called upstream.
    upstream_names: dict[tool_namespaces.QualifiedName, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.tools}


def read(body: Json, more: Sequence[tuple[Any, str]] = (), *, keep_strict: bool = False) -> ToolSet:
    """The tools and the choice of a body; `more` are tools from elsewhere in it, each with the place it stands at."""
    box = ToolSet()
    if _FIELDS.isdisjoint(body) and not more:
        return box
    listed = optional(body, "tools", list, "a list") or []
    functions = optional(body, "functions", list, "a list") or []
    packer = _Packer(box)
    for index, tool in enumerate(listed):
        if _is_plain(tool):
            packer.take(tool)
        else:
            packer.read(tool, f"tools[{index}]")
    for tool, param in more:
        packer.read(tool, param)
    for index, function in enumerate(functions):
        packer.take(_function(function, f"functions[{index}]"))
    packer.finish()
    if not keep_strict:
        _loosen(box)
    box.choice = _choice(body, box)
    return box


class _Packer:
    """Puts tools into a box, in their order; those inside namespaces get their names when all others are known."""

    def __init__(self, box: ToolSet) -> None:
        self._box = box
        self._taken: set[str] = set()
        # The tools inside namespaces, and where in the box they are.
        self._inner: dict[tool_namespaces.QualifiedName, int] = {}

    def read(self, tool: Any, param: str) -> None:
        """Take a tool of any shape, which may be several."""
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            self._read_namespace(tool, param)
        else:
            self.take(_read_tool(tool, param, self._box))

    def take(self, tool: Json | None) -> None:
        if tool is None:
            return
        name = tool["function"]["name"]
        if name in self._taken:
            # DeepSeek refuses two tools of one name.
            self._box.dropped.append(f"second tool {safe_text(name, 60)}")
            return
        self._taken.add(name)
        self._box.tools.append(self._unmarked(tool))

    def finish(self) -> None:
        """Name the tools inside namespaces."""
        upstream_names = self._box.upstream_names = tool_namespaces.upstream_names(self._inner, self._taken)
        for inner, place in self._inner.items():
            tool = self._box.tools[place]
            self._box.tools[place] = self._unmarked(_with(tool, name=upstream_names[inner]))

    def _read_namespace(self, group: Json, param: str) -> None:
        namespace = _name(group, param)
        words = optional_string(group, "description", param)
        tools = group.get("tools")
        if not isinstance(tools, list):
            raise bad_field(f"{param}.tools", "a list")
        for index, each in enumerate(tools):
            tool = _read_tool(each, f"{param}.tools[{index}]", self._box)
            if tool is not None:
                self._take_inner(tool, namespace, words)

    def _take_inner(self, tool: Json, namespace: str, words: str | None) -> None:
        function = tool["function"]
        inner = namespace, function["name"]
        if inner in self._inner:
            self._box.dropped.append(f"second tool {safe_text(tool_namespaces.upstream_name(inner), 60)}")
            return
        description = tool_namespaces.describe(function.get("description"), namespace, words)
        self._inner[inner] = len(self._box.tools)
        self._box.tools.append(tool if description is None else _with(tool, description=description))

    def _unmarked(self, tool: Json) -> Json:
        """A tool as DeepSeek is sent it; whether it is custom is remembered by its name."""
        if tool.get("type") != "custom":
            return tool
        self._box.custom.add(tool["function"]["name"])
        return {**tool, "type": "function"}


def _with(tool: Json, **fields: str) -> Json:
    return {**tool, "function": {**tool["function"], **fields}}


def _is_plain(tool: Any) -> bool:
    """Whether a tool is nested and right already; most are, and there may be a hundred in every request."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or "input_schema" in tool or function.get("strict") is not None:
        return False
    name, description, parameters = function.get("name"), function.get("description"), function.get("parameters")
    is_described = isinstance(description, str) and isinstance(parameters, dict)
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and is_described


def _read_tool(tool: Any, param: str, box: ToolSet) -> Json | None:
    """A tool in its nested form, still marked as custom if it is; None if it is of a kind that cannot be offered."""
    tool = object_at(tool, param)
    kind = optional_string(tool, "type", param)
    if "input_schema" in tool and kind in (None, "custom"):
        return _bare(tool, param)
    if kind in (None, "function"):
        if "function" not in tool and "name" in tool:
            return _function({key: value for key, value in tool.items() if key != "type"}, param)
        return {**tool, **_function(tool.get("function"), f"{param}.function")}
    if kind == "custom":
        nested = tool.get("custom")
        return _custom(nested, f"{param}.custom") if isinstance(nested, dict) else _custom(tool, param)
    name = optional_string(tool, "name", param)
    box.refused |= {kind} if name is None else {kind, name}
    box.dropped.append(f"tool {safe_text(kind, 60)}")
    return None


def _function(function: Any, param: str) -> Json:
    function = object_at(function, param)
    _name(function, param)
    optional_string(function, "description", param)
    optional(function, "parameters", dict, "an object", f"{param}.parameters")
    optional(function, "strict", bool, "true or false", f"{param}.strict")
    return {"type": "function", "function": function}


def _name(tool: Json, param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise bad_field(f"{param}.name", "a non-empty string")
    if len(name) > LONGEST_NAME:
        raise too_long(f"{param}.name", LONGEST_NAME)
    return name


def _bare(tool: Json, param: str) -> Json:
    function: dict[str, Any] = {"name": _name(tool, param)}
    if (description := optional_string(tool, "description", param)) is not None:
        function["description"] = description
    if (schema := optional(tool, "input_schema", dict, "an object", f"{param}.input_schema")) is not None:
        function["parameters"] = schema
    return {"type": "function", "function": function}


def _custom(tool: Json, param: str) -> Json:
    texts = (
        optional_string(tool, "description", param),
        f'This tool takes free text. Put the whole text, exactly as it should be, into "{FIELD}".',
        _grammar(tool, param),
    )
    text = {"type": "string", "description": "The whole text."}
    parameters = {"type": "object", "properties": {FIELD: text}, "required": [FIELD], "additionalProperties": False}
    function = {
        "name": _name(tool, param),
        "description": "\n\n".join(filter(None, texts)),
        "parameters": parameters,
    }
    return {"type": "custom", "function": function}


def _grammar(tool: Json, param: str) -> str | None:
    """What the text must look like, in words; chat completions nest the grammar once more than Responses."""
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


def _loosen(box: ToolSet) -> None:
    """Strict functions need DeepSeek's beta path; anywhere else one of them would have the whole request refused."""
    for index, tool in enumerate(box.tools):
        if tool["function"].get("strict"):
            function = {key: value for key, value in tool["function"].items() if key != "strict"}
            box.tools[index] = {**tool, "function": function}
            box.dropped.append("tools strict")


# Which of them the model must call …


def _choice(body: Json, box: ToolSet) -> str | Json | None:
    choice = body.get("tool_choice")
    if choice is None:
        choice = body.get("function_call")
        if isinstance(choice, dict):
            choice = {"type": "function", "function": choice}
    if isinstance(choice, dict):
        choice = _choice_object(choice, box)
    if isinstance(choice, dict):
        return choice
    if choice is not None and not (isinstance(choice, str) and choice in _CHOICES):
        raise bad_field("tool_choice", "none, auto, required or an object that names a tool")
    chosen = None if choice is None else _CHOICES[choice]
    if not box.tools:
        if chosen == "required" and box.refused:
            raise _impossible(" and ".join(sorted(box.refused)))
        # Without tools there is nothing to choose, and "required" would be refused.
        return None
    return chosen


def _choice_object(choice: Json, box: ToolSet) -> str | Json:
    kind = optional_string(choice, "type", "tool_choice")
    if kind is None:
        raise bad_field("tool_choice.type", "a string")
    if kind in _CHOICES:
        return kind
    if kind == "allowed_tools":
        nested = choice.get("allowed_tools")
        # Leaving the others out would cost the prefix cache of the whole chat.
        box.dropped.append("tool_choice allowed_tools")
        return optional_string(nested if isinstance(nested, dict) else choice, "mode", "tool_choice") or "auto"
    if kind not in _NAMING_CHOICES:
        raise _impossible(kind)
    nested = choice.get("custom" if kind == "custom" else "function")
    source, at = (nested, f"tool_choice.{kind}") if isinstance(nested, dict) else (choice, "tool_choice")
    name = _name(source, at)
    namespace = optional_string(source, "namespace", at)
    offered = box.upstream_names.get((namespace, name)) if namespace else name if name in box.names() else None
    if offered is None and name in box.refused:
        raise _impossible(name)
    if offered is None:
        shown = safe_text(f"{namespace}.{name}" if namespace else name, 60)
        raise BadRequest(f"tool_choice names {shown}, which is not among the tools.", param="tool_choice")
    return {"type": "function", "function": {"name": offered}}


def _impossible(name: str) -> BadRequest:
    return BadRequest(
        f"tool_choice forces {safe_text(name, 60)}, which DeepSeek cannot run; it runs function and custom tools.",
        param="tool_choice",
    )
