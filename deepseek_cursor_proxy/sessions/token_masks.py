"""The tokens of a rendered trajectory, which of them a model wrote, and the log probabilities that are known.

Three lists of one length:

    tokens           of the whole text
    masked_tokens    the same, with MASKED for every token that the model did not write alone, in this session
    logprobs         1.0 where masked; a number only if the upstream sent one for exactly these bytes; None otherwise

A token that is partly template counts as template, and so does the end mark of an answer, unless the upstream sent one
with its tokens: as the model's own <|im_end|>, or as the mark of DeepSeek's models. Nothing is interpolated: a value
without evidence is None.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.sessions.rendering import END_MARK, Piece, text_of

MASKED = -100
_MASKED_LOGPROB = 1.0
_ENDS = (END_MARK.encode(), "<｜end▁of▁sentence｜>".encode())


class Encoder(Protocol):
    def spans(self, text: str) -> list[tuple[int, int]]:
        """The tokens of a text, each with its number of bytes."""
        ...


class TokenLists(NamedTuple):
    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float | None]


# By message: lists of tokens that the upstream sent for a part of it, its text or its reasoning.
Evidence = Mapping[int, Sequence[Sequence[Mapping[str, Any]]]]


def mask(pieces: Sequence[Piece], own: Collection[int], encoder: Encoder, evidence: Evidence) -> TokenLists:
    """The lists for a rendering; `own` are the indexes of the messages that were written in this session."""
    ended = {author for author, parts in evidence.items() if any(map(_end_of, parts))}
    pieces = [piece._replace(author=None) if piece.is_end and piece.author not in ended else piece for piece in pieces]
    spans = encoder.spans(text_of(pieces))
    ends = list(accumulate(length for _, length in spans))
    authors = _authors(pieces, own)
    known = _known_logprobs(pieces, own, evidence)
    lists = TokenLists([], [], [])
    for (token, length), end in zip(spans, ends, strict=True):
        begin = end - length
        is_own = authors.covers(begin, end)
        lists.tokens.append(token)
        lists.masked_tokens.append(token if is_own else MASKED)
        lists.logprobs.append(known.get((begin, end)) if is_own else _MASKED_LOGPROB)
    return lists


class _Ranges:
    """Ranges of bytes in rising order; `covers` is called with rising ranges too."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._at = 0

    def covers(self, begin: int, end: int) -> bool:
        while self._at < len(self._ranges) and self._ranges[self._at][1] < end:
            self._at += 1
        if self._at == len(self._ranges):
            return False
        first, last = self._ranges[self._at]
        return first <= begin and end <= last


def _authors(pieces: Sequence[Piece], own: Collection[int]) -> _Ranges:
    """The bytes that the model wrote in this session."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        end = at + _size(piece.text)
        if piece.author is not None and piece.author in own:
            # An answer and its end mark are one range.
            begin = ranges.pop()[0] if ranges and ranges[-1][1] == at else at
            ranges.append((begin, end))
        at = end
    return _Ranges(ranges)


def _known_logprobs(pieces: Sequence[Piece], own: Collection[int], evidence: Evidence) -> dict[tuple[int, int], float]:
    """The log probabilities that the upstream sent, by the bytes they are for."""
    known: dict[tuple[int, int], float] = {}
    at = 0
    for piece in pieces:
        parts = evidence.get(piece.author, ()) if piece.author is not None and piece.author in own else ()
        for tokens in parts:
            end = _end_of(tokens)
            part = (tokens[-1:] if piece.is_end else tokens[:-1]) if end else tokens
            _add_part(known, piece.text.encode("utf-8", "replace"), at, part)
        at += _size(piece.text)
    return known


def _end_of(tokens: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last token that was sent is an end mark."""
    return bool(tokens) and bytes(tokens[-1]["bytes"]) in _ENDS


def _add_part(known: dict[tuple[int, int], float], text: bytes, at: int, tokens: Sequence[Mapping[str, Any]]) -> None:
    """Add the tokens that were sent for a part of a text that begins at a byte."""
    sent = b"".join(bytes(token["bytes"]) for token in tokens)
    offset = text.find(sent)
    # The same words may come twice, in the thoughts and in the text: then it is not known which are meant.
    if not sent or offset < 0 or text.find(sent, offset + 1) >= 0:
        return
    begin = at + offset
    for token in tokens:
        end = begin + len(token["bytes"])
        known[begin, end] = token["logprob"]
        begin = end


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
