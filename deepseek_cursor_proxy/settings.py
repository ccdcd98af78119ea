"""How a setting is declared, read from outside and written down again.

A value is refused in one line that names the setting, the value, what is allowed and where it came from.
Which settings there are is config's part.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.wire import safe_text

ENVIRONMENT_PREFIX = "DEEPSEEK_CURSOR_PROXY_"

_BOOL_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def setting(
    default: Any,
    help: str,
    *,
    key: str | None = None,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declare one setting; `key` is its name outside Python where that differs from the field."""
    limits = {"key": key, "help": help, "choices": choices, "at_least": at_least, "at_most": at_most}
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Setting:
    """One declared setting, as the outside sees it."""

    field: str
    key: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...]
    at_least: float | None
    at_most: float | None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    def parse(self, value: Any, origin: str) -> Any:
        """A value of the right kind from a TOML value, an environment string or a flag."""
        if self.default is None and value == "":
            return None
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
        if not _is_base_url(url):
            raise self._refused(url, "is not an http(s) address such as https://api.deepseek.com", origin)
        return url.rstrip("/")

    def _refused(self, value: Any, why: str, origin: str) -> StartupError:
        shown = f'"{quoted(value)}"' if isinstance(value, str) else quoted(value)
        return StartupError(f"config: {self.key} = {shown} {why} ({origin})")


_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a line of text", Path: "a path"}


def quoted(value: Any) -> str:
    """A value we refuse, made fit for one line."""
    try:
        return safe_text(value, 100)
    except ValueError:
        return "…"  # a number of more digits than Python is willing to write


def _is_base_url(url: str) -> bool:
    """Whether calls can be made below it: no user (the client's key is the credential), no query, a possible port."""
    try:
        parts = urlsplit(url)
        is_reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = re.fullmatch(r"[!-~]+", url) and not (parts.query or parts.fragment or "@" in parts.netloc)
    return bool(parts.scheme in ("http", "https") and is_reachable and is_plain)


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return '"' + str(value or "").replace("\\", "\\\\").replace('"', '\\"') + '"'
