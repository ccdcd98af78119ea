"""PictureDescriptions: by caller and digest of a picture, the text that stands in its place for models that see none.

The text is the same in every later request, so that DeepSeek's prefix cache hits: the first one stored counts, also for
another process that described the picture at the same time. A description that is not used for long is deleted, and so
are the longest unused of too many; the picture is then described again.

SQL: table `picture_descriptions`. No answer ever fails because of it: what cannot be written stays in memory.
"""

from collections.abc import Sequence
from typing import Unpack

from deepseek_cursor_proxy.memo import Memo
from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.engine.table import Kind, Table, TableOptions

_MAX_BYTES_UNWRITTEN = 4 * 1024 * 1024
# A use is worth a write only when the row would otherwise look a day older than it is.
_USE_RESOLUTION_SECONDS = 24 * 3600


class PictureDescriptions(Table):
    """Called by handler threads and those that describe."""

    # Some two kilobytes each.
    kind = Kind(
        "picture_descriptions", "picture descriptions", ("caller", "picture"), ("text",), size="0", max_rows=10_000
    )

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        self._unwritten: Memo[tuple[bytes, bytes], str] = Memo(_MAX_BYTES_UNWRITTEN, lambda key, text: 200 + len(text))

    def find(self, caller: bytes, pictures: Sequence[bytes]) -> dict[bytes, str]:
        """The descriptions that this caller's pictures have."""
        unwritten = {picture: self._unwritten.get((caller, picture)) for picture in pictures}
        found = {picture: text for picture, text in unwritten.items() if text is not None}
        now = self.pruning.use_time()
        with self._faults.guard("look up"):
            for picture, blob, used_at in self._read_rows(pictures, [caller]):
                found[picture] = _decode(blob)
                if abs(now - used_at) >= _USE_RESOLUTION_SECONDS:
                    self._write_row((caller, picture), (blob,), now, keeps_first=True)
        return found

    def record(self, caller: bytes, picture: bytes, text: str) -> str:
        """Store a description; returns the one that counts, which is an earlier one if there is one."""
        with self._faults.guard("record"):
            row = self._write_row((caller, picture), (_encode(text),), self.pruning.use_time(), keeps_first=True)
            if row is not None:
                return _decode(row[0])
        self._unwritten.keep((caller, picture), text)
        return text


def _encode(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass")


def _decode(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
