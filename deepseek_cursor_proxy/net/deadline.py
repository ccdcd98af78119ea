"""Deadline: the moment at which a wait ends, and the time left until then.

It knows that this process may be stopped (SIGSTOP, a computer that sleeps), and which time that adds. How long waits
are is not decided here: timeouts are settings (`config`), or constants of the module that waits.
"""

import time

# A process that runs sees its deadlines pass within moments. One that sees them so much later was stopped, or slept
# with its computer; then the other side gets some time to send what it could not send meanwhile.
_STOPPED_SECONDS = 0.25
_GRACE_SECONDS = 5.0


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

    def allow_for_stop(self, seconds: float) -> "Deadline":
        """The deadline of a wait of so many seconds; a later one if this process was stopped when it passed."""
        late = -self.left
        return self if late < _STOPPED_SECONDS else Deadline(self + late + min(seconds, _GRACE_SECONDS))
