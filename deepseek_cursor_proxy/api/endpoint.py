"""Endpoint, the base of routes that need services, and GenerationEndpoint, the steps that all generations share:

    serve         admit the caller, read and decode the body, pass it through if its model has another upstream
    (parse)       each endpoint by itself: the body as a ChatRequest, and the Writer of its API
    open          have DeepSeek accept the call: an exchange
    reply         the exchange as the Writer writes it, streamed or plain; see `reply`

A new API is a feature as `features/messages` is one: a Writer, a GenerationEndpoint and a row of routes; a function of
its own if its errors have another shape. If its key has another header, change `access._credential` and
`clients.key_setting`; if its list of messages has another name, `chat_memory._LISTS`.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.api.clients import chat_id, client_name, is_subagent
from deepseek_cursor_proxy.api.reply import Writer, plain_reply, stream_reply, write_events
from deepseek_cursor_proxy.conversation import Batches, ChatName, ChatRequest
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.errors import Forbidden, Unauthorized, UpstreamRefused
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi, RequestReport
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.observers.events import caller_digest
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import show_reasoning

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.client_request import OpenExchange


class Endpoint:
    """Serves one request with the services; immutable.

    Called by the thread of a connection and, for a background response, by the job's thread.
    """

    def __init__(self, services: Services, report: RequestReport) -> None:
        self._services = services
        self._report = report

    def admit(self, request: HttpRequest) -> ClientRequest:
        """A request of a caller that is served, before its body is read; raises a ProxyError for any other."""
        report, access = self._report, self._services.access
        caller = access.admit(request)
        namespace, name = identity.namespace(self._services.config.upstream_base_url, caller.credential), ""
        if caller.named is not None:
            namespace, name = self._services.namespace_of(caller.named, namespace), caller.named.name
        report.add_caller(namespace, partial(access.knows, caller, caller_digest(namespace)), name)
        owner_key = access.upstream_key(caller)
        client = ClientRequest(
            http=request,
            caller=caller,
            report=report,
            namespace=namespace,
            credential=owner_key or caller.credential,
            has_held_key=owner_key is not None,
            peer=request.peer,
        )
        return self._services.extend(client)


class GenerationEndpoint(Endpoint):
    def serve(
        self,
        request: HttpRequest,
        api: RelayedApi | None,
        create: Callable[[ClientRequest], HttpReply],
        model: str | None = None,
    ) -> HttpReply:
        """Reply with `create`, or relay the request if its model has another upstream; `model` replaces the body's."""
        client = self.admit(request)
        raw = request.read_body()
        body, memory = self._services.memory.decode(raw)
        if model is not None:
            body = {**body, "model": model}
        self._report.add_body(body, len(raw))
        self._report.client = client_name(request, body)
        client = client._replace(body=body, memory=memory)
        if api is not None and self._services.config.passthrough:
            relayed = self._services.relay(self._services, client, api, raw)
            if relayed is not None:
                return relayed
        return create(client)

    def open(self, client: ClientRequest) -> "OpenExchange":
        """Open the exchange of a parsed request; `access` records whether DeepSeek accepts the caller's key."""
        services, access, config = self._services, self._services.access, self._services.config
        access.check_call(client.caller)
        name = ChatName(client.chat.chat_name.id or chat_id(client.http), self._report.client)
        client = client._replace(chat=client.chat._replace(chat_name=name))
        if config.subagent_model is not None and is_subagent(client.http, client.body):
            model = model_resolver.resolve(config.subagent_model, config).model
            client = client._replace(chat=client.chat._replace(model=model))
        self.reserve(client)
        if client.chat.choices == 1:
            client = services.use_cache(client)
        if services.upstreams.only is None:
            # Why the caller may not spend the owner's keys; an upstream that takes the caller's own may still serve it.
            client = client._replace(spend_refusal=access.spend_refusal(client.caller))
            try:
                services.upstreams.check(client.chat.model, client.spend_refusal)
            except (Unauthorized, Forbidden):
                access.count_refused_spender(client.caller)
                raise
        try:
            if client.chat.choices == 1:
                exchange: OpenExchange = Exchange.open(client, services)
            else:
                exchange = services.open_choices(client, services)
        except UpstreamRefused as refusal:
            if refusal.status == 401:
                access.record_refused(client.caller)
            raise
        if exchange.is_sent:
            # A cached answer says nothing about the caller's key. One of the owner is spent for known callers only.
            access.record_accepted(client.caller)
            for write_held in services.on_accepted:
                write_held(client.namespace)
        return exchange

    def reserve(self, client: ClientRequest) -> None:
        """Reserve what the request of a named key may use; raises a ProxyError. A job's request has its reservation."""
        if client.caller.named is None or self._report.admission is not None:
            return
        self._report.admission = self._services.admit_chat(self._services, client.caller.named, client.chat)

    def reply(
        self,
        exchange: "OpenExchange",
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
    exchange: "OpenExchange",
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
