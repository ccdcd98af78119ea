"""Calls in a text: the forms of markup that models write, forced calls as JSON, and what is a quotation.

    V3.2, V4, V4.1   <｜DSML｜tool_calls>
                     <｜DSML｜invoke name="read"><｜DSML｜parameter name="path" string="true">a.py</｜DSML｜parameter>
                     </｜DSML｜invoke>
                     </｜DSML｜tool_calls>
    without bars     <function_calls><invoke name="read">…</invoke></function_calls>
    V3               <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read
                     ```json
                     {"path": "a.py"}
                     ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    Hermes           <tool_call>{"name": "read", "arguments": {"path": "a.py"}}</tool_call>

Bars are ｜ or ‖ or |, once or twice, with blanks around. The container is tool_calls, calls, tool_use or
function_calls; an invoke with bars may stand alone. Each character is read a bounded number of times, however hostile
the text is.

A forced call: if the request forces one (`tool_choice`), DeepSeek sometimes writes it as JSON, fenced or not:

    {"name": "look_up", "input": {…}}      arguments under input, arguments or parameters
    {"function": {"name": …, "arguments": …}}
    {"path": …}                            the arguments alone, if only one tool is possible
    {"input": {…}, "result": …}            any of these with a result that the model invented, which is left out
"""

import html
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json, json_text

# The parts of markers as atoms, each of which may be the last character that has arrived.
_BAR = ("[｜‖|]", "[｜‖|]?")
_DSML = (" ?", *_BAR, " ?", *"DSML", " ?", *_BAR, " ?")
_CONTAINERS = ("tool_calls", "function_calls", "tool_use", "calls")
_NAME = r"[^\s\"<>][^\"<>\n]{0,199}"
# Tags are shorter; a longer run without an end is none.
_LONGEST_TAG = 300


def _v3(words: str) -> tuple[str, ...]:
    return ("<", *_BAR, *("[▁_ ]" if letter == " " else letter for letter in words), *_BAR, ">")


class Markers:
    """Opening markers."""

    def __init__(self, *markers: Sequence[str]) -> None:
        self.opening = re.compile("|".join(map("".join, markers)) or "(?!)")
        self._longest = max(map(len, markers), default=0)
        self._partial = re.compile("|".join(map(self._beginnings, markers)) or "(?!)")

    def partial_size(self, text: str) -> int:
        """The length of the end of a text that may be the beginning of a marker."""
        at = text.rfind("<", max(0, len(text) - self._longest))
        return len(text) - at if at >= 0 and self._partial.fullmatch(text, at) is not None else 0

    @staticmethod
    def _beginnings(atoms: Sequence[str]) -> str:
        """The pattern of everything that a marker may begin with."""
        return "".join(f"{atom}(?:" for atom in atoms[:-1]) + atoms[-1] + ")?" * (len(atoms) - 1)


_FORMS = (
    *(("<", *_DSML, *name, " ?", ">") for name in _CONTAINERS),
    ("<", *_DSML, *"invoke"),
    tuple("<function_calls>"),
    _v3("tool calls begin"),
    _v3("tool call begin"),
)
NO_MARKERS = Markers()
MARKUP = Markers(*_FORMS)
WITH_HERMES = Markers(*_FORMS, tuple("<tool_call>"))


class Block(NamedTuple):
    """The calls after an opening marker; none if it opens no block. Text after the last call is text."""

    calls: list[tuple[object, object]]
    calls_end: int
    # From here on another block may begin.
    end: int


def read_block(text: str, opened: re.Match[str]) -> Block:
    if opened[0] == "<tool_call>":
        return _read_hermes(text, opened.end())
    return (_read_v3 if "begin" in opened[0] else _read_invokes)(text, opened)


def _unclosed(text: str, at: int, calls: list[tuple[object, object]], calls_end: int) -> Block:
    """A block whose next tag is missing: cut off if the text ends here or in a tag; else it is no block."""
    rest = text[at : at + _LONGEST_TAG].lstrip()
    is_cut = not rest or (rest[0] == "<" and ">" not in rest and len(rest) < _LONGEST_TAG)
    return Block(calls, calls_end, len(text)) if is_cut else Block([], at, at)


class _Tags(NamedTuple):
    """The tags inside a container, with blanks before them."""

    invoke: re.Pattern[str]
    invoke_end: re.Pattern[str]
    parameter: re.Pattern[str]
    parameter_end: re.Pattern[str]
    container_end: re.Pattern[str]

    @classmethod
    def with_mark(cls, mark: str) -> "_Tags":
        return cls(
            re.compile(rf'\s*<{mark}invoke\s+name="({_NAME})"\s*>'),
            re.compile(rf"\s*</{mark}invoke\s*>"),
            re.compile(rf'\s*<{mark}parameter\s+name="({_NAME})"(?:\s+string="(true|false)")?\s*>'),
            re.compile(rf"</{mark}parameter\s*>"),
            re.compile(rf"\s*</{mark}(?:{'|'.join(_CONTAINERS)})\s*>"),
        )


_WITH_BARS = _Tags.with_mark("".join(_DSML))
_WITHOUT_BARS = _Tags.with_mark("")


def _read_invokes(text: str, opened: re.Match[str]) -> Block:
    """A container of invokes, or one invoke without a container, whose marker is the beginning of its tag."""
    tags = _WITH_BARS if "DSML" in opened[0] else _WITHOUT_BARS
    is_alone = opened[0].endswith("invoke")
    at = opened.start() if is_alone else opened.end()
    calls: list[tuple[object, object]] = []
    calls_end = opened.end()
    while (invoke := tags.invoke.match(text, at)) is not None:
        at, arguments = invoke.end(), dict[str, object]()
        while (parameter := tags.parameter.match(text, at)) is not None:
            closing = tags.parameter_end.search(text, parameter.end())
            if closing is None:
                return Block(calls, calls_end, len(text))
            value = text[parameter.end() : closing.start()]
            arguments[parameter[1]] = decode(value) if parameter[2] == "false" else _RawText(value)
            at = closing.end()
        closing = tags.invoke_end.match(text, at)
        if closing is None:
            return _unclosed(text, at, calls, calls_end)
        calls.append((invoke[1], arguments))
        at = calls_end = closing.end()
        if is_alone:
            return Block(calls, at, at)
    closing = tags.container_end.match(text, at) if not is_alone else None
    if closing is None:
        return _unclosed(text, max(at, opened.end()), calls, calls_end)
    return Block(calls, closing.end(), closing.end())


_V3_CALL = re.compile("\\s*" + "".join(_v3("tool call begin")))
_V3_CALL_END = re.compile("".join(_v3("tool call end")))
_V3_END = re.compile("\\s*" + "".join(_v3("tool calls end")))
_V3_SEPARATOR = "".join(_v3("tool sep"))
_V3_NAME = re.compile(rf"\s*(?:function{_V3_SEPARATOR})?({_NAME}?)(?:{_V3_SEPARATOR}|\n)")


def _read_v3(text: str, opened: re.Match[str]) -> Block:
    """The calls of V3, or one of them without a container."""
    is_alone = "calls" not in opened[0]
    at = opened.start() if is_alone else opened.end()
    calls: list[tuple[object, object]] = []
    calls_end = opened.end()
    while (begin := _V3_CALL.match(text, at)) is not None:
        closing = _V3_CALL_END.search(text, begin.end())
        if closing is None:
            return Block(calls, calls_end, len(text))
        name = _V3_NAME.match(text, begin.end(), closing.start())
        if name is None:
            return Block([], closing.end(), closing.end())
        # With a fence around the arguments, and in V3.1 without.
        arguments = text[name.end() : closing.start()].strip().removeprefix("```").removeprefix("json")
        calls.append((name[1], decode(arguments.removesuffix("```"))))
        at = calls_end = closing.end()
        if is_alone:
            return Block(calls, at, at)
    closing = _V3_END.match(text, at)
    return _unclosed(text, at, calls, calls_end) if closing is None else Block(calls, closing.end(), closing.end())


# A string also matches without its end, so that each character is read once.
_JSON_TOKEN = re.compile(r'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|[{}]', re.DOTALL)
_HERMES_OBJECT = re.compile(r"\s*(?={)")
_HERMES_END = re.compile(r"\s*</tool_call>")


def _read_hermes(text: str, at: int) -> Block:
    """One call as JSON."""
    if (begin := _HERMES_OBJECT.match(text, at)) is None:
        return Block([], at, at)
    depth, end = 0, len(text)
    for token in _JSON_TOKEN.finditer(text, begin.end()):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if not depth:
            end = token.end()
            break
    closing = _HERMES_END.match(text, end)
    if closing is None:
        return Block([], end, end)
    call = as_object(decode(text[begin.end() : end]))
    return Block([(call.get("name"), call.get("arguments"))], closing.end(), closing.end())


_TYPES: Mapping[object, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class _RawText(str):
    """An argument that came as text: a string, unless its tool declares other types and it is JSON of one of them."""


class _NotJson:
    """In place of a value that is no JSON: no type accepts it."""


def typed_call(call: tuple[object, object], tools: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """The name and the arguments of a call of a declared tool; None for anything else."""
    name, arguments = call
    if isinstance(arguments, str):
        arguments = decode(arguments)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        return None
    schema = as_object(tools[name].get("parameters"))
    if not all(required in arguments for required in as_list(schema.get("required")) if isinstance(required, str)):
        return None
    properties = as_object(schema.get("properties"))
    try:
        typed = {key: _typed(each, as_object(properties.get(key)).get("type")) for key, each in arguments.items()}
    except ValueError:
        return None
    return name, json.dumps(typed, ensure_ascii=False)


def _typed(value: object, declared: object) -> object:
    """The value in its declared type, if that is a simple one. Raises ValueError if the value has another."""
    types = declared if isinstance(declared, list) else [declared]
    is_simple = all(isinstance(each, str) and each in _TYPES for each in types)
    if isinstance(value, _RawText):
        value = decode_upstream_json(value) if is_simple and "string" not in types else str(value)
    if isinstance(value, _NotJson) or (is_simple and not any(type(value) in _TYPES[each] for each in types)):
        raise ValueError
    return value


def decode(text: str) -> object:
    try:
        return decode_upstream_json(text)
    except ValueError:
        return _NotJson()


class Quotes:
    """Whether a text ends inside a quotation of Markdown or HTML.

    Fences, backticks in a line, indented lines, block quotes, <pre>, <code>, <details> and comments. The text is read
    once, and only on demand. Doubtful text counts as a quotation: a fence that is never closed extends to the end. Used
    by the thread that reads the answer.
    """

    _BEGIN = re.compile(
        r"^[ \t>]*(?:[-*+][ \t]+|\d+[.)][ \t]+)?(?P<fence>`{3,}(?=[^`\n]*(?:\n|\Z))|~{3,})"
        r"|(?P<span>`+)|(?P<comment><!--)|<(?P<tag>details|pre|code)\b",
        re.MULTILINE | re.IGNORECASE,
    )
    # Also the lines of the same paragraph after it.
    _QUOTED_LINE = re.compile(r"^(?: {0,3}\t| {4}|[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*>)", re.MULTILINE)
    _BLANK_LINE = re.compile(r"\n[ \t\r]*\n")

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._last = "\n"
        self._is_quoted_line = False
        # How the open quotation ends, and how many of its tags are open.
        self._end: re.Pattern[str] | None = None
        self._depth = 0

    def add(self, text: str) -> None:
        self.unread.append(text)

    def is_open(self) -> bool:
        # With the character before it, which says whether a line begins here.
        text, at = self._last + "".join(self.unread), 1
        self.unread, self._last, paragraph = [], text[-1], at
        for blank in self._BLANK_LINE.finditer(text):
            self._is_quoted_line, paragraph = False, blank.end()
        while (found := (self._end or self._BEGIN).search(text, at)) is not None:
            at = found.end()
            if self._end is None:
                self._end, self._depth = self._end_of(found), 1
            else:
                self._depth += 1 if found.lastgroup == "deeper" else -1
                self._end = self._end if self._depth else None
                if found[0].endswith("\n"):
                    # The end of a fence, whose lines may be indented.
                    self._is_quoted_line, paragraph = False, max(paragraph, at)
        self._is_quoted_line = self._is_quoted_line or self._QUOTED_LINE.search(text, paragraph) is not None
        return self._end is not None or self._is_quoted_line

    @staticmethod
    def _end_of(begin: re.Match[str]) -> re.Pattern[str]:
        run = str(begin[str(begin.lastgroup)])
        match begin.lastgroup:
            case "fence":
                return re.compile(rf"^[ \t>]*{run}{run[0]}*[ \t\r]*\n", re.MULTILINE)
            case "span":
                # It ends at a blank line.
                return re.compile(rf"(?<!`){run}(?!`)|\n[ \t\r]*\n")
            case "tag":
                return re.compile(rf"<(?P<deeper>{run})\b|</{run}\b", re.IGNORECASE)
        return re.compile("-->")


# What may stand between the letters of a marker in a message: blanks, bars, line numbers, _ and ▁, tags of HTML.
_NOISE = "(?:[^A-Za-z<>]|</?[a-z][^<>]*>)*+"
_ANY_MARKER = re.compile(
    f"<{_NOISE}(?:"
    + "|".join(
        _NOISE.join(word)
        for word in (
            *(f"DSML{name.replace('_', '')}" for name in (*_CONTAINERS, "invoke")),
            *("toolcallsbegin", "toolcallbegin", "functioncalls>", "toolcall>"),
        )
    )
    + ")"
)
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|[nrtbf])")
# The number or the sign of a line, as in a diff, tags of HTML, and blanks.
_JSON_NOISE = re.compile(r"(?:\A|\n)[ \t]*(?:\d+(?:[ \t]*[→:|]|\t)|[+>|]|-(?!\d))|</?[a-z][^<>]*>|[\s\\\u200b\ufeff]")


def brings_markup(request: ChatRequest) -> bool:
    """Whether a message that the model did not write has markup of any form.

    A page, a file or a pasted text may have it, and an answer that quotes it would run what its author wrote. What
    DeepSeek found when it searched cannot be read here, so it counts as well.
    """
    has_searched = any(message.server_items is not None for message in request.messages)
    return has_searched or any(_ANY_MARKER.search(text) is not None for text in _texts(request))


def brings_json(request: ChatRequest, answer: str) -> bool:
    """Whether the object in an answer stands in a message that is not the model's own."""
    wanted = answer[answer.find("{") : answer.rfind("}") + 1]
    wanted = _JSON_NOISE.sub("", _unescape(wanted))
    return any(wanted in _JSON_NOISE.sub("", text) for text in _texts(request))


def _texts(request: ChatRequest) -> Iterator[str]:
    """The texts of all messages that are not the model's own, without escapes."""
    for message in request.messages:
        if message.role != "assistant":
            parts = message.content
            texts = [parts] if isinstance(parts, str) else [str(part.get("text") or "") for part in parts]
            yield from map(_unescape, texts)


def _unescape(text: str) -> str:
    """A text without the escapes of JSON and HTML, and without escapes of those."""
    for _ in range(3):
        before = text
        if "\\" in text:
            text = _ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or "a", 16)), text)
        text = html.unescape(text)
        if text == before:
            break
    return unicodedata.normalize("NFKC", text)


# Matches in linear time, whatever the model writes.
_FENCED = re.compile(r"\s*```[a-zA-Z]*[^\S\n]*\n(.*)```\s*\Z", re.DOTALL)
_ARGUMENTS = ("input", "arguments", "parameters")
_NAMES = ("name", "tool", "tool_name", "function")
_RESULTS = ("result", "results", "output")


def find_call(text: str, request: ChatRequest) -> tuple[str, str] | None:
    """The name and the arguments of the call that a text means; None if it means none."""
    fenced = _FENCED.match(text)
    value = decode(fenced[1] if fenced else text)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    nested = value.get("function")
    if isinstance(nested, dict):
        value = nested
    tools = {tool["function"]["name"]: tool["function"] for tool in request.tools}
    # The model knows some tools by other names.
    own_names = {name: name for name in tools} | {sent: name for name, sent in request.sent_names.items()}
    # The tool that the request forces or, if it forces any, the only one it has.
    only = next(iter(tools)) if len(request.tools) == 1 else None
    if isinstance(request.tool_choice, Mapping):
        only = str(request.tool_choice["function"]["name"])
    name_field = next((name for name in _NAMES if isinstance(value.get(name), str) and value[name] in own_names), None)
    name = only if name_field is None else own_names[value[name_field]]
    if name is None or only not in (None, name):
        return None
    arguments = _arguments(value, tools.get(name, {}), name_field)
    return None if arguments is None else (name, arguments)


def _arguments(value: dict[str, Any], function: Mapping[str, Any], name_field: str | None) -> str | None:
    """The arguments in an object: in one of its fields, or all but the name; None if it is no call of this tool."""
    # The client wrote the schema and nothing has checked it.
    schema = as_object(function.get("parameters"))
    declared = as_object(schema.get("properties"))
    required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
    value = _without_results(value, declared)
    rest = {key: inner for key, inner in value.items() if key != name_field}
    fields = [name for name in _ARGUMENTS if name in value and _is_wrapper(name, value, declared, name_field)]
    # An empty field means no arguments.
    contents = ("{}" if value[field] in (None, "") else _object(value[field]) for field in fields)
    nested = next(filter(None, contents), None)
    names_other_tool = (
        nested is not None and name_field is None and any(isinstance(value.get(name), str) for name in _NAMES)
    )
    # The tool itself may have parameters with these names.
    for arguments in (None if names_other_tool else nested, json_text(rest), json_text(value)):
        given = None if arguments is None else decode_upstream_json(arguments)
        if given and required <= given.keys() <= declared.keys():
            return arguments
    if nested is None and any(_is_broken(value, field, declared, name_field) for field in fields):
        return None
    is_no_call = name_field is None and declared and rest and declared.keys().isdisjoint(rest)
    if names_other_tool or (nested is None and is_no_call):
        return None
    return nested or json_text(rest)


def _without_results(value: dict[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """An object without a result beside a call or arguments; a tool without parameters may have any arguments."""
    left = {key: inner for key, inner in value.items() if key not in _RESULTS or key in declared}
    is_call = not left.keys().isdisjoint({*_ARGUMENTS, *declared})
    return left if is_call else value


def _is_wrapper(field: str, value: dict[str, Any], declared: Mapping[str, Any], name_field: str | None) -> bool:
    """Whether the other fields belong to a call, or are no arguments of the tool."""
    others = value.keys() - {field, *_NAMES, "type", "id"}
    return not others or (name_field is not None and bool(declared) and declared.keys().isdisjoint({field, *others}))


def _is_broken(value: dict[str, Any], field: str, declared: Mapping[str, Any], name_field: str | None) -> bool:
    """Whether a field holds arguments that cannot be read; a call with other arguments would be invented."""
    content = value[field]
    is_half = isinstance(content, str) and content.lstrip()[:1] in ("{", "[")
    # The field may itself be an argument if the tool declares no parameters.
    is_field_of_a_call = bool(declared) or is_half or (name_field is not None and field != "input")
    return field not in declared and is_field_of_a_call


def _object(arguments: Any) -> str | None:
    """Arguments as JSON text, if they are an object or the JSON of one."""
    if isinstance(arguments, dict):
        return json_text(arguments)
    return arguments if isinstance(arguments, str) and isinstance(decode(arguments), dict) else None
