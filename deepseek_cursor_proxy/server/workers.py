"""Workers: the threads that run what may block, started when they are needed and ended when they are idle.

The usual number keeps the interpreter busy; with more, Python's threads spend their time handing it to each other. More
are started only if no worker takes a task for a while though some wait: then all of them are blocked, by answers with
several choices, by followed background responses or by the disk. There is at most one task per connection, so the limit
of connections bounds the workers.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.threads import start_thread

Task = TypeVar("Task")

_USUAL = 8
# With no more tasks than this, a worker may wait for its client: others are there for a new request.
_FEW = 3
# On a busy machine workers that compute take no task for 20 ms now and then; they must not count as blocked.
_BLOCKED_SECONDS = 0.05
# Starting a thread takes longer than a small request.
_IDLE_SECONDS = 1.0
_CLOSE_SECONDS = 1.0


class Workers(Generic[Task]):
    """`submit`, `until` and `on_due` are called by the event loop's thread, the rest by any."""

    def __init__(self, run: Callable[[Task], None], refuse: Callable[[Task], None], name: str) -> None:
        """`refuse` gets the waiting tasks back if all workers are blocked and no other can be started."""
        self._run = run
        self._refuse = refuse
        self._name = name
        # Protects the tasks, `_count`, `_pending` and `_threads`, and no worker ends while a task is submitted.
        self._lock = threading.Lock()
        # Not a SimpleQueue: in CPython 3.11 its `get` may forget its timeout if another worker takes the task.
        self._ready = threading.Condition(self._lock)
        self._tasks: deque[Task | None] = deque()
        # The workers, and the tasks that wait or run.
        self._count = self._pending = 0
        # Some may have ended.
        self._threads: list[threading.Thread] = []
        # When a worker last took a task, or a task came to an empty queue.
        self._moved_at = 0.0

    @property
    def are_few_busy(self) -> bool:
        return self._pending <= _FEW

    @property
    def has_queue(self) -> bool:
        """Whether a task waits for a worker."""
        return bool(self._tasks)

    def submit(self, task: Task) -> bool:
        """Have a worker run the task; False, and nothing is done, if there is no worker and none can be started."""
        with self._lock:
            if self._count <= self._pending and self._count < _USUAL:
                self._start()
            if not self._count:
                return False
            if not self._tasks:
                self._moved_at = time.monotonic()
            self._pending += 1
            self._tasks.append(task)
            self._ready.notify()
            return True

    # As a Timed of the loop …

    @property
    def until(self) -> float:
        """The moment at which all workers count as blocked, if none takes a task by then."""
        return self._moved_at + _BLOCKED_SECONDS if self.has_queue else math.inf

    def on_due(self) -> None:
        """Double the workers, which are all blocked, but start no more than there are tasks."""
        refused: list[Task] = []
        with self._lock:
            self._moved_at = time.monotonic()
            for _ in range(min(self._pending - self._count, self._count)):
                if not self._start():
                    refused = [task for task in self._tasks if task is not None]
                    self._tasks.clear()
                    self._pending -= len(refused)
                    break
        for task in refused:
            self._refuse(task)

    def close(self) -> None:
        """End the workers, and wait a moment for those that have a task; nothing is submitted from here on."""
        with self._lock:
            self._tasks.extend([None] * len(self._threads))
            self._ready.notify_all()
        deadline = Deadline.after(_CLOSE_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, deadline.left))

    def _start(self) -> bool:
        thread = start_thread(self._work, self._name)
        if thread is None:
            return False
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
        self._count += 1
        return True

    # By a worker …

    def _work(self) -> None:
        while True:
            with self._ready:
                if not self._ready.wait_for(lambda: self._tasks, _IDLE_SECONDS):
                    self._count -= 1
                    return
                task = self._tasks.popleft()
            if task is None:
                return
            self._moved_at = time.monotonic()
            self._run(task)
            # An idle worker holds nothing.
            del task
            with self._lock:
                self._pending -= 1
