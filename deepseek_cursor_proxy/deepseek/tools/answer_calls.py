"""AnswerCalls: gives each tool call of an answer an index and an id of its own, and the answer its finish_reason.

Clients tell calls apart by the index, send the id back, and run the calls because of the finish_reason. DeepSeek's own
answers pass unchanged. Other hosts may

    send several calls under one index    a piece with a name begins a call if it has another id, or no id and another
                                          name, or if the arguments so far are whole; other pieces continue a call
    leave the index out                   the piece continues the call that has its id, else the last one
    leave the id out                      the call gets a random one with its name; an id that comes later is dropped
    end with `stop` in spite of calls     the finish_reason becomes `tool_calls`
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.json_codec import object_in


def new_call_id() -> str:
    """A random id, for a call to which the upstream gave none."""
    return f"call_{secrets.token_hex(12)}"


class AnswerCalls:
    """The calls of one answer so far. Used by the thread that reads it."""

    def __init__(self) -> None:
        # By choice and index of the host: the call that began last there.
        self._calls: dict[tuple[int, int], _Call] = {}
        # By choice, in the order they began.
        self._begun: dict[int, list[_Call]] = {}

    def repair(self, delta: Delta, part: str) -> Delta:
        """The delta as clients need it; `part` is where its chunk has the calls."""
        if delta.calls:
            # Damaged entries are gone by now, so there is one for each piece.
            chunk = delta.chunk
            entries = chunk["choices"][0][part]["tool_calls"] if chunk is not None else [_COMPLETE] * len(delta.calls)
            if not self._continues(delta, entries):
                delta = self._repair_calls(delta, entries, part)
        if delta.finish_reason == "stop" and any(call.name for call in self._begun.get(delta.choice, ())):
            return delta._replace(finish_reason="tool_calls", chunk=_edit(delta.chunk, finish_reason="tool_calls"))
        return delta

    def _continues(self, delta: Delta, entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether every piece continues a call that lacks nothing, as nearly all do."""
        for piece, entry in zip(delta.calls, entries, strict=True):
            known = self._calls.get((delta.choice, piece.index))
            if known is None or known.id != known.host_id or known.index != piece.index:
                return False
            if piece.name or piece.id or entry.get("index") is None:
                return False
        return True

    def _repair_calls(self, delta: Delta, entries: Sequence[Mapping[str, Any]], part: str) -> Delta:
        pieces, chunk = delta.calls, delta.chunk
        repaired = []
        for piece, entry in zip(pieces, entries, strict=True):
            has_index = part == "message" or entry.get("index") is not None or len(pieces) > 1
            repaired.append(self._find(delta.choice, piece, has_index).add(piece))
        if tuple(repaired) == pieces and all(_is_complete(entry, part) for entry in entries):
            return delta
        edited = [_edit_entry(entry, piece, part) for entry, piece in zip(entries, repaired, strict=True)]
        fields = {**chunk["choices"][0][part], "tool_calls": edited} if chunk is not None else {}
        return delta._replace(calls=tuple(repaired), chunk=_edit(chunk, **{part: fields}))

    def _find(self, choice: int, piece: CallPiece, has_index: bool) -> "_Call":
        """The call that a piece belongs to, which may begin with it."""
        begun = self._begun.setdefault(choice, [])
        if has_index:
            known = self._calls.get((choice, piece.index))
        else:
            same = [call for call in begun if piece.id and piece.id == call.host_id]
            known = next(iter((same or begun)[-1:]), None)
        if known is None or not known.is_continued_by(piece):
            used = [call.index for call in begun]
            known = self._calls[choice, piece.index] = _Call(piece.index if piece.index not in used else max(used) + 1)
            begun.append(known)
        return known


class _Call:
    """One call so far. `id` is what the client gets, `host_id` what the host sent."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = self.host_id = self.name = ""
        # Of a call with an id of ours: only there they tell whether the next piece begins another call.
        self._arguments: list[str] = []

    def is_continued_by(self, piece: CallPiece) -> bool:
        """Whether a piece in the same place belongs to this call."""
        if not piece.name or not self.name:
            return True
        if piece.id and self.host_id:
            return piece.id == self.host_id
        return piece.name == self.name and object_in("".join(self._arguments)) is None

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is part of this call."""
        self.name = self.name or piece.name
        self.host_id = self.host_id or piece.id
        is_unknown = not self.id
        if is_unknown:
            self.id = piece.id or (new_call_id() if self.name else "")
        if self.id == self.host_id:
            return piece if self.index == piece.index else CallPiece(self.index, piece.id, piece.name, piece.arguments)
        self._arguments.append(piece.arguments)
        return CallPiece(self.index, self.id if is_unknown else "", piece.name, piece.arguments)


_COMPLETE: Mapping[str, Any] = {"index": 0, "type": "function"}


def _is_complete(entry: Mapping[str, Any], part: str) -> bool:
    """Whether an entry of `tool_calls` has its index, which only a stream needs, and a type if it begins a call."""
    has_index = part == "message" or entry.get("index") is not None
    return has_index and bool(entry.get("type") or not entry.get("id"))


def _edit_entry(entry: Mapping[str, Any], piece: CallPiece, part: str) -> dict[str, Any]:
    edited = {name: value for name, value in entry.items() if name != "id"}
    if part == "delta" or "index" in entry:
        edited["index"] = piece.index
    return {**edited, "id": piece.id, "type": entry.get("type") or "function"} if piece.id else edited


def _edit(chunk: Mapping[str, Any] | None, **fields: Any) -> Mapping[str, Any] | None:
    """The chunk (or completion), which has one choice, with these fields of the choice."""
    return None if chunk is None else {**chunk, "choices": [{**chunk["choices"][0], **fields}]}
