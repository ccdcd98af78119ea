"""Server-Sent Events: bytes into events by the WHATWG rules, and our own events into bytes.

The parser looks at every byte once, so a line of any length may come in pieces of any size, and decodes whole lines
only, so a character may be cut in two. At the end of a stream an event without its blank line is dropped, by the rules.
The writer puts each text on one line: upstream's text reaches a client as JSON inside `data` or as a comment, never as
a line of its own. This file knows neither HTTP nor JSON.
"""

from typing import NamedTuple

DONE = b"data: [DONE]\n\n"

_BOM = b"\xef\xbb\xbf"
# C0, DEL and C1, which terminals take for commands, and all that str.splitlines in a client takes for a line end.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029])
# A line takes more memory than its text: millions of short ones would pass any limit of bytes.
_MOST_LINES = 100_000


class Event(NamedTuple):
    data: str
    name: str = ""


class Comment(NamedTuple):
    """A comment, colon included, or a line with an unknown field; free of control characters and never empty."""

    line: str


class EventTooLarge(ValueError):
    """An event, or a line of it, grew beyond the limit before it ended."""


class Parser:
    """Parses one stream. Used by the one thread that reads it."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._bytes_left = limit  # of the current event
        self._line = bytearray()
        self._data: list[bytes] = []
        self._name = ""
        self._is_after_cr = False
        # Where a byte order mark may stand.
        self.is_at_start = True

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event, whatever came before."""
        return not (self._line or self._data or self._name or self._is_after_cr or self.is_at_start)

    def feed(self, data: bytes) -> list[Event | Comment]:
        """The events and comments that these bytes complete, in order."""
        if self._is_after_cr or b"\r" in data:
            data = self._with_lf_only(data)
        lines = data.split(b"\n")
        unfinished = lines.pop()
        found = self._take_lines(lines) if lines else []
        if unfinished:
            self._line += unfinished
            if len(self._line) > self._bytes_left:
                raise self._too_large()
        return found

    def _take_lines(self, lines: list[bytes]) -> list[Event | Comment]:
        if self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        if self.is_at_start:
            lines[0] = lines[0].removeprefix(_BOM)
            self.is_at_start = False
        found: list[Event | Comment] = []
        for line in lines:
            if len(line) > self._bytes_left or len(self._data) > _MOST_LINES:
                raise self._too_large()
            if line.startswith(b"data: "):
                self._data.append(line[6:])
                self._bytes_left -= len(line)
            elif line:
                found += self._take_field(line)
            else:
                if self._data:
                    found.append(Event(b"\n".join(self._data).decode("utf-8", "replace"), self._name))
                    self._data.clear()
                    self._bytes_left = self._limit
                self._name = ""
        return found

    def _with_lf_only(self, data: bytes) -> bytes:
        # An LF right after a CR belongs to it, also when the CR ended the last piece.
        fresh = data.removeprefix(b"\n") if self._is_after_cr else data
        self._is_after_cr = data.endswith(b"\r") if data else self._is_after_cr
        return fresh.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_field(self, line: bytes) -> list[Comment]:
        field, _, value = line.partition(b":")
        match field:
            case b"data":
                self._data.append(value)  # without a space after the colon, or without a colon
                self._bytes_left -= len(line)
            case b"event":
                self._name = value.removeprefix(b" ").decode("utf-8", "replace")
            case b"id" | b"retry":
                pass  # for reconnecting, which a POST never does
            case _:
                text = _on_one_line(line.decode("utf-8", "replace"))
                return [Comment(text)] if text else []
        return []

    def _too_large(self) -> EventTooLarge:
        return EventTooLarge(f"an event of the stream is larger than {self._limit} bytes or {_MOST_LINES} lines")


def event(data: bytes, name: str = "") -> bytes:
    """The bytes of one event; `data` is JSON from `encode_json`, which has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data


def comment(line: str) -> bytes:
    """The bytes of one comment; the line of a Comment is written as it came, any other text after a colon."""
    text = _on_one_line(line)
    return (text if text.startswith(":") else f": {text}").encode("utf-8", "replace") + b"\n\n"


def _on_one_line(text: str) -> str:
    # The check is ten times as fast as a translation that changes nothing.
    return text if text.isprintable() else text.translate(_CONTROLS)
