"""The memory that Python code takes, for tests of its bounds. PyPy does not count it: such a test is skipped there."""

import contextlib
import unittest
from collections.abc import Iterator

try:
    import tracemalloc
except ImportError:
    tracemalloc = None  # type: ignore[assignment]


class TracedMemory:
    """Bytes since the trace began."""

    def held(self) -> int:
        return tracemalloc.get_traced_memory()[0]

    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1]

    def reset_peak(self) -> None:
        tracemalloc.reset_peak()


@contextlib.contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    """Trace what the block allocates, or skip the test."""
    if tracemalloc is None:
        raise unittest.SkipTest("this Python does not count its memory")
    tracemalloc.start()
    try:
        yield TracedMemory()
    finally:
        tracemalloc.stop()
