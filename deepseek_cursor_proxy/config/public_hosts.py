"""Entries of public_hosts: the host names of the proxy in the user's own tunnel or reverse proxy."""

import re
from typing import Any

from deepseek_cursor_proxy.config.declaration import quote
from deepseek_cursor_proxy.errors import StartupError

_PUBLIC_HOST = re.compile(r"(?:\*\.)?(?!-)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def public_host(key: str, value: Any, origin: str) -> str:
    """Parse an entry of public_hosts."""
    name = value.strip().lower().removesuffix(".") if isinstance(value, str) else ""
    if not _PUBLIC_HOST.fullmatch(name):
        allowed = "a host name such as proxy.example.com or *.example.com, without https:// and port"
        raise StartupError(f'config: {key} has "{quote(value)}", which is not {allowed} ({origin})')
    return name
