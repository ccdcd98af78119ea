"""InstallationSecret: 32 random bytes in the private file secret.key beside the store, created on first use.

The secret is not in the database, so that sealed items open again after the database was lost. If the file cannot be
written, the proxy uses a secret in memory; items sealed with it do not open after a restart.
"""

import contextlib
import logging
import secrets
import threading
from pathlib import Path

from deepseek_cursor_proxy.storage import private_files

_log = logging.getLogger(__name__)

NAME = "secret.key"
_BYTES = 32


class InstallationSecret:
    """The secret beside a store. Called by handler threads; the lock lets one of them load it."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._secret: bytes | None = None

    def read(self) -> bytes:
        if self._secret is None:
            with self._lock:
                self._secret = self._secret or _load(self._store)
        return self._secret


def read_existing(store: Path) -> bytes | None:
    """The secret beside a store, if a proxy has created one and it can be read."""
    with contextlib.suppress(OSError, RuntimeError):
        found = _path(store).read_bytes()
        return found if len(found) == _BYTES else None
    return None


def _path(store: Path) -> Path:
    return store.expanduser().absolute().with_name(NAME)


def _load(store: Path) -> bytes:
    """The secret in the file, created if there is none; in memory for a store in memory or a file that fails."""
    if str(store) == ":memory:":
        return _new_secret()
    path = _path(store)
    try:
        return private_files.read_or_create(path, _new_secret, lambda found: len(found) == _BYTES)
    except OSError as error:
        _log.warning(
            "%s cannot be read or written: %s; reasoning that clients keep sealed will not open after a restart",
            path,
            error.strerror,
        )
        return _new_secret()


def _new_secret() -> bytes:
    return secrets.token_bytes(_BYTES)
