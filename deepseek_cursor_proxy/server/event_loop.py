"""EventLoop: one thread waits for the listener, for all idle clients and for all requests that cannot go on.

A descriptor is registered with the function to call when it is ready, a Timed is called at its moment. None of these
calls blocks: what may block runs on a worker (`connections`). The selector is the best that the system has: epoll,
kqueue, or Windows' select.
"""

import contextlib
import logging
import math
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from deepseek_cursor_proxy.net.wakeup import Wakeup

_log = logging.getLogger(__name__)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# Due waits are looked for at most this often, because looking takes time with a thousand clients.
_SECONDS_BETWEEN_LOOKS = 0.01
# After an unexpected error, so that a repeated one does not use up the processor.
_PAUSE_SECONDS = 0.05
# Windows' select takes 512 sockets: so many idle clients, or half as many streams.
_MOST_SELECTED = 480


class Timed(Protocol):
    """A wait with an end: `on_due` is called when the moment `until` has come."""

    @property
    def until(self) -> float: ...

    def on_due(self) -> None: ...


class EventLoop:
    """Run by one thread at a time, which alone may call the other methods; any thread may post and flush."""

    def __init__(self) -> None:
        """Raises OSError when no descriptors are left."""
        self._wakeup = Wakeup()
        # A key's data is the function to call when its descriptor is ready.
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._wakeup, READ, self._clear_wakeup)
        self.timed: set[Timed] = set()
        self._due_at = math.inf
        # Appending and popping are atomic.
        self._posted: deque[Callable[[], object]] = deque()
        self._is_notified = False

    # By any thread …

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop's thread call this."""
        self.post_later(call)
        self.flush()

    def post_later(self, call: Callable[[], object]) -> None:
        """The same without waking the loop: the caller makes sure that `flush` is called soon."""
        self._posted.append(call)

    def flush(self) -> None:
        """Wake the loop if something is posted."""
        if self._posted and not self._is_notified:
            self._is_notified = True
            with contextlib.suppress(OSError):
                self._wakeup.notify()

    # By the thread that runs it …

    def run_until(self, is_over: Callable[[], bool], until: float = math.inf) -> None:
        """Serve until `is_over` returns True or the moment `until` has come."""
        while not is_over() and time.monotonic() < until:
            try:
                self._poll_once(until)
            except Exception as error:
                # A bug costs this round, not all clients.
                details = _log.isEnabledFor(logging.DEBUG)
                _log.error("unexpected %s in the event loop", type(error).__name__, exc_info=details)
                time.sleep(_PAUSE_SECONDS)

    def _poll_once(self, until: float) -> None:
        moment = min(self._due_at, until)
        for key, events in self.selector.select(moment - time.monotonic() if moment < math.inf else None):
            key.data(events)
        while self._posted:
            self._posted.popleft()()
        if time.monotonic() >= self._due_at:
            self._call_due()

    def _clear_wakeup(self, events: int) -> None:
        self._wakeup.clear()
        # What is posted from here on notifies again; what was posted before is called after this.
        self._is_notified = False

    def _call_due(self) -> None:
        now = time.monotonic()
        for timed in [timed for timed in self.timed if timed.until <= now]:
            timed.on_due()
        self._due_at = math.inf
        self.note_due(max(min([timed.until for timed in self.timed], default=math.inf), now + _SECONDS_BETWEEN_LOOKS))

    @property
    def has_space(self) -> bool:
        """Whether the selector can watch one more connection."""
        if not isinstance(self.selector, selectors.SelectSelector):
            return True
        return len(self.selector.get_map()) < _MOST_SELECTED

    def add_timed(self, timed: Timed) -> None:
        self.timed.add(timed)
        self.note_due(timed.until)

    def note_due(self, until: float) -> None:
        """Look for due waits at this moment, if not before."""
        self._due_at = min(self._due_at, until)

    def close(self) -> None:
        """Give the descriptors back, when nothing runs it any more; what is posted later is lost."""
        # From here on `flush` does nothing.
        self._is_notified = True
        self.selector.close()
        self._wakeup.close()
