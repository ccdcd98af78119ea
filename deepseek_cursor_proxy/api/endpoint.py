"""Endpoint, for any route that needs services, and GenerationEndpoint, the steps that all generations share:

    serve         admit the caller, read and decode the body, pass it through if its model has another upstream
    (parse)       each endpoint by itself: the body as a GenerationRequest, and the Writer of its API
    open          have DeepSeek accept the call: an exchange
    reply         the exchange as the Writer writes it, streamed or plain; see `reply`

A new API is a Writer in `protocols`, a GenerationEndpoint in `endpoints` and a line in `routes._TABLE`. If its errors
have another shape, change `routes._error_reply`; if its key has another header, `access._credential` and
`clients.key_setting`; if its list of messages has another name, `incremental_json._LISTS`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.api import incremental_json, passthrough
from deepseek_cursor_proxy.api.passthrough import PassthroughApi, PassthroughRequest
from deepseek_cursor_proxy.api.reply import OpenExchange, Writer, plain_reply, stream_reply, write_events
from deepseek_cursor_proxy.conversation import Batches, ChatRequest
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import Forbidden, NotFound, Unauthorized, UpstreamRefused
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.request_report import RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.observers.events import caller_digest
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.display import show_reasoning

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange


class ClientRequest(NamedTuple):
    """A request of an admitted caller with its body decoded, which nothing changes."""

    http: HttpRequest
    caller: Caller
    context: CallContext
    body: Mapping[str, Any]
    body_bytes: int


class Display(NamedTuple):
    """Additions to the text of a chat's answer: reasoning in this form, notices on how it ended."""

    form: thinking_blocks.Form | None = None
    with_end_notices: bool = False


_FIELDS_ONLY = Display()
# The values of a request's header `x-cache`.
_CACHE_WORDS = {"use": True, "skip": False}
# Fields for this proxy alone, which other upstreams may refuse.
_OWN_FIELDS = ("cache", "nomyo")


class Endpoint:
    """Any route with services, for one request; one that generates nothing needs no more. Never changes.

    Called by the thread of the client and, for a background response, by that of its job.
    """

    def __init__(self, services: Services, report: RequestReport) -> None:
        self._services = services
        self._report = report

    def context(self, caller: Caller, peer: Peer | None) -> CallContext:
        namespace = identity.namespace(self._services.config.upstream_base_url, caller.credential)
        report, access, sessions = self._report, self._services.access, self._services.sessions
        report.add_caller(namespace, partial(access.knows, caller, caller_digest(namespace)))
        if report.path_session:
            if not sessions.knows(namespace, report.path_session):
                raise unknown_session()
            report.session = report.path_session
        held_key = access.held_key
        credential, is_held = held_key or caller.credential, held_key is not None
        context = CallContext(namespace, credential, peer, is_held, None, report)
        if report.path_session and sessions.reads_written_calls(namespace, report.path_session):
            return context._replace(reads_written_calls=True)
        return context


def unknown_session() -> NotFound:
    # Without the id: it is any text of a path, perhaps a key, and the log and the dashboard show this message.
    return NotFound("This key has no session with the id in the path. POST /sessions/create makes one.")


class GenerationEndpoint(Endpoint):
    def serve(
        self,
        request: HttpRequest,
        api: PassthroughApi | None,
        create: Callable[[ClientRequest], HttpReply],
        model: str | None = None,
    ) -> HttpReply:
        """What `create` replies, or another upstream if the model has one for this API; `model` replaces the body's."""
        caller = self._services.access.admit(request)
        context = self.context(caller, request.peer)
        raw = request.read_body()
        body = incremental_json.decode(raw, self._services.memory)
        if model is not None:
            body = {**body, "model": model}
        self._report.add_body(body, len(raw))
        key = model_resolver.passthrough_key(body.get("model"), self._services.config) if api is not None else None
        if api is None or key is None:
            return create(ClientRequest(request, caller, context, body, len(raw)))
        self._services.access.check_spender(caller)
        if not body.keys().isdisjoint(_OWN_FIELDS):
            body = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
            sent = encode_json(body)
        else:
            sent = raw if model is None else encode_json(body)
        return passthrough.relay(PassthroughRequest(api, key, body, sent, request.peer), self._services, self._report)

    def open(self, request: ClientRequest, generation: GenerationRequest) -> OpenExchange:
        """The exchange of a call that DeepSeek accepted, or a late one; `access` records whether it accepts the key."""
        services = self._services
        services.access.check_call(request.caller)
        if services.config.response_cache != "off" and self._wants_cache(request, generation.request):
            generation = generation.with_cache()
        if services.upstreams.only is None:
            request = self._check_upstreams(request, generation.request.model)
        if services.config.pictures == "name":
            return self._open(request, generation)
        # Only here: most proxies describe no pictures, and are smaller without.
        from deepseek_cursor_proxy.api.described_exchange import open_described

        return open_described(request.context, generation, services, partial(self._open, request))

    def _wants_cache(self, request: ClientRequest, chat: ChatRequest) -> bool:
        """Whether the response cache may answer: as the body says, else as the header does, else the setting."""
        if chat.choices > 1:
            return False
        wanted = chat.cache
        if wanted is None and (header := request.http.header("x-cache")) is not None:
            wanted = _CACHE_WORDS.get(header.strip().lower())
        return self._services.config.response_cache == "on" if wanted is None else wanted

    def _check_upstreams(self, request: ClientRequest, model: str) -> ClientRequest:
        """The request with the reason not to spend the owner's keys; raises a ProxyError if no upstream is left."""
        access = self._services.access
        refusal = access.spend_refusal(request.caller)
        try:
            self._services.upstreams.check(model, refusal)
        except (Unauthorized, Forbidden):
            access.record_unspent(request.caller)
            raise
        return request._replace(context=request.context._replace(spend_refusal=refusal))

    def _open(self, request: ClientRequest, generation: GenerationRequest) -> OpenExchange:
        access = self._services.access
        try:
            exchange = _exchange_type(generation).open(request.context, generation, self._services)
        except UpstreamRefused as refusal:
            if refusal.status == 401:
                access.record_refused(request.caller)
            raise
        if exchange.is_sent and (request.context.is_held or not exchange.has_owner_key):
            # A cached answer, or an upstream that accepts a key of the owner, says nothing about the caller's.
            access.record_accepted(request.caller)
            self._services.accept(request.context.namespace)
        return exchange

    def reply(
        self, exchange: OpenExchange, chat: ChatRequest, writer: Writer, display: Display = _FIELDS_ONLY
    ) -> HttpReply:
        """The answer to a client's request, streamed or plain as it wants."""
        batches = show(exchange, chat, display, with_lulls=chat.stream)
        if chat.stream:
            return stream_reply(exchange, write_events(exchange, batches, writer))
        return plain_reply(exchange, batches, writer, self._services.config.heartbeat_interval)


def show(exchange: OpenExchange, chat: ChatRequest, display: Display = _FIELDS_ONLY, *, with_lulls: bool) -> Batches:
    """The batches of an exchange as the client sees them, with the notice before the answer in their text."""
    batches = exchange.deltas(with_lulls=with_lulls)
    if (chat.params.get("response_format") or {}).get("type") in ("json_object", "json_schema"):
        # A notice before JSON would break it; the log has the notice, too.
        return batches
    return show_reasoning(batches, display.form, exchange.notice, with_end_notices=display.with_end_notices)


def _exchange_type(generation: GenerationRequest) -> "type[Exchange | ChoicesExchange]":
    if generation.request.choices == 1:
        return Exchange
    # Only here: hardly any request wants several answers, and the proxy is smaller without.
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange

    return ChoicesExchange
