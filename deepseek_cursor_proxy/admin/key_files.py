"""The private files beside the store: admin.key, and the addresses at which proxies with this store serve a dashboard.

`admin.key` is made up on first use and stays: bookmarks and Prometheus rely on it. Each proxy leaves a file
`admin-PORT.url` while it runs, where the `dashboard` command finds it; one that was killed leaves it behind. A store in
memory has neither.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from deepseek_cursor_proxy.config.access_keys import is_credential, new_key
from deepseek_cursor_proxy.storage import private_files

_log = logging.getLogger(__name__)

NAME = "admin.key"
_ADDRESSES = "admin-*.url"


def read_or_create_key(store: Path) -> str:
    """The key beside this store; one in memory if there is no place for it."""
    if str(store) == ":memory:":
        return new_key()
    path = _folder(store) / NAME
    try:
        found = private_files.read_or_create(path, lambda: new_key().encode() + b"\n", _is_key)
    except OSError as error:
        _log.warning("%s cannot be read or written: %s; the key of the dashboard ends with the proxy", path, error)
        return new_key()
    return found.decode().strip()


def read_key(store: Path) -> str | None:
    """The key beside this store, if there is one and it can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = (_folder(store) / NAME).read_bytes()
        return found.decode().strip() if _is_key(found) else None
    return None


def _is_key(found: bytes) -> bool:
    return is_credential(found.decode("latin-1").strip())


@contextlib.contextmanager
def address_file(store: Path, url: str) -> Iterator[None]:
    """Have a file with this address as long as the context lasts. A file that cannot be written is done without."""
    if str(store) == ":memory:":
        yield
        return
    path = _address_path(store, url)
    with contextlib.suppress(OSError):
        private_files.write(path, url.encode())
    try:
        yield
    finally:
        forget_address(store, url)


def forget_address(store: Path, url: str) -> None:
    """Delete the file of a proxy that no longer listens."""
    with contextlib.suppress(OSError):
        _address_path(store, url).unlink()


def addresses(store: Path) -> list[str]:
    """The addresses that proxies with this store left, the newest first."""
    found = []
    with contextlib.suppress(OSError):
        for path in _folder(store).glob(_ADDRESSES):
            with contextlib.suppress(OSError, ValueError):
                found.append((path.stat().st_mtime, path.read_text("ascii")))
    return [url for _, url in sorted(found, reverse=True)]


def _address_path(store: Path, url: str) -> Path:
    return _folder(store) / _ADDRESSES.replace("*", url.rpartition(":")[2])


def _folder(store: Path) -> Path:
    """The folder of a store; OSError if it is in the home directory of a user who has none."""
    try:
        return store.expanduser().absolute().parent
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None
