"""KeyPool: the keys of one upstream, of which each call takes the one with the fewest calls under way.

A chat keeps its key, because the prefix cache belongs to an account. A key that the upstream refuses is set aside for a
time, or until the configuration is read again. Keys are named by their digest; no text of this file has a key in it.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence

from deepseek_cursor_proxy.config.access_keys import AccessKey


class PooledKey:
    """One key. The lock of its pool protects the fields that change."""

    def __init__(self, credential: str) -> None:
        self.credential = credential
        self.digest = str(AccessKey.of(credential))
        self.calls = 0
        # The number of the last call of the pool that took it.
        self.last_call = 0
        self.aside_until = 0.0

    def __repr__(self) -> str:
        return f"PooledKey({self.digest})"


class KeyLease:
    """The use of a key by one call. `release` may be called again, and by any thread."""

    def __init__(self, pool: "KeyPool", key: PooledKey) -> None:
        self._pool = pool
        self.key = key
        self.is_released = False

    def release(self) -> None:
        self._pool.release(self)


class KeyPool:
    """Called by handler threads; the lock protects the keys, `_calls` and `is_released`."""

    def __init__(self, credentials: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._keys = [PooledKey(each) for each in dict.fromkeys(credentials)]
        self._now = now
        self._calls = 0
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        now = self._now()
        return any(key.aside_until <= now for key in self._keys)

    def take(self, digest: str | None = None) -> KeyLease | None:
        """The key of this digest if it is ready, else the ready one with the fewest calls, the longest unused of these.

        Without a ready key the one that is set aside for the shortest time: its account may have been topped up
        meanwhile. None if every key was refused for good.
        """
        with self._lock:
            now = self._now()
            usable = [key for key in self._keys if key.aside_until < math.inf]
            ready = [key for key in usable if key.aside_until <= now]
            own = [key for key in ready if key.digest == digest]
            if not usable:
                return None
            key = min(own or ready or usable, key=lambda key: (max(key.aside_until, now), key.calls, key.last_call))
            self._calls += 1
            key.calls, key.last_call = key.calls + 1, self._calls
            return KeyLease(self, key)

    def release(self, lease: KeyLease) -> None:
        with self._lock:
            lease.key.calls -= 0 if lease.is_released else 1
            lease.is_released = True

    def set_aside(self, key: PooledKey, seconds: float = math.inf) -> bool:
        """Take a key out for these seconds; whether it was ready until now."""
        with self._lock:
            now = self._now()
            was_ready = key.aside_until <= now
            key.aside_until = max(key.aside_until, now + seconds)
            return was_ready
