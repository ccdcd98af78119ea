"""Lull: a generator cannot go on yet and names what it waits for, so that one thread can wait for many of them.

Streams of bytes (`http1`, `upstream`, `server`) and of deltas (`exchange`, `protocols`) have lulls between their items.
Steps, such as those of a call until DeepSeek accepts it, have nothing but lulls, and return a result.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class HasFileno(Protocol):
    """A socket or a Wakeup."""

    def fileno(self) -> int: ...


class WaitHandle(Protocol):
    """What a generator waits for: input of `source`, or the moment `until`, whichever comes first."""

    @property
    def until(self) -> float: ...

    # None for the moment alone.
    @property
    def source(self) -> HasFileno | None: ...

    # Have the generator raise this error when it goes on.
    def interrupt(self, error: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Lull:
    """A generator cannot go on yet. Its consumer waits for `handle`, if there is one, then asks for the next item.

    If the next step may block (the disk, another call), the event loop leaves it to a worker.
    """

    handle: WaitHandle | None = None
    then_blocks: bool = True
    # Whether it waits until the source can be written to, in place of input.
    for_writing: bool = False


BLOCKING = Lull()
Steps = Generator[Lull, None, Result]


class SingleWait:
    """A WaitHandle for input of `source`, or without one for a moment alone. Used by one thread at a time."""

    def __init__(self, until: float, source: HasFileno | None = None) -> None:
        self.until = until
        self.source = source
        self._error: Exception | None = None

    def interrupt(self, error: Exception) -> None:
        self._error = error

    def steps(self, *, for_writing: bool = False) -> Steps[None]:
        """Wait; what follows may block. Raises the error that interrupts it."""
        yield Lull(self, for_writing=for_writing)
        self.raise_interruption()

    def raise_interruption(self) -> None:
        if self._error is not None:
            try:
                raise self._error
            finally:
                # An error that is held by the object that raised it is freed by the collector only.
                self._error = None
