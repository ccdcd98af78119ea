"""GET /models and GET /models/{name}: the models that clients are offered.

Clients often ask for these first, so nothing that a chat needs is imported here.
"""

from typing import Any
from urllib.parse import unquote

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.model_names import offered_models
from deepseek_cursor_proxy.errors import NotFound
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest

# The release date of the models listed first; Anthropic's clients want one.
_RELEASED = "2026-04-24T00:00:00Z"


def list_models(config: ProxyConfig, request: HttpRequest, _: str) -> HttpReply:
    names = offered_models(config)
    models = [_model(name, request) for name in names]
    if request.header("anthropic-version") is not None:
        return HttpReply.json({"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]})
    return HttpReply.json({"object": "list", "data": models})


def retrieve_model(config: ProxyConfig, request: HttpRequest, name: str) -> HttpReply:
    if unquote(name) not in offered_models(config):
        raise NotFound("There is no such model in the list at /v1/models.", code="model_not_found")
    return HttpReply.json(_model(unquote(name), request))


def _model(name: str, request: HttpRequest) -> dict[str, Any]:
    if request.header("anthropic-version") is None:
        return {"id": name, "object": "model", "created": 0, "owned_by": "deepseek"}
    return {"type": "model", "id": name, "display_name": name, "created_at": _RELEASED, "lifecycle": "active"}
