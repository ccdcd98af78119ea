"""What a check gets, a Subject, and what it returns: Findings, with the remedy if something is wrong.

The Subject has the settings, also damaged ones, the user's key, and the running proxy, whose upstream is checked. It is
built once, of values only, so that a test can describe any machine. A running proxy is found by the files that it keeps
beside its store. Its admin listener first proves itself (`cli/running_proxy`), then gets the key in admin.key
and answers with its state.
"""

import contextlib
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, LoadedConfig, collect
from deepseek_cursor_proxy.config.values import expand_home, lacks_home
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import StartupError


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """The result of a check with this name; `remedy` is empty where there is nothing to do."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def good(name: str, text: str) -> Finding:
    return Finding(name, Level.GOOD, text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(name, Level.WARNING, text, remedy)


def failed(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, Level.FAILED, text, remedy)


def skipped(name: str, text: str, remedy: str = "") -> Finding:
    """Nothing could be checked; `remedy` says how it can be."""
    return Finding(name, Level.SKIPPED, text, remedy)


class NamedKey(NamedTuple):
    """A key, and the variable that holds it; no variable if it was typed."""

    variable: str
    key: str


class Settings(NamedTuple):
    """The settings as far as they can be used; `faults` is empty if the proxy would start with them."""

    config: ProxyConfig
    origins: Mapping[str, str]
    faults: tuple[str, ...]


class AdminFacts(NamedTuple):
    """admin.key and the listener. `key_state`: set, absent, unreadable, exposed (to other users) or private."""

    key_path: Path
    key_state: str
    key: str | None = None
    # The listener that answered, if one did: whether it proved to be a proxy with this store, and its status.
    url: str = ""
    is_proven: bool = False
    status: int = 0
    proxy: running_proxy.RunningProxy | None = None
    # The settings that the running proxy says it has, in TOML.
    settings: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Subject:
    """The settings with their file, the environment, the user's key, and the proxy that runs with the store.

    `key` is None if there is none, or if the settings have a mistake: it could go to the wrong place then.
    """

    settings: Settings
    config_path: Path
    environment: Mapping[str, str]
    admin: AdminFacts
    key: NamedKey | None = None
    # The command that starts this program, for remedies.
    program: str = "deepseek-cursor-proxy"

    @property
    def config(self) -> ProxyConfig:
        return self.settings.config


def load_settings(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings, with the default in place of every value that is wrong. Raises nothing."""
    try:
        loaded = LoadedConfig.load(path, environment, flags)
        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
        return Settings(loaded.config, loaded.origins, ())
    except StartupError as error:
        found = collect(path, environment, flags)
        faults = tuple(map(str, found.faults)) or (str(error),)
        return Settings(ProxyConfig(**found.values), found.origins, faults)


def file_status(path: Path) -> os.stat_result | None:
    """The status of a file, perhaps in the home directory; None if it is not there or cannot be seen."""
    try:
        return expand_home(path).stat()
    except (OSError, StartupError):
        return None


def is_open_to(status: os.stat_result, permissions: int) -> bool:
    """Whether other users have one of these permissions; Windows has none of this kind."""
    return os.name != "nt" and bool(stat.S_IMODE(status.st_mode) & permissions)


def find_admin(config: ProxyConfig) -> AdminFacts:
    store = config.reasoning_content_path
    if str(store) == ":memory:" or lacks_home(store):
        return AdminFacts(Path(running_proxy.KEY_FILE), "absent")
    path = store.expanduser().absolute().with_name(running_proxy.KEY_FILE)
    key = running_proxy.read_key(store)
    state = "set" if config.admin_key is not None else _key_state(path, key)
    if (found := running_proxy.find(config)) is None:
        return AdminFacts(path, state, key)
    proxy = running_proxy.read_stats(found.body)
    settings = _ask_settings(store, found.url, key) if proxy is not None else {}
    return AdminFacts(path, state, key, found.url, found.is_proven, found.status, proxy, settings)


def _ask_settings(store: Path, url: str, key: str | None) -> Mapping[str, str]:
    for answer in running_proxy.ask_all(store, "/api/config", key):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if answer.url == url:
                return {str(each["name"]): str(each["value"]) for each in json.loads(answer.body)["settings"]}
    return {}


# The settings that decide where a running proxy sends requests; the variables of this command may differ.
_UPSTREAM_KEYS = ("base_url", "upstream_host", "model", "models", "upstreams", "allow_plain_http_upstream")


def follow(settings: Settings, facts: AdminFacts) -> Settings:
    """The settings with the upstream of the running proxy, if one runs."""
    running_values: dict[str, Any] = {}
    for declared in DECLARATIONS:
        if declared.key in _UPSTREAM_KEYS and declared.key in facts.settings:
            with contextlib.suppress(StartupError, tomllib.TOMLDecodeError):
                value = tomllib.loads(f"value = {facts.settings[declared.key]}")["value"]
                running_values[declared.field] = declared.parse(value, "the running proxy")
    return settings._replace(config=replace(settings.config, **running_values))


def _key_state(path: Path, key: str | None) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    if key is None:
        return "unreadable"
    return "exposed" if is_open_to(status, 0o077) else "private"
