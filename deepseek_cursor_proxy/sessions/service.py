"""SessionService: the store of sessions and its recorder, both made when they are first needed.

Most proxies record nothing, so this file imports the others of the folder late.
"""

import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.sources import expand_home
from deepseek_cursor_proxy.observers.events import Event, Finished
from deepseek_cursor_proxy.storage.engine.faults import Unusable
from deepseek_cursor_proxy.storage.engine.reopener import Reopener

if TYPE_CHECKING:
    from deepseek_cursor_proxy.sessions.recorder import SessionRecorder
    from deepseek_cursor_proxy.sessions.store import SessionStore

_FILE_NAME = "sessions.sqlite3"
# A client that uses a session asks every few seconds; one that expires or is pruned meanwhile may get one more answer.
_SECONDS_KNOWN = 5.0
_MOST_KNOWN = 1000


def sessions_path(config: ProxyConfig, store_path: Path) -> Path:
    """Where sessions are kept: beside the reasoning, unless a setting says otherwise."""
    if config.sessions_path is not None:
        return config.sessions_path
    return store_path if str(store_path) == ":memory:" else store_path.with_name(_FILE_NAME)


class SessionService:
    """An observer, and the way to the store. Called by handler threads; the lock protects `_store` and `_recorder`."""

    def __init__(self, config: ProxyConfig, store_path: Path) -> None:
        """`store_path` is that of the reasoning."""
        self._config = config
        self._path = sessions_path(config, store_path)
        self._lock = threading.Lock()
        self._store: SessionStore | None = None
        self._recorder: SessionRecorder | None = None
        self._reopener = Reopener(self._reopen, name="sessions-reopen")
        # Sessions that were there a moment ago, by caller, until when that counts. A dictionary's own operations are
        # atomic.
        self._known: dict[tuple[bytes, str], float] = {}

    def reconfigure(self, config: ProxyConfig) -> None:
        """Take over the settings that need no restart."""
        self._config = config

    def emit(self, event: Event) -> None:
        """Record the turn of a request that named a session, or of any with record = all. Returns at once."""
        if not isinstance(event, Finished) or event.prepared is None or event.message is None:
            return
        if event.recorded_in or self._config.record == "all":
            (self._recorder or self._start_recorder()).record(event)

    def _start_recorder(self) -> "SessionRecorder":
        from deepseek_cursor_proxy.sessions.journal import Journal
        from deepseek_cursor_proxy.sessions.recorder import SessionRecorder

        with self._lock:
            if self._recorder is None:
                journal = None if str(self._path) == ":memory:" else Journal(expand_home(self._path))
                self._recorder = SessionRecorder(self.store, str(self._path), journal)
            return self._recorder

    def store(self) -> "SessionStore":
        """The store; raises Unusable when its file cannot be opened, and tries again with the next call."""
        from deepseek_cursor_proxy.sessions.store import Limits, SessionStore

        with self._lock:
            if self._store is None:
                config = self._config
                limits = Limits(config.session_max_age_seconds, config.max_sessions, config.session_max_bytes)
                store = SessionStore(expand_home(self._path), limits, on_fault=self._reopener.wake)
                try:
                    store.open()
                    store.recover()
                    store.prune()
                except BaseException:
                    store.close()
                    raise
                self._store = store
            return self._store

    def _reopen(self) -> bool:
        """Try once to use the file again. Called by the reopener."""
        if self._store is None:
            # The fault was met while opening it; the next call tries again.
            return True
        try:
            self._store.database.reopen()
        except (Unusable, sqlite3.Error, OSError):
            return False
        return True

    def flush(self) -> None:
        """Wait until the turns of ended requests are written, within bounds."""
        if self._recorder is not None:
            self._recorder.flush()

    def knows(self, caller: bytes, session: str) -> bool:
        """Whether the caller has this session; True where that cannot be found out, because no answer fails for it."""
        key, now = (caller, session), time.monotonic()
        if self._known.get(key, 0.0) > now:
            return True
        try:
            is_known = self.store().has(caller, session)
        except Unusable:
            return True
        if is_known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = now + _SECONDS_KNOWN
        return is_known

    def delete(self, caller: bytes, session: str) -> bool:
        """Delete a session; whether there was one, which a lookup decides. Raises Unusable."""
        if not self.store().contains(caller, session):
            return False
        # What waits may have turns of it. After the first flush, later turns may keep them in the journal; not after
        # the second.
        for _ in range(2):
            self.flush()
        store = self.store()
        # And so may the journal of another process that was killed.
        store.recover()
        is_deleted = store.delete(caller, session)
        self._known.pop((caller, session), None)
        return is_deleted

    def count(self) -> int | None:
        """How many sessions there are; None if that cannot be found out."""
        if self._store is None and (str(self._path) == ":memory:" or not expand_home(self._path).exists()):
            return 0
        try:
            return self.store().count()
        except Unusable:
            return None

    def close(self) -> None:
        """Write what waits, and close the file."""
        if self._recorder is not None:
            self._recorder.close()
        self._reopener.close()
        if self._store is not None:
            self._store.close()
