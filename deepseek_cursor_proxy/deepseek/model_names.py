"""The names of DeepSeek's models and what depends on them: edit this file when DeepSeek adds or renames one.

The default is `upstream_model` in config/settings. `model_resolver` finds out what a client's name means; it
imports more than `GET /models`, often the first request, needs.
"""

import re
from functools import lru_cache

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.upstreams import listed_models, serving
from deepseek_cursor_proxy.deepseek import hosts

# DeepSeek's current names, in the order of `GET /models`.
MODELS = ("deepseek-v4-pro", "deepseek-flash")
DISPLAY_NAMES = {"deepseek-v4-pro": "DeepSeek V4 Pro", "deepseek-flash": "DeepSeek Flash"}
# DeepSeek's own figures, of both.
CONTEXT_TOKENS = 1_048_576
OUTPUT_TOKENS = 393_216
# Claude Code (2.1.327) and Claude Desktop offer only models with "claude" or "anthropic" in the name. Our names are
# listed to them with this prefix, and every listed name is accepted with it.
CLAUDE_PREFIX = "claude-"
# Older names that DeepSeek still serves, as Flash.
_LEGACY_MODELS = ("deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
KNOWN_MODELS = frozenset(MODELS + _LEGACY_MODELS)
_TEXT_ONLY_MODEL = "deepseek-v4-pro"


@lru_cache(128)
def can_see_images(model: str) -> bool:
    """Whether a model sees images, also under a name of another host: `deepseek/deepseek-v4-pro:free`."""
    return not model.rpartition("/")[2].lower().startswith(_TEXT_ONLY_MODEL)


def takes_later_system(model: str, host: hosts.Host) -> bool:
    """Whether the model's template is known to take system messages after others: V4.1, which is Flash at DeepSeek."""
    return host.name == hosts.DEEPSEEK.name and model in KNOWN_MODELS and model != _TEXT_ONLY_MODEL


@lru_cache(8)
def has_own_names(config: ProxyConfig) -> bool:
    """Whether the upstream is known to have other names for the models than DeepSeek."""
    if config.upstreams:
        return not any(is_served(name, config) for name in MODELS)
    host = hosts.choose(config.upstream_host, config.upstream_base_url)
    return host is not hosts.DEEPSEEK and host is not hosts.UNKNOWN


def vision_model(config: ProxyConfig) -> str | None:
    """The model that answers in place of one without vision; None if the host is not known to have it."""
    return MODELS[1] if not has_own_names(config) and is_served(MODELS[1], config) else None


def is_served(model: str, config: ProxyConfig) -> bool:
    """Whether an upstream serves a model; without tables [upstreams] the upstream decides."""
    return not config.upstreams or bool(serving(model, config.upstreams))


def model_for_limit(model: str) -> str:
    """The model under whose call limit DeepSeek counts a call to this one."""
    return MODELS[1] if model in _LEGACY_MODELS else model


def offered_models(config: ProxyConfig) -> list[str]:
    """The names that `GET /models` lists, in order."""
    aliases = (name for name in config.models if not name.endswith("*"))
    own = [] if has_own_names(config) else [name for name in MODELS if is_served(name, config)]
    return list(dict.fromkeys((config.upstream_model, *own, *listed_models(config.upstreams), *aliases)))


def claude_name(name: str) -> str:
    """A name as the programs called Claude need it."""
    return name if re.search("claude|anthropic", name, re.IGNORECASE) else CLAUDE_PREFIX + name
