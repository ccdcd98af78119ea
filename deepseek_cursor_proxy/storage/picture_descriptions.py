"""PictureDescriptions: by caller and digest of a picture, the text that stands in its place for models that see none.

The text is the same in every later request, so that DeepSeek's prefix cache hits: the first one stored counts, also for
another process that described the picture at the same time. A description that is not used for long is deleted, and so
are the longest unused of too many; the picture is then described again.

No answer ever fails because of it: what cannot be written waits in memory.
"""

from collections.abc import Sequence

from deepseek_cursor_proxy.storage.entries import Kind, Row, decode_text, encode_text
from deepseek_cursor_proxy.storage.table import Table

# A use is worth a write only when the row would otherwise look a day older than it is.
_USE_RESOLUTION_SECONDS = 24 * 3600


class PictureDescriptions(Table[Row]):
    """Called by handler threads and those that describe."""

    # Some two kilobytes each.
    kind = Kind("picture_descriptions", "picture descriptions", ("caller", "picture"), ("text",), max_rows=10_000)

    def find(self, caller: bytes, pictures: Sequence[bytes]) -> dict[bytes, str]:
        """The descriptions that this caller's pictures have."""
        found, now = {}, self.pruning.use_time()
        with self._faults.guard("look up"):
            for picture, blob, used_at in self.get_many(pictures, [caller]):
                found[picture] = decode_text(blob)
                if abs(now - used_at) >= _USE_RESOLUTION_SECONDS:
                    self.write(Row((caller, picture), (blob,), now, keeps_first=True))
        return found

    def record(self, caller: bytes, picture: bytes, text: str) -> str:
        """Store a description; returns the one that counts, which is an earlier one if there is one."""
        row = Row((caller, picture), (encode_text(text),), self.pruning.use_time(), keeps_first=True)
        with self._faults.guard("record"):
            return decode_text((self.write(row) or row.values)[0])
        return text
