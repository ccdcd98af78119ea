"""A running proxy beside its store: its key and its address in private files, and how commands ask it.

`admin.key` is generated on first use and stays: bookmarks and Prometheus rely on it. Each proxy leaves a file
`admin-PORT.url` while it runs, or `run-PORT.url` if it ends with a client of the `run` command, so that no other
client is pointed to it; one that was killed leaves it behind, and then any program of any user can listen at
that port. So the listener first proves that it can read secret.key, which is beside the store and private: it is sent
a random nonce and answers with an HMAC over it and its own address. The address keeps a stranger from passing the
question on to a proxy at another port. The key and the real question follow on the same connection, or not at all.

A store in memory has no files. What only commands need is imported late: the proxy starts faster without.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import is_credential, new_key
from deepseek_cursor_proxy.storage import private_files

if TYPE_CHECKING:
    from http.client import HTTPConnection

_log = logging.getLogger(__name__)

KEY_FILE = "admin.key"
PROOF_PATH = "/api/proof"
_LASTING, _OF_RUN = "admin-*.url", "run-*.url"
# On this machine; one that takes longer is as good as stopped. Windows takes two to say that nothing listens.
_ASK_SECONDS = 3.0
_MAX_BYTES = 1_000_000


class AdminAnswer(NamedTuple):
    """The answer of a listener; without a proof it was asked for nothing else, and the rest is empty."""

    url: str
    is_proven: bool
    status: int = 0
    body: bytes = b""


class RunningProxy(NamedTuple):
    """What a running proxy says about itself; `store_fault` is empty if it can use its store."""

    version: str
    base_url: str
    public_url: str | None
    store_fault: str


# The files, for the proxy …


def read_or_create_key(store: Path) -> str:
    """The key beside this store; one in memory if there is no place for it."""
    if str(store) == ":memory:":
        return new_key()
    path = _folder(store) / KEY_FILE
    try:
        found = private_files.read_or_create(path, lambda: new_key().encode() + b"\n", _is_key)
    except OSError as error:
        _log.warning("%s cannot be read or written: %s; the key of the dashboard ends with the proxy", path, error)
        return new_key()
    return found.decode().strip()


@contextlib.contextmanager
def address_file(store: Path, url: str, *, is_of_run: bool = False) -> Iterator[None]:
    """Keep a file with this address as long as the context lasts; nothing fails if it cannot be written."""
    if str(store) == ":memory:":
        yield
        return
    with contextlib.suppress(OSError):
        private_files.write(_address_path(store, url, _OF_RUN if is_of_run else _LASTING), url.encode())
    try:
        yield
    finally:
        _forget_address(store, url)


def proof(secret: bytes, url: str, nonce: str) -> str:
    """What a listener at this address, with this installation secret, answers to a nonce."""
    import hmac

    return hmac.new(secret, f"admin listener {url} {nonce}".encode(), "sha256").hexdigest()


def _is_key(found: bytes) -> bool:
    return is_credential(found.decode("latin-1").strip())


def _address_path(store: Path, url: str, name: str) -> Path:
    return _folder(store) / name.replace("*", url.rpartition(":")[2])


def _forget_address(store: Path, url: str) -> None:
    for name in (_LASTING, _OF_RUN):
        with contextlib.suppress(OSError):
            _address_path(store, url, name).unlink()


def _folder(store: Path) -> Path:
    """The folder of a store; OSError if it is in the home directory of a user who has none."""
    try:
        return store.expanduser().absolute().parent
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None


# For commands …


def read_key(store: Path) -> str | None:
    """The key beside this store, if there is one and it can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = (_folder(store) / KEY_FILE).read_bytes()
        return found.decode().strip() if _is_key(found) else None
    return None


def find(config: ProxyConfig, *, with_runs: bool = False) -> AdminAnswer | None:
    """What a proxy with this store answers to /api/stats, or what listens at its address; None if nothing does.

    `with_runs` also finds one that ends with a client of `run`.
    A proxy that was started with an admin_key, of which we know the digest at most, answers 401.
    """
    store = config.reasoning_content_path
    key = None if config.admin_key is not None else read_key(store)
    answers = list(ask_all(store, "/api/stats", key, with_runs=with_runs))
    return next((answer for answer in answers if answer.is_proven), answers[0] if answers else None)


def ask_all(store: Path, path: str, key: str | None, *, with_runs: bool = False) -> Iterator[AdminAnswer]:
    """The answers of all listeners at addresses that proxies with this store left, the newest first."""
    names = (_LASTING, _OF_RUN) if with_runs else (_LASTING,)
    for url in _addresses(store, names) if str(store) != ":memory:" else ():
        with contextlib.suppress(OSError):
            yield _ask(store, url, path, key)


def read_stats(body: bytes) -> RunningProxy | None:
    """The proxy that answered /api/stats; None for any other answer than that of our admin API."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        stats: dict[str, Any] = json.loads(body)
        state, public_url = str(stats["store"]["state"]), stats["public_url"]
        return RunningProxy(
            str(stats["version"]),
            str(stats["base_url"]),
            str(public_url) if public_url else None,
            "" if state == "usable" else state,
        )
    return None


def stranger_text(url: str) -> str:
    """The sentence about a listener without a proof."""
    return (
        f"what listens at {url} does not prove that it is a proxy with this store, so no key was sent; if it is one of "
        "an older version, restart it"
    )


def _addresses(store: Path, names: Iterable[str] = (_LASTING,)) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for path in (path for name in names for path in _folder(store).glob(name)):
            with contextlib.suppress(OSError, ValueError):
                found.append((path.stat().st_mtime, path.read_text("ascii")))
    return [url for _, url in sorted(found, reverse=True)]


def _ask(store: Path, url: str, path: str, key: str | None) -> AdminAnswer:
    """Ask the listener at an address; OSError if none answers there. An address without a listener is forgotten."""
    from http.client import HTTPConnection, HTTPException

    address = urlsplit(url)
    try:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=_ASK_SECONDS)
        with contextlib.closing(connection):
            connection.connect()
            # Otherwise http.client would send the key on a new connection, if the proven one was closed.
            connection.auto_open = 0
            with _time_limit(connection.sock):
                if not _is_proven(connection, store, url):
                    return AdminAnswer(url, is_proven=False)
                status, body = _get(connection, path, {"Authorization": f"Bearer {key}"} if key else {})
                return AdminAnswer(url, True, status, body)
    except ConnectionRefusedError:
        _forget_address(store, url)
        raise
    except (ValueError, HTTPException) as error:
        raise OSError(str(error)) from None


@contextlib.contextmanager
def _time_limit(sock: socket.socket) -> Iterator[None]:
    """Cut a connection off in time: the timeout of a socket is per byte, and a stranger may send them one by one."""

    def cut_off() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(2 * _ASK_SECONDS, cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_proven(connection: "HTTPConnection", store: Path, url: str) -> bool:
    import hmac
    import secrets
    from http.client import HTTPException

    nonce = secrets.token_hex(16)
    try:
        _, body = _get(connection, f"{PROOF_PATH}?nonce={nonce}", {})
    except HTTPException:
        return False
    secret = private_files.read_secret(store)
    return secret is not None and hmac.compare_digest(body.strip(), proof(secret, url, nonce).encode())


def _get(connection: "HTTPConnection", path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(_MAX_BYTES)


def find_running(config: ProxyConfig) -> RunningProxy | None:
    """The proxy that runs with this store, not only for a client; None when none does, or its key is not known here."""
    if (found := find(config)) is None:
        return None
    if not found.is_proven:
        print(f"deepseek-cursor-proxy: {stranger_text(found.url)}", file=sys.stderr)
    return read_stats(found.body)
