"""The names this proxy is reached by, and whether a request came under one of them.

A web page can send requests to this machine under a name of its own: after the page has loaded, its name resolves to
127.0.0.1 (DNS rebinding). The browser then says so in Host and Origin. Such a request may be an ordinary chat, because
tunnels have any name, but it never spends a key of the owner and never pins one.

    Host     an IP address, localhost, *.localhost, the bound host, the tunnel's name, public_hosts. In a request for a
             whole URL (absolute form) the host of that URL has to pass as well.
    Origin   none; an app's own scheme (vscode-webview://, app://), which no web page has; http(s) on this machine, on
             the host of the request or under a name of the list above, where a wildcard does not count: in a domain of
             many owners (*.trycloudflare.com) anybody can have a page. `null` is foreign: any page can send it.

X-Forwarded-Host and the like count for nothing: anybody can write them. Ports do not count either.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from deepseek_cursor_proxy.config.declaration import is_loopback
from deepseek_cursor_proxy.http1.messages import HttpRequest

_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s,]+))(?::[0-9]*)?")


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s,]*)")


_WEB_SCHEMES = frozenset({"http", "https", "ws", "wss", "ftp"})


class Address(NamedTuple):
    """Where a request says it goes and where it comes from: its hosts, and its Origin if it has one."""

    hosts: tuple[str, ...] = ()
    origin: str | None = None

    @classmethod
    def of(cls, request: HttpRequest) -> "Address":
        host, authority = request.headers.get("host"), request.authority
        hosts = (host,) if host else ()
        return cls((*hosts, authority) if authority else hosts, request.headers.get("origin"))


class OwnHosts:
    """The names of one proxy. Does not change."""

    def __init__(self, names: Iterable[str]) -> None:
        known = [name.lower() for name in names if name]
        self._names = frozenset(name for name in known if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in known if name.startswith("*."))

    def foreign_part(self, address: Address) -> str | None:
        """The header that names another host, as `Host: evil.example`; None for a request under our own names."""
        for host in address.hosts:
            if not self._has_host(_name(host)):
                return f"Host: {host}"
        if address.origin is not None and not self._has_origin(address.origin, address.hosts):
            return f"Origin: {address.origin}"
        return None

    def _has_host(self, name: str) -> bool:
        return self._has_name(name) or name.endswith(self._endings) or _is_address(name)

    def _has_origin(self, origin: str, hosts: Iterable[str]) -> bool:
        match = _ORIGIN.fullmatch(origin.lower())
        if match is None:
            return False
        if match[1] not in _WEB_SCHEMES:
            return True
        name = _name(match[2])
        # An address is not enough here: a page may be served from any.
        return self._has_name(name) or is_loopback(name) or (name != "" and name in map(_name, hosts))

    def _has_name(self, name: str) -> bool:
        return name == "localhost" or name in self._names or name.endswith(".localhost")


def _name(authority: str) -> str:
    """The host of `host[:port]` in lower case, without the brackets of IPv6 and the root's dot; empty if it is none."""
    match = _AUTHORITY.fullmatch(authority.lower())
    return "" if match is None else match[1] or match[2].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
