r"""The free text inside the arguments of a custom tool call, taken out while the arguments are still being written.

A custom tool reaches DeepSeek as a function with one string field, `{"input": "…"}`; the client wants the text alone.
Fragments may end anywhere: in the key, inside an escape, inside `\uXXXX`, between the halves of a surrogate pair.

    head     `{"input":"` with white space wherever JSON allows it; nothing to say yet
    inside   the text, unescaped; a half-written escape or character waits for its rest
    after    the closing quote was read; what the object says behind it is not part of the text
    other    not what we asked the model for: kept until the end, then read as a whole or passed on unchanged

A text that breaks off is as long as what was said of it. Escapes JSON does not know are taken literally.
"""

import json
import re

FIELD = "input"

_HEAD = f'{{"{FIELD}":"'
# Where in the head JSON allows white space: before and behind the brace, and around the colon.
_GAPS = (0, 1, len(_HEAD) - 2, len(_HEAD) - 1)
_PIECE = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\.|"', re.DOTALL)
_UNFINISHED = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


class FreeTextReader:
    """Reads the arguments of one call; `feed` and `end` return what the client should see next."""

    def __init__(self) -> None:
        self._state = "head"
        # How much of the head was seen, and everything that was: it may turn out to be no head.
        self._matched = 0
        self._seen: list[str] = []
        # An escape or character whose second half is still to come.
        self._unfinished = ""
        self._surrogate = ""

    def feed(self, fragment: str) -> str:
        if self._state == "head":
            fragment = self._read_head(fragment)
        if self._state == "inside":
            return self._read_inside(fragment)
        if self._state == "other":
            self._seen.append(fragment)
        return ""

    def end(self) -> str:
        """What is left to say when no more fragments come."""
        if self._state != "other":
            return ""
        self._state = "after"
        whole = "".join(self._seen)
        try:
            read = json.loads(whole)
        except (ValueError, RecursionError):
            return whole
        # The text may stand behind fields that nobody asked for.
        text = read.get(FIELD) if isinstance(read, dict) else None
        return text if isinstance(text, str) else whole

    def _read_head(self, fragment: str) -> str:
        """Match as much of the head as there is; returns what follows it."""
        for position, char in enumerate(fragment):
            if char == _HEAD[self._matched]:
                self._matched += 1
            elif not (self._matched in _GAPS and char in " \t\r\n"):
                self._state = "other"
                self._seen.append(fragment[:position])
                return fragment[position:]
            if self._matched == len(_HEAD):
                self._state = "inside"
                return fragment[position + 1 :]
        self._seen.append(fragment)
        return ""

    def _read_inside(self, fragment: str) -> str:
        text = self._unfinished + fragment
        self._unfinished = ""
        said = [self._surrogate]
        position = 0
        while position < len(text) and self._state == "inside":
            if text[position] == "\\" and _UNFINISHED.match(text, position):
                self._unfinished = text[position:]
                break
            found = _PIECE.match(text, position)
            assert found is not None
            position = found.end()
            if found.group() == '"':
                self._state = "after"
            else:
                said.append(_unescaped(found.group()))
        return self._whole_characters("".join(said))

    def _whole_characters(self, said: str) -> str:
        self._surrogate = ""
        if self._state == "inside" and "\ud800" <= said[-1:] <= "\udbff":
            said, self._surrogate = said[:-1], said[-1]
        try:
            said.encode()
        except UnicodeEncodeError:
            return said.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return said


def read_free_text(arguments: str) -> str:
    """The free text of arguments that are there as a whole."""
    reader = FreeTextReader()
    return reader.feed(arguments) + reader.end()


def _unescaped(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    if piece[1] == "u" and len(piece) == 6:
        return chr(int(piece[2:], 16))
    return _ESCAPES.get(piece[1], piece)
