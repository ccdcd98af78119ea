"""The proxy's own host names, and whether a request came under one of them: the defence against DNS rebinding.

A web page can send requests to this machine under its own host name, if that resolves to 127.0.0.1 after the page has
loaded. The browser then names that host in Host and Origin. Such a request may be an ordinary chat, because tunnels
have any name, but it never spends a key of the owner and never pins one. Accepted are

    Host     an IP address, localhost, *.localhost, the bound host, the tunnel's name, public_hosts. In a request for a
             whole URL (absolute form) the host of that URL has to pass as well.
    Origin   none; an app's own scheme (vscode-webview://, app://), which no web page has; http(s) on this machine, on
             the host of the request or under a name of the list above. A wildcard does not count: in a domain of many
             owners (*.trycloudflare.com) any stranger can have a page. Nor does `null`, which any page can send.

X-Forwarded-Host and the like are ignored, because any client can send them. Ports are ignored too.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from deepseek_cursor_proxy.config.values import ip_address, is_loopback
from deepseek_cursor_proxy.http1.messages import HttpRequest

_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s,]+))(?::[0-9]*)?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s,]*)")
_WEB_SCHEMES = frozenset({"http", "https", "ws", "wss", "ftp"})


class Address(NamedTuple):
    """The hosts that a request names, and its Origin if it has one."""

    hosts: tuple[str, ...] = ()
    origin: str | None = None

    @classmethod
    def of(cls, request: HttpRequest) -> "Address":
        host, authority = request.headers.get("host"), request.authority
        hosts = (host,) if host else ()
        return cls((*hosts, authority) if authority else hosts, request.headers.get("origin"))


class OwnHosts:
    """The host names of one proxy. Immutable."""

    def __init__(self, names: Iterable[str]) -> None:
        known = [name.lower() for name in names if name]
        self._names = frozenset(name for name in known if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in known if name.startswith("*."))

    def foreign_part(self, address: Address) -> str | None:
        """The header with a foreign name, such as `Host: evil.example`; None for a request under our own names."""
        for host in address.hosts:
            name = _name(host)
            if not (self._has_name(name) or name.endswith(self._endings) or ip_address(name)):
                return f"Host: {host}"
        if address.origin is not None and not self._has_origin(address.origin, address.hosts):
            return f"Origin: {address.origin}"
        return None

    def _has_origin(self, origin: str, hosts: Iterable[str]) -> bool:
        match = _ORIGIN.fullmatch(origin.lower())
        if match is None:
            return False
        if match[1] not in _WEB_SCHEMES:
            return True
        name = _name(match[2])
        # An IP address is not enough here: a page may be served from any.
        return self._has_name(name) or is_loopback(name) or (name != "" and name in map(_name, hosts))

    def _has_name(self, name: str) -> bool:
        return name == "localhost" or name in self._names or name.endswith(".localhost")


def _name(authority: str) -> str:
    """The host of `host[:port]` in lower case, without IPv6 brackets and a final dot; empty if it is malformed."""
    match = _AUTHORITY.fullmatch(authority.lower())
    return "" if match is None else match[1] or match[2].removesuffix(".")
