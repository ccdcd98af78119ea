"""GET /health: the proxy is there, with its model and the numbers of sessions and upstreams. Needs no key."""

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest


class HealthEndpoint(Endpoint):
    def show(self, request: HttpRequest, _: str) -> HttpReply:
        services = self._services
        sessions, servers = services.sessions.count(), len(services.upstreams.all)
        model = services.config.upstream_model
        return HttpReply.json({"status": "ok", "model": model, "sessions": sessions, "servers": servers})
