"""Threads where failing to start one must not fail an answer: one for each task, or one for several functions."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from deepseek_cursor_proxy.net.wait import Deadline

# How long a thread without a task waits for the next: starting a thread takes longer than a small request.
_IDLE_SECONDS = 1.0

_Tasks = SimpleQueue[Callable[[], None] | None]


def start_thread(target: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread; None when the system allows no more threads."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class ReusedThreads:
    """Runs every task on a thread of its own, which then waits a moment for the next task. Any thread calls it.

    `_lock` protects the other fields.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # What each idle thread gets its next task from, or None to end.
        self._idle: list[_Tasks] = []
        self._is_closed = False

    @property
    def busy(self) -> int:
        """The number of tasks that run."""
        return len(self._threads) - len(self._idle)

    def start(self, task: Callable[[], None]) -> bool:
        """Run the task now; False, and nothing is done, if the system allows no more threads."""
        with self._lock:
            if self._idle:
                # The one that ran last: its memory is in the caches, and the others may end.
                self._idle.pop().put(task)
                return True
            thread = start_thread(lambda: self._run(task), self._name)
            if thread is not None:
                self._threads.add(thread)
            return thread is not None

    def close(self, seconds: float) -> None:
        """End the threads, those with a task within `seconds`. No task is started from here on."""
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle.pop().put(None)
            threads = list(self._threads)
        deadline = Deadline.after(seconds)
        for thread in threads:
            thread.join(max(0.0, deadline.left))

    def _run(self, task: Callable[[], None] | None) -> None:
        idle: _Tasks = SimpleQueue()
        try:
            while task is not None:
                task()
                # A thread that waits holds nothing.
                task = None
                task = self._next(idle)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self, idle: _Tasks) -> Callable[[], None] | None:
        with self._lock:
            if self._is_closed:
                return None
            self._idle.append(idle)
        with suppress(Empty):
            return idle.get(timeout=_IDLE_SECONDS)
        with self._lock:
            if idle in self._idle:
                self._idle.remove(idle)
                return None
        # It was given a task at the last moment.
        return idle.get()


class BackgroundThread:
    """Runs functions one after the other on one thread, each when it is due; any thread asks for them.

    It starts with the first function and then waits for more until it is closed: starting a thread takes longer than
    most functions. `_changed` protects the other fields.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        # When each function is due.
        self._due: dict[Callable[[], float | None], float] = {}
        self._is_busy = False
        self.is_closed = False

    def run(self, task: Callable[[], float | None], seconds: float = 0.0) -> None:
        """Have a function run from its beginning within so many seconds, and again after those that it returns.

        Returns at once. One that is due sooner stays so.
        """
        due = time.monotonic() + seconds
        if self._thread is not None and due >= self._due.get(task, math.inf):
            return
        with self._changed:
            self._due[task] = min(due, self._due.get(task, math.inf))
            if self._thread is None and not self.is_closed:
                self._thread = start_thread(self._run, self._name)
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Whether nothing is left to do by then."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_closed or not (self._due or self._is_busy), timeout)

    def pause(self, seconds: float) -> None:
        """Called by a function: wait for `seconds`, or until the thread is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, seconds)

    def close(self) -> None:
        """End the pauses, wait for the function that runs and run none any more; idempotent."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            while (task := self._next()) is not None:
                if (seconds := task()) is not None:
                    self.run(task, seconds)
        finally:
            with self._changed:
                self._is_busy = False
                # After an exception.
                self._thread = start_thread(self._run, self._name) if self._due and not self.is_closed else None
                self._changed.notify_all()

    def _next(self) -> Callable[[], float | None] | None:
        """Wait for the function that is due first; None once the thread is closed."""
        with self._changed:
            self._is_busy = False
            while not self.is_closed:
                left = None
                if self._due:
                    task = min(self._due, key=self._due.__getitem__)
                    if (left := self._due[task] - time.monotonic()) <= 0:
                        del self._due[task]
                        self._is_busy = True
                        return task
                self._changed.notify_all()
                self._changed.wait(left)
        return None
