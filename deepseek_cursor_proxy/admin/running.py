"""Questions of a command to the admin listener of a proxy that runs with its store. Nothing secret goes to a stranger.

A proxy that was killed leaves its admin-PORT.url behind, and then any program of any user can listen at that port. So
the listener first proves that it can read secret.key, which is beside the store and private: it is sent a random nonce
and answers with an HMAC over it and its own address. The address keeps a stranger from passing the question on to a
proxy at another port. The key and the real question follow on the same connection, or not at all.
"""

import contextlib
import http.client
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.admin import key_files
from deepseek_cursor_proxy.storage import private_files

PROOF_PATH = "/api/proof"
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


def proof(secret: bytes, url: str, nonce: str) -> str:
    """What a listener at this address, with this installation secret, answers to a nonce."""
    # Imported late: listening does not need it.
    import hmac

    return hmac.new(secret, f"admin listener {url} {nonce}".encode(), "sha256").hexdigest()


def ask_all(store: Path, path: str, key: str | None) -> Iterator[AdminAnswer]:
    """The answers of all listeners at addresses that proxies with this store left, the newest first."""
    for url in key_files.addresses(store) if str(store) != ":memory:" else ():
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


def _ask(store: Path, url: str, path: str, key: str | None) -> AdminAnswer:
    """Ask the listener at an address; OSError if none answers there. An address without a listener is forgotten."""
    address = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_ASK_SECONDS)
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
        key_files.forget_address(store, url)
        raise
    except (ValueError, http.client.HTTPException) as error:
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


def _is_proven(connection: http.client.HTTPConnection, store: Path, url: str) -> bool:
    import hmac

    nonce = secrets.token_hex(16)
    try:
        _, body = _get(connection, f"{PROOF_PATH}?nonce={nonce}", {})
    except http.client.HTTPException:
        return False
    secret = private_files.read_secret(store)
    return secret is not None and hmac.compare_digest(body.strip(), proof(secret, url, nonce).encode())


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(_MAX_BYTES)
