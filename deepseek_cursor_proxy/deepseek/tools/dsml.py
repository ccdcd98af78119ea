"""The markup in which DeepSeek's models write calls, read piece by piece where a server handed it on as text.

    V3.2, V4, V4.1   <｜DSML｜tool_calls>
                     <｜DSML｜invoke name="read"><｜DSML｜parameter name="path" string="true">a.py</｜DSML｜parameter>
                     </｜DSML｜invoke>
                     </｜DSML｜tool_calls>
    without bars     <function_calls><invoke name="read">…</invoke></function_calls>
    V3               <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read
                     ```json
                     {"path": "a.py"}
                     ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Bars are written as ｜ or ‖ or |, once or twice, with blanks around; the container is tool_calls, calls, tool_use or
function_calls; an invoke with bars may stand alone. A block stops at the first character that rules its form out. This
module knows no tools: `call_forms.read_call` decides whether a call is one.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.deepseek.tools.call_forms import RawText, State, decode

# As atoms, each of which may be the last character that has arrived of a marker.
_BAR = ("[｜‖|]", "[｜‖|]?")
_DSML = (" ?", *_BAR, " ?", *"DSML", " ?", *_BAR, " ?")
_CONTAINERS = ("tool_calls", "function_calls", "tool_use", "calls")
_NAME = r"[^\s\"<>][^\"<>\n]{0,199}"
# Tags are shorter; a longer run without an end is none.
_LONGEST_TAG = 300


class _MarkupBlock:
    """What follows an opening marker. A subclass reads one part at a time."""

    def __init__(self, marker: str) -> None:
        self.state = State.OPEN
        self.calls: list[tuple[str, object]] = []
        # How many of the characters that were read follow the last whole call.
        self.tail = 0
        # What was not understood yet, from there on.
        self._text, self._at = "", 0
        # How much of it is the marker, as long as that is the beginning of a tag.
        self._marker_size = 0
        # The text of a parameter or call whose closing tag has not come.
        self._value: list[str] = []

    def feed(self, text: str, at: int) -> int:
        self._text, self._at = self._text[self._at :] + text[at:], 0
        self.tail += len(text) - at
        while self.state is State.OPEN and self._read_part():
            pass
        if self.state is not State.CLOSED:
            return len(text)
        left = len(self._text) - self._at
        self.tail -= left
        return len(text) - left

    @property
    def unread(self) -> str:
        return self._text[max(self._at, self._marker_size) :]

    def values(self) -> Sequence[object]:
        return [{"name": name, "arguments": arguments} for name, arguments in self.calls]

    def _read_part(self) -> bool:
        """Read the next part. True if it had arrived."""
        raise AssertionError

    def _take(self, tag: re.Pattern[str]) -> re.Match[str] | None:
        """Take this tag, if it is what comes next after blanks."""
        found = tag.match(self._text, self._at)
        if found is not None:
            self._at, self._marker_size = found.end(), 0
        return found

    def _await_tag(self) -> bool:
        """None of the tags has come: the next one may have begun, or this is no block."""
        rest = self._text[self._at : self._at + _LONGEST_TAG].lstrip()
        if rest and (rest[0] != "<" or ">" in rest or len(rest) == _LONGEST_TAG):
            self.state = State.BROKEN
        return False

    def _take_until(self, tag: re.Pattern[str]) -> str | None:
        """The text before a closing tag; None as long as that has not come."""
        found = tag.search(self._text, self._at)
        if found is None:
            # A closing tag may have begun.
            cut = self._text.rfind("<", max(self._at, len(self._text) - _LONGEST_TAG))
            cut = cut if cut >= 0 else len(self._text)
            self._value.append(self._text[self._at : cut])
            self._at = cut
            return None
        value = "".join(self._value) + self._text[self._at : found.start()]
        self._value, self._at = [], found.end()
        return value

    def _add_call(self, name: str, arguments: object) -> None:
        self.calls.append((name, arguments))
        self.tail = len(self._text) - self._at

    def _close(self) -> None:
        self.state = State.CLOSED if self.calls else State.BROKEN


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


class _InvokeBlock(_MarkupBlock):
    """A container of invokes, or one invoke without a container."""

    def __init__(self, marker: str) -> None:
        super().__init__(marker)
        self._tags = _WITH_BARS if "DSML" in marker else _WITHOUT_BARS
        self._is_alone = marker.endswith("invoke")
        # The marker of an invoke is the beginning of its tag.
        self._text = marker if self._is_alone else ""
        self._marker_size = len(self._text)
        self._name: str | None = None
        self._arguments: dict[str, object] = {}
        self._parameter: re.Match[str] | None = None

    def _read_part(self) -> bool:
        tags = self._tags
        if self._parameter is not None:
            return self._read_parameter(self._parameter)
        if self._name is None:
            if (found := self._take(tags.invoke)) is not None:
                self._name, self._arguments = found[1], {}
                return True
            if not self._is_alone and self._take(tags.container_end) is not None:
                self._close()
                return True
        elif (found := self._take(tags.parameter)) is not None:
            self._parameter = found
            return True
        elif self._take(tags.invoke_end) is not None:
            self._add_call(self._name, self._arguments)
            self._name = None
            if self._is_alone:
                self._close()
            return True
        return self._await_tag()

    def _read_parameter(self, tag: re.Match[str]) -> bool:
        text = self._take_until(self._tags.parameter_end)
        if text is None:
            return False
        # No value is JSON null, or text that is not JSON: `read_call` accepts neither where another is declared.
        self._arguments[tag[1]] = decode(text) if tag[2] == "false" else RawText(text)
        if tag[2] == "false" and self._arguments[tag[1]] is None and text.strip() != "null":
            self.state = State.BROKEN
        self._parameter = None
        return True


def _v3(words: str) -> tuple[str, ...]:
    return ("<", *_BAR, *("[▁_ ]" if letter == " " else letter for letter in words), *_BAR, ">")


_V3_SEPARATOR = "".join(_v3("tool sep"))


class _V3Block(_MarkupBlock):
    """The calls of V3, or one of them without a container."""

    _BEGIN = re.compile("\\s*" + "".join(_v3("tool call begin")))
    _END = re.compile("".join(_v3("tool call end")))
    _CONTAINER_END = re.compile("\\s*" + "".join(_v3("tool calls end")))
    # With a fence around the arguments, and in V3.1 without.
    _CALL = re.compile(
        rf"\s*(?:function{_V3_SEPARATOR})?({_NAME}?)(?:{_V3_SEPARATOR}|\n)"
        r"\s*(?:```(?:json)?\s)?(.*?)(?:```)?\s*",
        re.DOTALL,
    )

    def __init__(self, marker: str) -> None:
        super().__init__(marker)
        self._is_alone = self._is_in_call = self._BEGIN.fullmatch(marker) is not None

    def _read_part(self) -> bool:
        if self._is_in_call:
            return self._read_call()
        if self._take(self._BEGIN) is not None:
            self._is_in_call = True
            return True
        if self._take(self._CONTAINER_END) is not None:
            self._close()
            return True
        return self._await_tag()

    def _read_call(self) -> bool:
        text = self._take_until(self._END)
        if text is None:
            return False
        call = self._CALL.fullmatch(text)
        if call is None:
            self.state = State.BROKEN
            return False
        self._add_call(call[1], decode(call[2]))
        self._is_in_call = False
        if self._is_alone:
            self._close()
        return True


# The opening markers, as atoms, and what reads the block after each.
_MARKERS = (
    *(("<", *_DSML, *name, " ?", ">") for name in _CONTAINERS),
    ("<", *_DSML, *"invoke"),
    tuple("<function_calls>"),
    _v3("tool calls begin"),
    _v3("tool call begin"),
)
OPENING = "|".join("".join(atoms) for atoms in _MARKERS)


def beginnings(atoms: Sequence[str]) -> str:
    """The pattern of everything that a marker may begin with."""
    pattern = atoms[-1]
    for atom in reversed(atoms[:-1]):
        pattern = f"{atom}(?:{pattern})?"
    return pattern


PARTIAL = "|".join(map(beginnings, _MARKERS))
LONGEST_MARKER = max(map(len, _MARKERS))


def open_block(marker: str) -> _MarkupBlock:
    return (_V3Block if "begin" in marker else _InvokeBlock)(marker)
