"""Reads a configuration: SETTINGS and TABLES, as ProxyConfig declares them, and a LoadedConfig with their values.

Values come from defaults, the file, the environment and flags; later ones win. Tables of keys also come from the files
of keys.d beside the file (`access-key --new NAME` writes them), where each name may be in one place only. An unknown
key or a bad value is a StartupError of one line that names its origin; nothing is silently replaced. What depends on
more than one setting is checked here. This module also has the configuration file of the first run. The
settings themselves are in `settings`.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from deepseek_cursor_proxy.config import https_proxy
from deepseek_cursor_proxy.config.declaration import (
    ENVIRONMENT_PREFIX,
    SECRET_VARIABLE,
    Setting,
    SettingsTable,
    nearest,
    parse_toml,
    quote,
    refusal,
    to_toml,
    to_toml_key,
)
from deepseek_cursor_proxy.config.settings import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home, is_private, lacks_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import hide_texts, redact_keys, safe_text


def _collect_settings() -> tuple[Setting, ...]:
    # The entries of these tables are imported late.
    hints = get_type_hints(ProxyConfig, localns={"NamedKey": Any, "KeyGroup": Any})
    settings = []
    group = ""
    for declared in fields(ProxyConfig):
        if "entry" in declared.metadata or "constant" in declared.metadata:
            continue
        hint = hints[declared.name]
        origin = get_origin(hint)
        kind = tuple if origin is tuple else get_args(hint)[0] if origin is types.UnionType else hint
        group = declared.metadata.get("group") or group
        options = {"key": declared.name, **declared.metadata, "group": group}
        settings.append(Setting(field=declared.name, kind=kind, default=declared.default, **options))
    return tuple(settings)


SETTINGS = _collect_settings()
_TABLES = [item for item in fields(ProxyConfig) if "entry" in item.metadata]
TABLES = tuple(SettingsTable(item.name, item.name, **item.metadata) for item in _TABLES)
DECLARATIONS: tuple[Setting | SettingsTable, ...] = (*SETTINGS, *TABLES)

_PLAIN_HTTP = "would send your key in clear over the network; use https, or set allow_plain_http_upstream = true"


class LoadedConfig(NamedTuple):
    config: ProxyConfig
    origins: Mapping[str, str]

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> "LoadedConfig":
        """Read the file if there is one, then the environment, then flags. Raises StartupError for a bad value."""
        sources = collect(path, environment, flags)
        if sources.faults:
            raise sources.faults[0]
        config = ProxyConfig(**sources.values)
        if not (is_private(config.upstream_base_url) or config.allow_plain_http_upstream):
            raise refusal("base_url", config.upstream_base_url, _PLAIN_HTTP, sources.origins["upstream_base_url"])
        _check_upstreams(config, sources.origins["upstreams"])
        if config.keys:
            from deepseek_cursor_proxy.config.named_keys import check_together

            check_together(config.keys, config.groups, sources.origins["keys"])
        https_proxy.from_environment(environment)
        return cls(config, sources.origins)

    def shown_value(self, declared: Setting | SettingsTable) -> str:
        """A value in TOML, without anything that is or may be a key; keys themselves are digests already."""
        value = getattr(self.config, declared.field)
        return redact_keys(to_toml(hide_texts(value) if declared.field == "host_options" else value))


def _check_upstreams(config: ProxyConfig, origin: str) -> None:
    """Raise StartupError for tables that exclude each other, or that other settings would make useless."""
    tables = config.upstreams
    if tables and not config.served_keys and all(table.key_env for table in tables.values()):
        why = "every [upstreams] table has a key_env, and without access_keys no client may spend these keys"
        raise StartupError(f"config: {why}; name the keys of your clients in access_keys or [keys] ({origin})")
    if tables and config.host_options:
        raise StartupError(f"config: [host_options] is for base_url; write [upstreams.NAME.options] ({origin})")
    seen: dict[str, str] = {}
    for name, table in tables.items():
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise StartupError(f"config: [upstreams.{other}] and [upstreams.{name}] have the same name ({origin})")
        if not (is_private(table.base_url) or config.allow_plain_http_upstream):
            raise refusal(f"upstreams.{to_toml_key(name)}.base_url", table.base_url, _PLAIN_HTTP, origin)


class SourceValues(NamedTuple):
    """Values and origins by field, and the errors of values that cannot be used."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    faults: Sequence[StartupError]


def collect(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> SourceValues:
    """Read the file if there is one, then the environment, then flags, also past a bad value."""
    values: dict[str, Any] = {}
    faults: list[StartupError] = []
    origins = {setting.field: "default" for setting in DECLARATIONS}
    names = {setting.key: setting for setting in DECLARATIONS}
    files: list[tuple[str, Mapping[str, Any]]] = []
    for file in (path, *_key_files(path)):
        try:
            files.append((str(file), found := _read_file(file)))
            if file is not path and (others := found.keys() - set(_KEY_TABLES)):
                why = f'"{quote(min(others))}" is not for a file of keys; it has [keys.NAME] alone'
                raise StartupError(f"config: {why} ({file})")
        except StartupError as error:
            faults.append(error)
    for name, value, origin in _sources(files, environment, flags):
        try:
            if name not in names:
                near = nearest(name, names)
                hint = f'; did you mean "{names[near].key}"?' if near else ""
                raise StartupError(f'config: unknown key "{quote(name)}" ({origin}){hint}')
            declared = names[name]
            # TOML reads a setting below a [table] as part of the table, where it would do nothing.
            for misplaced in value if isinstance(declared, SettingsTable) and isinstance(value, dict) else ():
                if misplaced in names:
                    where = f"{misplaced} is below [{declared.key}]; settings belong above it"
                    raise StartupError(f"config: {where} ({origin})")
            parsed = declared.parse(value, origin)
            if name in _KEY_TABLES:
                parsed = _add_names(values.get(name, {}), parsed, f"{name}.", origin)
            values[declared.field] = parsed
            origins[declared.field] = origin
        except StartupError as error:
            faults.append(error)
    return SourceValues(values, origins, faults)


_KEY_TABLES = ("keys", "groups")


def _key_files(path: Path) -> list[Path]:
    """The files of keys.d beside the configuration file, in order."""
    folder = path.parent / "keys.d"
    if lacks_home(folder):
        return []
    return sorted(expand_home(folder).glob("*.toml"))


def _add_names(known: Mapping[str, Any], added: Mapping[str, Any], table: str, origin: str) -> Mapping[str, Any]:
    for name in added.keys() & known.keys():
        raise StartupError(f"config: {table}{to_toml_key(name)} is in another file, too; remove it from one ({origin})")
    return {**known, **added}


def _sources(
    files: Sequence[tuple[str, Mapping[str, Any]]], environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and origin of every value; later ones win."""
    for file, settings in files:
        for name, value in settings.items():
            yield name, value, file
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and name != SECRET_VARIABLE:
            yield name.removeprefix(ENVIRONMENT_PREFIX).lower(), value, f"environment {name}"
    for name, value in flags.items():
        yield name, value, f"flag --{name.replace('_', '-')}"


def _read_file(path: Path) -> dict[str, Any]:
    if lacks_home(path):
        return {}
    try:
        # With or without the byte order mark of Windows' Notepad.
        text = expand_home(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartupError(
            f"config: cannot read {safe_text(path)}: {reason}; fix it or pass another file with --config"
        ) from None
    try:
        return parse_toml(text)
    # RecursionError: tomllib leaves deep nesting to Python's own limit.
    except (ValueError, RecursionError) as error:
        raise StartupError(f"config: {safe_text(path)} is not valid TOML: {safe_text(error)}") from None


# The file that is written on the first run …


def template() -> str:
    """A configuration file with the common settings at their defaults, commented out."""
    lines = [
        "# The common settings of deepseek-cursor-proxy. Remove the # in front of a line to change it.",
        "# Environment variables and flags win over this file. All settings and tables: .github/docs/settings.md.",
    ]
    for setting in SETTINGS:
        if setting.is_common:
            choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
            lines += ["", f"# {setting.help}{choices}", f"# {setting.key} = {to_toml(setting.default)}"]
    return "\n".join(lines) + "\n"
