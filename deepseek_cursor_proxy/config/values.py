"""Values of settings with rules of their own: addresses, host names, names of models, prices, routes to others.

A parser gets the name of the setting, the value and its origin, and returns the value as the program uses it, or raises
a StartupError of one line.
"""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config.declaration import (
    EntryParser,
    is_model_name,
    parse_items,
    quote,
    refusal,
    refuse_unknown_keys,
)
from deepseek_cursor_proxy.errors import StartupError


def is_base_url(url: str) -> bool:
    """Whether this is an http(s) URL to call: no user (the client's key is the credential), no query, a valid port."""
    try:
        parts = urlsplit(url)
        is_reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = re.fullmatch(r"[!-~]+", url) and not (parts.query or parts.fragment or "@" in parts.netloc)
    return bool(parts.scheme in ("http", "https") and is_reachable and is_plain)


def base_url(key: str, value: Any, origin: str) -> str:
    """Check the address of an upstream."""
    if not (isinstance(value, str) and is_base_url(value)):
        raise refusal(key, value, "is not an http(s) address such as https://api.deepseek.com", origin)
    return value.rstrip("/")


class StoreUrl(str):
    """The URL of an engine; messages and `config show` have it without its password, also if it cannot be parsed."""

    def toml(self) -> str:
        return re.sub(r"(://[^:@/]*:).*@", r"\1***@", self, flags=re.DOTALL)


def store_url(key: str, value: Any, origin: str) -> StoreUrl:
    """Check the scheme of an engine's URL; `features/redis/connection` parses the rest."""
    url = StoreUrl(value)
    if url.partition("://")[0] not in ("redis", "rediss", "valkey", "valkeys"):
        raise refusal(key, url.toml(), "is not a URL such as redis://user:password@host:6379/0", origin)
    return url


def public_host(key: str, value: Any, origin: str) -> str:
    """Parse an entry of public_hosts: the name of the proxy in the user's own tunnel or reverse proxy."""
    name = value.strip().lower().removesuffix(".") if isinstance(value, str) else ""
    if not re.fullmatch(r"(?:\*\.)?(?!-)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", name):
        allowed = "a host name such as proxy.example.com or *.example.com, without https:// and port"
        raise StartupError(f'config: {key} has "{quote(value)}", which is not {allowed} ({origin})')
    return name


def model_name(key: str, value: Any, origin: str) -> str:
    if not (isinstance(value, str) and is_model_name(value)):
        raise refusal(key, value, "is not a model's name such as deepseek-v4-pro", origin)
    return value


def raw_field(key: str, value: Any, origin: str) -> Any:
    """Parse an entry of host_options: any JSON value, under a name that is not the proxy's to write."""
    if key.rpartition(".")[2] in _OWN_FIELDS:
        raise refusal(key, "…", f"is not an option; the proxy writes {', '.join(_OWN_FIELDS)} itself", origin)
    if not _is_json(value):
        raise refusal(key, "…", "is not a text, number, true, false, list or table of these", origin)
    return value


_OWN_FIELDS = ("model", "messages", "tools", "tool_choice", "stream", "stream_options")


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    # inf and nan are TOML, not JSON.
    return isinstance(value, (str, int)) or (isinstance(value, float) and value - value == 0)


def number(kind: type | tuple[type, ...], least: float, most: float, why: str) -> EntryParser:
    """A parser of numbers between two limits."""

    def parse(key: str, value: Any, origin: str) -> Any:
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):
            raise refusal(key, value, why, origin)
        return value if kind is int else float(value)

    return parse


def price_entry(key: str, value: Any, origin: str) -> Any:
    """Parse an entry of prices: the list `holidays` as dates, or the prices of a model."""
    if key == "prices.holidays":
        return parse_items(key, value, origin, _day)
    if not isinstance(value, Mapping) or not value:
        raise refusal(key, value, "is not a table with miss and output, each the price of a million tokens", origin)
    refuse_unknown_keys(key, value, _PRICE_KEYS, origin, f"; there are {', '.join(_PRICE_KEYS)}")
    price = number((int, float), 0, _HIGHEST_PRICE, f"is not a price from 0 to {_HIGHEST_PRICE}")
    return MappingProxyType({name: price(f"{key}.{name}", amount, origin) for name, amount in value.items()})


_PRICE_KEYS = ("hit", "miss", "output", "peak_hit", "peak_miss", "peak_output", "search")
# More is a typing error, or the price of a token in place of a million.
_HIGHEST_PRICE = 100_000


def _day(key: str, value: Any, origin: str) -> str:
    """A date as text; TOML has dates of its own."""
    # Imported late: the start is faster without.
    from datetime import date

    text = str(value)
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise refusal(key, [text], "has an entry that is not a date such as 2027-02-09", origin) from None


class PassthroughRoute(NamedTuple):
    """Another upstream with an OpenAI-compatible API, and the environment variable that holds its key."""

    base_url: str
    key_env: str

    def toml(self) -> dict[str, str]:
        return self._asdict()


def passthrough_route(key: str, value: Any, origin: str) -> PassthroughRoute:
    if isinstance(value, PassthroughRoute):
        return value
    if not isinstance(value, dict):
        raise refusal(key, value, "is not a table with base_url and key_env", origin)
    refuse_unknown_keys(key, value, _ROUTE_KEYS, origin)
    if missing := [name for name in _ROUTE_KEYS if name not in value]:
        raise StartupError(f"config: {key} has no {missing[0]} ({origin}); it needs {' and '.join(_ROUTE_KEYS)}")
    url = value["base_url"]
    if not (isinstance(url, str) and is_base_url(url) and is_private(url)):
        allowed = "is not an https address such as https://api.openai.com/v1 (plain http: this machine only)"
        raise refusal(f"{key}.base_url", url, allowed, origin)
    return PassthroughRoute(url.rstrip("/"), variable("OPENAI_API_KEY")(f"{key}.key_env", value["key_env"], origin))


_ROUTE_KEYS = ("base_url", "key_env")


def variable(example: str) -> EntryParser:
    """A parser of names of environment variables."""

    def parse(key: str, value: Any, origin: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            # The value is not repeated: it is probably the key itself.
            why = f"is not the name of an environment variable such as {example}; the key itself belongs there"
            raise StartupError(f"config: {key} {why} ({origin})")
        return value

    return parse


def is_private(url: str) -> bool:
    """Whether a key may be sent to this URL: by https, or to this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    address = ip_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def tunnel_address(key: str, value: Any, origin: str) -> str:
    """Check a value of `tunnel_url`: an https address without a path; /v1 at its end is what people paste elsewhere."""
    url = str(value) if "://" in str(value) else f"https://{value}"
    url = url.rstrip("/").removesuffix("/v1")
    if not (is_base_url(url) and is_private(url) and url.count("/") == 2):
        raise refusal(key, value, "is not an https address such as https://proxy.example.com", origin)
    return url


def expand_home(path: Path) -> Path:
    """Replace `~` in a path. Raises StartupError if that home does not exist."""
    try:
        return path.expanduser()
    except RuntimeError:
        if str(path) == "~":
            raise StartupError("there is no home directory for this user; set HOME") from None
        raise StartupError(
            f"{path} is in a home directory that does not exist; write the whole path, or set HOME"
        ) from None


def lacks_home(path: Path) -> bool:
    """Whether a path is in our home directory and we have none: HOME is not set, and our user id is unknown."""
    try:
        path.expanduser()
    except RuntimeError:
        return path.parts[0] == "~"
    return False
