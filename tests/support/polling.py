"""Polling: for conditions that can be observed but do not wake a waiter."""

import threading
import time
from collections.abc import Callable

PATIENCE = 60.0
_POLL_SECONDS = 0.002


def eventually(condition: Callable[[], object], patience: float = PATIENCE) -> bool:
    deadline, pause = time.monotonic() + patience, threading.Event()
    while not (is_true := condition()) and time.monotonic() < deadline:
        pause.wait(_POLL_SECONDS)
    return bool(is_true)


def wait_until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Fail unless the condition becomes true in time."""
    assert eventually(condition, patience), "the condition never became true"
