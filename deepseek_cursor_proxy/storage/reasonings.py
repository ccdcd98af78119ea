"""ReasoningStore: the reasonings of past turns, by the digests that identify the turns.

A cache with a promise: once `record` returns True, the reasoning survives a crash. A reasoning that cannot be written
waits in memory, is found there, and is written when the file can be used. One that `can_wait` waits there a moment as
well, for others to share its transaction, unless the file is durable against a power cut. Keys are digests; no
credential, prompt or answer is ever stored, only the reasoning itself.

A reasoning is one row, addressed by the digest of its text, so that writing it again changes nothing. Each key that
leads to it is a small row; a key leads to up to 16 texts in the order in which they were written. A lookup counts as
use, which is written with the next entry if the stored time is a day old, or a minute if the table is nearly full.

This store also owns the file, for all other stores.
"""

import functools
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Unpack

from deepseek_cursor_proxy.storage.database import Store
from deepseek_cursor_proxy.storage.faults import FAULTS
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# The longest answer of DeepSeek has 1.5 MB; a longer text is no reasoning.
_LONGEST_REASONING_BYTES = 16 * 1024 * 1024
# So many bytes count as one turn towards the next pruning.
_BYTES_PER_TURN = 256 * 1024
# Roughly what an entry and a key of it take in memory, besides its text.
_BYTES_PER_ENTRY = 500
_BYTES_PER_KEY = 32
# SQLite's default limit of variables in one statement is 32766 since 3.32; older builds took 999.
_KEYS_PER_QUERY = 900
# Different reasonings for answers in the same words to the same history: a client that asks the same all day must not
# make every lookup longer.
_MOST_TEXTS_PER_KEY = 16
# Enough that no two texts have the same.
_DIGEST_BYTES = 16
# A use is written only when the row's time of last use is a day old, …
_USE_RESOLUTION_SECONDS = 24 * 3600
# … or a minute, when the store is so full that the order of use decides which rows go.
_FINE_USE_RESOLUTION_SECONDS = 60

# Values of SQL: for bytes, `sqlite3` looks for adapters, which takes as long as the binding of two others.
_blob = bytearray

_ADD_TEXT = "INSERT OR IGNORE INTO reasonings (digest, text, used_at) VALUES (?, ?, ?)"
# Has a key lead to a text, after those that it leads to already. NULL is no place, and ignored.
_ADD_KEY = (
    "INSERT OR IGNORE INTO keys (key, reasoning, place) VALUES (?1, ?2, (SELECT "
    f"CASE WHEN count(*) < {_MOST_TEXTS_PER_KEY} THEN coalesce(max(place) + 1, 0) END FROM keys WHERE key = ?1))"
)
_FIND = "SELECT key, text, id, used_at FROM keys JOIN reasonings ON id = reasoning WHERE key IN"
_ADD_USE = "UPDATE reasonings SET used_at = ?1 WHERE id = ?2 AND abs(?1 - used_at) > ?3"


class ReasoningEntry(NamedTuple):
    """A reasoning, and keys that lead to it."""

    keys: tuple[bytes, ...]
    text: bytes


class SharedReasonings(Protocol):
    """The same reasonings on an engine, which other proxies find."""

    @property
    def has_backlog(self) -> bool: ...

    def record(self, caller: bytes, entries: Sequence[ReasoningEntry]) -> bool: ...
    def find(self, caller: bytes, keys: Collection[bytes]) -> list[tuple[bytes, bytes]] | None: ...


class StoreStats(NamedTuple):
    reasonings: int
    keys: int
    bytes: int
    oldest_use: float | None


class WaitingReasonings(WriteBehind[ReasoningEntry]):
    # Thousands of long reasonings, and little enough for a small machine.
    bound = 64 * 1024 * 1024
    # So short a transaction that no turn waits noticeably for the lock.
    batch = 1024 * 1024
    # Different reasonings may have the same key.
    replaces = False

    def size(self, entry: ReasoningEntry) -> int:
        return _BYTES_PER_ENTRY + _BYTES_PER_KEY * len(entry.keys) + len(entry.text)

    def keys(self, entry: ReasoningEntry) -> Collection[bytes]:
        return entry.keys


class ReasoningStore(Table[ReasoningEntry]):
    """Called by any thread. The lock protects `_used`, the rows whose use is written later: a lookup never writes."""

    name = "reasonings"
    title = "reasoning store"
    waiting_type = WaitingReasonings
    size = "length(text)"
    max_rows = 100_000
    max_bytes = 1024**3
    writes_between_prunings = 256
    # Each row has some five keys on pages of their own, and 200 rows took 40 ms in a store of 50,000.
    rows_per_step = 50

    def __init__(
        self, path: str | Path, *, durability: str = "normal", must_open: bool = False, **options: Unpack[TableOptions]
    ) -> None:
        """Open the file, or start without it and retry. With `must_open` raise Unusable instead and move nothing."""
        self.file = Store(path, durability, must_open=must_open)
        super().__init__(self.file.database, **options)
        self._writes_at_once = durability == "full"
        self._lock = threading.Lock()
        self._used: set[int] = set()
        self._shared: SharedReasonings | None = None
        self.file.open()

    def share(self, shared: SharedReasonings) -> None:
        """Record on the engine too, before `record` returns, and look there for what others recorded."""
        self._shared = shared

    def finder(self, caller: bytes) -> Callable[[Collection[bytes]], dict[bytes, list[str]]]:
        """`find` for the reasonings of a caller."""
        return self.find if self._shared is None else functools.partial(self.find, caller=caller)

    def record(
        self, entries: Sequence[tuple[Sequence[bytes], str]], *, can_wait: bool = False, caller: bytes = b""
    ) -> bool:
        """Store reasonings, each under all its keys, in one transaction. True if the file has them now.

        If they are shared, True if the engine has them; the file gets them a moment later.
        """
        new = []
        for keys, reasoning in entries:
            text = _encode(reasoning)
            if len(text) > min(_LONGEST_REASONING_BYTES, self.max_bytes):
                _log.warning("a reasoning of %d bytes is too long to be kept", len(text))
            else:
                new.append(ReasoningEntry(tuple(keys), text))
        if not new:
            return False
        is_kept = self._shared is not None and self._shared.record(caller, new)
        if (can_wait or is_kept) and not self._writes_at_once:
            self._waiting.write_later(new)
            return is_kept
        if self._waiting:
            # Older texts of the same keys come first.
            self.flush()
        return self._waiting.write(new)

    def find(self, keys: Collection[bytes], caller: bytes = b"") -> dict[bytes, list[str]]:
        """The different reasonings recorded under each known key, oldest first."""
        if not keys:
            return {}
        shared = self._shared.find(caller, keys) if self._shared is not None else None
        found = self._find_here(keys)
        return found if shared is None else self._merge_shared(found, shared, caller)

    def _find_here(self, keys: Collection[bytes]) -> dict[bytes, list[str]]:
        """What this process and its file have."""
        # Waiting entries first: one that is just being written is found twice rather than not at all.
        waiting = self._waiting.find(keys)
        found: dict[bytes, list[str]] = {}
        try:
            _add_texts(found, self._read(list(map(_blob, keys))))
        except FAULTS as error:
            self._faults.warn("look up", error)
        for key, entries in waiting.items():
            _add_texts(found, [(key, entry.text) for entry in entries])
        return found

    def _read(self, keys: Sequence[bytearray]) -> list[tuple[bytes, bytes, int, float]]:
        """Key, text, id and last use of every reasoning in the file under these keys, oldest first."""
        rows: list[tuple[bytes, bytes, int, float]] = []
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            some = keys[start : start + _KEYS_PER_QUERY]
            rows += self.database.select(f"{_FIND} ({','.join('?' * len(some))}) ORDER BY place", *some)
        now, resolution = self.clock(), self._use_resolution()
        for _, _, id, used_at in rows:
            if abs(now - used_at) > resolution:
                with self._lock:
                    self._used.add(id)
        return rows

    def _use_resolution(self) -> float:
        """The age from which a stored time of last use is updated."""
        return _FINE_USE_RESOLUTION_SECONDS if self.is_nearly_full else _USE_RESOLUTION_SECONDS

    def _merge_shared(
        self, own: dict[bytes, list[str]], shared: Sequence[tuple[bytes, bytes]], caller: bytes
    ) -> dict[bytes, list[str]]:
        """What the file and the engine have, the file's own first. Each gets what it lacks.

        The file is for a time without the engine; the engine may have lost what it had, or is new. Only this proxy
        writes to the file, so the file counts if the two differ.
        """
        assert self._shared is not None
        on_engine: dict[bytes, list[str]] = {}
        _add_texts(on_engine, shared)
        if entries := _entries_beyond(on_engine, own):
            self._waiting.write_later(entries)
        if not self._shared.has_backlog and (entries := _entries_beyond(own, on_engine)):
            self._shared.record(caller, entries)
        return {key: list(dict.fromkeys((*own.get(key, ()), *on_engine.get(key, ())))) for key in {**own, **on_engine}}

    def _write(self, connection: sqlite3.Connection, entries: Sequence[ReasoningEntry]) -> None:
        """Write entries, and the uses noted by lookups."""
        sha256, now = _sha256(), self.clock()
        with self._lock:
            used, self._used = self._used, set()
        for keys, text in entries:
            digest = _blob(sha256(text).digest()[:_DIGEST_BYTES])
            inserted = connection.execute(_ADD_TEXT, (digest, _blob(text), now))
            id = inserted.lastrowid or 0
            if not inserted.rowcount:
                [id] = connection.execute("SELECT id FROM reasonings WHERE digest = ?", (digest,)).fetchone()
                used.add(id)
            connection.executemany(_ADD_KEY, [(_blob(key), id) for key in keys])
        if used:
            connection.executemany(_ADD_USE, [(now, id, self._use_resolution()) for id in used])
        self._count_writes(sum([1 + len(entry.text) // _BYTES_PER_TURN for entry in entries]))

    def _write_uses(self) -> None:
        if self._used:
            with self._faults.guard("record"), self.database.transaction() as connection:
                self._write(connection, [])

    def prune(self) -> Iterator[int]:
        # The order of use decides what goes.
        self._write_uses()
        yield from super().prune()

    def stats(self) -> StoreStats:
        self.flush()
        query = "SELECT count(*), coalesce(sum(length(text)), 0), min(used_at) FROM reasonings"
        [(rows, size, oldest)] = self.database.select(query)
        return StoreStats(rows, self.database.number("SELECT count(*) FROM keys"), size, oldest)

    def clear(self, *others: str) -> int:
        """Delete the reasonings, and all of other tables, and shrink the file. Returns the number of reasonings."""
        self._waiting.clear()
        with self.database.transaction() as connection:
            count = int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}
            for table in filter(tables.__contains__, ("keys", "reasonings", *others)):
                connection.execute(f"DELETE FROM {table}")
        self.database.shrink()
        return count

    def close(self) -> int:
        """Write waiting entries and close the file; idempotent. A later `record` returns False."""
        self.database.background.close()
        if count := self._waiting.close(self.file.reopen):
            _log.warning("%d of the reasonings in memory never reached %s and are forgotten", count, self.database.path)
        self._write_uses()
        self.database.close()
        return count


@functools.cache
def _sha256() -> Callable[[bytes], Any]:
    # Imported late: it would delay the start. Once: an import statement in each write took as long as the digest.
    from hashlib import sha256

    return sha256


def _encode(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass")


def _add_texts(found: dict[bytes, list[str]], rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows that begin with a key and a text."""
    for key, blob, *_ in rows:
        text = blob.decode("utf-8", "surrogatepass")
        if (texts := found.get(key)) is None:
            found[key] = [text]
        elif text not in texts:
            texts.append(text)


def _entries_beyond(known: dict[bytes, list[str]], other: dict[bytes, list[str]]) -> list[ReasoningEntry]:
    """The reasonings under the keys that the other does not know, in their order under each key."""
    texts_of = [(key, texts) for key, texts in known.items() if key not in other]
    entries = []
    for place in range(max((len(texts) for _, texts in texts_of), default=0)):
        keys_of: dict[str, list[bytes]] = {}
        for key, texts in texts_of:
            if place < len(texts):
                keys_of.setdefault(texts[place], []).append(key)
        entries += [ReasoningEntry(tuple(keys), _encode(text)) for text, keys in keys_of.items()]
    return entries
