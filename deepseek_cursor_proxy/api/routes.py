"""The route table and its endpoints: HttpRequest in, HttpReply out.

A plain function of a request; sockets are the server's business. The order of checks is fixed: path, key, body,
then the corridor. Whatever goes wrong becomes a reply in the client's error shape, with a sentence that says what to
do; only ClientGone passes through, because nobody is left to read one.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from deepseek_cursor_proxy.api.key_settings import key_setting
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek import models as catalogue
from deepseek_cursor_proxy.errors import (
    BadRequest,
    MethodNotAllowed,
    MissingReasoning,
    NotFound,
    ProxyError,
    TooManyAttempts,
    Unauthorized,
    UpgradeRefused,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
    WrongKey,
)
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.redaction import safe_text

if TYPE_CHECKING:
    from deepseek_cursor_proxy.api.chat import Generation
    from deepseek_cursor_proxy.api.messages import Messaging
    from deepseek_cursor_proxy.api.responses import Responding

_log = logging.getLogger(__name__)

# Of the models that are listed first; Anthropic's clients want a date.
_RELEASED = "2026-04-24T00:00:00Z"
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_CORS_HEADERS: Headers = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", _METHODS),
    # The star does not stand for Authorization; browsers want that by name.
    ("Access-Control-Allow-Headers", "Authorization, Content-Type, api-key, *"),
    ("Access-Control-Max-Age", "86400"),
)

# The former come out of an exchange, which tells its observers how it ended; the last is told once by access.
_TOLD_ELSEWHERE = (MissingReasoning, UpstreamFailed, UpstreamRefused, UpstreamTimeout, TooManyAttempts)

Endpoint = Callable[["App", HttpRequest, str], HttpReply]


class Route(NamedTuple):
    """A path (a group in it is handed to the endpoint) and what answers there."""

    name: str
    method: str
    path: re.Pattern[str]
    endpoint: Endpoint

    @property
    def methods(self) -> tuple[str, ...]:
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


class App:
    """Called by handler threads; holds nothing that changes. What generates answers is asked for when there is one."""

    def __init__(self, config: ProxyConfig, generation: Callable[[], "Generation"]) -> None:
        self._config = config
        self._generation = generation

    def __call__(self, request: HttpRequest) -> HttpReply:
        name = None
        try:
            if request.method == "OPTIONS":
                return self._with_cors(HttpReply(204, headers=(("Allow", _METHODS),)))
            found = _find(request.method, request.path)
            if found is None:
                raise NotFound(_remedy(request))
            name = found.route.name
            reply = found.route.endpoint(self, request, found.group)
        except ProxyError as error:
            if not isinstance(error, _TOLD_ELSEWHERE):
                _log.info("%s refused: %s %s", name or _shown(request), error.status, error.message)
            if isinstance(error, WrongKey) or (isinstance(error, UpstreamRefused) and error.status == 401):
                error.add(key_setting(request))
            reply = _told(error, request)
        except RecursionError:
            reply = _told(BadRequest("The request is nested too deeply."), request)
        return self._with_cors(reply)

    # Endpoints …

    def chat(self, request: HttpRequest, deployment: str) -> HttpReply:
        return self._generation().chat(request, deployment)

    def respond(self, request: HttpRequest, _: str) -> HttpReply:
        return self._responding().create(request)

    def no_socket(self, request: HttpRequest, _: str) -> HttpReply:
        """Codex asks for a WebSocket first, and posts at once when it is told 426; anything else costs it seconds."""
        if (request.header("upgrade") or "").lower() != "websocket":
            raise MethodNotAllowed("This path answers POST, OPTIONS.", "POST, OPTIONS")
        raise UpgradeRefused("Responses are streamed over HTTP here; send POST.")

    def retrieve(self, request: HttpRequest, response_id: str) -> HttpReply:
        return self._responding().retrieve(request, response_id)

    def input_items(self, request: HttpRequest, response_id: str) -> HttpReply:
        return self._responding().input_items(request, response_id)

    def delete(self, request: HttpRequest, response_id: str) -> HttpReply:
        return self._responding().delete(request, response_id)

    def cancel(self, request: HttpRequest, response_id: str) -> HttpReply:
        return self._responding().cancel(request, response_id)

    def input_tokens(self, request: HttpRequest, _: str) -> HttpReply:
        return self._responding().input_tokens(request)

    def compact(self, request: HttpRequest, _: str) -> HttpReply:
        return self._responding().compact(request)

    def _responding(self) -> "Responding":
        # Only here: most people use one of these APIs.
        from deepseek_cursor_proxy.api.responses import Responding

        return Responding(self._generation())

    def message(self, request: HttpRequest, _: str) -> HttpReply:
        return self._messaging().create(request)

    def count_tokens(self, request: HttpRequest, _: str) -> HttpReply:
        return self._messaging().count_tokens(request)

    def _messaging(self) -> "Messaging":
        from deepseek_cursor_proxy.api.messages import Messaging

        return Messaging(self._generation())

    def models(self, request: HttpRequest, _: str) -> HttpReply:
        names = catalogue.offered_models(self._config)
        models = [_model(name, request) for name in names]
        if request.header("anthropic-version") is not None:
            return HttpReply.json({"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]})
        return HttpReply.json({"object": "list", "data": models})

    def model(self, request: HttpRequest, name: str) -> HttpReply:
        if unquote(name) not in catalogue.offered_models(self._config):
            raise NotFound("There is no such model in the list at /v1/models.", code="model_not_found")
        return HttpReply.json(_model(unquote(name), request))

    def health(self, request: HttpRequest, _: str) -> HttpReply:
        return HttpReply.json({"ok": True})

    def health_with_model(self, request: HttpRequest, _: str) -> HttpReply:
        return HttpReply.json({"status": "ok", "model": self._config.upstream_model})

    def _with_cors(self, reply: HttpReply) -> HttpReply:
        if not self._config.cors:
            return reply
        return HttpReply(reply.status, reply.body, (*reply.headers, *_CORS_HEADERS))


def _told(error: ProxyError, request: HttpRequest) -> HttpReply:
    """A failure in the shape of the API that was asked, also where there is no such route or method."""
    return _told_in_messages(error) if _speaks_messages(request) else _error_reply(error)


def _error_reply(error: ProxyError) -> HttpReply:
    headers: Headers = ()
    if error.retry_after is not None:
        headers += (("Retry-After", str(error.retry_after)),)
    if isinstance(error, MethodNotAllowed):
        headers += (("Allow", error.allow),)
    if isinstance(error, Unauthorized):
        headers += (("WWW-Authenticate", "Bearer"),)
    return HttpReply.json(error.payload(), error.status, headers)


def _told_in_messages(error: ProxyError) -> HttpReply:
    """In the shape of Anthropic's API."""
    from deepseek_cursor_proxy.api.messages import failed

    return failed(error)


def _model(name: str, request: HttpRequest) -> dict[str, Any]:
    """A model in the shape of Anthropic's API for those who speak it, in OpenAI's for all others."""
    if request.header("anthropic-version") is None:
        return {"id": name, "object": "model", "created": 0, "owned_by": "deepseek"}
    return {"type": "model", "id": name, "display_name": name, "created_at": _RELEASED, "lifecycle": "active"}


_ROUTES = tuple(
    Route(name, method, re.compile(path), endpoint)
    for name, method, path, endpoint in (
        ("chat completions", "POST", r"(?:/v1)?/chat/completions()", App.chat),
        ("chat completions", "POST", r"/openai/deployments/([^/]+)/chat/completions", App.chat),
        ("responses", "POST", r"(?:/v1)?/responses()", App.respond),
        ("responses", "GET", r"(?:/v1)?/responses()", App.no_socket),
        ("input tokens", "POST", r"(?:/v1)?/responses/input_tokens()", App.input_tokens),
        ("compaction", "POST", r"(?:/v1)?/responses/compact()", App.compact),
        ("response", "GET", r"(?:/v1)?/responses/([^/]+)", App.retrieve),
        ("response", "DELETE", r"(?:/v1)?/responses/([^/]+)", App.delete),
        ("response", "GET", r"(?:/v1)?/responses/([^/]+)/input_items", App.input_items),
        ("response", "POST", r"(?:/v1)?/responses/([^/]+)/cancel", App.cancel),
        ("messages", "POST", r"(?:/v1)?/messages()", App.message),
        ("messages", "POST", r"(?:/v1)?/messages/count_tokens()", App.count_tokens),
        ("models", "GET", r"(?:/v1)?/models()", App.models),
        ("model", "GET", r"(?:/v1)?/models/([^/]+)", App.model),
        ("health", "GET", r"(?:/v1)?/healthz()", App.health),
        ("health", "GET", r"/health()", App.health_with_model),
    )
)


class _Found(NamedTuple):
    """The route of a request, and the part of the path that its endpoint is handed."""

    route: Route
    group: str


_MESSAGES_PATH = re.compile(r"(?:/[^/]+)?(?:/v1)?/messages(?:/|\Z)")
_OPENAI_PATH = re.compile(r"(?:/v1)?/(?:chat|responses|openai)(?:/|\Z)")


def _speaks_messages(request: HttpRequest) -> bool:
    """Whether a request is meant for Anthropic's API, also where nothing answers it."""
    path = _plain(request.path)
    if _MESSAGES_PATH.match(path):
        return True
    return request.header("anthropic-version") is not None and not _OPENAI_PATH.match(path)


def _remedy(request: HttpRequest) -> str:
    """What to change where a request has missed its API by a wrong base URL."""
    if _speaks_messages(request):
        remedy = "Messages are at /v1/messages: ANTHROPIC_BASE_URL is the address of this proxy without /v1."
    elif "/responses" in request.path:
        remedy = "Responses are at /v1/responses: the base URL of OpenAI clients ends in /v1."
    else:
        remedy = "Chat completions are at /v1/chat/completions: the base URL of OpenAI clients and Cursor ends in /v1."
    return f"Nothing answers at this path. {remedy}"


def _shown(request: HttpRequest) -> str:
    """Method and path for the log. A long part of a path is blotted out: anybody may put anything there, keys too."""
    path = re.sub(r"[^/]{20,}", "***", request.path[:1000])
    return f"{safe_text(request.method, 20)} {safe_text(path, 120)}"


def _plain(path: str) -> str:
    """A path without the slashes, and with one /v1 of those, that base URLs and their users add."""
    return re.sub(r"^(?:/v1)+(?=/)", "/v1", re.sub(r"/{2,}", "/", path).rstrip("/"))


@lru_cache(64)
def _find(method: str, asked: str) -> _Found | None:
    path = _plain(asked)
    found = [_Found(route, match[1]) for route in _ROUTES if (match := route.path.fullmatch(path))]
    for each in found:
        if method in each.route.methods:
            return each
    if found:
        allow = ", ".join([*(method for each in found for method in each.route.methods), "OPTIONS"])
        raise MethodNotAllowed(f"This path answers {allow}.", allow)
    return None
