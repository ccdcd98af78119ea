"""What a client calls a model, and what is meant by it.

A name may be DeepSeek's own, one of the configured table, or either with suffixes that say how to think. Names are
compared without regard to case. More exact always wins: a whole name over the beginning of one, a longer beginning
over a shorter, and a suffix is taken off only where the name with it means nothing by itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.settings import nearest, refused, toml_key
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.models import KNOWN_MODELS, MODELS

# What Cursor appends on its own (-fast, [1m]) and what people of other proxies are used to (:max, (high), -nothink).
_WORDS = "|".join(("nothink", "thinking", "fast", "none", *rules.EFFORTS))
_SUFFIX = re.compile(rf"(?:[-:]({_WORDS})|\s*\(({_WORDS})\)|\[\d{{1,4}}[km]\])\Z")
_THINKS = {"thinking": True, "nothink": False, "none": False}
# Longer than any name; what is longer is not searched for suffixes, which takes time in proportion to its square.
_LONGEST_NAME = 200
# Clients ask for the same few models all day.
_KNOWN_NAMES = 128


@dataclass(frozen=True)
class ModelChoice:
    """The model to ask; `effort` (in the client's words) and `thinking` as far as the name says something of them."""

    model: str
    effort: str | None = None
    thinking: bool | None = None


def resolve(asked: str, config: ProxyConfig) -> ModelChoice:
    """The model that a name stands for; the configured one when it stands for none."""
    resolved = _known if len(asked) <= _LONGEST_NAME else _resolved
    return resolved(asked, tuple(config.models.items()), config.upstream_model)


def _resolved(asked: str, aliases: tuple[tuple[str, str], ...], otherwise: str) -> ModelChoice:
    found = _find(asked, dict(aliases), otherwise)
    return ModelChoice(found.model, found.effort, found.thinking)


_known = lru_cache(_KNOWN_NAMES)(_resolved)


def resolve_claude(asked: str, config: ProxyConfig) -> str:
    """The model to ask for in place of one of Anthropic's, as DeepSeek's own Messages API has it."""
    name = asked.strip().lower()
    if not name.startswith("claude") or _find(asked, config.models, config.upstream_model).weight:
        return asked
    return MODELS[0] if name.startswith("claude-opus") else MODELS[1]


def passthrough_key(asked: object, config: ProxyConfig) -> str | None:
    """The key of the [passthrough] route that a model goes by; None when it is asked of DeepSeek."""
    if not isinstance(asked, str) or not config.passthrough:
        return None
    name = asked.strip().lower()
    key = _by_lower(config.passthrough).get(name)
    if key is not None and not key.endswith("*"):
        return key
    prefix = _longest_prefix(name, config.passthrough)
    return (
        prefix
        if prefix is not None and len(prefix) >= _find(asked, config.models, config.upstream_model).weight
        else None
    )


def refuse_unknown(config: ProxyConfig, origin: str) -> None:
    """StartupError for a name in [models] that stands for a model DeepSeek does not have: every chat would fail.

    Only at DeepSeek's own address, because other hosts have names of their own. The configured model is believed, so
    that a model newer than this proxy can be used.
    """
    host = urlsplit(config.upstream_base_url).hostname or ""
    if not f".{host}".endswith(".deepseek.com"):
        return
    known = _by_lower((*KNOWN_MODELS, config.upstream_model))
    for name, target in config.models.items():
        if not any(peeled in known for peeled, _ in _peeled(target.lower())):
            near = nearest(target.lower(), known)
            hint = f'; did you mean "{near}"?' if near else f". It has {', '.join(MODELS)}."
            why = f"is no model that DeepSeek is known to have{hint} For one newer than this proxy, set `model` to it"
            raise refused(f"models.{toml_key(name)}", target, why, origin)


@dataclass(frozen=True)
class _Found:
    model: str
    # Taken off the name, the last one first.
    words: tuple[str, ...]
    # How exactly the name was meant: the length of the key that it was found by, and more for a whole name.
    weight: float

    @property
    def effort(self) -> str | None:
        return next((word for word in self.words if word in rules.EFFORTS), None)

    @property
    def thinking(self) -> bool | None:
        return next((_THINKS[word] for word in self.words if word in _THINKS), None)


def _find(asked: str, models: Mapping[str, str], otherwise: str) -> _Found:
    aliases = _by_lower(models)
    known = _by_lower((*KNOWN_MODELS, otherwise))
    found = _Found(otherwise, (), 0)
    needed = 0
    for name, words in _peeled(asked.strip().lower()):
        if len(name) < needed:
            # The suffix just taken off is a part of the key that the name was found by.
            break
        if name in aliases:
            return _target(models[aliases[name]], words, float("inf"))
        if name in known:
            return _target(known[name], words, float("inf"))
        prefix = _longest_prefix(name, models)
        if prefix is None:
            found = _target(otherwise, words, 0)
        else:
            found, needed = _target(models[prefix], words, len(prefix)), len(prefix) - 1
    return found


def _target(target: str, words: tuple[str, ...], weight: float) -> _Found:
    """What a name was found to stand for: a name to send as it is, or one of DeepSeek's with suffixes of its own."""
    known = _by_lower(KNOWN_MODELS)
    for name, more in _peeled(target.lower()):
        if name in known:
            return _Found(known[name], words + more, weight)
    return _Found(target, words, weight)


def _peeled(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name as it is, then with one suffix less each time; beside it the words taken off by then."""
    words: tuple[str, ...] = ()
    yield name, words
    while len(name) <= _LONGEST_NAME and (found := _SUFFIX.search(name)) and found.start():
        words += tuple(word for word in found.groups() if word)
        name = name[: found.start()].rstrip()
        yield name, words


def _longest_prefix(name: str, table: Mapping[str, Any]) -> str | None:
    keys = [key for key in table if key.endswith("*") and name.startswith(key[:-1].lower())]
    return max(keys, key=len, default=None)


def _by_lower(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}
