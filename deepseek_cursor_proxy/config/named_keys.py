"""The tables [keys.NAME] and [groups.NAME]: who may use the proxy, by name, and how much.

A key is kept as its digest (`access_keys`). An expiry is a moment: a date alone means the end of that day, UTC. Who is
served is decided in `access`, what a limit means in `features/keys`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key
from deepseek_cursor_proxy.config.declaration import EntryParser, quote, refusal, refuse_unknown_keys
from deepseek_cursor_proxy.config.values import number, variable
from deepseek_cursor_proxy.errors import StartupError

# In the log, in labels of metrics, in the name of a file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
# While clients change over from the old key to the new one.
_MOST_KEYS = 2
_MOST = 10**12


class Limits(NamedTuple):
    """The limits of a key or group; None: no limit. Minutes, days and months are those of UTC."""

    usd_per_month: float | None = None
    usd_per_day: float | None = None
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    concurrent: int | None = None


_NO_LIMITS = Limits()


class NamedKey(NamedTuple):
    name: str
    keys: tuple[AccessKey, ...]
    limits: Limits = _NO_LIMITS
    # The share of a budget at which a line is logged.
    warn_at: float | None = None
    # Models it may use, after aliases; a name may end in *. Empty: all.
    models: tuple[str, ...] = ()
    # Unix time.
    expires: float | None = None
    group: str = ""
    # The environment variable with the key that upstreams are called with for it.
    upstream_key_env: str = ""
    note: str = ""

    @property
    def holder(self) -> str:
        """Its name where keys and groups are counted together."""
        return f"keys.{self.name}"

    def may_use(self, model: str) -> bool:
        name = model.lower()
        models = [model.lower() for model in self.models]
        return not models or any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in models)

    def toml(self) -> dict[str, Any]:
        """What was set, for `config show`."""
        return {"key": self.keys, **_shown(self)}


class KeyGroup(NamedTuple):
    name: str
    limits: Limits = _NO_LIMITS
    warn_at: float | None = None
    # Whether its keys find each other's reasoning, stored responses and sessions.
    share_reasoning: bool = False
    note: str = ""

    @property
    def holder(self) -> str:
        return f"groups.{self.name}"

    def toml(self) -> dict[str, Any]:
        return _shown(self)


def _shown(table: "NamedKey | KeyGroup") -> dict[str, Any]:
    shown = {**table._asdict(), **table.limits._asdict()}
    if shown.get("expires") is not None:
        shown["expires"] = format_moment(shown["expires"])
    hidden = ("name", "keys", "limits")
    return {name: value for name, value in shown.items() if name not in hidden and value not in (None, "", (), False)}


def named_key(key: str, value: Any, origin: str) -> NamedKey:
    if isinstance(value, NamedKey):
        return value
    name, given = _read(key, value, _KEY_FIELDS, origin)
    if not given.get("key"):
        raise StartupError(f"config: {key} has no key; `access-key --new {name}` makes one ({origin})")
    return NamedKey(name, given.pop("key"), _limits(given), **given)


def key_group(key: str, value: Any, origin: str) -> KeyGroup:
    if isinstance(value, KeyGroup):
        return value
    name, given = _read(key, value, _GROUP_FIELDS, origin)
    return KeyGroup(name, _limits(given), **given)


def _read(key: str, value: Any, parsers: Mapping[str, EntryParser], origin: str) -> tuple[str, dict[str, Any]]:
    """The name of a table, and its fields, parsed."""
    table, _, name = key.partition(".")
    name = name.removeprefix('"').removesuffix('"')
    if not _NAME.fullmatch(name):
        allowed = "a name of letters, digits, and _ . @ - after the first, at most 64"
        raise StartupError(f"config: [{table}.{quote(name)}] is not {allowed} ({origin})")
    if not isinstance(value, Mapping):
        # The value is not repeated: it may be the key itself.
        raise StartupError(f"config: {key} is not a table; write [{key}] above its settings ({origin})")
    refuse_unknown_keys(key, value, parsers, origin)
    return name, {field: parsers[field](f"{key}.{field}", given, origin) for field, given in value.items()}


def _limits(given: dict[str, Any]) -> Limits:
    """Take the limits out of the fields."""
    return Limits(**{name: given.pop(name) for name in Limits._fields if name in given})


def _keys(key: str, value: Any, origin: str) -> tuple[AccessKey, ...]:
    entries = value if isinstance(value, (list, tuple)) else [value]
    if not 1 <= len(entries) <= _MOST_KEYS:
        raise StartupError(f"config: {key} has {len(entries)} keys; give one, or an old and a new one ({origin})")
    return tuple(access_key(key, entry, origin) for entry in entries)


def _models(key: str, value: Any, origin: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    is_list = isinstance(names, (list, tuple)) and bool(names)
    if not is_list or not all(isinstance(name, str) and name.strip() and "*" not in name[:-1] for name in names):
        raise refusal(key, value, 'is not a list of models such as ["deepseek-flash", "gpt-*"]', origin)
    return tuple(name.strip() for name in names)


_count = number(int, 1, _MOST, f"is not a whole number from 1 to {_MOST}; leave it out for no limit")
# A millionth of a dollar is a few tokens; the budgets of all keys together stay exact in 64 bits.
_money = number((int, float), 1e-6, 1e6, "is not an amount from 0.000001 to 1000000 US dollars")
_share = number((int, float), 0.01, 1, "is not a share of a budget such as 0.8")


def _expiry(key: str, value: Any, origin: str) -> float:
    try:
        moment = value
        if isinstance(value, str):
            moment = (date if len(value) == 10 else datetime).fromisoformat(value)
        if not isinstance(moment, datetime):
            moment = datetime.combine(moment + timedelta(1), time(), UTC)
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (TypeError, ValueError, OverflowError):
        allowed = "is not a date such as 2027-03-31, or a time with its zone such as 2027-03-31T18:00:00Z"
        raise refusal(key, str(value), allowed, origin) from None


def _text(key: str, value: Any, origin: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise StartupError(f"config: {key} is not one line of at most 200 characters ({origin})")
    return value


def _switch(key: str, value: Any, origin: str) -> bool:
    if not isinstance(value, bool):
        raise refusal(key, value, "is not true or false", origin)
    return value


_LIMIT_FIELDS: Mapping[str, EntryParser] = {
    "usd_per_month": _money,
    "usd_per_day": _money,
    "tokens_per_minute": _count,
    "requests_per_minute": _count,
    "concurrent": _count,
    "warn_at": _share,
    "note": _text,
}
_KEY_FIELDS: Mapping[str, EntryParser] = {
    "key": _keys,
    **_LIMIT_FIELDS,
    "models": _models,
    "expires": _expiry,
    "group": _text,
    "upstream_key_env": variable("DEEPSEEK_KEY_OF_ANN"),
}
_GROUP_FIELDS: Mapping[str, EntryParser] = {**_LIMIT_FIELDS, "share_reasoning": _switch}


def check_together(keys: Mapping[str, NamedKey], groups: Mapping[str, KeyGroup], origin: str) -> None:
    """Raise StartupError for a group that does not exist, and for one key under two names."""
    names: dict[bytes, str] = {}
    for named in keys.values():
        if named.group and named.group not in groups:
            raise StartupError(
                f'config: keys.{named.name}.group = "{named.group}", and there is no [groups.{named.group}]; '
                f"add that table or correct the name ({origin})"
            )
        for key in named.keys:
            if (other := names.setdefault(key.digest, named.name)) != named.name:
                raise StartupError(
                    f"config: keys.{other} and keys.{named.name} have the same key; give each its own ({origin})"
                )


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What changed from one table of keys or groups to another, a line for each name."""
    lines = [f"{entry.holder} was added" for name, entry in after.items() if name not in before]
    lines += [f"{entry.holder} was removed" for name, entry in before.items() if name not in after]
    for name in before.keys() & after.keys():
        old, new = before[name].toml(), after[name].toml()
        if fields := sorted(field for field in {**old, **new} if old.get(field) != new.get(field)):
            lines.append(f"{after[name].holder} has another {', '.join(fields)}")
    return sorted(lines)


def format_moment(moment: float) -> str:
    """A Unix time as people read it, in UTC: 2027-03-31 18:00 UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
