"""GET /api/config: the effective settings and where each comes from. Of a key the beginning of its digest is shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config.declaration import Setting
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, LoadedConfig


def settings(loaded: LoadedConfig, config_path: Path | None) -> dict[str, Any]:
    store = loaded.config.reasoning_content_path
    return {
        "settings": [_setting(each, loaded) for each in DECLARATIONS],
        "config_path": str(config_path) if config_path is not None else None,
        "data_dir": None if str(store) == ":memory:" else str(store.expanduser().absolute().parent),
    }


def _setting(each: Any, loaded: LoadedConfig) -> Mapping[str, Any]:
    value = loaded.shown_value(each)
    origin, is_secret = _origin(loaded.origins[each.field]), isinstance(each, Setting) and each.is_secret
    return {"name": each.key, "value": value, "origin": origin, "help": each.help, "is_secret": is_secret}


def _origin(text: str) -> str:
    """The kind of an origin as `config.sources` words it; any other text is the path of the file."""
    if text == "default":
        return text
    return next((kind for kind in ("environment", "flag") if text.startswith(f"{kind} ")), "file")
