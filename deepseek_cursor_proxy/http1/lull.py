"""Lull: a stream has nothing to hand on yet and names what it waits for, so that one thread can wait for many streams.

Streams of bytes (`http1`, `upstream`, `server`) and of deltas (`exchange`, `protocols`) have lulls between their items.
"""

from dataclasses import dataclass
from typing import Protocol


class WaitHandle(Protocol):
    """What a stream waits for: input on a descriptor, or the moment `until`, whichever comes first."""

    @property
    def until(self) -> float: ...

    def fileno(self) -> int: ...

    # Have the stream raise this error when it goes on.
    def interrupt(self, error: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Lull:
    """A stream has nothing to hand on yet. Its consumer waits for `handle`, then asks for the next item.

    No handle: the next step may block (the disk, another call); the event loop leaves it to a worker, which goes on.
    """

    handle: WaitHandle | None = None


BLOCKING = Lull()
