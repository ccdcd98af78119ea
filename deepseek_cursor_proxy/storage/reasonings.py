"""ReasoningStore: the reasonings of past turns, by the digests that identify the turns.

A cache with a promise: once `record` returns True, the reasoning survives the death of this process; and whatever is
wrong with the file, no answer fails or waits for it. A reasoning that cannot be written is pending in memory, is found
there, and is written when the file can be used (see `store`). Keys are digests; no credential, prompt or answer is
ever stored, only the reasoning itself.

Pruning deletes the longest unused entries, by age, number and bytes, in small steps on its own thread.

This module is the policy; the SQL of the tables `reasonings` and `keys` is in `reasoning_rows`. This store also owns
the file, for all other stores.
"""

import logging
import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite import reasoning_rows, schema
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.group_commit import GroupCommit
from deepseek_cursor_proxy.storage.sqlite.reasoning_rows import PendingReasoning, PendingReasonings, StoreStats, Timing
from deepseek_cursor_proxy.storage.store import OutageLog, Reopener
from deepseek_cursor_proxy.storage.table import Kind, Table, TableOptions, decode_text, encode_text

_log = logging.getLogger(__name__)

# A use is written only when the entry's time of last use is a day old, …
_USE_RESOLUTION_SECONDS = 24 * 3600
# … or a minute, when the store is so full that the order of use decides which entries go.
_FINE_USE_RESOLUTION_SECONDS = 60
# The longest answer of DeepSeek has 1.5 MB; a longer text is no reasoning.
_LONGEST_REASONING_BYTES = 16 * 1024 * 1024
# So many bytes count as one turn towards the next pruning.
_BYTES_PER_TURN = 256 * 1024
# Thousands of long reasonings, and little enough for a small machine.
_MOST_BYTES_PENDING = 64 * 1024 * 1024
# Pending reasonings are written in transactions so short that no turn waits noticeably for the lock.
_BYTES_PER_BATCH = 1024 * 1024


# reasoning.restore.KeyAlias: a known key, a new one, the reasoning, and keys that must not be known.
_Alias = tuple[bytes | None, bytes, str, tuple[bytes, ...]]


class ReasoningStore(Table):
    """Called by handler threads. Its own lock protects `_used` and `_is_closed`; its parts have theirs."""

    kind = Kind(
        "reasonings",
        "reasoning store",
        size="length(text)",
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
        self, path: str | Path, *, durability: str = "normal", must_open: bool = False, **options: Unpack[TableOptions]
    ) -> None:
        """Open the file, or start without it and retry. With `must_open` raise Unusable instead and move nothing."""
        self._reopener = Reopener(self._reopen, name="reasoning-store-reopen")
        on_fault = (lambda: None) if must_open else self._reopener.wake
        super().__init__(Database(path, durability=durability, on_fault=on_fault), **options)
        self._lock = threading.Lock()
        self._used: set[int] = set()
        self._is_closed = False
        self._pending = PendingReasonings(
            self.database, self._write_pending, self._faults, bound=_MOST_BYTES_PENDING, batch=_BYTES_PER_BATCH
        )
        self._group_commit = GroupCommit(self._write_or_queue)
        self._outage = OutageLog(_log, str(path))
        if must_open:
            self.database.open(may_set_aside=False)
        elif not self._reopen():
            self._reopener.wake()
        with self._faults.guard("read the file"):
            self._measure(is_exact=False)
            with self.database.reader() as connection:
                self.pruning.resume(lambda until: schema.newest_time(connection, until))

    # Recording …

    def record(
        self,
        entries: Sequence[tuple[Sequence[bytes], str]],
        aliases: Sequence[_Alias] = (),
        previous: Mapping[bytes, str] | None = None,
    ) -> bool:
        """Store reasonings, each under all its keys, in one transaction; whether the file has them now.

        An alias adds a key to a stored reasoning; see reasoning.restore.KeyAlias. It has the reasoning, because another
        chat may have recorded a different one under the same known key. `previous` has, by first key, what this answer
        recorded before: a longer reasoning replaces its row, and the same one only gets more keys.
        """
        before = {key: encode_text(text) for key, text in (previous or {}).items()}
        pending = []
        for keys, reasoning in entries:
            text = encode_text(reasoning)
            if len(text) > min(_LONGEST_REASONING_BYTES, self._max_bytes):
                _log.warning("a reasoning of %d bytes is too long to be kept", len(text))
                continue
            same = [key for key, known in before.items() if known == text and key != keys[0]]
            pending.append(PendingReasoning(tuple(keys), text, None, before.get(keys[0]), same[0] if same else None))
        pending += [
            PendingReasoning((new,), encode_text(reasoning), known, unless_known=unless)
            for known, new, reasoning, unless in aliases
        ]
        return self._group_commit.write(pending) if pending else False

    def _write_or_queue(self, entries: Sequence[PendingReasoning]) -> bool:
        """Write the reasonings of turns that ended at the same time, in one transaction."""
        try:
            with self.database.transaction() as connection:
                reasoning_rows.write(connection, entries, self._timing())
                self._write_uses(connection)
        # Any exception, also one that is no fault of the file: no reasoning may be lost by it.
        except Exception as error:
            self._queue(entries)
            self._faults.warn("record", error)
            return False
        self._pruner.count_writes(sum(1 + len(each.text) // _BYTES_PER_TURN for each in entries))
        return True

    def _queue(self, entries: Sequence[PendingReasoning]) -> None:
        if not self._is_closed:
            self._pending.add(entries)
            # Even if the fault has woken it: it may have finished before this was pending.
            self.database.request_reopen()

    def _timing(self) -> Timing:
        return Timing(self.pruning.use_time(), self._use_resolution)

    @property
    def _use_resolution(self) -> float:
        """How old a written time of last use may be."""
        return _FINE_USE_RESOLUTION_SECONDS if self._is_nearly_full else _USE_RESOLUTION_SECONDS

    # Lookup …

    def find(self, keys: Collection[bytes]) -> dict[bytes, list[str]]:
        """For every key that is known, the different reasonings recorded under it, newest first."""
        if not keys:
            return {}
        # Pending first: an entry that is written meanwhile is found twice rather than not at all.
        found = {key: [decode_text(each.text) for each in texts] for key, texts in self._pending.find(keys).items()}
        with self._faults.guard("look up"), self.database.reader() as connection:
            now, resolution = self.pruning.use_time(), self._use_resolution
            for key, row, blob, used_at in reasoning_rows.find(connection, list(keys)):
                text = decode_text(blob)
                if (texts := found.get(key)) is None:
                    found[key] = [text]
                elif text not in texts:
                    texts.append(text)
                if abs(now - used_at) > resolution:
                    with self._lock:
                        self._used.add(row)
        return found

    def _write_uses(self, connection: sqlite3.Connection) -> None:
        """Write the times of last use in the transaction of the next recorded turn: a lookup never writes."""
        if not self._used:
            return
        with self._lock:
            used, self._used = self._used, set()
        reasoning_rows.write_uses(connection, used, self.pruning.use_time())

    # After a fault …

    def _reopen(self) -> bool:
        """Try once to open the file and write all that is pending. Called by the reopener, at the start and the end."""
        with self._faults.guard("catch up"):
            try:
                self.database.reopen()
                self._outage.report_end()
                return not self._pending
            except Unusable as fault:
                self._outage.report_fault(fault)
        return False

    def _write_pending(self, connection: sqlite3.Connection, entries: Sequence[PendingReasoning]) -> None:
        reasoning_rows.write_pending(connection, entries, self._timing())
        self._outage.count(sum(each.known_key is None and not each.unless_known for each in entries))

    def prune(self) -> int:
        """Delete the longest unused beyond the limits; how many."""
        with self._faults.guard("prune"):
            if self._used:
                # The order of use decides what goes.
                with self.database.transaction() as connection:
                    self._write_uses(connection)
        return super().prune()

    # Housekeeping …

    def stats(self) -> StoreStats:
        with self.database.reader() as connection:
            return reasoning_rows.stats(connection)

    def clear(self) -> int:
        """Delete everything and shrink the file; how many reasonings there were."""
        self._pending.clear()
        with self.database.transaction() as connection:
            rows = reasoning_rows.count(connection)
            schema.delete_rows(connection)
        self.database.shrink()
        return rows

    def close(self) -> None:
        """Write what is pending and close the file; idempotent. A later `record` returns False."""
        with self._lock:
            already, self._is_closed = self._is_closed, True
        self._reopener.close()
        super().close()
        if already:
            return
        if count := self._pending.close(self._reopen):
            _log.warning("%d of the reasonings in memory never reached %s and are forgotten", count, self.database.path)
        with self._faults.guard("close"), self.database.transaction() as connection:
            self._write_uses(connection)
        self.database.close()
