"""Laws over generated cases: all cases are checked, and of those that break a law the smallest is printed, alone."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

# A bug may break every case; more of them tell nothing.
_ENOUGH = 30


def check_law(
    cases: Iterable[T],
    play: Callable[[T], Iterable[object] | None],
    simpler: Callable[[T], Iterable[T]] = lambda case: (),
) -> None:
    """Play each case; one that yields is the smaller the fewer steps it takes to break the law."""
    broken: list[tuple[int, T, AssertionError]] = []
    for case in cases:
        if (found := _break(case, play)) is not None:
            broken.append(found)
        if len(broken) == _ENOUGH:
            break
    if not broken:
        return
    smallest = min(broken, key=_size)
    while (found := next((each for case in simpler(smallest[1]) if (each := _break(case, play))), None)) is not None:
        smallest = found
    steps, case, error = smallest
    raise AssertionError(f"{len(broken)} cases break the law; the smallest, after {steps} steps: {case!r}") from error


def _break(case: T, play: Callable[[T], Iterable[object] | None]) -> tuple[int, T, AssertionError] | None:
    steps = 0
    try:
        for _ in play(case) or ():
            steps += 1
    except AssertionError as error:
        return steps, case, error
    return None


def _size(broken: tuple[int, object, AssertionError]) -> tuple[int, int]:
    steps, case, _ = broken
    return steps, len(repr(case))
