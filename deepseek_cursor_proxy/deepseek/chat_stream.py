"""DeepSeek's event stream as canonical deltas, fed as it arrives.

Most events are equal to the one before but for a piece of text; these are read by a stencil, many at a time. Everything
else is parsed. Both ways say the same, byte for byte; see stencils for why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.repeated_chunks import ChunkTemplate
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import decode_upstream_json

# A stream whose chunks never repeat their shape is not worth another try.
_MOST_IN_VAIN = 8


@dataclass(slots=True)
class ParsedEvents:
    """What some bytes of a stream say: deltas and asides, then perhaps the end or a problem."""

    batch: Batch = field(default_factory=list)
    # There was a chunk; comments, and data that tells a client nothing, bring no answer on.
    is_progress: bool = False
    # An answer or a call may be complete with it, which is stored before the client gets it.
    is_durable: bool = False
    # How many items of the batch come before that.
    early_count: int = 0
    is_done: bool = False
    problem: ProxyError | None = None

    @property
    def is_over(self) -> bool:
        return self.is_done or self.problem is not None

    def take_early(self) -> "ParsedEvents":
        """The items that need not be stored, taken off this."""
        early = ParsedEvents(self.batch[: self.early_count])
        self.batch = self.batch[self.early_count :]
        return early

    def raise_problem(self) -> None:
        if self.problem is not None:
            try:
                raise self.problem
            finally:
                # An error that is held by what raised it is freed by the collector only.
                self.problem = None


class EventReader:
    """Reads one stream, event by event; what an event says is for each dialect to tell. Used by one thread."""

    def __init__(self) -> None:
        self._parser = sse.Parser()

    def read(self, data: bytes) -> ParsedEvents:
        """What these bytes complete; nothing is read behind the end or a problem."""
        said = ParsedEvents()
        self._read_events(said, data)
        return said

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        raise AssertionError

    def _read_events(self, said: ParsedEvents, data: bytes) -> None:
        try:
            items = self._parser.feed(data)
        except ValueError as error:
            said.problem = UpstreamFailed(f"DeepSeek sent something that cannot be read: {error}.")
            return
        for item in items:
            if isinstance(item, sse.Comment):
                said.batch.append(Heartbeat(item.line))
            else:
                self._read_event(said, item.data)
            if said.is_over:
                return

    def _read_event(self, said: ParsedEvents, data: str) -> list[Delta]:
        """Add what an event says, which is returned as well."""
        if not data:
            return []
        if data.strip() == "[DONE]":
            said.is_done = True
            return []
        try:
            chunk = decode_upstream_json(data)
            deltas = self._deltas(chunk) if isinstance(chunk, dict) else []
        except ProxyError as error:
            said.problem = error
        except ValueError:
            said.problem = UpstreamFailed("DeepSeek sent an event that is not JSON.")
        else:
            if not said.is_durable and any(delta.finish_reason or delta.may_end_call for delta in deltas):
                said.is_durable, said.early_count = True, len(said.batch)
            said.batch += deltas
            said.is_progress = said.is_progress or bool(deltas)
            return deltas
        return []


class StreamReader(EventReader):
    """Reads one stream of chat completions."""

    def __init__(self) -> None:
        super().__init__()
        self._stencil: ChunkTemplate | None = None
        self._has_fitted = True
        self._in_vain = 0

    def read(self, data: bytes) -> ParsedEvents:
        said = ParsedEvents()
        at = self._read_run(said, data, 0)
        while at < len(data) and not said.is_over:
            # One event at a time, because it may make a stencil for those behind it.
            end = data.find(b"\n\n", at) + 2
            end = end if end >= 2 else len(data)
            self._read_events(said, data[at:end])
            at = end if said.is_over else self._read_run(said, data, end)
        return said

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        return chat_api.chunk_deltas(chunk)

    def _read_run(self, said: ParsedEvents, data: bytes, at: int) -> int:
        if self._stencil is None or at == len(data) or not self._parser.is_between_events:
            return at
        delta, at = self._stencil.read(data, at)
        if delta is not None:
            said.batch.append(delta)
            said.is_progress = self._has_fitted = True
        return at

    def _read_event(self, said: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(said, data)
        if len(deltas) == 1 and self._in_vain < _MOST_IN_VAIN:
            self._cut(data, deltas[0])
        return deltas

    def _cut(self, data: str, delta: Delta) -> None:
        stencil = ChunkTemplate.cut(data.encode(), delta)
        if stencil is not None:
            self._in_vain = 0 if self._has_fitted else self._in_vain + 1
            self._stencil, self._has_fitted = stencil, False
