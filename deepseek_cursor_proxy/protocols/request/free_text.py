r"""FreeTextReader reads the free text in the arguments of a custom tool call, while the arguments arrive.

DeepSeek has a custom tool as a function with one string field, `{"input": "…"}`; the client gets the text alone.
Fragments may end anywhere: in the key, inside an escape, inside `\uXXXX`, between the halves of a surrogate pair.

    head     `{"input":"` with white space wherever JSON allows it; no text yet
    inside   the text, unescaped; an incomplete escape or character waits for its rest
    after    the closing quote was read; the rest of the object is not part of the text
    other    other arguments than declared: held until the end, then parsed as a whole or returned unchanged

Arguments that break off give the text up to there. Escapes that JSON does not have are taken literally.
"""

import re

from deepseek_cursor_proxy.conversation import join_pieces
from deepseek_cursor_proxy.json_codec import object_in

FIELD = "input"

_HEAD = f'{{"{FIELD}":"'
# Where in the head JSON allows white space: before and after the brace, and around the colon.
_GAPS = (0, 1, len(_HEAD) - 2, len(_HEAD) - 1)
_PIECE = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\.|"', re.DOTALL)
_UNFINISHED = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


class FreeTextReader:
    """Reads the arguments of one call; `feed` and `end` return the next text for the client."""

    def __init__(self) -> None:
        self._state = "head"
        # How much of the head matched, and all fragments so far: they may turn out to be no head.
        self._matched = 0
        self._seen: list[str] = []
        # An incomplete escape, and the first half of a surrogate pair.
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
        """The rest of the text, when no more fragments come."""
        if self._state != "other":
            return ""
        self._state = "after"
        whole = "".join(self._seen)
        # Other fields may precede the text.
        text = (object_in(whole) or {}).get(FIELD)
        return text if isinstance(text, str) else whole

    def _read_head(self, fragment: str) -> str:
        """Match the head as far as the fragment goes; returns the text after it."""
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
        pieces = [self._surrogate]
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
                pieces.append(_unescape(found.group()))
        return self._whole_characters("".join(pieces))

    def _whole_characters(self, text: str) -> str:
        self._surrogate = ""
        if self._state == "inside" and "\ud800" <= text[-1:] <= "\udbff":
            text, self._surrogate = text[:-1], text[-1]
        return join_pieces([text])


def read_free_text(arguments: str) -> str:
    reader = FreeTextReader()
    return reader.feed(arguments) + reader.end()


def _unescape(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    if piece[1] == "u" and len(piece) == 6:
        return chr(int(piece[2:], 16))
    return _ESCAPES.get(piece[1], piece)
