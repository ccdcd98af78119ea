"""Endpoint, the base of routes that need services, and GenerationEndpoint, the steps that all generations share:

    serve         admit the caller, read and decode the body, pass it through if its model has another upstream
    (parse)       each endpoint by itself: the body as a GenerationRequest, and the Writer of its API
    open          have DeepSeek accept the call: an exchange
    reply         the exchange as the Writer writes it, streamed or plain; see `reply`

A new API is a Writer in `protocols`, a GenerationEndpoint in `endpoints` and a line in `routes._TABLE`. If its errors
have another shape, change `App._refuse` in `routes`; if its key has another header, `access._credential` and
`clients.key_setting`; if its list of messages has another name, `chat_memory._LISTS`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.api import passthrough
from deepseek_cursor_proxy.api.clients import client_name, is_subagent
from deepseek_cursor_proxy.api.passthrough import PassthroughApi, PassthroughRequest
from deepseek_cursor_proxy.api.reply import OpenExchange, Writer, plain_reply, stream_reply, write_events
from deepseek_cursor_proxy.conversation import Batches, ChatRequest
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import Forbidden, NotFound, Unauthorized, UpstreamRefused
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest, RequestReport
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.observers.events import caller_digest
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.display import show_reasoning
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange


class ClientRequest(NamedTuple):
    """A request of an admitted caller, with its decoded body, which must not be changed."""

    http: HttpRequest
    caller: Caller
    context: CallContext
    body: Mapping[str, Any]
    body_bytes: int


# The values of a request's header `x-cache`.
_CACHE_WORDS = {"use": True, "skip": False}
# Fields for this proxy alone, which other upstreams may refuse.
_OWN_FIELDS = ("cache", "nomyo")


class Endpoint:
    """Serves one request with the services; immutable.

    Called by the thread of a connection and, for a background response, by the job's thread.
    """

    def __init__(self, services: Services, report: RequestReport) -> None:
        self._services = services
        self._report = report

    def context(self, caller: Caller, peer: Peer | None) -> CallContext:
        namespace, name = identity.namespace(self._services.config.upstream_base_url, caller.credential), ""
        report, access, sessions = self._report, self._services.access, self._services.sessions
        if caller.named is not None:
            namespace, name = self._services.namespace_of(caller.named, namespace), caller.named.name
        report.add_caller(namespace, partial(access.knows, caller, caller_digest(namespace)), name)
        reads_written_calls = False
        if report.path_session:
            # No answer fails because the file of sessions cannot be read.
            with suppress(Unusable):
                session = sessions.get(namespace, report.path_session)
                if session is None:
                    raise unknown_session()
                reads_written_calls = session.options.reads_written_calls
            report.session = report.path_session
        owner_key = access.upstream_key(caller)
        credential, is_held = owner_key or caller.credential, owner_key is not None
        return CallContext(
            namespace, credential, report, peer, is_held, reads_written_calls=reads_written_calls, named=caller.named
        )

    def namespace(self, request: HttpRequest) -> bytes:
        """The namespace of an admitted caller, for a route that calls no upstream."""
        return self.context(self._services.access.admit(request), None).namespace


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
        """Reply with `create`, or relay the request if its model has another upstream; `model` replaces the body's."""
        caller = self._services.access.admit(request)
        context = self.context(caller, request.peer)
        raw = request.read_body()
        body, memory = self._services.memory.decode(raw)
        context = context._replace(memory=memory)
        if model is not None:
            body = {**body, "model": model}
        self._report.add_body(body, len(raw))
        self._report.client = client_name(request, body)
        key = model_resolver.passthrough_key(body.get("model"), self._services.config) if api is not None else None
        if api is None or key is None:
            return create(ClientRequest(request, caller, context, body, len(raw)))
        self._services.access.check_spender(caller)
        if caller.named is not None:
            from deepseek_cursor_proxy.exchange import admission

            self._report.admission = admission.admit_passthrough(caller.named, body, len(raw), self._services)
        if not body.keys().isdisjoint(_OWN_FIELDS):
            body = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
            sent = encode_json(body)
        else:
            sent = raw if model is None else encode_json(body)
        passed = PassthroughRequest(api, key, body, sent, request.peer)
        return passthrough.relay(passed, self._services, self._report)

    def open(self, request: ClientRequest, generation: GenerationRequest) -> OpenExchange:
        """Open the exchange; `access` records whether DeepSeek accepts the caller's key."""
        services, access, config = self._services, self._services.access, self._services.config
        access.check_call(request.caller)
        if config.subagent_model is not None and is_subagent(request.http, request.body):
            model = model_resolver.resolve(config.subagent_model, config).model
            generation = generation._replace(request=generation.request._replace(model=model))
        self.admit(request.caller, generation.request)
        if config.response_cache != "off" and generation.request.choices == 1:
            # As the body says, else as the header does, else the setting.
            wants_cache = generation.request.cache
            if wants_cache is None:
                wants_cache = _CACHE_WORDS.get((request.http.header("x-cache") or "").strip().lower())
            if wants_cache or (wants_cache is None and config.response_cache == "on"):
                generation = generation.with_cache()
        if services.upstreams.only is None:
            # Why the caller may not spend the owner's keys; an upstream that takes the caller's own may still serve it.
            refusal = access.spend_refusal(request.caller)
            try:
                services.upstreams.check(generation.request.model, refusal)
            except (Unauthorized, Forbidden):
                access.count_refused_spender(request.caller)
                raise
            request = request._replace(context=request.context._replace(spend_refusal=refusal))
        return self._open(request, generation)

    def admit(self, caller: Caller, request: ChatRequest) -> None:
        """Reserve what the request of a named key may use; raises a ProxyError. A job's request is admitted before."""
        if caller.named is None or self._report.admission is not None:
            return
        # Only here: a proxy without named keys is smaller without.
        from deepseek_cursor_proxy.exchange import admission

        self._report.admission = admission.admit_chat(caller.named, request, self._services)

    def _open(self, request: ClientRequest, generation: GenerationRequest) -> OpenExchange:
        access = self._services.access
        exchange_type: type[Exchange | ChoicesExchange] = Exchange
        if generation.request.choices > 1:
            # Only here: hardly any request wants several answers, and the proxy is smaller without.
            from deepseek_cursor_proxy.exchange import choices

            exchange_type = choices.ChoicesExchange
        try:
            exchange = exchange_type.open(request.context, generation, self._services)
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
        self,
        exchange: OpenExchange,
        chat: ChatRequest,
        writer: Writer,
        form: thinking_blocks.Form | None = None,
        *,
        with_end_notices: bool = False,
    ) -> HttpReply:
        """The answer to a client's request, streamed or plain as it wants; `form` and notices are as in `show`."""
        batches = show(exchange, chat, form, with_end_notices=with_end_notices)
        if chat.stream:
            return stream_reply(exchange, write_events(exchange, batches, writer))
        return plain_reply(exchange, batches, writer, self._services.config.heartbeat_interval)


def show(
    exchange: OpenExchange,
    chat: ChatRequest,
    form: thinking_blocks.Form | None = None,
    *,
    with_end_notices: bool = False,
) -> Batches:
    """The batches of an exchange as the client sees them: with notices and, in a `form`, reasoning in their text."""
    batches = exchange.deltas()
    if (chat.params.get("response_format") or {}).get("type") in ("json_object", "json_schema"):
        # A notice before JSON would break it; the log has the notice, too.
        return batches
    return show_reasoning(batches, form, exchange.notice, with_end_notices=with_end_notices)
