"""ReasoningStore: the reasonings of past turns, by the digests that identify the turns.

A cache with a promise: once `record` returns True, the reasoning survives the death of this process; and whatever is
wrong with the file, no answer fails or waits for it. A reasoning that cannot be written waits in memory, is found
there, and is written when the file can be used (see `store`). One that `can_wait` waits there a moment as well, for
others to share its transaction, unless the file is durable against a power cut. Keys are digests; no credential,
prompt or answer is ever stored, only the reasoning itself.

This store also owns the file, for all other stores.
"""

import functools
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from deepseek_cursor_proxy.storage.entries import Kind, ReasoningEntry, StoreStats, decode_text, encode_text
from deepseek_cursor_proxy.storage.sqlite.rows import ReasoningRows, delete_all, newest_time
from deepseek_cursor_proxy.storage.store import Store
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

if TYPE_CHECKING:
    # Most proxies have no engine, and are smaller without.
    from deepseek_cursor_proxy.storage.shared.reasonings import SharedReasonings

_log = logging.getLogger(__name__)

# The longest answer of DeepSeek has 1.5 MB; a longer text is no reasoning.
_LONGEST_REASONING_BYTES = 16 * 1024 * 1024
# So many bytes count as one turn towards the next pruning.
_BYTES_PER_TURN = 256 * 1024
# Roughly what an entry takes in memory besides its text and keys.
_BYTES_PER_ENTRY = 500


class WaitingReasonings(WriteBehind[ReasoningEntry]):
    # Thousands of long reasonings, and little enough for a small machine.
    bound = 64 * 1024 * 1024
    # So short a transaction that no turn waits noticeably for the lock.
    batch = 1024 * 1024
    # Different reasonings may have the same key.
    replaces = False

    def size(self, entry: ReasoningEntry) -> int:
        return _BYTES_PER_ENTRY + len(entry.text) + sum(map(len, entry.keys))

    def keys(self, entry: ReasoningEntry) -> Collection[bytes]:
        return entry.keys

    def merge_keys(self, entry: ReasoningEntry) -> Collection[bytes]:
        # Writing a reasoning twice changes nothing.
        return ()


class ReasoningStore(Table[ReasoningEntry]):
    """Called by workers."""

    rows: ReasoningRows
    waiting_type = WaitingReasonings
    kind = Kind(
        "reasonings",
        "reasoning store",
        max_rows=100_000,
        max_bytes=1024**3,
        # A wrong clock must not empty the store.
        share_by_age=0.1,
        # Pruning counts the whole table, so it runs once for many turns, …
        writes_between_prunings=256,
        # … in steps so short that a recording turn never waits noticeably for the lock: each row has some five keys on
        # pages of their own, and 200 rows took 40 ms in a store of 50,000.
        rows_per_step=50,
        rows_per_sum=2000,
    )

    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "normal",
        must_open: bool = False,
        **options: Unpack[TableOptions],
    ) -> None:
        """Open the file, or start without it and retry. With `must_open` raise Unusable instead and move nothing."""
        self.file = Store(path, durability, must_open=must_open)
        super().__init__(self.file.database, **options)
        self._writes_at_once = durability == "full"
        # The same reasonings on an engine, which other proxies find.
        self._shared: SharedReasonings | None = None
        self.file.open()
        with self._faults.guard("read the file"):
            self.rows.measure(is_exact=False)
            self.pruning.resume(lambda until: newest_time(self.database, until))

    def share(self, shared: "SharedReasonings") -> None:
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
            text = encode_text(reasoning)
            if len(text) > min(_LONGEST_REASONING_BYTES, self.kind.max_bytes):
                _log.warning("a reasoning of %d bytes is too long to be kept", len(text))
            else:
                new.append(ReasoningEntry(tuple(keys), text))
        if not new:
            return False
        is_kept = self._shared is not None and self._shared.record(caller, new)
        if (can_wait or is_kept) and not self._writes_at_once:
            self.write_later(new)
            return is_kept
        # Older texts of the same keys come first.
        self.flush()
        return self._waiting.put(new) is not None

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
        with self._faults.guard("look up"):
            _add_texts(found, self.rows.find(list(keys)))
        for key, entries in waiting.items():
            _add_texts(found, [(key, entry.text) for entry in reversed(entries)])
        return found

    def _merge_shared(
        self, own: dict[bytes, list[str]], shared: Sequence[tuple[bytes, bytes]], caller: bytes
    ) -> dict[bytes, list[str]]:
        """What the engine and the file have, in the engine's order. Each gets what it lacks.

        The file is for a time without the engine; the engine may have lost what it had, or is new.
        """
        assert self._shared is not None
        on_engine: dict[bytes, list[str]] = {}
        _add_texts(on_engine, shared)
        if entries := _entries_beyond(on_engine, own):
            self.write_later(entries)
        if not self._shared.is_behind and (entries := _entries_beyond(own, on_engine)):
            self._shared.record(caller, entries)
        return {key: list(dict.fromkeys((*on_engine.get(key, ()), *own.get(key, ())))) for key in {**on_engine, **own}}

    def _write_entries(self, entries: Sequence[ReasoningEntry], is_retry: bool) -> Sequence[ReasoningEntry]:
        self.rows.write(entries, is_retry)
        self._pruner.count_writes(sum([1 + len(entry.text) // _BYTES_PER_TURN for entry in entries]))
        if is_retry:
            self.file.outage.count(len(entries))
        return entries

    def stats(self) -> StoreStats:
        self.flush()
        return self.rows.stats()

    def clear(self) -> int:
        """Delete everything and shrink the file. Returns the number of reasonings deleted."""
        self._waiting.clear()
        return delete_all(self.database)

    def close(self) -> None:
        """Write waiting entries and close the file; idempotent. A later `record` returns False."""
        self._writer.close()
        self.file.reopener.close()
        self._pruner.close()
        if count := self._waiting.close(self.file.reopen):
            _log.warning("%d of the reasonings in memory never reached %s and are forgotten", count, self.database.path)
        with self._faults.guard("close"):
            # The uses of rows.
            self.rows.write([])
        self.database.close()


def _add_texts(found: dict[bytes, list[str]], rows: Sequence[tuple[bytes, bytes]]) -> None:
    for key, blob in rows:
        text = decode_text(blob)
        if (texts := found.get(key)) is None:
            found[key] = [text]
        elif text not in texts:
            texts.append(text)


def _entries_beyond(known: dict[bytes, list[str]], other: dict[bytes, list[str]]) -> list[ReasoningEntry]:
    """The reasonings under the keys that the other does not know, the oldest first."""
    keys_of: dict[str, list[bytes]] = {}
    for key in known.keys() - other.keys():
        for text in known[key]:
            keys_of.setdefault(text, []).append(key)
    return [ReasoningEntry(tuple(keys), encode_text(text)) for text, keys in keys_of.items()]
