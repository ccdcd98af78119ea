"""The secret of this installation: 32 random bytes in a private file beside the store, made on first need.

It is no part of the database, so that what was sealed with it opens again when that is gone. Without a place for it the
proxy runs all the same, with a secret of its own for as long as it runs: what it seals then, a later one ignores.
"""

import logging
import os
import secrets
import threading
from pathlib import Path

from deepseek_cursor_proxy import private_files

_log = logging.getLogger(__name__)

NAME = "secret.key"
_BYTES = 32


class Secret:
    """The secret that belongs to a store. Called by handler threads; the lock is for whoever needs it first."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._found: bytes | None = None

    def read(self) -> bytes:
        if self._found is None:
            with self._lock:
                self._found = self._found or _beside(self._store)
        return self._found


def _beside(store: Path) -> bytes:
    """A store that lives in memory has a secret that does."""
    if str(store) == ":memory:":
        return secrets.token_bytes(_BYTES)
    path = store.expanduser().absolute().with_name(NAME)
    try:
        return _read(path) or _made(path)
    except OSError as error:
        _log.warning(
            "%s cannot be read or written: %s; reasoning that clients keep sealed will not open after a restart",
            path,
            error.strerror,
        )
        return secrets.token_bytes(_BYTES)


def _read(path: Path) -> bytes | None:
    """What the file holds; None when there is none, or not as much as there should be."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    return found if len(found) == _BYTES else None


def _made(path: Path) -> bytes:
    private_files.make_directory(path.parent)
    draft = path.with_name(f"{NAME}.{os.getpid()}.{secrets.token_hex(4)}")
    private_files.write(draft, secrets.token_bytes(_BYTES))
    try:
        # Whole or not at all, and never over one that another process made meanwhile.
        os.link(draft, path)
    except FileExistsError:
        if _read(path) is None:
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path) or secrets.token_bytes(_BYTES)
