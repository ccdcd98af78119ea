"""Resolves the model name of a client: to DeepSeek's model, effort and thinking, or to a passthrough route.

A name may be DeepSeek's own, one of the [models] table, or either with suffixes such as -high or :nothink. Case does
not matter. The most exact match wins: a whole name over a prefix (`gpt-*`), a longer prefix over a shorter one. A
suffix is taken off only if the name with it matches nothing. DeepSeek's own names are in `model_names`; another host of
its models has other names, and gets those that contain a slash as they are. Where there are tables [upstreams], the
names that they list are known as well, and NAME/model is the model of one of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.declaration import nearest, refusal, to_toml_key
from deepseek_cursor_proxy.config.upstreams import listed_models, split_name
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.model_names import CLAUDE_PREFIX, KNOWN_MODELS, MODELS, has_own_names, is_served

# Cursor's own suffixes (-fast, [1m]) and those of other proxies (:max, (high), -nothink).
_SUFFIX_WORDS = "|".join(("nothink", "thinking", "fast", "none", *rules.EFFORTS))
_SUFFIX = re.compile(rf"(?:[-:]({_SUFFIX_WORDS})|\s*\(({_SUFFIX_WORDS})\)|\[\d{{1,4}}[km]\])\Z")
_THINKING_WORDS = {"thinking": True, "nothink": False, "none": False}
# Longer than any name. A longer one is not searched for suffixes, which takes quadratic time.
_LONGEST_NAME = 200
# Clients use the same few models all day.
_KNOWN_NAMES = 128


class ModelChoice(NamedTuple):
    """The model for a request; `effort` (in the client's words) and `thinking` if the name has a suffix for them."""

    model: str
    effort: str | None = None
    thinking: bool | None = None


def resolve(requested: str, config: ProxyConfig) -> ModelChoice:
    """The model that a name means; the configured one if the name matches nothing."""
    if config.upstreams:
        return _resolve_served(requested[:_LONGEST_NAME], config)
    return (_resolve if len(requested) <= _LONGEST_NAME else _resolve.__wrapped__)(requested, config)


@lru_cache(_KNOWN_NAMES)
def _resolve(requested: str, config: ProxyConfig) -> ModelChoice:
    match = _find(requested, config.models, config.upstream_model)
    if not has_own_names(config):
        return match.choice
    if not match.weight and "/" in requested:
        # A name of the host itself, with its own suffixes such as :free.
        return ModelChoice(requested.strip())
    is_known = match.choice.model in KNOWN_MODELS and not match.is_alias
    return match.choice._replace(model=config.upstream_model) if is_known else match.choice


@lru_cache(_KNOWN_NAMES)
def _resolve_served(requested: str, config: ProxyConfig) -> ModelChoice:
    """The model that a name means if tables [upstreams] list the models."""
    listed = listed_models(config.upstreams)
    split = split_name(requested.strip(), config.upstreams)
    if split is not None:
        upstream, name = split
        inner = _find(name, {}, config.upstream_model, listed)
        # A name that only this upstream knows goes there as it is.
        choice = inner.choice if inner.weight else ModelChoice(name)
        return choice._replace(model=f"{upstream}/{choice.model}")
    match = _find(requested, config.models, config.upstream_model, listed)
    choice = match.choice
    if match.is_alias and split_name(choice.model, config.upstreams) is not None:
        target = _resolve_served(choice.model, config)
        thinking = target.thinking if choice.thinking is None else choice.thinking
        return ModelChoice(target.model, choice.effort or target.effort, thinking)
    if not match.weight and any(table.models and table.sent_model(requested) for table in config.upstreams.values()):
        # A table lists a prefix of it.
        return ModelChoice(requested.strip())
    return choice if match.is_alias or is_served(choice.model, config) else choice._replace(model=config.upstream_model)


def known_model(requested: str) -> str | None:
    """DeepSeek's model of this name, with or without suffixes; None for any other name, aliases included."""
    match = _find(requested[:_LONGEST_NAME], {}, "")
    return match.choice.model if match.weight and match.choice.model else None


def resolve_claude(requested: str, config: ProxyConfig) -> str:
    """The model for a name of Anthropic's: Pro for its two largest, else Flash; other names stay.

    Claude Desktop writes `anthropic/` before them.
    """
    name = requested.strip().lower().removeprefix("anthropic/")
    if (
        has_own_names(config)
        or not name.startswith("claude")
        or _find(requested, config.models, config.upstream_model).weight
    ):
        return requested
    model = MODELS[0] if "opus" in name or "fable" in name else MODELS[1]
    return model if is_served(model, config) else requested


def passthrough_key(requested: object, config: ProxyConfig) -> str | None:
    """The key of the [passthrough] route for a model; None if the request goes to DeepSeek."""
    if not isinstance(requested, str) or not config.passthrough:
        return None
    name = requested.strip().lower()
    key = _by_lower(config.passthrough).get(name)
    if key is not None and not key.endswith("*"):
        return key
    prefix = _longest_prefix(name, config.passthrough)
    if prefix is None or len(prefix) < _find(requested, config.models, config.upstream_model).weight:
        return None
    return prefix


def refuse_unknown(config: ProxyConfig, origin: str) -> None:
    """Raise a StartupError for a target in [models] that DeepSeek does not have: every chat with it would fail.

    Only for DeepSeek's own host, because other hosts have their own names. The configured model counts as known, so
    that a model newer than this proxy can be used.
    """
    if config.upstreams:
        _refuse_unserved(config, origin)
        return
    host = urlsplit(config.upstream_base_url).hostname or ""
    if not f".{host}".endswith(".deepseek.com"):
        return
    known = _by_lower((*KNOWN_MODELS, config.upstream_model))
    targets = {f"models.{to_toml_key(name)}": target for name, target in config.models.items()}
    if config.subagent_model is not None:
        targets["subagent_model"] = config.subagent_model
    for key, target in targets.items():
        if not any(variant in known for variant, _ in _suffix_variants(target.lower())):
            suggestion = nearest(target.lower(), known)
            hint = f'; did you mean "{suggestion}"?' if suggestion else f". It has {', '.join(MODELS)}."
            why = f"is no model that DeepSeek is known to have{hint} For one newer than this proxy, set `model` to it"
            raise refusal(key, target, why, origin)


def _refuse_unserved(config: ProxyConfig, origin: str) -> None:
    """Raise a StartupError for a model, the default or a target in [models], that no table [upstreams] serves."""
    targets = {"model": config.upstream_model}
    targets |= {f"models.{to_toml_key(name)}": target for name, target in config.models.items()}
    for key, target in targets.items():
        if not any(is_served(variant, config) for variant, _ in _suffix_variants(target.lower())):
            served = ", ".join(listed_models(config.upstreams)[:5])
            raise refusal(key, target, f"is served by no table [upstreams]; these serve {served or 'others'}", origin)


class _Match(NamedTuple):
    choice: ModelChoice
    # How exact the match is: the length of the matching key, infinity for a whole name, 0 for none.
    weight: float
    # Whether the [models] table has it.
    is_alias: bool = False


def _find(requested: str, models: Mapping[str, str], default: str, listed: tuple[str, ...] = ()) -> _Match:
    aliases = _by_lower(models)
    known = _by_lower((*KNOWN_MODELS, *listed, default))
    match = _Match(ModelChoice(default), 0)
    needed = 0
    for name, suffixes in _suffix_variants(requested.strip().lower()):
        if len(name) < needed:
            # The suffix just taken off belongs to the prefix that matched.
            break
        for whole in (name, name.removeprefix(CLAUDE_PREFIX)):
            if whole in aliases:
                return _Match(_choose(models[aliases[whole]], suffixes), float("inf"), is_alias=True)
            if whole in known:
                return _Match(_choose(known[whole], suffixes), float("inf"))
        prefix = _longest_prefix(name, models)
        if prefix is None:
            match = _Match(_choose(default, suffixes), 0)
        else:
            match, needed = _Match(_choose(models[prefix], suffixes), len(prefix), is_alias=True), len(prefix) - 1
    return match


def _choose(target: str, suffixes: tuple[str, ...]) -> ModelChoice:
    """The choice for a target of the table: a name to send as it is, or DeepSeek's with suffixes of its own."""
    known = _by_lower(KNOWN_MODELS)
    for name, own in _suffix_variants(target.lower()):
        if name in known:
            target, suffixes = known[name], suffixes + own
            break
    effort = next((suffix for suffix in suffixes if suffix in rules.EFFORTS), None)
    thinking = next((_THINKING_WORDS[suffix] for suffix in suffixes if suffix in _THINKING_WORDS), None)
    return ModelChoice(target, effort, thinking)


def _suffix_variants(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name, then the name with one suffix less each time, with the suffixes taken off so far."""
    suffixes: tuple[str, ...] = ()
    yield name, suffixes
    while len(name) <= _LONGEST_NAME and (match := _SUFFIX.search(name)) and match.start():
        suffixes += tuple(suffix for suffix in match.groups() if suffix)
        name = name[: match.start()].rstrip()
        yield name, suffixes


def _longest_prefix(name: str, table: Mapping[str, Any]) -> str | None:
    keys = [key for key in table if key.endswith("*") and name.startswith(key[:-1].lower())]
    return max(keys, key=len, default=None)


def _by_lower(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}
