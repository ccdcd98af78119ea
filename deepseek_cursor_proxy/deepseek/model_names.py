"""The names of DeepSeek's models and what depends on them: edit this file when DeepSeek adds or renames one.

The default is `upstream_model` in config/settings. `model_resolver` finds out what a client's name means; it
imports more than `GET /models`, often the first request, needs.
"""

from deepseek_cursor_proxy.config import ProxyConfig

# DeepSeek's current names, in the order of `GET /models`.
MODELS = ("deepseek-v4-pro", "deepseek-flash")
# Older names that DeepSeek still serves, as Flash.
_LEGACY_MODELS = ("deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
KNOWN_MODELS = frozenset(MODELS + _LEGACY_MODELS)
_TEXT_ONLY_MODELS = frozenset({"deepseek-v4-pro"})


def can_see_images(model: str) -> bool:
    return model not in _TEXT_ONLY_MODELS


def model_for_limit(model: str) -> str:
    """The model under whose call limit DeepSeek counts a call to this one."""
    return MODELS[1] if model in _LEGACY_MODELS else model


def offered_models(config: ProxyConfig) -> list[str]:
    """The names that `GET /models` lists, in order."""
    aliases = (name for name in config.models if not name.endswith("*"))
    return list(dict.fromkeys((config.upstream_model, *MODELS, *aliases)))
