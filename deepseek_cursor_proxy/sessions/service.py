"""SessionService: the store of sessions and its recorder, both made when they are first needed.

A session of a caller that `access` does not know yet is in memory, with those of all such callers, for some minutes or
until newer ones take its place; `accept` has it written. Questions about sessions make no file.

Most proxies record nothing, so this file imports the others of the folder late.
"""

import glob
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.observers.events import Event, Finished
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.store import Reopener

if TYPE_CHECKING:
    from deepseek_cursor_proxy.sessions.recorder import SessionRecorder
    from deepseek_cursor_proxy.sessions.session_store import SessionStore
    from deepseek_cursor_proxy.sessions.trajectory import Node, Session, SessionOptions

_FILE_NAME = "sessions.sqlite3"
# A client that uses a session asks every few seconds. An expired or pruned session may get one more answer.
_SECONDS_KNOWN = 5.0
_MOST_KNOWN = 1000
# What a client needs between its first session and its first answer, thinking included.
_SECONDS_PENDING = 900.0
_MOST_PENDING = 1000
_MOST_CHARACTERS_PENDING = 1_000_000
# Characters of the ids that we make.
_ID_LENGTH = 36


def sessions_path(config: ProxyConfig, store_path: Path) -> Path:
    """Where sessions are kept: beside the reasoning, unless a setting says otherwise."""
    if config.sessions_path is not None:
        return config.sessions_path
    return store_path if str(store_path) == ":memory:" else store_path.with_name(_FILE_NAME)


class _Pending(NamedTuple):
    """A session that is in memory only, when it was created (monotonic), and its size in characters."""

    session: "Session"
    created_at: float
    size: int

    @property
    def is_alive(self) -> bool:
        age, ttl = time.monotonic() - self.created_at, self.session.options.ttl_seconds
        return age < _SECONDS_PENDING and (ttl is None or age < ttl)


class SessionService:
    """An observer, and the way to the store. Called by workers; the lock protects all but `_known`."""

    def __init__(self, config: ProxyConfig, store_path: Path) -> None:
        """`store_path` is the path of the reasoning store."""
        self._config = config
        self._path = sessions_path(config, store_path)
        self._lock = threading.Lock()
        self._store: SessionStore | None = None
        self._recorder: SessionRecorder | None = None
        self._reopener = Reopener(self._reopen, name="sessions-reopen")
        # By caller: sessions that were there a moment ago, and until when that counts. A dictionary's own operations
        # are atomic.
        self._known: dict[tuple[bytes, str], tuple[float, Session]] = {}
        # Sessions of callers that are not known yet, oldest first; and those of them whose callers were accepted since,
        # and which wait for the file.
        self._pending: dict[tuple[bytes, str], _Pending] = {}
        self._accepted: list[tuple[bytes, Session]] = []

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
        """The store. Raises Unusable if its file cannot be opened, and tries again with the next call."""
        from deepseek_cursor_proxy.sessions.session_store import Limits, SessionStore

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
            while self._accepted:
                caller, session = self._accepted[0]
                self._store.insert(caller, session)
                # Only now, so that it is found at any moment.
                self._pending.pop((caller, session.uuid), None)
                del self._accepted[0]
            return self._store

    def _existing_store(self) -> "SessionStore | None":
        """The store; None if it has no file yet. Raises Unusable."""
        if self._store is None and (str(self._path) == ":memory:" or not self._has_files()):
            return None
        return self.store()

    def _has_files(self) -> bool:
        """Whether there is the store's file, or a journal of a process that was killed before it made one."""
        path = expand_home(self._path)
        return any(path.parent.glob(f"{glob.escape(path.name)}*"))

    # Sessions …

    def create(self, caller: bytes, options: "SessionOptions", *, is_known: bool) -> "Session":
        """Create a session. Raises Unusable."""
        from deepseek_cursor_proxy.sessions.session_writer import storable
        from deepseek_cursor_proxy.sessions.trajectory import new_session

        model = self._config.upstream_model
        if is_known:
            return self.store().create(caller, options, model)
        session = new_session(replace(options, name=storable(options.name)), model, time.time())
        self._hold(caller, session)
        return session

    def _hold(self, caller: bytes, session: "Session") -> None:
        options = session.options
        size = 200 + len(options.name) + sum(map(len, options.tags))
        with self._lock:
            self._pending[caller, session.uuid] = _Pending(session, time.monotonic(), size)
            characters = sum(pending.size for pending in self._pending.values())
            while len(self._pending) > _MOST_PENDING or characters > _MOST_CHARACTERS_PENDING:
                characters -= self._pending.pop(next(iter(self._pending))).size

    def accept(self, caller: bytes) -> None:
        """An upstream has accepted the caller's key: write its sessions, as soon as the file can be used."""
        if not self._pending:
            return
        with self._lock:
            own = [(caller, session) for session in self._pending_sessions(caller)]
            self._accepted += [session for session in own if session not in self._accepted]
        if self._accepted:
            with suppress(Unusable):
                self.store()

    def get(self, caller: bytes, session: str) -> "Session | None":
        """Raises Unusable."""
        if len(session) != _ID_LENGTH:
            return None
        pending = self._pending.get((caller, session))
        if pending is not None and pending.is_alive:
            return pending.session
        store = self._existing_store()
        return store.get(caller, session) if store is not None else None

    def list(self, caller: bytes) -> "list[Session]":
        """The sessions of a caller, newest first. Raises Unusable."""
        with self._lock:
            pending = self._pending_sessions(caller)
        store = self._existing_store()
        written = store.list(caller) if store is not None else []
        ids = {session.uuid for session in written}
        return [*(session for session in reversed(pending) if session.uuid not in ids), *written]

    def _pending_sessions(self, caller: bytes) -> "Sequence[Session]":
        return [pending.session for key, pending in self._pending.items() if key[0] == caller and pending.is_alive]

    def nodes(self, session: str) -> "Iterator[Node]":
        """The nodes of a session. Raises Unusable."""
        store = self._existing_store()
        return store.nodes(session) if store is not None else iter(())

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

    def flush(self, *, empties_journal: bool = False) -> None:
        """Wait until the turns of ended requests are written, within bounds."""
        if self._recorder is not None:
            self._recorder.flush(empties_journal=empties_journal)

    def knows(self, caller: bytes, session: str) -> bool:
        """Whether the caller has this session; True if the file cannot be read, so that no answer fails for that."""
        try:
            return self._look_up(caller, session) is not None
        except Unusable:
            return True

    def reads_written_calls(self, caller: bytes, session: str) -> bool:
        """Whether the session was created with a tool parser by name; False if the file cannot be read."""
        try:
            found = self._look_up(caller, session)
        except Unusable:
            return False
        return found is not None and found.options.reads_written_calls

    def _look_up(self, caller: bytes, session: str) -> "Session | None":
        """The session as it was a moment ago, or longer ago if the file cannot be read. Raises Unusable."""
        key, now = (caller, session), time.monotonic()
        until, known = self._known.get(key, (0.0, None))
        if until > now:
            return known
        try:
            found = self.get(caller, session)
        except Unusable:
            if known is None:
                raise
            return known
        if found is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = now + _SECONDS_KNOWN, found
        return found

    def delete(self, caller: bytes, session: str) -> bool:
        """Delete a session. True if there was one, which a lookup decides. Raises Unusable."""
        with self._lock:
            pending = self._pending.pop((caller, session), None)
            self._accepted = [(key, kept) for key, kept in self._accepted if kept.uuid != session]
        if pending is not None:
            is_deleted = pending.is_alive
        else:
            store = self._existing_store()
            if store is None or not store.contains(caller, session):
                return False
            # The queue may hold turns of it, and so may the journals: ours, and those of killed processes.
            self.flush(empties_journal=True)
            store = self.store()
            store.recover()
            is_deleted = store.delete(caller, session)
        self._known.pop((caller, session), None)
        return is_deleted

    def count(self) -> int | None:
        """The number of sessions; None if the file cannot be read."""
        with self._lock:
            pending = sum(pending.is_alive for pending in self._pending.values())
        try:
            store = self._existing_store()
            return pending + (store.count() if store is not None else 0)
        except Unusable:
            return None

    def close(self) -> None:
        """Write waiting turns and close the file."""
        if self._recorder is not None:
            self._recorder.close()
        self._reopener.close()
        if self._store is not None:
            self._store.close()
