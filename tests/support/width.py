"""How much the tests cover and how long they wait, by the environment variable PROXY_TESTS.

    unset   a sample of every wide test, and the private waits of the package scaled down: at most a minute
    all     the width `.ci/run` checks, and the waits as users have them
    long    many times that, for an evening: every byte, hundreds of kills, fifty times the fuzzing

Every test runs at every width; only its number of cases, rounds or bytes changes.
"""

import os
from collections.abc import Iterable
from itertools import islice
from pkgutil import resolve_name
from typing import TypeVar

T = TypeVar("T")

_WIDTHS = ("", "all", "long")
_width = _WIDTHS.index(os.environ.get("PROXY_TESTS", ""))
IS_LONG = _width == 2

# What tests of any width wait for all the time.
_ALWAYS = {"deepseek_cursor_proxy.features.usage.ledger.WaitingRequests.seconds_between_batches": 0.01}
# Intervals and pauses that nothing but the clock ends. Settings are not here: a test gives its own.
_SCALED_SECONDS = {
    "deepseek_cursor_proxy.net.wait._RECHECK_SECONDS": 0.05,
    "deepseek_cursor_proxy.features.responses.feature._CHECK_SECONDS": 0.02,
    "deepseek_cursor_proxy.features.choices.exchanges._CHECK_SECONDS": 0.02,
    "deepseek_cursor_proxy.net.threads._IDLE_SECONDS": 0.05,
    "deepseek_cursor_proxy.upstream.response._END_SECONDS": 0.05,
    "deepseek_cursor_proxy.storage.database._BUSY_SECONDS": 0.03,
    "deepseek_cursor_proxy.features.redis.client._FIRST_CHECK_SECONDS": 0.01,
    "deepseek_cursor_proxy.storage.database._FIRST_DELAY_SECONDS": 0.02,
}


def width(sample: T, everything: T, long: T | None = None) -> T:
    """The value for the width chosen; `long` is only given where it is more than `everything`."""
    if IS_LONG and long is not None:
        return long
    return everything if _width else sample


def some(cases: Iterable[T], step: int) -> Iterable[T]:
    """Every case; in a sample every so many."""
    return islice(cases, None, None, width(step, 1))


def scale_waits() -> None:
    """Shorten the private waits of the package in this process; most of them unless everything is checked."""
    for name, seconds in {**_ALWAYS, **({} if _width else _SCALED_SECONDS)}.items():
        module, _, constant = name.rpartition(".")
        try:
            loaded = resolve_name(module)
        except (ModuleNotFoundError, AttributeError):
            # tests/test_features.py takes features away.
            continue
        assert hasattr(loaded, constant), name
        setattr(loaded, constant, seconds)
