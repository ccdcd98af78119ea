"""AdminContext: what the endpoints of the admin listener look at: the proxy, its settings, its key and its state."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.admin import key_files
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.settings import LoadedConfig
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services


class AdminContext:
    """Assigned by the main thread; the threads of the listener read it."""

    def __init__(self, server: DeepSeekProxyServer, loaded: LoadedConfig, config_path: Path | None) -> None:
        self.server = server
        self.loaded = loaded
        self.config_path = config_path
        self.started_at = time.time()
        # Of the tunnel that the proxy opened.
        self.public_url: str | None = None
        self.is_stopping = False
        # The key in admin.key; None if the settings have one, of which we know the digest only.
        self.own_key = _own_key(loaded.config)

    @property
    def config(self) -> ProxyConfig:
        return self.loaded.config

    def services(self) -> "Services":
        return self.server.services()

    def reload(self, loaded: LoadedConfig) -> bool:
        """Take new settings; whether the key is another one now."""
        own_key = _own_key(loaded.config)
        has_new_key = (self.config.admin_key, self.own_key) != (loaded.config.admin_key, own_key)
        self.loaded, self.own_key = loaded, own_key
        return has_new_key


def _own_key(config: ProxyConfig) -> str | None:
    return None if config.admin_key is not None else key_files.read_or_create_key(config.reasoning_content_path)
