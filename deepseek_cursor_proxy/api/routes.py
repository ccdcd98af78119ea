"""The table of routes, and the app: HttpRequest in, HttpReply out. The server owns the sockets.

A request is checked in this order: path, key, body, history. Every failure becomes a reply in the error shape of the
client's API, with a sentence that says what to do; only ClientGone is raised, because no client is left to read one.

A feature has its routes in its `__init__.py`; `proxy.ROUTES` has all. A plain function as endpoint, like
`_list_models`, checks no key, sees only the configuration and imports little. Any other endpoint is a method of an
Endpoint, which has `_services`; it calls `access.admit` first. Both get the request and the {} of the path. Below the
prefix of a feature every path of an API exists once more; the report has what the prefix names.
"""

import logging
import random
import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.api.clients import is_claude, key_setting
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.model_names import CLAUDE_PREFIX, DISPLAY_NAMES, claude_name, offered_models
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.redaction import safe_text

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.client_request import RequestReport
    from deepseek_cursor_proxy.exchange.services import Services

_log = logging.getLogger(__name__)

# The release date of the models listed first; Anthropic's clients want one.
_RELEASED = "2026-04-24T00:00:00Z"
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_CORS_HEADERS: Headers = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", _METHODS),
    # The star does not include Authorization; browsers want that by name.
    ("Access-Control-Allow-Headers", "Authorization, Content-Type, api-key, *"),
    ("Access-Control-Max-Age", "86400"),
)


def _list_models(config: ProxyConfig, request: HttpRequest, _: str) -> HttpReply:
    names = offered_models(config)
    if is_claude(request):
        names = list(map(claude_name, names))
    models = [_model(name, request) for name in names]
    if request.headers.get("anthropic-version") is not None:
        return HttpReply.json({"data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]})
    return HttpReply.json({"object": "list", "data": models})


def _retrieve_model(config: ProxyConfig, request: HttpRequest, name: str) -> HttpReply:
    offered, name = offered_models(config), unquote(name)
    if name not in offered and name not in map(claude_name, offered):
        raise errors.NotFound("There is no such model in the list at /v1/models.", code="model_not_found")
    return HttpReply.json(_model(name, request))


def _model(name: str, request: HttpRequest) -> dict[str, Any]:
    if request.headers.get("anthropic-version") is None:
        return {"id": name, "object": "model", "created": 0, "owned_by": "deepseek"}
    shown = DISPLAY_NAMES.get(name.removeprefix(CLAUDE_PREFIX), name)
    return {"type": "model", "id": name, "display_name": shown, "created_at": _RELEASED, "lifecycle": "active"}


SmallEndpoint = Callable[[ProxyConfig, HttpRequest, str], HttpReply]

# The name in the log, the method, the path, and the endpoint: a SmallEndpoint, or the module, class and method of an
# Endpoint, imported with its first request.
Row = tuple[str, str, str, str | SmallEndpoint]
# Replies to a request that failed, in the shape of an API, with the id of the request and headers; None if the request
# is not meant for that API.
Refuse = Callable[[HttpRequest, errors.ProxyError, str, Headers], HttpReply | None]
_CHAT = "api.chat:ChatEndpoint.create"
# fmt: off
CORE_ROUTES: tuple[Row, ...] = (
    ("chat completions", "POST", "[/v1]/chat/completions",                    _CHAT),
    ("chat completions", "POST", "/openai/deployments/{}/chat/completions",   _CHAT),
    ("models",           "GET",  "[/v1]/models",                              _list_models),
    ("model",            "GET",  "[/v1]/models/{}",                           _retrieve_model),
    ("health",           "GET",  "[/v1]/healthz",                             lambda *_: HttpReply.json({"ok": True})),
)
# fmt: on


class Route(NamedTuple):
    name: str
    methods: tuple[str, ...]
    # A regular expression, compiled by the first request that gets as far as this route.
    path: str
    endpoint: str | SmallEndpoint
    # The API that it belongs to, as events name it.
    api: str


def _route(name: str, method: str, path: str, endpoint: str | SmallEndpoint) -> Route:
    pattern = path.replace("[/v1]", "(?:/v1)?").replace("{}", "([^/]+)")
    api = next((api for api in ("chat", "responses", "messages") if f"/{api}" in path), "other")
    return Route(name, ("GET", "HEAD") if method == "GET" else (method,), pattern, endpoint, api)


class Routes:
    """All routes, and the shapes of errors besides OpenAI's. Called by any thread; immutable."""

    def __init__(self, rows: Iterable[Row], refusals: Iterable[str] = (), prefixes: Iterable[str] = ()) -> None:
        """A refusal is the name of a Refuse, imported with the first request that fails.

        A prefix is a regular expression with one group, for the front of any path of an API.
        """
        self.all = tuple(_route(*row) for row in rows)
        self._refusals = tuple(refusals)
        self._prefixes = tuple(re.compile(rf"{prefix}(/v1(?:/.*)?)", re.DOTALL) for prefix in prefixes)
        self.find = lru_cache(64)(self._find)

    def split(self, request: HttpRequest) -> tuple[str, HttpRequest]:
        """What the prefix of the path names, unchecked, "" without one; and the request without the prefix."""
        for prefix in self._prefixes:
            if (match := prefix.fullmatch(request.path)) is not None:
                return match[1], request._replace(path=match[2])
        return "", request

    def _find(self, method: str, sent_path: str) -> tuple[Route, str] | None:
        """The route of a request, and the part of the path that its endpoint is called with."""
        path = _normalize(sent_path)
        methods: list[str] = []
        for route in self.all:
            if (match := re.fullmatch(route.path, path)) is not None:
                if method in route.methods:
                    return route, match[1] if match.re.groups else ""
                methods += route.methods
        if methods:
            allow = ", ".join([*methods, "OPTIONS"])
            raise errors.MethodNotAllowed(f"This path answers {allow}.", allow)
        return None

    def refuse(self, request: HttpRequest, error: errors.ProxyError, headers: Headers) -> HttpReply:
        """The error in the shape of the API that the request is meant for."""
        request_id = new_request_id()
        for name in self._refusals:
            refuse: Refuse = load(name)
            if (reply := refuse(request, error, request_id, headers)) is not None:
                return reply
        if isinstance(error, errors.Unauthorized):
            headers += (("WWW-Authenticate", "Bearer"),)
        return HttpReply.json(error.payload(), error.status, (("x-request-id", request_id), *headers))


# The header with the id that clients quote in a report, by API; an endpoint may have set it.
_REQUEST_ID_HEADERS = {"chat": "x-request-id", "responses": "x-request-id", "messages": "request-id"}


class App:
    """Called by any thread; immutable. The first call of `services` builds them."""

    def __init__(
        self, config: ProxyConfig, services: "Callable[[], Services]", routes: Routes, dashboard_url: str | None = None
    ) -> None:
        self._config = config
        self._routes = routes
        self._cors_headers = _CORS_HEADERS if config.cors else ()
        self._services = services
        self._dashboard_url = dashboard_url

    def __call__(self, request: HttpRequest) -> HttpReply:
        name, report = None, None
        prefix, request = self._routes.split(request)
        added = self._cors_headers
        try:
            if request.method == "OPTIONS":
                return HttpReply(204, headers=(("Allow", _METHODS), *added))
            found = self._routes.find(request.method, request.path)
            if found is None:
                return self._reply_without_route(request)
            route, group = found
            name, endpoint = route.name, route.endpoint
            if isinstance(endpoint, str):
                # Before the import: without descriptors they raise Overloaded, and an import raises OSError.
                services = self._services()
                endpoint_class, method = _load_endpoint(endpoint)
                instance = endpoint_class(services, route.api, prefix)
                report = instance.report
                reply = method(instance, request, group)
                header = _REQUEST_ID_HEADERS.get(route.api)
                if header is not None and header not in dict(reply.headers):
                    added = ((header, new_request_id()), *added)
            else:
                reply = endpoint(self._config, request, group)
        except errors.ProxyError as error:
            reply = self._refuse(error, request, name, report)
        except BaseException as error:
            # The client left, or this is a bug, which the server answers.
            self._report_refused(error, request, name, report)
            raise
        return HttpReply(reply.status, reply.body, reply.headers + added) if added else reply

    def _reply_without_route(self, request: HttpRequest) -> HttpReply:
        is_read = request.method in ("GET", "HEAD")
        if is_read and request.path == "/" and "text/html" in (request.headers.get("accept") or ""):
            # Only here: clients never see it.
            from deepseek_cursor_proxy.api import start_page

            return start_page.reply(request, self._dashboard_url)
        if request.method == "HEAD" and request.path in ("/", "/api/hello"):
            # Claude Code looks whether the base URL can be reached.
            return HttpReply(200)
        # The base URL of the API that the request is meant for.
        if speaks_messages(request):
            remedy = "Messages are at /v1/messages: ANTHROPIC_BASE_URL is the address of this proxy without /v1."
        elif "/responses" in request.path:
            remedy = "Responses are at /v1/responses: the base URL of OpenAI clients ends in /v1."
        else:
            remedy = (
                "Chat completions are at /v1/chat/completions: the base URL of OpenAI clients and Cursor ends in /v1."
            )
        raise errors.NotFound(f"Unknown path. {remedy}")

    def _refuse(
        self, error: errors.ProxyError, request: HttpRequest, route: str | None, report: "RequestReport | None"
    ) -> HttpReply:
        """Report the error, and reply in the shape of the API that the request is meant for."""
        self._report_refused(error, request, route, report)
        if isinstance(error, errors.WrongKey) or (isinstance(error, errors.UpstreamRefused) and error.status == 401):
            error.add(key_setting(request))
        return self._routes.refuse(request, error, error_headers(error))

    def _report_refused(
        self, error: BaseException, request: HttpRequest, route: str | None, report: "RequestReport | None"
    ) -> None:
        """Report a request that ends with this error, unless its exchange has reported it."""
        route = route or _loggable(request)
        try:
            (report or load("api.endpoint:Endpoint")(self._services(), "other").report).refuse(route, error)
        except Exception:
            # Where the services cannot be built, there are no observers either.
            if isinstance(error, errors.ProxyError):
                _log.info("%s refused: %s %s", route, error.status, error.message)


def error_headers(error: errors.ProxyError) -> Headers:
    """What the reply to a failed request has in any shape."""
    if isinstance(error, errors.MethodNotAllowed):
        return (("Allow", error.allow),)
    if error.retry_after is not None:
        return (("Retry-After", str(error.retry_after)),)
    # OpenAI's and Anthropic's packages would try twice more.
    return (("x-should-retry", "false"),) if isinstance(error, errors.OverBudget) else ()


def new_request_id() -> str:
    """An id of a request, as clients quote it when they report a problem."""
    # Not os.urandom(), which leaves the GIL to other threads.
    return f"req_{random.getrandbits(96).to_bytes(12).hex()}"


@cache
def load(name: str) -> Any:
    """What a name stands for: the module below the package, a colon, and what is in it."""
    module, _, place = name.partition(":")
    return getattr(import_module(f"deepseek_cursor_proxy.{module}"), place)


@cache
def _load_endpoint(name: str) -> tuple[Callable[..., Any], Callable[..., HttpReply]]:
    class_name, _, method = name.rpartition(".")
    return (endpoint_class := load(class_name)), getattr(endpoint_class, method)


_MESSAGES_PATH = re.compile(r"(?:/[^/]+)?(?:/v1)?/messages(?:/|\Z)")
_OPENAI_PATH = re.compile(r"(?:/v1)?/(?:chat|responses|openai)(?:/|\Z)")


def speaks_messages(request: HttpRequest) -> bool:
    """Whether a request is meant for Anthropic's API, even at an unknown path."""
    path = _normalize(request.path)
    if _MESSAGES_PATH.match(path):
        return True
    return request.headers.get("anthropic-version") is not None and not _OPENAI_PATH.match(path)


def _loggable(request: HttpRequest) -> str:
    """Method and path for the log. A long part of a path is left out: it may be a key."""
    path = re.sub(r"[^/]{20,}", "***", request.path[:1000])
    return f"{safe_text(request.method, 20)} {safe_text(path, 120)}"


def _normalize(path: str) -> str:
    """A path without the slashes that base URLs and their users add, and with one /v1 of several."""
    return re.sub(r"^(?:/v1)+(?=/)", "/v1", re.sub(r"/{2,}", "/", path).rstrip("/"))
