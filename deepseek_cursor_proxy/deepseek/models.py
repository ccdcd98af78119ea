"""The models by name: those DeepSeek serves, and those that clients are offered.

By itself, because listing them is often the first thing a client asks: nothing that a chat needs is read in for it.
"""

from deepseek_cursor_proxy.config import ProxyConfig

# DeepSeek's current names, in the order clients are offered them.
MODELS = ("deepseek-v4-pro", "deepseek-flash")
# Older names that DeepSeek still serves, as Flash.
_LEGACY_MODELS = ("deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
KNOWN_MODELS = frozenset(MODELS + _LEGACY_MODELS)


def model_for_limit(model: str) -> str:
    """The model whose calls DeepSeek counts a call to this one among."""
    return MODELS[1] if model in _LEGACY_MODELS else model


def offered_models(config: ProxyConfig) -> list[str]:
    """The names that clients are offered, in order."""
    aliases = (name for name in config.models if not name.endswith("*"))
    return list(dict.fromkeys((config.upstream_model, *MODELS, *aliases)))
