"""SharedReasonings: the reasonings of callers on the engine, sealed; the same digests lead to them as in the file."""

import os
from collections.abc import Collection, Sequence

from deepseek_cursor_proxy.storage.entries import ReasoningEntry
from deepseek_cursor_proxy.storage.shared.scripts import FIND_REASONINGS, RECORD_REASONINGS
from deepseek_cursor_proxy.storage.shared.state import SEAL_BYTES, Sealer, SharedState, prefix

# No reasoning is longer (`storage.reasonings`).
MOST_BYTES = 16 * 1024 * 1024
# So few that the engine answers in time: some 10 ms for texts of 4 kB. A long chat that is new here takes several.
_KEYS_PER_CALL = 200


class SharedReasonings:
    """Called by workers."""

    def __init__(self, state: SharedState, max_age_seconds: float) -> None:
        self._state = state
        self._seconds = b"%d" % max_age_seconds

    @property
    def is_behind(self) -> bool:
        """Whether the file of this instance has entries that the engine has not got yet."""
        return bool(self._state.backlog)

    def record(self, caller: bytes, entries: Sequence[ReasoningEntry]) -> bool:
        """Write entries of a caller. True if the engine has them, False if they wait for it in the backlog."""
        words = (os.urandom(8), self._seconds, *entry_words(entries, self._state.sealer(caller)))
        return self._state.write(RECORD_REASONINGS, prefix(caller), words) is not None

    def find(self, caller: bytes, keys: Collection[bytes]) -> list[tuple[bytes, bytes]] | None:
        """Key and text of what the engine has under these keys, newest first for each; None if it does not answer."""
        names, sealer = list(keys), self._state.sealer(caller)
        found: list[tuple[bytes, bytes]] = []
        for start in range(0, len(names), _KEYS_PER_CALL):
            part = names[start : start + _KEYS_PER_CALL]
            reply = self._state.read(FIND_REASONINGS, prefix(caller), (self._seconds, *part))
            if not isinstance(reply, list):
                return None
            texts: dict[bytes, bytes | None] = {}
            for at, id, sealed in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
                assert isinstance(at, int)
                assert isinstance(id, bytes)
                assert isinstance(sealed, bytes)
                if sealed:
                    texts[id] = sealer.open_bytes(sealed, MOST_BYTES)
                if (text := texts[id]) is not None:
                    found.append((part[at], text))
        return found


def entry_words(entries: Sequence[ReasoningEntry], sealer: Sealer) -> list[bytes]:
    """Entries of one caller as RECORD_REASONINGS gets them."""
    words: list[bytes] = []
    for entry in entries:
        previous = b"" if entry.previous is None else sealer.seal_bytes(entry.previous)[:SEAL_BYTES]
        words += (sealer.seal_bytes(entry.text), previous, entry.extends or b"", entry.known_key or b"")
        words += (b"%d" % len(entry.keys), b"%d" % len(entry.unless_known), *entry.keys, *entry.unless_known)
    return words
