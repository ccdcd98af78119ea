"""Threads where failing to start one must not fail an answer, and a task on a thread that ends when it is idle."""

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


class BackgroundTask:
    """Runs a function on a thread that ends when nothing is left to do; any thread wakes it.

    The lock protects `_thread` and `_is_wanted`.
    """

    def __init__(self, run: Callable[[], float | None], name: str) -> None:
        """`run` returns the seconds until it has to run again, None if nothing is left to do."""
        self._run = run
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._closing = threading.Event()

    def wake(self) -> None:
        """Have the function run from its beginning, now or once more; returns at once."""
        with self._lock:
            self._is_wanted = True
            if self._thread is None and not self._closing.is_set():
                self._thread = start_thread(self._repeat, self._name)

    def wait(self, timeout: float) -> bool:
        """Whether nothing is left to do by then."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    @property
    def is_closed(self) -> bool:
        """Whether the function should return soon, though something is left to do."""
        return self._closing.is_set()

    def pause(self, seconds: float) -> None:
        """Called by the function: wait so long, or until the task is closed."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """End the pauses, wait for the function and run it no more; idempotent."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _repeat(self) -> None:
        try:
            while True:
                with self._lock:
                    self._is_wanted = False
                delay = self._run()
                with self._lock:
                    if self._closing.is_set() or (delay is None and not self._is_wanted):
                        self._thread = None
                        return
                if delay is not None:
                    self._closing.wait(delay)
        except BaseException:
            with self._lock:
                self._thread = None
            raise
