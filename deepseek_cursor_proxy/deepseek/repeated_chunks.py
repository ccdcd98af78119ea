"""Chunks that differ from the one before in a single string, read and written without their JSON being parsed again.

Nearly all of a stream is the same chunk over and over with another piece of text in it. A stencil is such a chunk with
a hole where the text stands: bytes before it, bytes after it. It is cut from a chunk that was parsed, and kept only if
parsing it with another text in the hole gives the same chunk with that text: then this holds for every text, because
the bytes before the hole end inside a JSON string and no text that is let in can end it.
Only texts are let in that our own encoder would write with the same bytes, so a stencil changes nothing but the time.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Run
from deepseek_cursor_proxy.json_codec import decode_upstream_json

# The inside of a JSON string as our encoder writes it; an empty one says nothing and goes the ordinary way.
_STRING = re.compile(rb'(?!")[^"\\\x00-\x1f]*+(?:\\["\\bfnrt][^"\\\x00-\x1f]*+)*+')
_OPENINGS = {name: re.compile(rb'"%b"\s*+:\s*+"' % name.encode()) for name in ("reasoning_content", "content")}
# No chunk contains it by accident, and JSON writes it as it is.
_FILLING = "=the text="


class ChunkTemplate:
    """One chunk with a hole in it; immutable."""

    def __init__(self, before: bytes, after: bytes, delta: Delta, field: str) -> None:
        self._head = b"data: " + before
        self._tail = after + b"\n\n"
        self._delta = delta
        self._field = field

    @property
    def is_thinking(self) -> bool:
        return self._field == "reasoning_content"

    @classmethod
    def cut(cls, data: bytes, delta: Delta) -> "ChunkTemplate | None":
        """The stencil of an event with this data, which was read as this delta; None when it makes none."""
        is_plain = not (delta.calls or delta.finish_reason or delta.usage) and bool(delta.text) != bool(delta.reasoning)
        if not is_plain or b"\n" in data:
            return None
        field = "content" if delta.text else "reasoning_content"
        for opening in _OPENINGS[field].finditer(data):
            string = _STRING.match(data, opening.end())
            if string is not None:
                stencil = cls(data[: string.start()], data[string.end() :], delta, field)
                if stencil._is_proven(data, string.span()):
                    return stencil
        return None

    def _is_proven(self, data: bytes, hole: tuple[int, int]) -> bool:
        try:
            filled: object = decode_upstream_json(data[: hole[0]] + _FILLING.encode() + data[hole[1] :])
        except ValueError:
            return False
        return filled == self._chunk(_FILLING)

    def single(self, text: str) -> Delta:
        """What one chunk with this text says."""
        source = self._chunk(text)
        if self._field == "content":
            return self._delta._replace(text=text, source=source)
        return self._delta._replace(reasoning=text, source=source)

    def _chunk(self, text: str) -> dict[str, Any]:
        source = self._delta.source or {}
        choice: Mapping[str, Any] = source["choices"][0]
        return {**source, "choices": [{**choice, "delta": {**choice["delta"], self._field: text}}]}

    def read(self, data: bytes, at: int) -> tuple[Delta | None, int]:
        """What the events from `at` on say as one delta as long as they fit, and where the first begins that does not.

        An event has to begin at `at`.
        """
        head, tail, first = self._head, self._tail, at
        strings = []
        while data.startswith(head, at):
            string = _STRING.match(data, at + len(head))
            if string is None or not data.startswith(tail, string.end()):
                break
            strings.append(string[0])
            at = string.end() + len(tail)
        try:
            return (self._run(strings), at) if strings else (None, first)
        except UnicodeDecodeError:
            # The ordinary way knows how to put up with it.
            return None, first

    def _run(self, strings: list[bytes]) -> Delta:
        # Decoded apart from each other: half a character at an end is damage, and the next string may not mend it.
        whole = strings[0].decode() if len(strings) == 1 else b"\n".join(strings).decode().replace("\n", "")
        text = unquote(whole)
        known, run = self._delta, Run(self, strings)
        if self._field == "content":
            return Delta(known.choice, known.reasoning, text, source=known.source, run=run)
        return Delta(known.choice, text, known.text, source=known.source, run=run)


def unquote(text: str) -> str:
    """What the inside of a JSON string stands for."""
    return str(json.loads(f'"{text}"')) if "\\" in text else text


def write_run(run: Run, around: Sequence[bytes]) -> bytes:
    """The chunks of a run as a client gets them, with this around the text of each."""
    if len(run.strings) == 1:
        return run.strings[0].join(around)
    return b"".join([string.join(around) for string in run.strings])


def split_run(delta: Delta) -> list[Delta]:
    """The chunks of a run, one by one; any other delta alone."""
    if delta.run is None:
        return [delta]
    return [delta.run.shape.single(unquote(each.decode())) for each in delta.run.strings]
