"""GET /health: the proxy is there, with its model and the number of sessions. Needs no key."""

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest


class HealthEndpoint(Endpoint):
    def show(self, request: HttpRequest, _: str) -> HttpReply:
        services = self._services
        sessions = services.sessions.count()
        return HttpReply.json({"status": "ok", "model": services.config.upstream_model, "sessions": sessions})
