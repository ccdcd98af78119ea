"""The tables [upstreams.NAME]: servers that generations are sent to in place of `base_url`.

This file parses them and says which of them serve a model; `exchange/upstreams.py` decides where a request goes to.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.config.declaration import EntryParser, quote, refusal, refuse_unknown_keys, to_toml_key
from deepseek_cursor_proxy.config.values import base_url, number, raw_field, variable
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import hide_texts

HOSTS = ("auto", "deepseek", "openrouter", "vllm", "sglang", "siliconflow", "fireworks", "ark", "together", "plain")

# A name is the part of `NAME/model` before the slash.
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
_MOST = 10**6


@dataclass(frozen=True)
class UpstreamTable:
    """One upstream."""

    base_url: str
    # One of HOSTS.
    host: str = "auto"
    # The environment variables with its keys; empty: it is called with the client's key.
    key_env: tuple[str, ...] = ()
    # The names of models here, and what the upstream calls them; both may end in *. None: it is asked for any model.
    models: Mapping[str, str] = field(default_factory=dict, hash=False)
    # 1 is asked before 2; new chats are spread over those of one priority by weight.
    priority: int = 1
    weight: int = 1
    # How many calls to it may run at once; None: as many as to a model.
    max_calls: int | None = None
    # Raw fields for every request to it.
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def sent_model(self, model: str) -> str | None:
        """What this upstream calls a model; None if it does not serve it."""
        if not self.models:
            return model
        name = model.lower()
        prefix = ""
        for known in self.models:
            if known.lower() == name:
                return self.models[known]
            if known.endswith("*") and name.startswith(known[:-1].lower()) and len(known) > len(prefix):
                prefix = known
        if not prefix:
            return None
        target = self.models[prefix]
        return target[:-1] + model[len(prefix) - 1 :] if target.endswith("*") else target

    def toml(self) -> dict[str, Any]:
        """What was set, for `config show`."""
        shown = {**vars(self), "options": hide_texts(self.options)}
        return {name: value for name, value in shown.items() if value not in (None, (), {})}


def listed_models(tables: Mapping[str, UpstreamTable]) -> tuple[str, ...]:
    """The names that tables list in full, in order."""
    return tuple(dict.fromkeys(name for table in tables.values() for name in table.models if not name.endswith("*")))


def split_name(model: str, tables: Mapping[str, UpstreamTable]) -> tuple[str, str] | None:
    """The upstream and the model of `NAME/model`; None for other names, also with a slash if a table lists them."""
    name, slash, rest = model.partition("/")
    upstream = next((known for known in tables if known.lower() == name.lower()), None) if slash and rest else None
    if upstream is None or model.lower() in (known.lower() for known in listed_models(tables)):
        return None
    return upstream, rest


def serving(model: str, tables: Mapping[str, UpstreamTable]) -> dict[str, str]:
    """The upstreams that serve a model, each with its own name for it; the one that `NAME/model` names alone."""
    if (split := split_name(model, tables)) is not None:
        name, rest = split
        return {name: tables[name].sent_model(rest) or rest}
    sent_models = {name: table.sent_model(model) for name, table in tables.items()}
    return {name: sent for name, sent in sent_models.items() if sent is not None}


def upstream_table(key: str, value: Any, origin: str) -> UpstreamTable:
    if isinstance(value, UpstreamTable):
        return value
    if not isinstance(value, dict):
        raise refusal(key, value, "is not a table; write [upstreams.NAME] with a base_url", origin)
    if not re.fullmatch(_NAME, name := key.partition(".")[2]):
        allowed = "a name of letters, digits, - and _, at most 40, without a slash"
        raise StartupError(f"config: [upstreams.{quote(name)}] is not {allowed} ({origin})")
    refuse_unknown_keys(key, value, _PARSERS, origin)
    if "base_url" not in value:
        raise StartupError(f"config: {key} has no base_url ({origin})")
    return UpstreamTable(**{each: _PARSERS[each](f"{key}.{each}", given, origin) for each, given in value.items()})


def _host(key: str, value: Any, origin: str) -> str:
    if value not in HOSTS:
        raise refusal(key, value, f"is not one of {', '.join(HOSTS)}", origin)
    return str(value)


def _key_env(key: str, value: Any, origin: str) -> tuple[str, ...]:
    parse = variable("OPENROUTER_API_KEY, or a list of such names")
    names = value if isinstance(value, list) and value else [value]
    return tuple(dict.fromkeys(parse(key, name, origin) for name in names))


def _models(key: str, value: Any, origin: str) -> dict[str, str]:
    names = {name: name for name in value if isinstance(name, str)} if isinstance(value, list) else value
    is_list = isinstance(value, list) and len(value) == len(names)
    if not (is_list or isinstance(value, dict)):
        raise refusal(key, value, 'is not a list such as ["deepseek-v4-pro"], or a table of names', origin)
    if not names:
        raise refusal(key, value, "serves nothing; leave it out to ask this upstream for any model", origin)
    for name, sent in names.items():
        if not (_is_pattern(name) and _is_pattern(sent)):
            why = "is not a model's name, or the beginning of one with * behind it"
            raise refusal(f"{key}.{to_toml_key(name)}", sent, why, origin)
        if sent.endswith("*") and not name.endswith("*"):
            raise refusal(f"{key}.{to_toml_key(name)}", sent, "ends in *, which stands for nothing here", origin)
    return names


def _is_pattern(name: Any) -> bool:
    if not isinstance(name, str) or name != name.strip() or not name.isprintable():
        return False
    return name == "*" or (0 < len(name) <= 200 and "*" not in name[:-1])


_count = number(int, 1, _MOST, f"is not a whole number from 1 to {_MOST}")


def _options(key: str, value: Any, origin: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refusal(key, value, "is not a table of raw fields", origin)
    return {name: raw_field(f"{key}.{name}", given, origin) for name, given in value.items()}


_PARSERS: Mapping[str, EntryParser] = {
    "base_url": base_url,
    "host": _host,
    "key_env": _key_env,
    "models": _models,
    "priority": _count,
    "weight": _count,
    "max_calls": _count,
    "options": _options,
}
