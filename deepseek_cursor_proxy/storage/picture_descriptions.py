"""PictureDescriptions: by caller and digest of a picture, the text that stands in its place for models that see none.

The text is the same in every later request, so that DeepSeek's prefix cache hits: the first one stored counts, also for
another process that described the picture at the same time. A description that is not used for long is deleted, and so
are the longest unused of too many; the picture is then described again.

SQL: table `picture_descriptions`. No answer ever fails because of it: what cannot be written stays in memory.
"""

import logging
from collections.abc import Sequence

from deepseek_cursor_proxy.memo import Memo
from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.engine.faults import FaultGuard
from deepseek_cursor_proxy.storage.engine.pruner import Pruner
from deepseek_cursor_proxy.storage.engine.unused_rows import delete_unused
from deepseek_cursor_proxy.storage.steady_clock import PruningClock, tolerance_for

_log = logging.getLogger(__name__)

# Some two kilobytes each.
_MAX_ROWS = 10_000
_MAX_BYTES_UNWRITTEN = 4 * 1024 * 1024
# A use is worth a write only when the row would otherwise look a day older than it is.
_USE_RESOLUTION_SECONDS = 24 * 3600
_KEYS_PER_QUERY = 500
_WRITES_BETWEEN_PRUNINGS = 64


class PictureDescriptions:
    """Called by handler threads and those that describe; the database has its own locks."""

    def __init__(
        self,
        database: Database,
        *,
        max_age_seconds: float = 30 * 24 * 3600,
        max_rows: int = _MAX_ROWS,
        pruning: PruningClock | None = None,
    ) -> None:
        self._database = database
        self._max_age = max_age_seconds
        self._max_rows = max_rows
        self._pruning = pruning or PruningClock(tolerance_for(max_age_seconds))
        self._faults = FaultGuard(_log, "picture descriptions")
        self._unwritten: Memo[tuple[bytes, bytes], str] = Memo(_MAX_BYTES_UNWRITTEN, lambda key, text: 200 + len(text))
        self._pruner = Pruner(lambda: self.prune(), every=_WRITES_BETWEEN_PRUNINGS, name="picture-descriptions-prune")

    def find(self, caller: bytes, pictures: Sequence[bytes]) -> dict[bytes, str]:
        """The descriptions that this caller's pictures have."""
        unwritten = {picture: self._unwritten.get((caller, picture)) for picture in pictures}
        found = {picture: text for picture, text in unwritten.items() if text is not None}
        now, used = self._pruning.use_time(), []
        for start in range(0, len(pictures), _KEYS_PER_QUERY):
            for picture, text, used_at in self._read(caller, pictures[start : start + _KEYS_PER_QUERY]):
                found[picture] = text
                if abs(now - used_at) >= _USE_RESOLUTION_SECONDS:
                    used.append((now, caller, picture))
        if used:
            self._write_uses(used)
        return found

    def record(self, caller: bytes, picture: bytes, text: str) -> str:
        """Store a description; returns the one that counts, which is an earlier one if there is one."""
        with self._faults.guard("record"), self._database.transaction() as connection:
            row = connection.execute(
                "INSERT INTO picture_descriptions (caller, picture, text, used_at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (caller, picture) DO UPDATE SET used_at = excluded.used_at RETURNING text",
                (caller, picture, _encode(text), self._pruning.use_time()),
            ).fetchone()
            self._pruner.count_writes()
            return _decode(row[0])
        self._unwritten.keep((caller, picture), text)
        return text

    def prune(self) -> int:
        """Delete the rows that are too old or too many; how many."""
        with self._faults.guard("prune"):
            return self._pruner.delete_in_steps(self._delete_some)
        return 0

    def close(self) -> None:
        """Idempotent; the database is its owner's to close."""
        self._pruner.close()

    # On disk …

    def _read(self, caller: bytes, pictures: Sequence[bytes]) -> list[tuple[bytes, str, float]]:
        with self._faults.guard("look up"), self._database.reader() as connection:
            rows = connection.execute(
                "SELECT picture, text, used_at FROM picture_descriptions "
                f"WHERE caller = ? AND picture IN ({','.join('?' * len(pictures))})",
                (caller, *pictures),
            )
            return [(picture, _decode(text), used_at) for picture, text, used_at in rows]
        return []

    def _write_uses(self, uses: Sequence[tuple[float, bytes, bytes]]) -> None:
        with self._faults.guard("record"), self._database.transaction() as connection:
            connection.executemany("UPDATE picture_descriptions SET used_at = ? WHERE caller = ? AND picture = ?", uses)

    def _delete_some(self) -> int:
        with self._database.transaction() as connection:
            return delete_unused(connection, "picture_descriptions", self._pruning, self._max_age, self._max_rows)


def _encode(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass")


def _decode(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
