"""A configuration file as text, and back to the same bytes: UTF-8 with or without a mark in front, any line ends.

An editor gets text and returns text. It raises Unreadable for what it cannot parse or must not touch, and ChangedLines
when what setup wrote is no longer as it wrote it; both say why in words for the user.
"""

import codecs
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Json = Any
# A recorded change of a JSON file, for the way back.
Record = list[dict[str, Json]]


class Unreadable(Exception):
    """A file that setup cannot edit."""


class ChangedLines(Exception):
    """Lines of setup that the user has changed since."""


class EditResult(NamedTuple):
    """The new text, and what `revert` has to know beside it."""

    text: str
    record: Record


class Editor(Protocol):
    """One edit of one file. `revert` takes the edit out of a text, which may have changed elsewhere meanwhile."""

    def apply(self, text: str) -> EditResult: ...

    def revert(self, text: str, record: Record) -> str: ...

    def by_hand(self) -> str:
        """The lines for a user who adds them."""


class Document(NamedTuple):
    text: str
    has_mark: bool

    def encode(self, text: str) -> bytes:
        """Another text in the form of this document."""
        return (codecs.BOM_UTF8 if self.has_mark else b"") + text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Document:
    has_mark = data.startswith(codecs.BOM_UTF8)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise Unreadable("it has zero bytes in it, so it is no text")
    return Document(text, has_mark)


def split_lines(text: str) -> list[str]:
    """The lines with their ends. Only a line feed ends one: others of `splitlines` may stand inside a value."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def line_end(text: str) -> str:
    """The line end of the first line."""
    return "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"


@dataclass(frozen=True)
class WholeFile:
    """An edit of a file that is setup's alone, such as a catalogue: its whole text."""

    text: str

    def apply(self, text: str) -> EditResult:
        return EditResult(self.text, [])

    def revert(self, text: str, record: Record) -> str:
        """Nothing is left of a file that is ours; what others made of it meanwhile is theirs."""
        if text not in ("", self.text):
            raise ChangedLines("it is no longer as setup wrote it")
        return ""

    def by_hand(self) -> str:
        return self.text
