"""AdminService: the admin listener of one proxy, from its start to its end.

`cli` opens it after the proxy's own listener and closes it after that one has stopped, so that a page can watch the
last answers. Opening it imports little: the endpoints come with the first request.
"""

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.admin import key_files
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.admin.listener import AdminServer, listen
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer

if TYPE_CHECKING:
    from deepseek_cursor_proxy.admin.app import AdminApp


class AdminService:
    """Opened, reloaded and closed by the main thread; the threads of the listener call `load_app`."""

    def __init__(self, server: DeepSeekProxyServer, loaded: LoadedConfig, config_path: Path | None) -> None:
        """StartupError if `admin_host` is no address of this machine."""
        config = loaded.config
        # First: a failure leaves nothing behind.
        listener = listen(config.admin_host, config.admin_port)
        self.context = AdminContext(server, loaded, config_path)
        # Protects `_app`: one thread builds it.
        self._build_lock = threading.Lock()
        self._app: AdminApp | None = None
        self._listener = AdminServer(listener, config, self.load_app)
        self.url = self.context.url = self._listener.url
        self._files = contextlib.ExitStack()
        self._files.enter_context(key_files.address_file(config.reasoning_content_path, self.url))

    @property
    def link(self) -> str:
        """The address of the dashboard, with the key if it is known. For the owner's eyes only."""
        return f"{self.url}/#key={self.context.own_key}" if self.context.own_key else f"{self.url}/"

    def load_app(self) -> "AdminApp":
        if self._app is None:
            from deepseek_cursor_proxy.admin.app import AdminApp

            with self._build_lock:
                self._app = self._app or AdminApp(self.context)
        return self._app

    def reload(self, loaded: LoadedConfig) -> None:
        """Use these settings from now on; feeds that were opened with another key end."""
        with self._build_lock:
            has_new_key = self.context.reload(loaded)
            if self._app is not None:
                self._app.reload(has_new_key=has_new_key)

    def close(self) -> None:
        self._files.close()
        self._listener.close()
        if self._app is not None:
            self._app.close()
