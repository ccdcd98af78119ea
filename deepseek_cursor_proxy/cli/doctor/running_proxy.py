"""Finds the proxy that runs with a store, by the files that it leaves beside it, and asks it who it is.

Requests go to this machine only. The port of a proxy is known by the page that it shows to browsers, which needs no
key. An admin listener first proves itself (`admin/running`), then gets the key in admin.key and tells the rest.
"""

import contextlib
import http.client
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.admin import key_files, running
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.sources import lacks_home

# On this machine; one that takes longer is as good as stopped.
_ASK_SECONDS = 2.0
_MAX_PAGE_BYTES = 1_000_000
_PAGE = re.compile(r"<title>deepseek-cursor-proxy</title>.*Version (\S+) is running", re.DOTALL)


class Response(NamedTuple):
    status: int
    body: bytes


def get(url: str, path: str, headers: Mapping[str, str]) -> Response | None:
    """Ask a listener of this machine; None if nothing answers there that is HTTP."""
    address = urlsplit(url)
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_ASK_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=dict(headers))
            response = connection.getresponse()
            return Response(response.status, response.read(_MAX_PAGE_BYTES))
    return None


def proxy_version(url: str) -> str | None:
    """The version of the proxy of ours that listens there; None if none does."""
    page = get(url, "/", {"Accept": "text/html"})
    found = _PAGE.search(page.body.decode("utf-8", "replace")) if page is not None and page.status == 200 else None
    return found[1] if found is not None else None


class RunningProxy(NamedTuple):
    """What a running proxy says about itself; `store_fault` is empty if it can use its store."""

    version: str
    base_url: str
    public_url: str | None
    store_fault: str


class AdminFacts(NamedTuple):
    """admin.key and the listener. `key_state`: set, absent, unreadable, exposed (to other users) or private."""

    key_path: Path
    key_state: str
    # The listener that answered, if one did: whether it proved to be a proxy with this store, and its status.
    url: str = ""
    is_proven: bool = False
    status: int = 0
    proxy: RunningProxy | None = None


def look(config: ProxyConfig) -> AdminFacts:
    store = config.reasoning_content_path
    if not _has_folder(store):
        return AdminFacts(Path(key_files.NAME), "absent")
    path = store.expanduser().absolute().with_name(key_files.NAME)
    state = "set" if config.admin_key is not None else _key_state(path, store)
    key = key_files.read_key(store) if state in ("private", "exposed") else None
    answers = list(running.ask_all(store, "/api/stats", key))
    found = next((each for each in answers if each.is_proven), answers[0] if answers else None)
    if found is None:
        return AdminFacts(path, state)
    return AdminFacts(path, state, found.url, found.is_proven, found.status, _read_stats(found.body))


def own_key(config: ProxyConfig) -> str | None:
    """The key in admin.key, so that it can be hidden."""
    store = config.reasoning_content_path
    return key_files.read_key(store) if _has_folder(store) else None


def _has_folder(store: Path) -> bool:
    return str(store) != ":memory:" and not lacks_home(store)


def _key_state(path: Path, store: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    if key_files.read_key(store) is None:
        return "unreadable"
    return "exposed" if os.name != "nt" and stat.S_IMODE(status.st_mode) & 0o077 else "private"


def _read_stats(body: bytes) -> RunningProxy | None:
    """None for any other answer than that of our admin API."""
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
