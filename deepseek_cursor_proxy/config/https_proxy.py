"""HTTPS_PROXY and NO_PROXY: the outbound proxy for https, and the hosts that are called directly.

The outbound proxy only gets CONNECT: what passes through it is TLS, so it sees which host is called and never the key.
Plain http goes through no proxy (HTTP_PROXY and ALL_PROXY are ignored), and neither do calls to this machine. No
message contains the proxy's credentials.
"""

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from deepseek_cursor_proxy.config.values import ip_address, is_loopback
from deepseek_cursor_proxy.errors import StartupError

# In curl's order.
_NAMES = ("https_proxy", "HTTPS_PROXY")
_EXEMPTION_NAMES = ("no_proxy", "NO_PROXY")
_REMEDY = "correct or unset it"


class OutboundProxy(NamedTuple):
    host: str
    port: int
    # The value of Proxy-Authorization.
    authorization: str | None = None

    def __str__(self) -> str:
        return authority(self.host, self.port)


def from_environment(environment: Mapping[str, str]) -> OutboundProxy | None:
    """The outbound proxy that the environment names. Raises StartupError if it is not usable."""
    name, value = _first(_NAMES, environment)
    if not value:
        return None
    scheme, separator, _ = value.partition("://")
    if separator and scheme.lower() != "http":
        # The rest of the value is not printed: it may contain a password.
        kind = re.sub(r"[^a-z0-9+.-]", "?", scheme.lower()[:20])
        why = f"names a proxy of the kind {kind}://, but only http:// is supported"
        raise StartupError(f"config: {name} {why}; {_REMEDY}")
    try:
        parts = urlsplit(value if separator else f"http://{value}")
        host, port = parts.hostname or "", 80 if parts.port is None else parts.port
    except ValueError:
        host, port = "", 0
    if not re.fullmatch(r"[!-~]+", host) or port == 0:
        raise StartupError(f"config: {name} is not of the form http://[user:password@]host:port; {_REMEDY}")
    return OutboundProxy(host, port, _authorization(parts.username, parts.password))


def for_host(host: str, port: int, environment: Mapping[str, str]) -> OutboundProxy | None:
    """The outbound proxy for an https host; None if it is called directly."""
    if is_loopback(host) or is_exempt(host, port, _first(_EXEMPTION_NAMES, environment)[1]):
        return None
    return from_environment(environment)


def is_exempt(host: str, port: int, exemptions: str) -> bool:
    """Whether a NO_PROXY value names the host: itself, a domain above it, a network around it, or everything."""
    return any(_matches(entry.strip().lower(), host.lower(), port) for entry in re.split(r"[,\s]", exemptions))


def _matches(entry: str, host: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    address = ip_address(host)
    if address is not None:
        with suppress(ValueError):
            return address in ipaddress.ip_network(entry, strict=False)
    name, _, entry_port = entry.rpartition(":") if re.search(r"[^:]:\d+$|\]:\d+$", entry) else (entry, "", "")
    if entry_port and entry_port != str(port):
        return False
    name = name.strip("[]").removeprefix("*").lstrip(".")
    return bool(name) and (host == name or (address is None and host.endswith("." + name)))


def _first(names: Iterable[str], environment: Mapping[str, str]) -> tuple[str, str]:
    return next(((name, value) for name in names if (value := environment.get(name, "").strip())), ("", ""))


def _authorization(user: str | None, password: str | None) -> str | None:
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()


def local_url(host: str, port: int) -> str:
    """The address at which programs on this machine reach a listener: nothing can connect to a wildcard."""
    return f"http://{authority({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}"


def authority(host: str, port: int) -> str:
    """Format host and port for a URL or CONNECT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
