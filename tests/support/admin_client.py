"""The admin listener of a proxy over real sockets, as `serve` opens it, and a client for it."""

import contextlib
import http.client
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, LoadedConfig
from deepseek_cursor_proxy.features.dashboard.service import AdminService
from deepseek_cursor_proxy.proxy import ADMIN_ROUTES
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.harness import PATIENCE, RawReply, RunningProxy, SocketTestCase

ADMIN_KEY = "sk-admin-key-of-the-tests"


class AdminCase(SocketTestCase):
    def admin(self, proxy: RunningProxy | None = None, config_path: Path = Path("config.toml")) -> AdminService:
        server = (proxy or self.running).server
        loaded = LoadedConfig(server.config, {each.field: "default" for each in DECLARATIONS})
        service = AdminService(server, loaded, config_path, ADMIN_ROUTES)
        # Cleanups run last to first: it is closed before the proxy, as `serve` does it.
        self.addCleanup(service.close)
        return service

    def admin_proxy(self, *store: ReasoningStore, **settings: Any) -> RunningProxy:
        return self.proxy(*store, **{"admin_port": 0, "admin_key": ADMIN_KEY, **settings})

    def get(
        self, admin: AdminService, path: str, *, key: str | None = ADMIN_KEY, method: str = "GET", **headers: str
    ) -> RawReply:
        """The reply to a request; `headers` with _ for -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            given["Authorization"] = f"Bearer {key}"
        return fetch(admin.url, path, given, method)


def fetch(url: str, path: str, headers: Mapping[str, str], method: str = "GET") -> RawReply:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, headers=dict(headers))
        reply = connection.getresponse()
        return RawReply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
