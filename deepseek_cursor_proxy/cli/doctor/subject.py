"""Subject: what the checks look at: the settings, also damaged ones, the user's key, and the proxy that runs.

It is made once, of values only, so that a test can make up any machine. The proxy that runs with a store is found by
the files that it leaves beside it. Its admin listener first proves itself (`admin/running`), then gets the key in
admin.key and tells the rest.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.admin import key_files, running
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig, collect
from deepseek_cursor_proxy.config.values import expand_home, lacks_home
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import StartupError


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
    # The listener that answered, if one did: whether it proved to be a proxy with this store, and its status.
    url: str = ""
    is_proven: bool = False
    status: int = 0
    proxy: running.RunningProxy | None = None


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
    is_live: bool = False

    @property
    def config(self) -> ProxyConfig:
        return self.settings.config


def load_settings(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings, with the default in place of every value that is wrong. Raises nothing."""
    try:
        loaded = LoadedConfig.load(path, environment, flags)
        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
        model_resolver.refuse_blind(loaded.config, loaded.origins["picture_model"])
        return Settings(loaded.config, loaded.origins, ())
    except StartupError as error:
        found = collect(path, environment, flags)
        faults = tuple(map(str, found.faults)) or (str(error),)
        return Settings(ProxyConfig(**found.values), found.origins, faults)


def file_status(path: Path) -> os.stat_result | None:
    """The status of a file, perhaps in the home directory; None if it is not there or cannot be seen."""
    if lacks_home(path):
        return None
    try:
        return expand_home(path).stat()
    except (OSError, StartupError):
        return None


def find_admin(config: ProxyConfig) -> AdminFacts:
    store = config.reasoning_content_path
    if not _has_folder(store):
        return AdminFacts(Path(key_files.NAME), "absent")
    path = store.expanduser().absolute().with_name(key_files.NAME)
    state = "set" if config.admin_key is not None else _key_state(path, store)
    key = key_files.read_key(store) if state in ("private", "exposed") else None
    answers = list(running.ask_all(store, "/api/stats", key))
    found = next((each for each in answers if each.is_proven), answers[0] if answers else None)
    if found is None:
        return AdminFacts(path, state)
    return AdminFacts(path, state, found.url, found.is_proven, found.status, running.read_stats(found.body))


def own_key(config: ProxyConfig) -> str | None:
    """The key in admin.key, so that it can be hidden."""
    store = config.reasoning_content_path
    return key_files.read_key(store) if _has_folder(store) else None


def _has_folder(store: Path) -> bool:
    return str(store) != ":memory:" and not lacks_home(store)


def _key_state(path: Path, store: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    if key_files.read_key(store) is None:
        return "unreadable"
    return "exposed" if os.name != "nt" and stat.S_IMODE(status.st_mode) & 0o077 else "private"
