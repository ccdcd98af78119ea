"""Declarations of settings: `setting(…)` and `table(…)` with the parsing and printing of their values.

A Setting is one value or a list, from a flag, an environment variable or the file; a Table maps names of models and
comes from the file only. A bad value is a StartupError of one line that names the setting, the value, what is allowed
and the origin. The settings themselves are in `settings`.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text

ENVIRONMENT_PREFIX = "DEEPSEEK_CURSOR_PROXY_"

_BOOL_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def setting(
    default: Any,
    help: str,
    *,
    key: str | None = None,
    choices: tuple[str, ...] = (),
    switch: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    item: "EntryParser | None" = None,
    check: "EntryParser | None" = None,
    needs_restart: bool = False,
    group: str = "",
) -> Any:
    """Declare one setting.

    key              its name in file, flag and environment, if it differs from the field
    switch           its choices `on` and `off` may also be written as true, false and a flag without a value
    item             parses one entry of a list, whose entries are separated by commas
    check            checks a value of the right kind and may write it differently; the choices are its affair then
    needs_restart    a reload of the configuration does not change it
    group            heading in `--help` of this setting and those that follow, up to the next heading
    """
    limits = {"key": key, "help": help, "choices": choices, "at_least": at_least, "at_most": at_most, "item": item}
    more = {"switch": switch, "check": check, "needs_restart": needs_restart, "group": group}
    return field(default=default, metadata={**limits, **more})


class Setting(NamedTuple):
    field: str
    key: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...]
    at_least: float | None
    at_most: float | None
    item: "EntryParser | None" = None
    check: "EntryParser | None" = None
    switch: bool = False
    needs_restart: bool = False
    group: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def can_be_negated(self) -> bool:
        """Whether there is a flag that begins with --no-."""
        return self.switch or self.kind is bool

    @property
    def is_secret(self) -> bool:
        """Whether its value is a key, or a list of keys."""
        return self.kind is AccessKey or self.item is access_key

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    def parse(self, value: Any, origin: str) -> Any:
        """A value of the right kind from a TOML value, an environment string or a flag."""
        if self.default is None and value == "":
            return None
        if self.item is not None:
            return parse_items(self.key, value, origin, self.item)
        if self.kind is AccessKey:
            return access_key(self.key, value, origin)
        allowed = f"one of {', '.join(self.choices)}" if self.choices else _KIND_NAMES[self.kind]
        try:
            parsed = self._convert(value)
        # RuntimeError: a path that begins with the home of a user who does not exist.
        except (TypeError, ValueError, OverflowError, KeyError, RuntimeError):
            raise refusal(self.key, value, f"is not {allowed}", origin) from None
        if self.check is not None:
            return self.check(self.key, parsed, origin)
        if self.choices and parsed not in self.choices:
            raise refusal(self.key, value, f"is not {allowed}", origin)
        if self.at_least is not None and parsed < self.at_least:
            raise refusal(self.key, value, f"is less than {self.at_least}", origin)
        if self.at_most is not None and parsed > self.at_most:
            raise refusal(self.key, value, f"is more than {self.at_most}", origin)
        return parsed

    def _convert(self, value: Any) -> Any:
        """The value in this setting's kind; TypeError, ValueError or KeyError when it has no such meaning."""
        if self.kind is bool:
            return value if isinstance(value, bool) else _BOOL_WORDS[str(value).strip().lower()]
        if self.switch and str(value).strip().lower() in _BOOL_WORDS:
            return switch_word(_BOOL_WORDS[str(value).strip().lower()])
        if isinstance(value, bool) or (self.kind is int and isinstance(value, float)):
            raise TypeError
        if self.kind in (int, float):
            number = self.kind(value)
            if number != number:
                # nan, which no limit catches.
                raise ValueError
            return number
        if not isinstance(value, str):
            raise TypeError
        text = value.strip()
        # A control character is a mistake, and NUL in a path would raise a ValueError later.
        if not text or min(text) < " ":
            raise ValueError
        return Path(text).expanduser() if self.kind is Path else text


def switch_word(value: Any) -> Any:
    """`on` or `off` for a bool; any other value unchanged."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def parse_items(key: str, value: Any, origin: str, item: "EntryParser") -> tuple[Any, ...]:
    """Parse a list from TOML or Python, or a text with commas. Errors do not repeat the value: it may be a secret."""
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",")]
    if not isinstance(value, (list, tuple)):
        raise StartupError(f'config: {key} is not a list such as ["one", "two"] ({origin})')
    return tuple(item(key, each, origin) for each in value)


def public_host(key: str, value: Any, origin: str) -> str:
    """Parse an entry of public_hosts: the name of the proxy in the user's own tunnel or reverse proxy."""
    name = value.strip().lower().removesuffix(".") if isinstance(value, str) else ""
    if not re.fullmatch(r"(?:\*\.)?(?!-)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", name):
        allowed = "a host name such as proxy.example.com or *.example.com, without https:// and port"
        raise StartupError(f'config: {key} has "{quote(value)}", which is not {allowed} ({origin})')
    return name


_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a line of text", Path: "a path"}


def refusal(key: str, value: Any, why: str, origin: str) -> StartupError:
    text = f'"{quote(value)}"' if isinstance(value, str) else quote(value)
    return StartupError(f"config: {key} = {text} {why} ({origin})")


def quote(value: Any) -> str:
    """A bad value, safe to print in one line."""
    try:
        return safe_text(value, 100)
    except ValueError:
        return "…"  # a number of more digits than Python is willing to write


def nearest(name: str, known: Iterable[str]) -> str | None:
    # Imported late: only a mistake needs it, and the start is faster without.
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


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
    """Check a value of `base_url`."""
    if not is_base_url(value):
        raise refusal(key, value, "is not an http(s) address such as https://api.deepseek.com", origin)
    return str(value).rstrip("/")


@dataclass(frozen=True)
class PassthroughRoute:
    """Another upstream with an OpenAI-compatible API, and the environment variable that holds its key."""

    base_url: str
    key_env: str

    def toml(self) -> dict[str, str]:
        return vars(self)


EntryParser = Callable[[str, Any, str], Any]


def table(help: str, entry: EntryParser, *example: str) -> Any:
    """Declare a table; `entry` parses the value of one of its names, `example` is TOML."""
    metadata = {"help": help, "entry": entry, "example": example}
    # A mapping has no hash.
    return field(default_factory=dict, hash=False, metadata=metadata)


class Table(NamedTuple):
    field: str
    help: str
    entry: EntryParser
    example: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.field

    def parse(self, value: Any, origin: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise refusal(self.key, value, f"is not a table; write [{self.key}] into the configuration file", origin)
        return {name: self._entry(name, entry, origin) for name, entry in value.items()}

    def _entry(self, name: str, value: Any, origin: str) -> Any:
        key = f"{self.key}.{to_toml_key(name)}"
        if name != "*" and not _is_model_name(name.removesuffix("*")):
            allowed = "a model's name, or the beginning of one with * behind it"
            raise StartupError(f'config: "{quote(name)}" in [{self.key}] is not {allowed} ({origin})')
        return self.entry(key, value, origin)


def freeze(table: Mapping[str, Any], kind: Callable[..., Any] | None = None) -> Mapping[str, Any]:
    """The table, read-only; with `kind`, entries that are plain mappings become one."""
    return MappingProxyType(
        {name: kind(**entry) if kind and isinstance(entry, Mapping) else entry for name, entry in table.items()}
    )


def model_name(key: str, value: Any, origin: str) -> str:
    if not (isinstance(value, str) and _is_model_name(value)):
        raise refusal(key, value, "is not a model's name such as deepseek-v4-pro", origin)
    return value


def raw_field(key: str, value: Any, origin: str) -> Any:
    """Parse an entry of host_options: any JSON value, under a name that is not the proxy's to write."""
    if key.rpartition(".")[2] in _OWN_FIELDS:
        raise refusal(key, "…", f"is not an option; the proxy writes {', '.join(_OWN_FIELDS)} itself", origin)
    if not _is_json(value):
        raise refusal(key, str(value), "is not a text, number, true, false, list or table of these", origin)
    return value


_OWN_FIELDS = ("model", "messages", "tools", "tool_choice", "stream", "stream_options")


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    # inf and nan are TOML, not JSON.
    return isinstance(value, (str, int)) or (isinstance(value, float) and value - value == 0)


def price_entry(key: str, value: Any, origin: str) -> Any:
    """Parse an entry of prices: the list `holidays` as dates, or the prices of a model."""
    if key == "prices.holidays":
        return parse_items(key, value, origin, _day)
    if not isinstance(value, dict) or not value:
        raise refusal(key, value, "is not a table with miss and output, each the price of a million tokens", origin)
    for name, amount in value.items():
        if name not in _PRICE_KEYS:
            near = nearest(name, _PRICE_KEYS)
            hint = f'; did you mean "{near}"?' if near else f"; there are {', '.join(_PRICE_KEYS)}"
            raise StartupError(f"config: unknown key {key}.{to_toml_key(name)} ({origin}){hint}")
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not (is_number and 0 <= amount <= _HIGHEST_PRICE):
            raise refusal(f"{key}.{name}", amount, f"is not a price from 0 to {_HIGHEST_PRICE}", origin)
    return MappingProxyType({name: float(amount) for name, amount in value.items()})


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


def passthrough_route(key: str, value: Any, origin: str) -> PassthroughRoute:
    if not isinstance(value, dict):
        raise refusal(key, value, "is not a table with base_url and key_env", origin)
    for name in value:
        if name not in _ROUTE_KEYS:
            near = nearest(name, _ROUTE_KEYS)
            hint = f'; did you mean "{near}"?' if near else ""
            raise StartupError(f"config: unknown key {key}.{to_toml_key(name)} ({origin}){hint}")
    if missing := [name for name in _ROUTE_KEYS if name not in value]:
        raise StartupError(f"config: {key} has no {missing[0]} ({origin}); it needs {' and '.join(_ROUTE_KEYS)}")
    url, variable = value["base_url"], value["key_env"]
    if not (isinstance(url, str) and is_base_url(url) and is_private(url)):
        allowed = "is not an https address such as https://api.openai.com/v1 (plain http: this machine only)"
        raise refusal(f"{key}.base_url", url, allowed, origin)
    if not is_variable(variable):
        # The value is not repeated: it is probably the key itself.
        why = "is not the name of an environment variable such as OPENAI_API_KEY; the key itself belongs there"
        raise StartupError(f"config: {key}.key_env {why} ({origin})")
    return PassthroughRoute(url.rstrip("/"), variable)


_ROUTE_KEYS = ("base_url", "key_env")


def is_variable(name: object) -> bool:
    """Whether this can be the name of an environment variable."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def _is_model_name(name: str) -> bool:
    return 0 < len(name) <= 200 and name.isprintable() and name == name.strip() and "*" not in name


def is_private(url: str) -> bool:
    """Whether a key may be sent to this URL: by https, or to this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document; raises ValueError or RecursionError."""
    # Surely empty; an unprintable character in a comment is for tomllib to refuse.
    if all(not line or (line.startswith("#") and line.isprintable()) for line in text.split("\n")):
        return {}
    # Imported late: most people never change the file that the first run wrote, and the start is faster without.
    import tomllib

    return tomllib.loads(text)


def to_toml(value: Any) -> str:
    """Format a value as TOML in one line, as `config show` prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if (entry := getattr(value, "toml", None)) is not None:
        value = entry()
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(to_toml(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml_key(name)} = {to_toml(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, Path):
        # Windows takes both slashes, and / needs no escape.
        value = value.as_posix()
    return '"' + str(value or "").replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{quote(name)}"'
