"""Starting a thread where failing to start one must not fail an answer."""

import threading
from collections.abc import Callable


def start_thread(target: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread; None when the system allows no more threads."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
