"""SessionService: the store of sessions, opened when it is first needed, and the recorder that writes into it."""

import threading
from pathlib import Path

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.sessions.recorder import Price, SessionRecorder
from deepseek_cursor_proxy.sessions.store import Limits, SessionStore

FILE_NAME = "sessions.sqlite3"


def sessions_path(config: ProxyConfig) -> Path:
    """Where sessions are kept: beside the reasoning, unless a setting says otherwise."""
    if config.sessions_path is not None:
        return config.sessions_path
    beside = config.reasoning_content_path
    return beside if str(beside) == ":memory:" else beside.with_name(FILE_NAME)


class SessionService:
    """Called by handler threads. The lock protects `_store`, which the first call of `store` opens."""

    def __init__(self, config: ProxyConfig, price: Price = lambda event: None) -> None:
        self._path = sessions_path(config)
        self._limits = Limits(config.session_max_age_seconds, config.max_sessions, config.session_max_bytes)
        self._lock = threading.Lock()
        self._store: SessionStore | None = None
        self.recorder = SessionRecorder(self.store, records_all=config.record == "all", price=price)

    def reconfigure(self, config: ProxyConfig) -> None:
        self.recorder.records_all = config.record == "all"

    def store(self) -> SessionStore:
        """The store; raises Unusable when its file cannot be opened, and tries again with the next call."""
        with self._lock:
            if self._store is None:
                store = SessionStore(self._path.expanduser(), self._limits)
                try:
                    store.open()
                except BaseException:
                    store.close()
                    raise
                store.prune()
                self._store = store
            return self._store

    def close(self) -> None:
        self.recorder.close()
        with self._lock:
            if self._store is not None:
                self._store.close()
