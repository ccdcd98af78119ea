"""SharedCalls: work that several requests want at the same time, done once, on its own thread.

A request that wants a result joins the call for it, and is notified when the call is over. The call has a Wakeup in the
place of a client: when the last request has left, it ends what the work waits for. This file knows no picture, no store
and no protocol.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wakeup import Wakeup

_log = logging.getLogger(__name__)

Key = tuple[bytes, bytes]
# Does the work for a client that may leave; None when it failed.
Work = Callable[[Peer], str | None]


class SharedCall:
    """One call. Written by its thread; `is_over` is set last, and the lock of SharedCalls protects the waiters."""

    def __init__(self, key: Key) -> None:
        """Raises OSError when no descriptors are left."""
        self.key = key
        self.peer = Wakeup()
        self.waiters: set[Wakeup] = set()
        self.result: str | None = None
        self.is_over = False


class SharedCalls:
    """Called by workers; the lock protects `_calls`, the calls that others can join, and their waiters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Key, SharedCall] = {}

    def join(self, key: Key, work: Work, waiter: Wakeup) -> SharedCall | None:
        """Join the call for this key, or begin it; `waiter` is notified of its end. None if no thread is left."""
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                call = self._begin(key, work)
            if call is not None:
                call.waiters.add(waiter)
            return call

    def leave(self, call: SharedCall, waiter: Wakeup, reason: Callable[[], ProxyError] | None = None) -> None:
        """Stop waiting; the last waiter to leave ends the call, with `reason` or as if its client had left."""
        with self._lock:
            call.waiters.discard(waiter)
            if call.waiters or call.is_over:
                return
            # The next request for the result begins a new call.
            self._forget(call)
        call.peer.set(reason)

    def _begin(self, key: Key, work: Work) -> SharedCall | None:
        try:
            call = SharedCall(key)
        except OSError:
            return None
        if start_thread(partial(self._run, call, work), "shared-call") is None:
            call.peer.close()
            return None
        self._calls[key] = call
        return call

    def _run(self, call: SharedCall, work: Work) -> None:
        try:
            call.result = work(call.peer)
        except Exception as error:
            # A bug, logged here because no client gets it.
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s in a shared call", type(error).__name__, exc_info=details)
        finally:
            with self._lock:
                self._forget(call)
                call.is_over = True
                # Under the lock: a waiter that has left may have closed its wake-up.
                for waiter in call.waiters:
                    waiter.notify()
            call.peer.close()

    def _forget(self, call: SharedCall) -> None:
        if self._calls.get(call.key) is call:
            del self._calls[call.key]
