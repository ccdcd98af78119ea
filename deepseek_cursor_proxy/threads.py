"""Threads that may fail to start."""

import threading
from collections.abc import Callable


def started(target: Callable[[], None], name: str) -> threading.Thread | None:
    """A running thread; None when the system has no room for one more, which is no reason to fail an answer."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
