"""Reads a configuration: SETTINGS and TABLES, as ProxyConfig declares them, and a LoadedConfig with their values.

Values come from defaults, the file, the environment and flags, in this order (`sources`). What depends on more than one
setting is checked here; a bad value is a StartupError of one line.
"""

import types
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from deepseek_cursor_proxy.config import https_proxy, sources, upstreams
from deepseek_cursor_proxy.config.declaration import Setting, Table, refusal, to_toml
from deepseek_cursor_proxy.config.settings import ProxyConfig
from deepseek_cursor_proxy.config.values import is_private
from deepseek_cursor_proxy.redaction import hide_texts, redact_keys


def _collect_settings() -> tuple[Setting, ...]:
    hints = get_type_hints(ProxyConfig)
    found = []
    group = ""
    for each in fields(ProxyConfig):
        if "entry" in each.metadata or "constant" in each.metadata:
            continue
        hint = hints[each.name]
        origin = get_origin(hint)
        kind = tuple if origin is tuple else get_args(hint)[0] if origin is types.UnionType else hint
        meta = dict(each.metadata)
        key = meta.pop("key") or each.name
        meta["group"] = group = meta["group"] or group
        found.append(Setting(field=each.name, key=key, kind=kind, default=each.default, **meta))
    return tuple(found)


SETTINGS = _collect_settings()
TABLES = tuple(Table(each.name, **each.metadata) for each in fields(ProxyConfig) if "entry" in each.metadata)
DECLARATIONS: tuple[Setting | Table, ...] = (*SETTINGS, *TABLES)
# Settings of earlier versions, with what holds now.
RETIRED = {each.name: f"it is {to_toml(each.default)}" for each in fields(ProxyConfig) if "constant" in each.metadata}
RETIRED["max_flash_calls"] = "it is five times max_upstream_calls"
RETIRED["response_max_bytes"] = "reasoning_cache_max_bytes holds for responses too"


class LoadedConfig(NamedTuple):
    config: ProxyConfig
    origins: Mapping[str, str]
    # Sentences about settings of earlier versions that a source still names.
    warnings: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> "LoadedConfig":
        """Read the file if there is one, then the environment, then flags; StartupError for a bad value."""
        found = sources.read(DECLARATIONS, RETIRED, path, environment, flags)
        config = ProxyConfig(**found.values)
        if not (is_private(config.upstream_base_url) or config.allow_plain_http_upstream):
            why = "would send your key in clear over the network; use https, or set allow_plain_http_upstream = true"
            raise refusal("base_url", config.upstream_base_url, why, found.origins["upstream_base_url"])
        upstreams.check(
            config.upstreams,
            found.origins["upstreams"],
            has_options=bool(config.host_options),
            has_access_keys=bool(config.access_keys),
            allows_plain_http=config.allow_plain_http_upstream,
        )
        if config.https_proxy == "environment":
            https_proxy.from_environment(environment)
        return cls(config, found.origins, tuple(found.warnings))

    def shown_value(self, each: Setting | Table) -> str:
        """A value in TOML, without anything that is or may be a key; keys themselves are digests already."""
        value = getattr(self.config, each.field)
        return redact_keys(to_toml(hide_texts(value) if each.field == "host_options" else value))


def template() -> str:
    return sources.template(DECLARATIONS)


def settings_table() -> str:
    return sources.settings_table(DECLARATIONS)
