"""The settings: unknown keys and bad values from every source, and who else can read or change the file."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, warning
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, RETIRED, SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.settings import ProxyConfig
from deepseek_cursor_proxy.config.sources import collect, expand_home, lacks_home
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import StartupError

NAME = "settings"


class Settings(NamedTuple):
    """The settings as far as they can be used; `faults` is empty if the proxy would start with them."""

    config: ProxyConfig
    origins: Mapping[str, str]
    faults: tuple[str, ...]


def load(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings, with the default in place of every value that is wrong. Raises nothing."""
    try:
        loaded = LoadedConfig.load(path, environment, flags)
        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
        model_resolver.refuse_blind(loaded.config, loaded.origins["picture_model"])
        return Settings(loaded.config, loaded.origins, ())
    except StartupError as error:
        found = collect(DECLARATIONS, RETIRED, path, environment, flags)
        faults = tuple(map(str, found.faults)) or (str(error),)
        return Settings(ProxyConfig(**found.values), found.origins, faults)


class FileFacts(NamedTuple):
    """`mode` is None on systems without one; `has_keys` if a setting of the file is a key."""

    path: Path
    exists: bool
    mode: int | None = None
    has_keys: bool = False


def look_at_file(path: Path, settings: Settings) -> FileFacts:
    if lacks_home(path):
        return FileFacts(path, exists=False)
    try:
        status = expand_home(path).stat()
    except (OSError, StartupError):
        return FileFacts(path, exists=False)
    from_file = [name for name, origin in settings.origins.items() if origin == str(path)]
    has_keys = any(each.field in from_file for each in SETTINGS if each.is_secret)
    return FileFacts(path, True, stat.S_IMODE(status.st_mode) if os.name != "nt" else None, has_keys)


def judge(settings: Settings, facts: FileFacts) -> list[Finding]:
    if settings.faults:
        return [_fault(fault) for fault in settings.faults]
    changed = sum(origin != "default" for origin in settings.origins.values())
    if not facts.exists:
        return [good(NAME, f"no file at {facts.path}; changed settings: {changed}")]
    remedy = f"chmod 600 {facts.path}"
    if facts.mode is not None and facts.mode & 0o022:
        return [warning(NAME, f"other users can change {facts.path}", remedy)]
    if facts.mode is not None and facts.mode & 0o044 and facts.has_keys:
        return [warning(NAME, f"{facts.path} has keys, and other users can read it", remedy)]
    return [good(NAME, f"{facts.path}; changed settings: {changed}")]


def _fault(fault: str) -> Finding:
    text, _, hint = fault.removeprefix("config: ").partition("; ")
    return failed(NAME, text, hint or "correct or remove it; `serve --help` lists all settings")
