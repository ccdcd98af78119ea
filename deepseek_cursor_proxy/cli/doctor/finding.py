"""Finding: the result of one check, with the remedy if something is wrong."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """`name` is that of the check; `remedy` is empty where there is nothing to do."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def good(name: str, text: str) -> Finding:
    return Finding(name, Level.GOOD, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(name, Level.WARNING, text, remedy)


def failed(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, Level.FAILED, text, remedy)


def skipped(name: str, text: str, remedy: str = "") -> Finding:
    """There was nothing to check; `remedy` says how it can be checked."""
    return Finding(name, Level.SKIPPED, text, remedy)
