"""Declarations of settings: `setting(…)`, `table(…)` and `constant(…)`, with the parsing and printing of their values.

A Setting is one value or a list, from a flag, an environment variable or the file; a SettingsTable maps names of models
and comes from the file only. A bad value is a StartupError of one line that names the setting, the value, what is
allowed and the origin. The settings themselves are in `settings`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text

ENVIRONMENT_PREFIX = "DEEPSEEK_CURSOR_PROXY_"
# The installation secret itself, and therefore no setting.
SECRET_VARIABLE = "DEEPSEEK_CURSOR_PROXY_SECRET"

_BOOL_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def setting(default: Any, help: str, **options: Any) -> Any:
    """Declare one setting; the options are those of Setting."""
    return field(default=default, metadata={"help": help, **options})


def common(default: Any, help: str, **options: Any) -> Any:
    """Declare one of the ten settings that `serve --help` and the file of the first run have."""
    return setting(default, help, is_common=True, **options)


def constant(value: Any) -> Any:
    """Declare a value that no user can set: code that embeds the proxy, as the tests do, may give another."""
    return field(default=value, metadata={"constant": True})


class Setting(NamedTuple):
    field: str
    # Its name in file, flag and environment.
    key: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    # Parses one entry of a list, whose entries are separated by commas.
    item: "EntryParser | None" = None
    # Checks a value of the right kind, choices included, and returns the value to use.
    check: "EntryParser | None" = None
    # Its choices `on` and `off` may also be written as true, false and a flag without a value.
    switch: bool = False
    # It may have a password in it.
    secret: bool = False
    # A reload of the configuration does not change it.
    needs_restart: bool = False
    is_common: bool = False
    # Heading in `--help` of this setting and those that follow, up to the next heading.
    group: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def is_secret(self) -> bool:
        """Whether its value is or has a key or password, or a list of keys."""
        return self.secret or self.kind is AccessKey or self.item is access_key

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
        why = ""
        if self.choices and parsed not in self.choices:
            why = f"is not {allowed}"
        elif self.at_least is not None and parsed < self.at_least:
            why = f"is less than {self.at_least}"
        elif self.at_most is not None and parsed > self.at_most:
            why = f"is more than {self.at_most}"
        if why:
            raise refusal(self.key, value, why, origin)
        return parsed

    def _convert(self, value: Any) -> Any:
        """The value in this setting's kind. Raises TypeError, ValueError or KeyError if it has no such meaning."""
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
        value = [entry.strip() for entry in value.split(",")]
    if not isinstance(value, (list, tuple)):
        raise StartupError(f'config: {key} is not a list such as ["one", "two"] ({origin})')
    return tuple(item(key, entry, origin) for entry in value)


_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a line of text", Path: "a path"}


def refusal(key: str, value: Any, why: str, origin: str) -> StartupError:
    text = f'"{quote(value)}"' if isinstance(value, str) else quote(value)
    return StartupError(f"config: {key} = {text} {why} ({origin})")


def quote(value: Any) -> str:
    """A bad value, safe to print in one line."""
    return safe_text(value, 100)


def refuse_unknown_keys(
    key: str, value: Mapping[str, Any], known: Collection[str], origin: str, otherwise: str = ""
) -> None:
    """Raise StartupError for an unknown key of a table; `otherwise` ends its text if no known key is similar."""
    for name in value:
        if name not in known:
            near = nearest(name, known)
            hint = f'; did you mean "{near}"?' if near else otherwise
            raise StartupError(f"config: unknown key {key}.{to_toml_key(name)} ({origin}){hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    # Imported late: only a mistake needs it, and the start is faster without.
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


EntryParser = Callable[[str, Any, str], Any]


def table(help: str, entry: EntryParser) -> Any:
    """Declare a table; `entry` parses the value of one of its names."""
    # A mapping has no hash.
    return field(default_factory=dict, hash=False, metadata={"help": help, "entry": entry})


class SettingsTable(NamedTuple):
    # Both are its name.
    field: str
    key: str
    help: str
    entry: EntryParser

    def parse(self, value: Any, origin: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise refusal(self.key, value, f"is not a table; write [{self.key}] into the configuration file", origin)
        return {name: self._entry(name, entry, origin) for name, entry in value.items()}

    def _entry(self, name: str, value: Any, origin: str) -> Any:
        key = f"{self.key}.{to_toml_key(name)}"
        if name != "*" and not is_model_name(name.removesuffix("*")):
            allowed = "a model's name, or the beginning of one with * behind it"
            raise StartupError(f'config: "{quote(name)}" in [{self.key}] is not {allowed} ({origin})')
        return self.entry(key, value, origin)


def is_model_name(name: str) -> bool:
    return 0 < len(name) <= 200 and name.isprintable() and name == name.strip() and "*" not in name


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
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml_key(name)} = {to_toml(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, Path):
        # Windows takes both slashes, and / needs no escape.
        value = value.as_posix()
    return '"' + str(value or "").replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{quote(name)}"'
