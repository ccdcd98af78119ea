"""Sessions: records turns, and opens the store of sessions when it is first needed.

A session of a caller that `access` does not know yet is in memory, with those of all such callers, for some minutes or
until newer ones take its place; `accept` has it written. Questions about sessions make no file.

Most proxies record nothing, so this file imports the others of the folder late.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs
from deepseek_cursor_proxy.errors import NotFound, Overloaded
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.observers.events import Event, Finished, Observers
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.sessions.store import SessionStore
    from deepseek_cursor_proxy.features.sessions.trajectory import Node, Session, SessionOptions

_FILE_NAME = "sessions.sqlite3"
# What a client needs between its first session and its first answer, thinking included.
_SECONDS_PENDING = 900.0
_MOST_PENDING = 1000
_MOST_CHARACTERS_PENDING = 1_000_000
# Characters of the ids that we make.
_ID_LENGTH = 36


def sessions_path(store_path: Path) -> Path:
    """Where sessions are kept: beside the reasoning."""
    return store_path if str(store_path) == ":memory:" else expand_home(store_path).with_name(_FILE_NAME)


@contextmanager
def file_faults() -> Iterator[None]:
    """Raise Overloaded for faults of the file."""
    try:
        yield
    except Unusable as fault:
        raise Overloaded(f"The file of sessions cannot be used: {fault}.", retry_after=5) from None


class _Pending(NamedTuple):
    """A session that is in memory only, when it was created (monotonic), and its size in characters."""

    session: "Session"
    created_at: float
    size: int

    @property
    def is_alive(self) -> bool:
        age, ttl = time.monotonic() - self.created_at, self.session.options.ttl_seconds
        return age < _SECONDS_PENDING and (ttl is None or age < ttl)


class Sessions(Feature):
    """Called by the threads of requests; the lock protects all fields."""

    name = "sessions"
    views = ("sessions",)

    def __init__(self, config: ProxyConfig, store_path: Path) -> None:
        """`store_path` is the path of the reasoning store."""
        self._config = config
        self._path = sessions_path(store_path)
        self._lock = threading.Lock()
        self._store: SessionStore | None = None
        # Sessions of callers that are not known yet, oldest first.
        self._pending: dict[tuple[bytes, str], _Pending] = {}

    def reconfigure(self, services: Services) -> None:
        self._config = services.config

    def facts(self, services: Services) -> Mapping[str, Any]:
        return {"sessions": self.count()}

    def extend(self, client: ClientRequest) -> None:
        """Have a request recorded if its path names a session, and any with record = all. Raises NotFound."""
        report = client.report
        if not report.prefix and self._config.record != "all":
            return
        if report.prefix:
            # No answer fails because the file of sessions cannot be read.
            with suppress(Unusable):
                session = self.get(client.namespace, report.prefix)
                if session is None:
                    raise unknown_session()
                client.reads_written_calls = session.options.reads_written_calls
            report.conversation = report.prefix
        client.logprobs = TokenLogprobs()
        # Not the request, which has the report: with its body it would stay until Python looks for cycles.
        record = partial(self._record, client.namespace, report.prefix, client.logprobs)
        emit, recorder = report.emit, Observers({Finished: record})

        def emit_recorded(event: Event) -> None:
            recorder.emit(event)
            emit(event)

        report.emit = emit_recorded

    def _record(self, caller: bytes, named: str, logprobs: TokenLogprobs, event: Finished) -> None:
        from deepseek_cursor_proxy.features.sessions.trajectory import turns_of

        if turns := turns_of(event, caller, named, logprobs):
            self.store().record(turns)

    def store(self) -> "SessionStore":
        from deepseek_cursor_proxy.features.sessions.store import SessionStore

        with self._lock:
            if self._store is None:
                self._store = SessionStore(self._path)
                with suppress(Unusable):
                    self._store.prune()
            return self._store

    def existing_store(self) -> "SessionStore | None":
        """The store; None if it has no file yet."""
        if self._store is None and (str(self._path) == ":memory:" or not self._path.exists()):
            return None
        return self.store()

    # Sessions …

    def create(self, caller: bytes, options: "SessionOptions", *, is_known: bool) -> "Session":
        """Create a session. Raises Unusable."""
        from deepseek_cursor_proxy.features.sessions.trajectory import new_session

        session = new_session(options, self._config.upstream_model, time.time())
        if is_known:
            return self.store().insert(caller, session)
        size = 200 + len(options.name) + sum(map(len, options.tags))
        with self._lock:
            self._pending[caller, session.uuid] = _Pending(session, time.monotonic(), size)
            characters = sum(pending.size for pending in self._pending.values())
            while len(self._pending) > _MOST_PENDING or characters > _MOST_CHARACTERS_PENDING:
                characters -= self._pending.pop(next(iter(self._pending))).size
        return session

    def accept(self, caller: bytes) -> None:
        """An upstream has accepted the caller's key: write its sessions; if the file is at fault, with the next one."""
        if not self._pending:
            return
        for session in self._pending_of(caller):
            with suppress(Unusable):
                self.store().insert(caller, session)
                with self._lock:
                    self._pending.pop((caller, session.uuid), None)

    def _pending_of(self, caller: bytes) -> "Sequence[Session]":
        with self._lock:
            return [pending.session for key, pending in self._pending.items() if key[0] == caller and pending.is_alive]

    def get(self, caller: bytes, session: str) -> "Session | None":
        """Raises Unusable."""
        if len(session) != _ID_LENGTH:
            return None
        pending = self._pending.get((caller, session))
        if pending is not None and pending.is_alive:
            return pending.session
        store = self.existing_store()
        return store.get(caller, session) if store is not None else None

    def list(self, caller: bytes) -> "list[Session]":
        """The sessions of a caller, newest first. Raises Unusable."""
        pending, store = self._pending_of(caller), self.existing_store()
        return [*reversed(pending), *(store.list(caller) if store is not None else ())]

    def nodes(self, session: str) -> "Iterator[Node]":
        """The nodes of a session. Raises Unusable."""
        store = self.existing_store()
        return store.nodes(session) if store is not None else iter(())

    def delete(self, caller: bytes, session: str) -> bool:
        """Delete a session. True if there was one. Raises Unusable."""
        with self._lock:
            pending = self._pending.pop((caller, session), None)
        if pending is not None:
            return pending.is_alive
        store = self.existing_store()
        return store is not None and store.delete(caller, session)

    def count(self) -> int | None:
        """The number of sessions; None if the file cannot be read."""
        with self._lock:
            pending = sum(pending.is_alive for pending in self._pending.values())
        try:
            store = self.existing_store()
            return pending + (store.count() if store is not None else 0)
        except Unusable:
            return None

    def close(self) -> None:
        """Write waiting turns and close the file."""
        if self._store is not None:
            self._store.close()


def unknown_session() -> NotFound:
    # Without the id: it is any text of a path, perhaps a key, and the log and the dashboard show this message.
    return NotFound("This key has no session with the id in the path. POST /sessions/create makes one.")


def open(services: Services) -> Services:
    sessions = Sessions(services.config, Path(services.reasoning_store.database.path))
    return services.add(sessions, extend=sessions.extend, on_accepted=(*services.on_accepted, sessions.accept))
