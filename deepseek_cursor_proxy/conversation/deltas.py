"""Delta, what one upstream chunk adds to an answer, with its parts; Heartbeat; a Batch of both.

What arrived together travels together, as a Batch, so that it can also be written together. A stream of batches has a
Lull in it wherever it would block.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.http1.lull import Lull


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A fragment of a tool call; pieces with the same index belong to the same call."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ForeignReasoning(NamedTuple):
    """What a chunk says about its reasoning that DeepSeek's own chunks do not: see deepseek/hosts.py."""

    # The field it came in, `reasoning` or `reasoning_details`.
    name: str
    details: tuple[Mapping[str, Any], ...] = ()
    # `reasoning_content` came as well, and its text counts.
    is_native: bool = False


class ServerPiece(NamedTuple):
    """A step of an item that a tool of DeepSeek's own makes; `item` is as much of it as DeepSeek has sent by now."""

    # The same for all steps of an item.
    key: int | str
    item: Mapping[str, Any]
    # in_progress, searching, completed: the last one has the whole item, and may be the only one.
    step: str = "completed"

    @property
    def is_whole(self) -> bool:
        return self.step == "completed"


class ServerDelta(NamedTuple):
    """What a chunk says about tools that DeepSeek runs itself, and about sources of the text."""

    pieces: tuple[ServerPiece, ...] = ()
    # Sources of the text block that is open, as DeepSeek's API has them.
    citations: tuple[Mapping[str, Any], ...] = ()
    # The text that follows is a block of its own.
    begins_text: bool = False

    @property
    def size(self) -> int:
        """About how many characters are kept of it."""
        kept = [piece.item for piece in self.pieces if piece.is_whole]
        return sum(len(repr(each)) for each in (*kept, *self.citations))


class RunTemplate(Protocol):
    """What all chunks of a run have in common; see deepseek/apis/chat_stream."""

    # Whether the string that differs is the reasoning, and not the text.
    @property
    def is_reasoning(self) -> bool: ...

    def fill(self, text: str) -> "Delta": ...


class Run(NamedTuple):
    """Chunks in a row that differ in one string only: the string of each, as it is between its quotes in JSON."""

    template: RunTemplate
    strings: Sequence[bytes]


class Delta(NamedTuple):
    """What one upstream chunk adds to one choice; `chunk` is that chunk, with that choice only.

    With a `run` it is several chunks that arrived together, texts joined; `chunk` is the one their template is from.
    """

    choice: int = 0
    reasoning: str | None = None
    text: str | None = None
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    chunk: Mapping[str, Any] | None = None
    run: Run | None = None
    # None in everything that DeepSeek itself sends.
    foreign: ForeignReasoning | None = None
    # None in answers without tools that DeepSeek runs itself.
    server: ServerDelta | None = None

    @property
    def may_end_call(self) -> bool:
        """Whether the arguments of a call may be complete with it."""
        return bool(self.calls) and self.calls[-1].arguments.endswith("}")

    @property
    def size(self) -> int:
        """How many characters it adds."""
        size = len(self.reasoning or "") + len(self.text or "")
        return size + sum(len(each.id) + len(each.name) + len(each.arguments) for each in self.calls)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """DeepSeek is silent: the client gets a sign of life. `line` is the comment that DeepSeek sent, if it sent one."""

    line: str = ""


Batch = list[Delta | Heartbeat]
Batches = Generator[Batch | Lull, None, None]
