"""Escape reasoning as markdown that stays inside its <details> block, and unescape it byte for byte.

Clients render the block as markdown with HTML in it. There reasoning may leave a fence open, begin a comment, or have
`Vec<String>`: the answer after it would vanish into the fence or the comment, and the type would be an invisible tag.
So outside code three things get a backslash, which the renderer removes:

    <   before a letter, /, ! or ?          begins HTML
    &   as in &lt; or &#60;                 is a character reference
    :   after ], in a paragraph that        defines a link for the answer as well
        begins with [

Backslashes before one of these are doubled: k of them become 2k + 1, so that unescaping is exact. Inside code
nothing changes, because a backslash would be visible there; and an address that becomes a link would include the
backslash, so a < right after one is written as &lt; instead. The rules of CommonMark decide, line by line, what is
code; code spans count within one line only. Uncertain code counts as text: then a backslash is visible in code, and
nothing worse. A fence that is open at the end is closed by one which is longer by one character.
"""

import re
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import MOST_PIECES, join_small_pieces

# A code span that is longer counts as text.
_LONGEST_SPAN = 500
# Nested lists and quotes; deeper ones count as text. Each takes time that grows with the line.
_DEEPEST = 100

# These begin with a set of characters: a search for one is up to ten times as fast as for alternatives.
_LINE_END = re.compile(r"[\r\n](?:(?<=\r)\n)?")
_QUOTE = re.compile(r" {0,3}> ?")
_ITEM = re.compile(r" {0,3}(?:[-+*]|([0-9]{1,9})[.)])(?= |\Z)")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_RULE = re.compile(r" {0,3}([-*_])(?: *\1){2,} *\Z")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |\Z)")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+) *\Z")
_DEFINITION = re.compile(r"[\s>*+.)0-9-]*\[")
# The tokens of a line of text, and those that may have to be escaped.
_TOKEN = re.compile(r"[`<&:](?:(?<=`)`*|(?<=[<&])|(?<=[\]\\]:))")
_SIGN = re.compile(r"[<&:](?:(?<=[<&])|(?<=[\]\\]:))")
_TAG = re.compile(r"<[A-Za-z/!?]")
_REFERENCE = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{0,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
# Signs that may still become one of these.
_UNDECIDED = re.compile(r"<\Z|&(?:[A-Za-z][A-Za-z0-9]{0,31}|#(?:[0-9]{0,7}|[xX][0-9A-Fa-f]{0,6}))?\Z")
_ADDRESS = re.compile(r"://|www\.", re.IGNORECASE)
_LESS_THAN = "&lt;"
_IN_BLOCK_QUOTE = 0


class _LineContext(NamedTuple):
    """The context of a line of markdown: its lists and quotes, and whether it is in a paragraph or a fence."""

    # List items by how far their content is indented; block quotes as _IN_BLOCK_QUOTE.
    containers: tuple[int, ...] = ()
    is_paragraph: bool = False
    # Whether the paragraph begins with [, as link definitions do.
    may_define: bool = False
    # The characters of the open fence.
    fence: str = ""
    # Whether the last line is code, and whether it continued a paragraph.
    is_code: bool = False
    continues: bool = False

    @property
    def open_fence(self) -> str:
        """The fence that is open, unless the end of a list or quote would close it."""
        return "" if self.containers else self.fence

    def after(self, line: str) -> "_LineContext":
        """The context after a line, which has no line end."""
        if self.open_fence:
            return _LineContext(fence="" if _closes(self.fence, line) else self.fence, is_code=True)
        if self.is_paragraph and not self.containers and line[:1].isalpha():
            return self if self.continues else self._replace(continues=True)
        rest = line.expandtabs(4)
        matched = 0
        for container in self.containers:
            inside = _inside(container, rest)
            if inside is None:
                break
            rest = inside
            matched += 1
        is_inside = matched == len(self.containers)
        if self.fence and is_inside:
            return self._replace(fence="" if _closes(self.fence, rest) else self.fence, is_code=True)
        return self._open_containers(rest, self.containers[:matched], is_inside)

    def _open_containers(self, rest: str, containers: tuple[int, ...], is_inside: bool) -> "_LineContext":
        """The context after the rest of a line without the markers of the lists and quotes that it continues."""
        begins = False
        while len(containers) < _DEEPEST and rest.strip(" ") and _indent(rest) < 4:
            quote = _QUOTE.match(rest)
            width, container = (quote.end(), _IN_BLOCK_QUOTE) if quote else (0, 0)
            if quote is None:
                width = container = _item_width(rest, self.is_paragraph and is_inside and not begins)
            if not width:
                break
            containers, rest, begins = (*containers, container), rest[width:], True
        if not rest.strip(" "):
            return _LineContext(containers)
        continues_paragraph = self.is_paragraph and not begins
        if _indent(rest) >= 4:
            return self._replace(continues=True) if continues_paragraph else _LineContext(containers, is_code=True)
        if fence := _FENCE.match(rest):
            return _LineContext(containers, fence=fence[1])
        if _HEADING.match(rest) or _RULE.match(rest) or (continues_paragraph and is_inside and _UNDERLINE.match(rest)):
            return _LineContext(containers)
        if continues_paragraph:
            return self._replace(continues=True)
        return _LineContext(containers, is_paragraph=True, may_define=rest.lstrip(" ").startswith("["))


def _inside(container: int, line: str) -> str | None:
    """A line without the marker of its list item or quote; None if it has none."""
    if container == _IN_BLOCK_QUOTE:
        quote = _QUOTE.match(line)
        return line[quote.end() :] if quote else None
    if not line.strip(" "):
        return ""
    return line[container:] if _indent(line) >= container else None


def _item_width(line: str, is_in_paragraph: bool) -> int:
    """The indent of the content of a list item that a line begins; 0 when it begins none."""
    item = _ITEM.match(line)
    if item is None or _RULE.match(line):
        return 0
    content = line[item.end() :]
    spaces = _indent(content)
    if is_in_paragraph and (spaces == len(content) or item[1] not in (None, "1")):
        return 0
    return item.end() + (1 if spaces > 4 or spaces == len(content) else spaces)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _closes(fence: str, line: str) -> bool:
    stripped = line.strip(" \t")
    return len(stripped) >= len(fence) and not stripped.strip(fence[0]) and _indent(line.expandtabs(4)) < 4


class Escaper:
    """Escapes or unescapes one reasoning, piece by piece. Used by one thread."""

    def __init__(self, *, unescapes: bool = False) -> None:
        self._unescapes = unescapes
        self._context = _LineContext()
        # Whether all code spans of the paragraph so far are certain.
        self._is_certain = True
        # The scanned part of the current line, and its context once a token needed it.
        self._line: list[str] = []
        self._line_context: _LineContext | None = None
        self._is_in_address = False
        # The part that is not scanned yet, and how much of it was returned unchanged.
        self._rest: list[str] = []
        self._written = 0
        # Whether a part is held back, because the next characters decide about it.
        self._is_holding = False
        # Whether the last line that is not empty closes a fence as `escape` does it.
        self.is_ambiguous = False
        self._is_unscanned = True

    def write_plain(self, text: str) -> bool:
        """Write a piece if it stays unchanged. True if it did."""
        if "<" in text or "&" in text or "]:" in text or "\\:" in text or self._is_holding:
            return False
        if text[0] == ":" and self._rest and self._rest[-1].endswith(("]", "\\")):
            # It may end a label.
            return False
        self._rest.append(text)
        if len(self._rest) > MOST_PIECES:
            join_small_pieces(self._rest)
        self._written += len(text)
        return True

    def write(self, text: str) -> str:
        return text if self.write_plain(text) else self.feed(text)

    def end(self) -> str:
        """The rest, and the end of an open fence."""
        if self._is_unscanned:
            text = "".join(self._rest)
            if "```" not in text and "~~~" not in text:
                # All of it was returned unchanged, as most reasoning is.
                return ""
        written = self.feed("", is_end=True)
        if fence := self._context.open_fence:
            return f"{written}\n{fence[0] * (len(fence) + 1)}"
        return written + "\n" if self.is_ambiguous else written

    def feed(self, text: str, *, is_end: bool = False) -> str:
        """The result for all text that can be decided by now."""
        self._is_unscanned = False
        whole = "".join([*self._rest, text])
        out: list[str] = []
        at = 0
        while True:
            line_end = _LINE_END.search(whole, at)
            if line_end and line_end[0] == "\r" and line_end.end() == len(whole) and not is_end:
                # It may be half of a line end.
                line_end = None
            end = line_end.start() if line_end else len(whole)
            at, held = self._scan(whole, at, end, out, is_whole=line_end is not None or is_end)
            if line_end is None:
                break
            self._end_line(whole[at:end])
            at = line_end.end()
        out.append(whole[self._written : held])
        self._is_holding = held < len(whole)
        if is_end:
            self._end_line(whole[at:])
        self._rest, self._written = [whole[at:]], held - at
        return "".join(out)

    def _scan(self, whole: str, at: int, end: int, out: list[str], *, is_whole: bool) -> tuple[int, int]:
        """Scan a line: up to where it is decided, and up to where it can be returned."""
        while token := _TOKEN.search(whole, at, end):
            is_span, sign = token[0][0] == "`", token.start()
            if not is_whole and token.end() == end and is_span:
                # There may be more backticks.
                return at, end
            if not is_whole and _UNDECIDED.match(whole, sign):
                return at, sign
            context = self._line_context or self._enter_line("".join([*self._line, whole[at:end]]))
            if context.is_code:
                # Except the first half of a line end.
                decided_end = end if is_whole or whole[end - 1] != "\r" else end - 1
                self._line.append(whole[at:decided_end])
                return decided_end, end
            before = whole[at:sign]
            self._note_address(before)
            backslashes = len(before) - len(before.rstrip("\\"))
            if not is_span:
                counts = context.may_define and before[: -backslashes or None].endswith("]")
                if token[0] != ":":
                    counts = bool((_TAG if token[0] == "<" else _REFERENCE).match(whole, sign))
                decided_end = self._replace_sign(whole, sign, backslashes, out) if counts else sign + 1
            elif (decided_end := self._span_end(whole, token, end, backslashes, is_whole=is_whole)) < 0:
                later = _SIGN.search(whole, token.end(), end)
                return at, later.start() if later else end
            self._line.append(whole[at:decided_end])
            at = decided_end
        return at, end

    def _note_address(self, text: str) -> None:
        """Record whether a text ends with an address."""
        word = "" if text[-1:].isspace() else text.rsplit(maxsplit=1)[-1] if text else ""
        if _ADDRESS.search(word):
            self._is_in_address = True
        elif len(word) < len(text):
            self._is_in_address = False

    def _enter_line(self, line: str) -> _LineContext:
        context = self._context.after(line)
        self._is_certain = self._is_certain or not context.continues
        if _DEFINITION.match(line):
            # Some renderers begin a paragraph or list item where others continue a paragraph or table.
            context = context._replace(may_define=True)
        if not context.is_code and line.lstrip(" \t").startswith("```"):
            # A fence or not, by the rest of the line.
            self._is_certain = False
            context = context._replace(may_define=self._context.may_define)
        self._line_context = context
        return context

    def _span_end(self, whole: str, token: re.Match[str], end: int, backslashes: int, *, is_whole: bool) -> int:
        """The end of a code span, or of backticks that begin none; -1 when that is undecided."""
        run, begin = token[0], token.end()
        if not self._is_certain or backslashes % 2 or self._is_in_address:
            self._is_certain = False
            return begin
        stop = min(end, begin + _LONGEST_SPAN + len(run))
        closing = re.compile(f"(?<!`){run}(?!`)").search(whole, begin, stop)
        if closing and (closing.end() < end or is_whole):
            if "|" not in whole[begin : closing.start()]:
                return closing.end()
        elif not is_whole and end <= begin + _LONGEST_SPAN + len(run):
            return -1
        # Cells of a table end at |, also in the middle of a code span.
        self._is_certain = False
        return begin

    def _replace_sign(self, whole: str, at: int, count: int, out: list[str]) -> int:
        """Escape or unescape a sign and the `count` backslashes before it. Returns the end of the sign."""
        is_reference = self._is_in_address and whole.startswith(_LESS_THAN, at)
        if not self._unescapes and whole[at] == "<" and self._is_in_address:
            start, end, by = at, at + 1, "\\" * count + _LESS_THAN
        elif not self._unescapes:
            start, end, by = at, at, "\\" * (count + 1)
        elif count % 2:
            start, end, by = at - count, at, "\\" * (count // 2)
        elif is_reference:
            start, end, by = at - count, at + len(_LESS_THAN), "\\" * (count // 2) + "<"
        else:
            return at + 1
        out.append(whole[self._written : start] + by)
        self._written = end
        return max(end, at + 1)

    def _end_line(self, rest: str) -> None:
        line = "".join([*self._line, rest])
        fence, is_known = self._context.open_fence, self._line_context is not None
        self._context, self._line, self._line_context, self._is_in_address = self._context.after(line), [], None, False
        self._is_certain = self._is_certain or not (is_known or self._context.continues)
        if line:
            self.is_ambiguous = bool(fence) and line == fence[0] * (len(fence) + 1)


def escape_open(text: str) -> str:
    """A reasoning that is not complete as the inside of a block: no fence is closed."""
    return Escaper().feed(text, is_end=True)


def unescape_open(text: str) -> str:
    """The inverse of `escape_open`."""
    return Escaper(unescapes=True).feed(text, is_end=True)


def find_outside(line: str, text: str, start: int) -> int:
    """The index of a line that begins with `line`, its break included, outside all fences from `start` on; or -1."""
    context, at = _LineContext(), start
    while (stop := text.find(line, at)) >= 0:
        inside = text[at:stop]
        if context.open_fence or "```" in inside or "~~~" in inside:
            for line_inside in _LINE_END.split(inside):
                context = context.after(line_inside)
        if not context.open_fence:
            return stop
        at = stop + 1
    return -1


# Whatever `escape` adds contains one of these.
_ADDED = ("\\", _LESS_THAN, "```", "~~~")


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    if not [added for added in _ADDED if added in text]:
        # Nearly all thinking: 800 characters take 10 µs line by line.
        return text
    escaper = Escaper(unescapes=True)
    result = escaper.feed(text, is_end=True)
    if escaper.is_ambiguous:
        return result[:-1] if result.endswith("\n") else result[: result.rindex("\n")]
    return result
