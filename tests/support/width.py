"""How much the wide tests cover, by the environment variable DEEPSEEK_CURSOR_PROXY_TESTS.

    unset   a sample of every test, so that the whole suite ends within a minute
    all     the width `.ci/run` checks
    long    many times that, for an evening: every byte, hundreds of kills, fifty times the fuzzing

Every test runs at every width; only its number of cases, rounds or bytes changes.
"""

import os
from typing import TypeVar

T = TypeVar("T")

_WIDTHS = ("", "all", "long")
_width = _WIDTHS.index(os.environ.get("DEEPSEEK_CURSOR_PROXY_TESTS", ""))
IS_LONG = _width == 2


def width(sample: T, everything: T, long: T | None = None) -> T:
    """The value for the width chosen; `long` is only given where it is more than `everything`."""
    if IS_LONG and long is not None:
        return long
    return everything if _width else sample
