"""Finding: the result of one check, with the remedy if something is wrong; findings as a screen of text, or as JSON."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TextIO

from deepseek_cursor_proxy import __version__


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """`name` is that of the check; `remedy` is empty where there is nothing to do."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def good(name: str, text: str) -> Finding:
    return Finding(name, Level.GOOD, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(name, Level.WARNING, text, remedy)


def failed(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, Level.FAILED, text, remedy)


def skipped(name: str, text: str, remedy: str = "") -> Finding:
    """There was nothing to check; `remedy` says how it can be checked."""
    return Finding(name, Level.SKIPPED, text, remedy)


# As text …

_SIGNS = {Level.GOOD: "✓", Level.WARNING: "!", Level.FAILED: "✗", Level.SKIPPED: "·"}
_ASCII_SIGNS = {Level.GOOD: "+", Level.WARNING: "!", Level.FAILED: "x", Level.SKIPPED: "-"}
_ARROW, _ASCII_ARROW = "→", "->"
_COLOURS = {Level.GOOD: "\x1b[32m", Level.WARNING: "\x1b[33m", Level.FAILED: "\x1b[31m", Level.SKIPPED: "\x1b[2m"}
_PLAIN = "\x1b[0m"
_WORDS = {Level.GOOD: "fine", Level.WARNING: "warnings", Level.FAILED: "failed", Level.SKIPPED: "not checked"}
_NAME_WIDTH = 10
_LEAST_WIDTH = 60


class Style(NamedTuple):
    """What the reader's terminal can show; `width` 0 wraps nothing."""

    is_ascii: bool = False
    is_colourful: bool = False
    width: int = 0


def can_show_signs(out: TextIO) -> bool:
    """Whether the encoding of a stream has the signs; consoles of Windows and the C locale may not."""
    try:
        "".join((*_SIGNS.values(), _ARROW)).encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def lines(finding: Finding, style: Style) -> Iterator[str]:
    """A finding, and below it the remedy."""
    sign = (_ASCII_SIGNS if style.is_ascii else _SIGNS)[finding.level]
    arrow = _ASCII_ARROW if style.is_ascii else _ARROW
    first = f"{_coloured(sign, finding.level, style)} {finding.name:<{_NAME_WIDTH}} "
    indent = " " * (3 + max(_NAME_WIDTH, len(finding.name)))
    text, remedy = _to_ascii(finding.text, style), _to_ascii(finding.remedy, style)
    wrapped = _wrap(text, style.width - len(indent))
    yield first + wrapped[0]
    yield from (indent + line for line in wrapped[1:])
    if remedy:
        begin, *rest = _wrap(remedy, style.width - len(indent) - len(arrow) - 1)
        yield f"{indent}{arrow} {begin}"
        yield from (" " * (len(indent) + len(arrow) + 1) + line for line in rest)


def _coloured(text: str, level: Level, style: Style) -> str:
    return f"{_COLOURS[level]}{text}{_PLAIN}" if style.is_colourful else text


def _to_ascii(text: str, style: Style) -> str:
    return text.replace("…", "...").encode("ascii", "backslashreplace").decode() if style.is_ascii else text


def _wrap(text: str, width: int) -> list[str]:
    if width < _LEAST_WIDTH:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def summary(findings: Iterable[Finding]) -> str:
    counts = Counter(each.level for each in findings)
    return ", ".join(f"{counts[level]} {word}" for level, word in _WORDS.items() if counts[level]) + "."


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(each.level is not Level.FAILED for each in findings)


def as_json(findings: Sequence[Finding], *, is_live: bool, seconds: float) -> dict[str, Any]:
    checks = [
        {"name": each.name, "level": each.level.value, "text": each.text, "remedy": each.remedy or None}
        for each in findings
    ]
    return {
        "version": __version__,
        "ok": is_healthy(findings),
        "live": is_live,
        "seconds": round(seconds, 3),
        "checks": checks,
    }
