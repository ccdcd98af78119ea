"""The route table and its endpoints: HttpRequest in, HttpReply out.

A plain function of a request; sockets are the server's business. The order of checks is fixed: path, key, body,
then the corridor. Whatever goes wrong becomes a reply in the client's error shape, with a sentence that says what to
do; only ClientGone passes through, because nobody is left to read one.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from deepseek_cursor_proxy import models, passthrough
from deepseek_cursor_proxy.access import Visitor
from deepseek_cursor_proxy.calling import Asked, Caller
from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.errors import (
    BadRequest,
    MethodNotAllowed,
    MissingReasoning,
    NotFound,
    ProxyError,
    TooManyAttempts,
    Unauthorized,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange import Exchange
from deepseek_cursor_proxy.fan_out import FanOut
from deepseek_cursor_proxy.protocols import ClientProtocol
from deepseek_cursor_proxy.protocols.chat_completions import ChatCompletions
from deepseek_cursor_proxy.reasoning import display, identity
from deepseek_cursor_proxy.services import Services
from deepseek_cursor_proxy.wire import Headers, HttpReply, HttpRequest, Peer, decode_json_object, encode_json

_log = logging.getLogger(__name__)

_CORS_HEADERS: Headers = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"),
    # The star does not stand for Authorization; browsers want that by name.
    ("Access-Control-Allow-Headers", "Authorization, Content-Type, api-key, *"),
    ("Access-Control-Max-Age", "86400"),
)

# The former come out of an exchange, which tells its observers how it ended; the last is told once by access.
_TOLD_ELSEWHERE = (MissingReasoning, UpstreamFailed, UpstreamRefused, UpstreamTimeout, TooManyAttempts)

Endpoint = Callable[["App", HttpRequest, str], HttpReply]


@dataclass(frozen=True)
class Route:
    """A path (a group in it is handed to the endpoint) and what answers there."""

    name: str
    method: str
    path: re.Pattern[str]
    endpoint: Endpoint

    @property
    def allow(self) -> str:
        return "GET, HEAD, OPTIONS" if self.method == "GET" else f"{self.method}, OPTIONS"


class App:
    """Called by handler threads; holds nothing that changes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._chat = ChatCompletions(time.time)

    def __call__(self, request: HttpRequest) -> HttpReply:
        name = "unknown path"
        try:
            if request.method == "OPTIONS":
                return self._with_cors(HttpReply(204, headers=(("Allow", "GET, HEAD, POST, OPTIONS"),)))
            route, group = _find(request)
            name = route.name
            reply = route.endpoint(self, request, group)
        except ProxyError as error:
            if not isinstance(error, _TOLD_ELSEWHERE):
                # The route's name, never the path: anybody may put anything there, keys included.
                _log.info("%s refused: %s %s", name, error.status, error.message)
            reply = _error_reply(error, self._chat)
        except RecursionError:
            reply = _error_reply(BadRequest("The request is nested too deeply."), self._chat)
        return self._with_cors(reply)

    # Endpoints …

    def chat(self, request: HttpRequest, deployment: str) -> HttpReply:
        visitor = self._services.access.admit(request)
        raw = request.read_body()
        body = decode_json_object(raw)
        if deployment:
            # Azure's way: the path names the model.
            body = {**body, "model": unquote(deployment)}
        if (key := models.passed_on(body.get("model"), self._services.config)) is not None:
            self._services.access.check_spending(visitor)
            sent = encode_json(body) if deployment else raw
            is_stream = body.get("stream") is True
            passed = passthrough.Passed(key, str(body["model"]), sent, is_stream, request.peer)
            return passthrough.relay(passed, self._services)
        return self._generate(request, visitor, Asked(self._chat.parse(body, self._services.config), body, len(raw)))

    def models(self, request: HttpRequest, _: str) -> HttpReply:
        names = models.listed(self._services.config)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "deepseek"} for name in names]
        return HttpReply.json({"object": "list", "data": data})

    def health(self, request: HttpRequest, _: str) -> HttpReply:
        return HttpReply.json({"ok": True})

    def health_with_model(self, request: HttpRequest, _: str) -> HttpReply:
        return HttpReply.json({"status": "ok", "model": self._services.config.upstream_model})

    # Generating …

    def _generate(self, request: HttpRequest, visitor: Visitor, asked: Asked) -> HttpReply:
        protocol, chat = self._chat, asked.request
        exchange = self._opened(visitor, self._caller(visitor, request.peer), asked)
        shown = display.mirror(exchange.batches(), self._form(), exchange.notice)
        if chat.stream:
            return HttpReply.events(_Stream(protocol.stream(chat, shown), exchange))
        try:
            deltas = [item for batch in shown for item in batch if isinstance(item, Delta)]
            return HttpReply.json(protocol.reply(chat, deltas))
        finally:
            exchange.close()

    def _caller(self, visitor: Visitor, peer: Peer | None) -> Caller:
        namespace = identity.namespace(self._services.config.upstream_base_url, visitor.credential)
        held_key = self._services.access.held_key
        return Caller(namespace, held_key or visitor.credential, peer, is_held=held_key is not None)

    def _opened(self, visitor: Visitor, caller: Caller, asked: Asked) -> Exchange | FanOut:
        """The call that DeepSeek accepted; access learns what it thinks of the key."""
        access = self._services.access
        access.check(visitor)
        try:
            exchange = (Exchange if asked.request.choices == 1 else FanOut).open(caller, asked, self._services)
        except UpstreamRefused as refusal:
            if refusal.status == 401:
                access.refused(visitor)
            raise
        access.accepted(visitor)
        return exchange

    def _form(self) -> display.Form | None:
        if not self._services.config.display_reasoning:
            return None
        return display.COLLAPSIBLE if self._services.config.collapsible_reasoning else display.PLAIN

    def _with_cors(self, reply: HttpReply) -> HttpReply:
        if not self._services.config.cors:
            return reply
        return HttpReply(reply.status, reply.body, (*reply.headers, *_CORS_HEADERS))


class _Stream:
    """A streamed answer; closing it ends the exchange even if not a byte of it was asked for."""

    def __init__(self, events: Iterator[bytes], exchange: Exchange | FanOut) -> None:
        self._events = events
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        return self._events

    def close(self) -> None:
        closing = getattr(self._events, "close", None)
        if closing is not None:
            closing()
        self._exchange.close()


_ROUTES = tuple(
    Route(name, method, re.compile(path), endpoint)
    for name, method, path, endpoint in (
        ("chat completions", "POST", r"(?:/v1)?/chat/completions()", App.chat),
        ("chat completions", "POST", r"/openai/deployments/([^/]+)/chat/completions", App.chat),
        ("models", "GET", r"(?:/v1)?/models()", App.models),
        ("health", "GET", r"(?:/v1)?/healthz()", App.health),
        ("health", "GET", r"/health()", App.health_with_model),
    )
)


def _find(request: HttpRequest) -> tuple[Route, str]:
    path = re.sub(r"/{2,}", "/", request.path).rstrip("/")
    for route in _ROUTES:
        if found := route.path.fullmatch(path):
            if request.method not in (route.method, "HEAD" if route.method == "GET" else route.method):
                raise MethodNotAllowed(f"This path answers {route.allow}.", route.allow)
            return route, found.group(1)
    raise NotFound(
        "Nothing answers at this path. Chat completions are at /v1/chat/completions; "
        "in Cursor the base URL ends in /v1."
    )


def _error_reply(error: ProxyError, protocol: ClientProtocol) -> HttpReply:
    headers: Headers = ()
    if error.retry_after is not None:
        headers += (("Retry-After", str(error.retry_after)),)
    if isinstance(error, MethodNotAllowed):
        headers += (("Allow", error.allow),)
    if isinstance(error, Unauthorized):
        headers += (("WWW-Authenticate", "Bearer"),)
    return HttpReply.json(protocol.error(error), error.status, headers)
