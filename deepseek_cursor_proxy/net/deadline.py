"""Deadline: the moment at which a wait ends, and the time left until then.

How long waits are is not decided here: timeouts are settings (`config`), or constants of the module that waits.
"""

import time


class Deadline(float):
    """A moment of `time.monotonic`. Streams, which compute one for every chunk, use the plain number: `until`."""

    __slots__ = ()

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The seconds until then; negative when it is over."""
        return self - time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self
