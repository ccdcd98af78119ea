"""RedisAddress: the URL of the server or of a cluster, parsed.

    redis://user:password@host:6379/0                    one server; rediss:// with TLS; valkey://, valkeys:// alike
    redis://host1:6379,host2:6379/?cluster=1             a cluster, by some of its nodes
    rediss://host/?ca=/etc/ssl/engine.pem                TLS, checked with this certificate authority

User and password are percent-encoded. No text made here has the password in it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote_to_bytes, urlsplit

from deepseek_cursor_proxy.config.values import StoreUrl
from deepseek_cursor_proxy.errors import StartupError

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]:/@]+))(?::(?P<port>[0-9]{1,5}))?")
_EXAMPLE = "write it like redis://user:password@host:6379/0"


class Node(NamedTuple):
    """A server of the engine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class RedisAddress:
    text: str
    nodes: tuple[Node, ...]
    # User and password, if there are any.
    login: tuple[bytes, ...] = field(default=(), repr=False)
    database: int = 0
    has_tls: bool = False
    authorities: str = ""
    is_cluster: bool = False

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, url: str) -> "RedisAddress":
        """Raises StartupError, with the remedy."""
        text = StoreUrl(url).toml()
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            _refuse(text, f"is no URL; {_EXAMPLE}")
        if parts.scheme not in _SCHEMES:
            _refuse(text, "begins with none of redis://, rediss://, valkey:// and valkeys://")
        address = cls(
            text,
            _nodes(parts, text),
            _login(parts),
            _database(parts.path, text),
            _SCHEMES[parts.scheme],
            options.pop("ca", ""),
            options.pop("cluster", "0") == "1",
        )
        _check(address, options)
        return address


def _nodes(parts: SplitResult, text: str) -> tuple[Node, ...]:
    nodes = []
    for name in parts.netloc.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(name)
        port = int(found["port"] or 6379) if found is not None else 0
        if found is None or not 0 < port < 65536:
            _refuse(text, f'has "{name}" where a host or host:port belongs; {_EXAMPLE}')
        nodes.append(Node(found["ipv6"] or found["name"], port))
    return tuple(nodes)


def _login(parts: SplitResult) -> tuple[bytes, ...]:
    userinfo, at, _ = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return (unquote_to_bytes(user) or b"default", unquote_to_bytes(password)) if at else ()


def _database(path: str, text: str) -> int:
    number = path.strip("/") or "0"
    if not number.isdecimal() or len(number) > 5:
        _refuse(text, f'has "{number}" where the number of a database belongs; {_EXAMPLE}')
    return int(number)


def _check(address: RedisAddress, options: dict[str, str]) -> None:
    text = address.text
    if options:
        _refuse(text, f'has the option "{min(options)}"; there are cluster=1 and ca=FILE')
    if address.is_cluster and address.database:
        _refuse(text, "names a database, and a cluster has only 0; leave it out")
    if len(address.nodes) > 1 and not address.is_cluster:
        _refuse(text, "names several servers; add ?cluster=1")
    if address.authorities and not address.has_tls:
        _refuse(text, "has the option ca without TLS; begin it with rediss://")
    if address.authorities and not Path(address.authorities).is_file():
        _refuse(text, f"names {address.authorities}, which is no file; name a file of certificates")


def _refuse(text: str, reason: str) -> NoReturn:
    raise StartupError(f'the address "{text}" {reason}')
