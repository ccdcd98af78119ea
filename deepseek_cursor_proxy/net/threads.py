"""Threads where failing to start one must not fail an answer: for tasks, and for one task that is repeated."""

import threading
from collections.abc import Callable

from deepseek_cursor_proxy.net.wait import Deadline

# How long a thread without a task waits for the next: starting a thread takes longer than a small request.
_IDLE_SECONDS = 1.0


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
        self._idle: list[_IdleThread] = []
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
                self._idle.pop().give(task)
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
                self._idle.pop().give(None)
            threads = list(self._threads)
        deadline = Deadline.after(seconds)
        for thread in threads:
            thread.join(max(0.0, deadline.left))

    def _run(self, task: Callable[[], None] | None) -> None:
        idle = _IdleThread()
        try:
            while task is not None:
                task()
                # A thread that waits holds nothing.
                task = None
                task = self._next(idle)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self, idle: "_IdleThread") -> Callable[[], None] | None:
        with self._lock:
            if self._is_closed:
                return None
            self._idle.append(idle)
        if not idle.is_given.acquire(timeout=_IDLE_SECONDS):
            with self._lock:
                if idle in self._idle:
                    self._idle.remove(idle)
                    return None
            # It was given a task at the last moment.
            idle.is_given.acquire()
        task, idle.task = idle.task, None
        return task


class _IdleThread:
    """A thread that waits until it is given a task, or None to end."""

    def __init__(self) -> None:
        self.task: Callable[[], None] | None = None
        self.is_given = threading.Lock()
        self.is_given.acquire()

    def give(self, task: Callable[[], None] | None) -> None:
        self.task = task
        self.is_given.release()


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
        """Called by the function: wait for `seconds`, or until the task is closed."""
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
