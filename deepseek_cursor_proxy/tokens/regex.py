r"""Splitter cuts a text by a regular expression of a tokenizer file, translated for Python's `re`.

Tokenizer files use Oniguruma's syntax: `\p{L}` is any letter, `\s` is Unicode's white space. Python has no `\p`, so a
class is spelled out as ranges of characters from `unicodedata`. Python's `\s` has four more control characters, so it
is spelled out too. Other syntax passes only if it is known to mean the same in both; everything else is refused.

The characters of a class depend on the version of Unicode: 14.0 in Python 3.11, 15.0 in 3.12, 15.1 in 3.13, 16.0 in
3.14. An older Python may split newer characters differently: rare scripts, rare Chinese characters, recent emoji.
"""

import re
import unicodedata
from functools import cache
from itertools import groupby

# Oniguruma's \s, which is Unicode's White_Space.
_SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Beyond are only unassigned characters, those of private use, and a block of marks.
_PLANES = range(0x40000)
_MORE_MARKS = range(0xE0000, 0xE0200)

_ESCAPES = frozenset("rntfv0\\.^$*+?{}[]()|/-'\"#&~<>=!:, ")
# Plain text, an escape, or one of the constructs that are translated or refused.
_PIECE = re.compile(
    r"""\\(?:p\{(?P<name>\w+)\} | u(?P<code>[0-9A-Fa-f]{4}) | (?P<escaped>.))
    | (?P<opening>\[\^?) | (?P<closing>\]) | (?P<unknown>&& | \(\?[^:=!]) | [^\\\[\](&]+ | .""",
    re.DOTALL | re.VERBOSE,
)


class UnsupportedTokenizer(ValueError):
    """Names what is not supported, for the end of a sentence that names the file."""


class Splitter:
    """Cuts a text into matches and what lies between, by the smallest of three patterns: beyond U+FFFF `re` is slow."""

    def __init__(self, pattern: str) -> None:
        self._ascii, self._basic, self._full = (_compile(pattern, last) for last in (0x7F, 0xFFFF, 0x10FFFF))

    def pieces(self, text: str) -> list[str]:
        pattern = self._ascii if text.isascii() else self._basic if _is_basic(text) else self._full
        found = pattern.findall(text)
        if sum(map(len, found)) == len(text):
            return found
        cut: list[str] = []
        end = 0
        for match in pattern.finditer(text):
            cut += (text[end : match.start()], match[0])
            end = match.end()
        return [piece for piece in (*cut, text[end:]) if piece]


def _is_basic(text: str) -> bool:
    """Whether no character takes two units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text)


def _compile(pattern: str, last: int) -> re.Pattern[str]:
    try:
        found = re.compile(_translate(pattern, last))
    except re.error as error:
        raise UnsupportedTokenizer(f"the pattern {pattern!r} ({error})") from None
    if found.groups or found.fullmatch(""):
        raise UnsupportedTokenizer(f"the pattern {pattern!r} (it has groups, or matches nothing at all)")
    return found


def _translate(pattern: str, last: int) -> str:
    """The pattern for texts with no character beyond `last`."""
    written: list[str] = []
    is_in_class = False
    for found in _PIECE.finditer(pattern):
        if found["unknown"] or (found["opening"] and is_in_class):
            raise UnsupportedTokenizer(f"{found[0]!r} in the pattern {pattern!r}")
        if found["name"]:
            written.append(_spell(_category(found["name"], last), is_in_class))
        elif found["escaped"]:
            written.append(_escape(found["escaped"], is_in_class, pattern))
        else:
            is_in_class = bool(found["opening"]) or (is_in_class and not found["closing"])
            written.append(found[0])
    return "".join(written)


def _escape(letter: str, is_in_class: bool, pattern: str) -> str:
    if letter == "s":
        return _spell(_SPACES, is_in_class)
    if letter == "S" and not is_in_class:
        return f"[^{_SPACES}]"
    if letter not in _ESCAPES:
        raise UnsupportedTokenizer(f"'\\{letter}' in the pattern {pattern!r}")
    return f"\\{letter}" if letter.isalnum() else re.escape(letter)


def _spell(ranges: str, is_in_class: bool) -> str:
    return ranges if is_in_class else f"[{ranges}]"


def _category(name: str, last: int) -> str:
    """The characters of a general category such as L or Lu up to `last`, written as inside a class."""
    runs = _runs(name)
    if not runs:
        raise UnsupportedTokenizer(f"the class \\p{{{name}}}")
    found = "".join(f"{_literal(run[0])}-{_literal(min(run[-1], last))}" for run in runs if run[0] <= last)
    # A class must not be empty, so it gets a character that no such text has.
    return found or chr(last + 1)


@cache
def _runs(name: str) -> tuple[range, ...]:
    found = []
    for codes in (_PLANES, _MORE_MARKS):
        for is_in, run in groupby(codes, lambda code: unicodedata.category(chr(code)).startswith(name)):
            first, *others = run
            if is_in:
                found.append(range(first, first + len(others) + 1))
    return tuple(found)


def _literal(code: int) -> str:
    # A literal character compiles faster than an escape; ASCII might have a meaning of its own.
    return f"\\x{code:02x}" if code < 0x80 else chr(code)
