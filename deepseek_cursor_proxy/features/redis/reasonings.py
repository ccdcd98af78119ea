"""SharedReasonings: the reasonings of callers on the engine, sealed; the same digests lead to them as in the file.

A text that is not the one that was sealed for its row, and a key that was not tagged for its text, count as unknown.
"""

import hmac
from collections.abc import Collection, Sequence

from deepseek_cursor_proxy.features.redis.connection import Reply
from deepseek_cursor_proxy.features.redis.scripts import FIND_REASONINGS, RECORD_REASONINGS
from deepseek_cursor_proxy.features.redis.state import SharedState, prefix
from deepseek_cursor_proxy.features.sealed import Sealer

# No reasoning is longer (`storage.reasonings`).
MOST_BYTES = 16 * 1024 * 1024
_USE = b"reasoning"
_ID_BYTES = 16
# So few that the engine answers in time: some 10 ms for texts of 4 kB. A long chat that is new here takes several.
_KEYS_PER_CALL = 200


class SharedReasonings:
    """Called by any thread."""

    def __init__(self, state: SharedState, max_age_seconds: float) -> None:
        self._state = state
        self._seconds = b"%d" % max_age_seconds

    @property
    def has_backlog(self) -> bool:
        """Whether the file of this instance has entries that the engine has not got yet."""
        return bool(self._state.backlog)

    def record(self, caller: bytes, entries: Sequence[tuple[tuple[bytes, ...], bytes]]) -> bool:
        """Write keys and texts of a caller. True if the engine has them, False if they wait for it in the backlog."""
        sealer, words = self._state.sealer(caller, _USE), [self._seconds]
        for keys, text in entries:
            sealed = sealer.seal_bytes(text)
            words += [sealed, b"%d" % len(keys)]
            words += [word for key in keys for word in (key, sealer.tag(key + sealed[:_ID_BYTES]))]
        return self._state.write(RECORD_REASONINGS, prefix(caller), words) is not None

    def find(self, caller: bytes, keys: Collection[bytes]) -> list[tuple[bytes, bytes]] | None:
        """Key and text of what the engine has under these keys, oldest first for each; None if it does not answer."""
        names, sealer = list(keys), self._state.sealer(caller, _USE)
        found: list[tuple[bytes, bytes]] = []
        for start in range(0, len(names), _KEYS_PER_CALL):
            part = names[start : start + _KEYS_PER_CALL]
            reply = self._state.read(FIND_REASONINGS, prefix(caller), (self._seconds, *part))
            if not isinstance(reply, list):
                return None
            found += _read_texts(reply, part, sealer)
        return found


def _read_texts(reply: Sequence[Reply], keys: Sequence[bytes], sealer: Sealer) -> list[tuple[bytes, bytes]]:
    texts: dict[bytes, bytes | None] = {}
    found = []
    for row in zip(reply[::3], reply[1::3], reply[2::3], strict=False):
        match row:
            case int(at), bytes(link), bytes(sealed) if 0 <= at < len(keys):
                id = link[:_ID_BYTES]
                if sealed:
                    texts[id] = sealer.open_bytes(sealed, MOST_BYTES) if sealed.startswith(id) else None
                text = texts.get(id)
                if text is not None and hmac.compare_digest(link, id + sealer.tag(keys[at] + id)):
                    found.append((keys[at], text))
    return found
