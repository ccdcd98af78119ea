"""KeyPool: the keys of one upstream; each call takes the key with the fewest running calls.

A chat keeps its key, because the prefix cache belongs to an account. A key that the upstream refuses is set aside for a
time: for requests of that kind, because an upstream may refuse one model, or more tokens than are paid for; for all
when it was refused to two callers and no call was accepted in between. Keys are named by their digest; no text of this
file has a key in it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.config.access_keys import AccessKey

# Kinds of requests that one key remembers; clients may name any number of tokens.
_MOST_KINDS = 64


class RequestKind(NamedTuple):
    """The properties of a request for which an upstream may refuse a good key."""

    caller: bytes
    model: str
    max_tokens: object


class PooledKey:
    """One key. The lock of its pool protects the fields that change."""

    def __init__(self, credential: str) -> None:
        self.credential = credential
        self.digest = str(AccessKey.of(credential))
        self.calls = 0
        # The number of the last call of the pool that took it.
        self.last_call = 0
        # It is busy until then; it is refused until then, for all requests or for those of a kind.
        self.busy_until = self.aside_until = 0.0
        self.refused_until: dict[RequestKind, float] = {}
        # The callers it was refused to since a call was accepted.
        self.refused_callers: set[bytes] = set()

    def usable_from(self, kind: RequestKind) -> float:
        return max(self.ready_from, self.refused_until.get(kind, 0.0))

    @property
    def ready_from(self) -> float:
        return max(self.busy_until, self.aside_until)

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
    """Called by any thread; the lock protects the keys, `_calls` and `is_released`."""

    def __init__(self, credentials: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._keys = [PooledKey(credential) for credential in dict.fromkeys(credentials)]
        self._now = now
        self._calls = 0
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        now = self._now()
        return any(key.ready_from <= now for key in self._keys)

    @property
    def is_empty(self) -> bool:
        return not self._keys

    def is_ready_for(self, kind: RequestKind, besides: PooledKey | None = None) -> bool:
        """Whether a key is ready, other than `besides`."""
        now = self._now()
        return any(key.usable_from(kind) <= now for key in self._keys if key is not besides)

    def take(self, kind: RequestKind, digest: str | None = None) -> KeyLease:
        """Lease the key with this digest if it is ready, else the ready key with the fewest calls, then longest unused.

        If none is ready, the key that is set aside for the shortest time: its account may have been topped up since.
        There must be keys.
        """
        with self._lock:
            now = self._now()
            ready = [key for key in self._keys if key.usable_from(kind) <= now]
            own = [key for key in ready if key.digest == digest]
            found = own or ready or self._keys
            key = min(found, key=lambda key: (max(key.usable_from(kind), now), key.calls, key.last_call))
            self._calls += 1
            key.calls, key.last_call = key.calls + 1, self._calls
            return KeyLease(self, key)

    def release(self, lease: KeyLease) -> None:
        with self._lock:
            lease.key.calls -= 0 if lease.is_released else 1
            lease.is_released = True

    def record_busy(self, key: PooledKey, seconds: float) -> None:
        """Record that a key is busy for `seconds`."""
        with self._lock:
            key.busy_until = max(key.busy_until, self._now() + seconds)

    def record_refusal(self, key: PooledKey, kind: RequestKind, seconds: float) -> bool:
        """Set a refused key aside for requests of this kind. True if it was ready for them until now."""
        with self._lock:
            now = self._now()
            was_ready = key.usable_from(kind) <= now
            key.refused_until.pop(kind, None)
            if len(key.refused_until) >= _MOST_KINDS:
                del key.refused_until[next(iter(key.refused_until))]
            key.refused_until[kind] = now + seconds
            key.refused_callers.add(kind.caller)
            if len(key.refused_callers) > 1:
                key.aside_until = max(key.aside_until, now + seconds)
                key.refused_callers.clear()
            return was_ready

    def record_acceptance(self, key: PooledKey, kind: RequestKind) -> None:
        """Record an accepted call: the key is good, though perhaps not for requests of other kinds."""
        if key.aside_until or key.refused_until or key.refused_callers:
            with self._lock:
                key.aside_until = 0.0
                key.refused_until.pop(kind, None)
                key.refused_callers.clear()
