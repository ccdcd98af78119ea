"""CallIndexes: gives each tool call of an answer an index of its own.

Some hosts send several calls under one index, told apart by their ids: a piece with a new id and a name begins a new
call, and pieces without an id continue the last one. DeepSeek's own answers pass unchanged.
"""

from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta


class CallIndexes:
    """The calls of one answer so far. Used by the thread that reads it."""

    def __init__(self) -> None:
        # By choice and index of the host: the id of the call there, and the index that it has here.
        self._calls: dict[tuple[int, int], tuple[str, int]] = {}
        self._used: dict[int, set[int]] = {}

    def assign(self, delta: Delta, part: str) -> Delta:
        """The delta with the indexes that its calls have here; `part` is where its chunk has them."""
        for piece in delta.calls:
            known = self._calls.get((delta.choice, piece.index))
            if known is None or known[1] != piece.index or (piece.id and piece.id != known[0]):
                break
        else:
            # Nearly all pieces continue a call that has its own index.
            return delta
        pieces = tuple([self._assign_one(piece, delta.choice) for piece in delta.calls])
        if pieces == delta.calls:
            return delta
        return delta._replace(calls=pieces, chunk=_with_indexes(delta.chunk, part, pieces))

    def _assign_one(self, piece: CallPiece, choice: int) -> CallPiece:
        place = (choice, piece.index)
        known = self._calls.get(place)
        is_new = known is None or (piece.id and known[0] and piece.id != known[0] and piece.name)
        if known is None or is_new:
            used = self._used.setdefault(choice, set())
            index = piece.index if piece.index not in used else max(used) + 1
            used.add(index)
        else:
            index = known[1]
        self._calls[place] = (piece.id if is_new or known is None else known[0] or piece.id, index)
        return piece if index == piece.index else CallPiece(index, piece.id, piece.name, piece.arguments)


def _with_indexes(
    chunk: Mapping[str, Any] | None, part: str, pieces: tuple[CallPiece, ...]
) -> Mapping[str, Any] | None:
    if chunk is None:
        return None
    choice = chunk["choices"][0]
    # Damaged entries are gone by now, so there is one for each piece.
    calls = [{**call, "index": piece.index} for call, piece in zip(choice[part]["tool_calls"], pieces, strict=False)]
    return {**chunk, "choices": [{**choice, part: {**choice[part], "tool_calls": calls}}]}
