"""How a setting is declared, read from outside and written down again.

A value is refused in one line that names the setting, the value, what is allowed and where it came from.
A Setting is one value, or a list of them, and comes from everywhere; a Table maps names of models and comes from the
file only.
Which of them there are is config's part.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

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
    item: "Entry | None" = None,
    needs_restart: bool = False,
    group: str = "",
) -> Any:
    """Declare one setting; `key` is its name outside Python where that differs from the field.

    A `switch` has choices of which `on` and `off` may also be said as true and false, and by flags without a value.
    A setting with `item` is a list: that reads what stands between two commas. One that `needs_restart` is read when
    the proxy starts and stays as it is when the others are read again. `group` is the heading in `--help` of this
    setting and of those that follow, up to the next heading.
    """
    limits = {"key": key, "help": help, "choices": choices, "at_least": at_least, "at_most": at_most, "item": item}
    more = {"switch": switch, "needs_restart": needs_restart, "group": group}
    return field(default=default, metadata={**limits, **more})


class Setting(NamedTuple):
    """One declared setting, as the outside sees it."""

    field: str
    key: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...]
    at_least: float | None
    at_most: float | None
    item: "Entry | None" = None
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
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    def parse(self, value: Any, origin: str) -> Any:
        """A value of the right kind from a TOML value, an environment string or a flag."""
        if self.default is None and value == "":
            return None
        if self.item is not None:
            return items(self.key, value, origin, self.item)
        allowed = f"one of {', '.join(self.choices)}" if self.choices else _KIND_NAMES[self.kind]
        try:
            parsed = self._convert(value)
        # RuntimeError: a path that begins with the home of a user who does not exist.
        except (TypeError, ValueError, OverflowError, KeyError, RuntimeError):
            raise self._refused(value, f"is not {allowed}", origin) from None
        if self.choices and parsed not in self.choices:
            raise self._refused(value, f"is not {allowed}", origin)
        if self.at_least is not None and parsed < self.at_least:
            raise self._refused(value, f"is less than {self.at_least}", origin)
        if self.at_most is not None and parsed > self.at_most:
            raise self._refused(value, f"is more than {self.at_most}", origin)
        if self.field == "upstream_base_url":
            return self._base_url(parsed, origin)
        return parsed

    def _convert(self, value: Any) -> Any:
        """The value in this setting's kind; TypeError, ValueError or KeyError when it has no such meaning."""
        if self.kind is bool:
            return value if isinstance(value, bool) else _BOOL_WORDS[str(value).strip().lower()]
        if self.switch and str(value).strip().lower() in _BOOL_WORDS:
            return switched(_BOOL_WORDS[str(value).strip().lower()])
        if isinstance(value, bool) or (self.kind is int and isinstance(value, float)):
            raise TypeError
        if self.kind in (int, float):
            number = self.kind(value)
            if number != number:
                # No bound would catch it: nan is neither less nor more than anything.
                raise ValueError
            return number
        if not isinstance(value, str):
            raise TypeError
        text = value.strip()
        # A control character is a slip, and the system answers NUL with a traceback.
        if not text or min(text) < " ":
            raise ValueError
        return Path(text).expanduser() if self.kind is Path else text

    def _base_url(self, url: str, origin: str) -> str:
        if not is_base_url(url):
            raise self._refused(url, "is not an http(s) address such as https://api.deepseek.com", origin)
        return url.rstrip("/")

    def _refused(self, value: Any, why: str, origin: str) -> StartupError:
        return refused(self.key, value, why, origin)


def switched(value: Any) -> Any:
    """A switch's word for true or false; any other value as it is."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def items(key: str, value: Any, origin: str, item: "Entry") -> tuple[Any, ...]:
    """A list from TOML or Python, or from a text with commas. What is wrong is not repeated: it may be a secret."""
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",")]
    if not isinstance(value, (list, tuple)):
        raise StartupError(f'config: {key} is not a list such as ["one", "two"] ({origin})')
    return tuple(item(key, each, origin) for each in value)


_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a line of text", Path: "a path"}


def refused(key: str, value: Any, why: str, origin: str) -> StartupError:
    shown = f'"{quoted(value)}"' if isinstance(value, str) else quoted(value)
    return StartupError(f"config: {key} = {shown} {why} ({origin})")


def quoted(value: Any) -> str:
    """A value we refuse, made fit for one line."""
    try:
        return safe_text(value, 100)
    except ValueError:
        return "…"  # a number of more digits than Python is willing to write


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody may have meant."""
    # Only a mistake needs it, and the start is faster without.
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def is_base_url(url: str) -> bool:
    """Whether calls can be made below it: no user (the client's key is the credential), no query, a possible port."""
    try:
        parts = urlsplit(url)
        is_reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = re.fullmatch(r"[!-~]+", url) and not (parts.query or parts.fragment or "@" in parts.netloc)
    return bool(parts.scheme in ("http", "https") and is_reachable and is_plain)


# Tables …


@dataclass(frozen=True)
class PassthroughRoute:
    """Another place that speaks chat completions, and the environment variable that holds the key for it."""

    base_url: str
    key_env: str


Entry = Callable[[str, Any, str], Any]


def table(help: str, entry: Entry, *example: str) -> Any:
    """Declare a table; `entry` reads what stands on the right of one of its names, `example` is TOML."""
    metadata = {"help": help, "entry": entry, "example": example}
    # Left out of the hash: a mapping has none.
    return field(default_factory=dict, hash=False, metadata=metadata)


class Table(NamedTuple):
    """One declared table, as the outside sees it."""

    field: str
    help: str
    entry: Entry
    example: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.field

    def parse(self, value: Any, origin: str) -> Mapping[str, Any]:
        """The table with every name and entry checked."""
        if not isinstance(value, dict):
            raise refused(self.key, value, f"is not a table; write [{self.key}] into the configuration file", origin)
        return {name: self._entry(name, entry, origin) for name, entry in value.items()}

    def _entry(self, name: str, value: Any, origin: str) -> Any:
        key = f"{self.key}.{toml_key(name)}"
        if name != "*" and not _is_model_name(name.removesuffix("*")):
            allowed = "a model's name, or the beginning of one with * behind it"
            raise StartupError(f'config: "{quoted(name)}" in [{self.key}] is not {allowed} ({origin})')
        return self.entry(key, value, origin)


def frozen(table: Mapping[str, Any], kind: Callable[..., Any] | None = None) -> Mapping[str, Any]:
    """A table that nobody can change any more; with `kind`, entries that are plain mappings become one."""
    return MappingProxyType(
        {name: kind(**entry) if kind and isinstance(entry, Mapping) else entry for name, entry in table.items()}
    )


def model_name(key: str, value: Any, origin: str) -> str:
    """An entry of [models]."""
    if not (isinstance(value, str) and _is_model_name(value)):
        raise refused(key, value, "is not a model's name such as deepseek-v4-pro", origin)
    return value


def passthrough_route(key: str, value: Any, origin: str) -> PassthroughRoute:
    """An entry of [passthrough]."""
    if not isinstance(value, dict):
        raise refused(key, value, "is not a table with base_url and key_env", origin)
    for name in value:
        if name not in _ROUTE_KEYS:
            near = nearest(name, _ROUTE_KEYS)
            hint = f'; did you mean "{near}"?' if near else ""
            raise StartupError(f"config: unknown key {key}.{toml_key(name)} ({origin}){hint}")
    if missing := [name for name in _ROUTE_KEYS if name not in value]:
        raise StartupError(f"config: {key} has no {missing[0]} ({origin}); it needs {' and '.join(_ROUTE_KEYS)}")
    url, variable = value["base_url"], value["key_env"]
    if not (isinstance(url, str) and is_base_url(url) and is_private(url)):
        allowed = "is not an https address such as https://api.openai.com/v1 (plain http: this machine only)"
        raise refused(f"{key}.base_url", url, allowed, origin)
    if not (isinstance(variable, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable)):
        # The value is not repeated: it is likely to be the key itself, put where its variable belongs.
        why = "is not the name of an environment variable such as OPENAI_API_KEY; the key itself belongs there"
        raise StartupError(f"config: {key}.key_env {why} ({origin})")
    return PassthroughRoute(url.rstrip("/"), variable)


_ROUTE_KEYS = ("base_url", "key_env")


def _is_model_name(name: str) -> bool:
    return 0 < len(name) <= 200 and name.isprintable() and name == name.strip() and "*" not in name


def is_private(url: str) -> bool:
    """Whether a key may be sent there: not in clear over a network."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether an address means this machine and no other."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# As TOML …


def from_toml(text: str) -> dict[str, Any]:
    """What a TOML document says; raises ValueError or RecursionError."""
    # Beyond doubt nothing: TOML has rules for the characters of comments, too.
    if all(not line or (line.startswith("#") and line.isprintable()) for line in text.split("\n")):
        return {}
    # Most people never change the file that the first run left; then the start is faster without.
    import tomllib

    return tomllib.loads(text)


def toml(value: Any) -> str:
    """A value as TOML writes it, in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, PassthroughRoute):
        value = vars(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(name)} = {toml(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, Path):
        # Windows takes both kinds of slash, and one of them needs no escape.
        value = value.as_posix()
    return '"' + str(value or "").replace("\\", "\\\\").replace('"', '\\"') + '"'


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{quoted(name)}"'
