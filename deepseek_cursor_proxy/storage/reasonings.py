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
from collections.abc import Callable, Collection, Mapping, Sequence
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


# reasoning.restore.KeyAlias: a known key, a new one, the reasoning, and keys that must not be known.
_Alias = tuple[bytes | None, bytes, str, tuple[bytes, ...]]


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
        return entry.keys[:1] if entry.extends is None else (entry.extends, entry.keys[0])

    def merge(self, new: ReasoningEntry, old: ReasoningEntry) -> ReasoningEntry | None:
        if new.extends is not None and new.extends in old.keys and old.known_key is None and old.text == new.text:
            return new._replace(keys=tuple(dict.fromkeys((*new.keys, *old.keys))))
        if new.keys[0] not in old.keys:
            return None
        if new.known_key is not None or new.unless_known:
            # A key that is known already keeps its reasoning.
            return old
        # The same turn again, or one that went on thinking after its calls. A text that merely begins alike is another
        # answer in the same words and stays an entry of its own.
        if old.known_key is not None or old.text not in (new.text, new.previous):
            return None
        # As in the file, where the row keeps its keys.
        return new._replace(keys=tuple(dict.fromkeys((*new.keys, *old.keys))))


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
        self,
        entries: Sequence[tuple[Sequence[bytes], str]],
        aliases: Sequence[_Alias] = (),
        previous: Mapping[bytes, str] | None = None,
        *,
        can_wait: bool = False,
        caller: bytes = b"",
    ) -> bool:
        """Store reasonings, each under all its keys, in one transaction. True if the file has them now.

        If they are shared, True if the engine has them; the file gets them a moment later.

        An alias adds a key to a stored reasoning; see reasoning.restore.KeyAlias. It has the reasoning, because another
        chat may have recorded a different one under the same known key. `previous` has, by first key, what this answer
        recorded before: a longer reasoning replaces its row, and the same one only gets more keys.
        """
        before = {key: encode_text(text) for key, text in (previous or {}).items()}
        turns, links = [], []
        for keys, reasoning in entries:
            text = encode_text(reasoning)
            if len(text) > min(_LONGEST_REASONING_BYTES, self.kind.max_bytes):
                _log.warning("a reasoning of %d bytes is too long to be kept", len(text))
                continue
            same = [key for key, known in before.items() if known == text and key != keys[0]]
            extends = same[0] if same else None
            turns.append(ReasoningEntry(tuple(keys), text, None, before.get(keys[0]), extends, (), caller))
        for known, key, reasoning, unless in aliases:
            if self._shared is not None and reasoning.isspace():
                # "Sent without": another proxy may have the reasoning, and write it when it reaches the engine.
                continue
            links.append(ReasoningEntry((key,), encode_text(reasoning), known, None, None, unless, caller))
        if not (new := turns + links):
            return False
        is_kept = self._shared is not None and self._shared.record(caller, new)
        if (can_wait or is_kept) and not self._writes_at_once:
            self.write_later(turns + self._new_links(turns, links) if links else turns)
            return is_kept
        # Before an alias of it.
        self.flush()
        return self._waiting.put(new) is not None

    def _new_links(self, turns: Sequence[ReasoningEntry], links: Sequence[ReasoningEntry]) -> list[ReasoningEntry]:
        """The links that the file would add. Decided now: an entry that waits is found, whatever the file knows."""
        known_keys = {*self._find_here([key for entry in links for key in (*entry.keys, *entry.unless_known)])}
        known_keys.update(key for entry in turns for key in entry.keys)
        return [
            entry
            for entry in links
            if (entry.known_key is None or entry.keys[0] not in known_keys)
            and known_keys.isdisjoint(entry.unless_known)
        ]

    def find(self, keys: Collection[bytes], caller: bytes = b"") -> dict[bytes, list[str]]:
        """The different reasonings recorded under each known key, newest first."""
        if not keys:
            return {}
        shared = self._shared.find(caller, keys) if self._shared is not None else None
        found = self._find_here(keys)
        return found if shared is None else self._merge_shared(found, shared, caller)

    def _find_here(self, keys: Collection[bytes]) -> dict[bytes, list[str]]:
        """What this process and its file have."""
        found: dict[bytes, list[str]] = {}
        # Waiting entries first: one that is just being written is found twice rather than not at all.
        for key, waiting in self._waiting.find(keys).items():
            _add_texts(found, [(key, each.text) for each in waiting])
        with self._faults.guard("look up"):
            _add_texts(found, self.rows.find(list(keys)))
        return found

    def _merge_shared(
        self, own: dict[bytes, list[str]], shared: Sequence[tuple[bytes, bytes]], caller: bytes
    ) -> dict[bytes, list[str]]:
        """What the file and the engine have. Each gets what it lacks.

        The file is for a time without the engine; the engine may have lost what it had, or is new.
        """
        assert self._shared is not None
        on_engine: dict[bytes, list[str]] = {}
        _add_texts(on_engine, shared)
        # An empty one, too: there it was recorded with its turn, and is no guess.
        if entries := _entries_beyond(on_engine, own, caller):
            self.write_later(entries)
        if self._shared.is_behind:
            newer, older = own, on_engine
        else:
            newer, older = on_engine, own
            # But not " ", the note of a turn that was sent without.
            if entries := [entry for entry in _entries_beyond(own, on_engine, caller) if not entry.text.isspace()]:
                self._shared.record(caller, entries)
        return {key: list(dict.fromkeys((*newer.get(key, ()), *older.get(key, ())))) for key in {**newer, **older}}

    def _write_entries(self, entries: Sequence[ReasoningEntry], is_retry: bool) -> Sequence[ReasoningEntry]:
        self.rows.write(entries, is_retry)
        self._pruner.count_writes(sum([1 + len(entry.text) // _BYTES_PER_TURN for entry in entries]))
        if is_retry:
            self.file.outage.count(sum(each.known_key is None and not each.unless_known for each in entries))
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


def _entries_beyond(
    known: dict[bytes, list[str]], other: dict[bytes, list[str]], caller: bytes
) -> list[ReasoningEntry]:
    """The reasonings under the keys that the other does not know, the newest last."""
    keys_of: dict[str, list[bytes]] = {}
    for key in known.keys() - other.keys():
        for text in known[key]:
            keys_of.setdefault(text, []).append(key)
    return [ReasoningEntry(tuple(keys), encode_text(text), caller=caller) for text, keys in reversed(keys_of.items())]
