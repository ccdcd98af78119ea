"""Endpoint, the base of routes that need services, and GenerationEndpoint, the steps that all generations share:

    serve         admit the caller, read and decode the body, pass it through if its model has another upstream
    (parse)       each endpoint by itself: the body as a ChatRequest, and the Writer of its API
    open          have DeepSeek accept the call: an exchange
    reply         the exchange as the Writer writes it, streamed or plain

An exchange opens before the first byte of a reply, so that a refusal is an HTTP error. A failure before that byte is
raised, and becomes one as well. Later, `failure` alone decides what the client reads, and the Writer encodes it as its
API does.
A plain reply may take long: DeepSeek queues a call for up to ten minutes, and tunnels cut off a silent reply. Spaces,
which JSON allows before a value, keep it open. The first one is sent with status 200. A later failure is an error
inside the value where the API has one; elsewhere the reply breaks off, and clients ask again.

A new API is a feature as `features/messages` is one: a Writer, a GenerationEndpoint and a row of routes; a function of
its own if its errors have another shape. If its key has another header, change `access._credential` and
`clients.key_setting`; if its list of messages has another name, `chat_memory._LISTS`.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Protocol

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.api.clients import chat_id, client_name, is_subagent
from deepseek_cursor_proxy.conversation import Batch, Batches, ChatName, ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, OpenExchange, RelayedApi, RequestReport
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import Body, Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import show_reasoning

_log = logging.getLogger(__name__)

Events = Generator[bytes, None, None]


class Endpoint:
    """Serves one request with the services; immutable.

    Called by the thread of a connection and, for a background response, by the job's thread.
    """

    def __init__(self, services: Services, api: str, prefix: str = "") -> None:
        """`api` is the one that the request came by, `prefix` what the prefix of its path names."""
        self._services = services
        self.report = RequestReport(services.observers, services.numbers, api, prefix)

    def admit(self, request: HttpRequest) -> ClientRequest:
        """A request of a caller that is served, before its body is read; raises a ProxyError for any other."""
        report, access = self.report, self._services.access
        caller = access.admit(request)
        namespace, name = identity.namespace(self._services.config.upstream_base_url, caller.credential), ""
        if caller.named is not None:
            namespace, name = self._services.namespace_of(caller.named, namespace), caller.named.name
        report.add_caller(namespace, partial(access.knows, caller), name)
        client = ClientRequest(request, caller, report, namespace, access.upstream_key(caller))
        self._services.extend(client)
        return client


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
        body, client.memory = self._services.memory.decode(raw)
        client.body = body if model is None else {**body, "model": model}
        self.report.add_body(client.body, len(raw))
        self.report.client = client_name(request, body)
        client.name = ChatName(chat_id(request), self.report.client)
        if api is not None and self._services.config.passthrough:
            relayed = self._services.relay(self._services, client, api, raw)
            if relayed is not None:
                return relayed
        # Else the caller's bytes stay as long as DeepSeek makes us wait.
        del raw
        return create(client)

    def open(self, client: ClientRequest) -> OpenExchange:
        """Open the exchange of a parsed request; `access` records whether DeepSeek accepts the caller's key."""
        services, access, config = self._services, self._services.access, self._services.config
        access.check_call(client.caller)
        if config.subagent_model is not None and is_subagent(client.http, client.body):
            model = model_resolver.resolve(config.subagent_model, config).model
            client.chat = client.chat._replace(model=model)
        self.reserve(client)
        if client.chat.choices == 1:
            services.use_cache(client)
        if services.upstreams.only is None:
            # Why the caller may not spend the owner's keys; an upstream that takes the caller's own may still serve it.
            client.spend_refusal = access.spend_refusal(client.caller)
            try:
                services.upstreams.check(client.chat.model, client.spend_refusal)
            except (errors.Unauthorized, errors.Forbidden):
                access.count_refused_spender(client.caller)
                raise
        try:
            if client.chat.choices == 1:
                exchange: OpenExchange = Exchange.open(client, services)
            else:
                exchange = services.open_choices(client, services)
        except errors.UpstreamRefused as refusal:
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
        if client.caller.named is None or self.report.admission is not None:
            return
        self.report.admission = self._services.admit_chat(self._services, client.caller.named, client.chat)

    def reply(
        self,
        exchange: OpenExchange,
        chat: ChatRequest,
        writer: "Writer",
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


class Writer(Protocol):
    """Writes one answer in the format of one API, as events or as one JSON value. Used by one thread.

    A plain reply sends only the bytes of `end` or `fail`.
    """

    def begin(self) -> bytes: ...

    def write(self, batch: Batch) -> bytes:
        """The bytes of a batch; none if the API has no event for it."""
        ...

    def end(self) -> bytes:
        """The last bytes of an answer that came to its end; raises ProxyError if DeepSeek broke it off."""
        ...

    def fail(self, error: errors.ProxyError) -> bytes:
        """The last bytes of an answer that failed; raises ClientGone to break a plain reply off."""
        ...


def stream_reply(exchange: OpenExchange, events: Events) -> HttpReply:
    state = exchange.cache_state
    return HttpReply.events(_AnswerBody(exchange, events), (("X-Cache", state),) if state else ())


def write_events(exchange: OpenExchange, batches: Batches, writer: Writer) -> Events:
    """A whole streamed answer."""
    if beginning := writer.begin():
        yield beginning
    try:
        with closing(batches):
            try:
                for batch in batches:
                    if written := writer.write(batch):
                        yield written
            except Exception as error:
                exchange.fail(error)
                raise
        last = writer.end()
    except errors.ClientGone:
        raise
    except Exception as error:
        last = writer.fail(failure(error))
    yield last


def plain_reply(exchange: OpenExchange, batches: Batches, writer: Writer, space_seconds: float) -> HttpReply:
    """The reply: the whole value or, if that takes longer than `space_seconds`, a body that begins with a space."""
    spaces = _take_all(exchange, batches, writer, space_seconds)
    body: bytes | Body
    try:
        if next(spaces, None) is not None:
            body = _AnswerBody(exchange, write_events(exchange, spaces, _WhitespaceWriter(writer)))
        else:
            body = writer.end()
            exchange.close()
    except BaseException:
        exchange.close()
        raise
    headers: Headers = (("Content-Type", "application/json"),)
    if state := exchange.cache_state:
        headers += (("X-Cache", state),)
    return HttpReply(200, body, headers)


class _WhitespaceWriter:
    """Writes a space for every batch while the client of a plain answer waits, then what the other writer returns."""

    def __init__(self, writer: Writer) -> None:
        self.end, self.fail = writer.end, writer.fail

    def begin(self) -> bytes:
        return b" "

    def write(self, batch: Batch) -> bytes:
        return b" "


def failure(error: Exception) -> errors.ProxyError:
    """The error that the client gets for an exception that ended its answer."""
    if isinstance(error, errors.ProxyError):
        return error
    if isinstance(error, (ValueError, RecursionError)):
        # It can be read but not written, such as JSON nested as deep as the reader allows.
        return errors.UpstreamFailed("DeepSeek sent an event that cannot be forwarded.")
    return internal_error(error)


def internal_error(error: Exception) -> errors.InternalError:
    """Log a bug, and return the error for the client."""
    details = _log.isEnabledFor(logging.DEBUG)
    _log.error("unexpected %s while streaming an answer", type(error).__name__, exc_info=details)
    return errors.InternalError()


def _take_all(exchange: OpenExchange, batches: Batches, writer: Writer, space_seconds: float) -> Batches:
    """Write every batch of an answer; yields an empty one each time the client has waited `space_seconds`."""
    due = monotonic() + space_seconds
    try:
        for batch in batches:
            writer.write(batch)
            if monotonic() < due:
                continue
            # After the finish_reason the reply follows at once; it may be a failure, which needs its own status.
            if not any(isinstance(item, Delta) and item.finish_reason is not None for item in batch):
                due = monotonic() + space_seconds
                yield []
    except Exception as error:
        exchange.fail(error)
        raise
    finally:
        batches.close()


@dataclass(eq=False, slots=True)
class _AnswerBody:
    """An answer that is written while it is sent; closing it ends the exchange, also before the first byte."""

    exchange: OpenExchange
    events: Events

    @property
    def is_finished(self) -> bool:
        return self.exchange.is_closed

    def __iter__(self) -> Iterator[bytes]:
        return self.events

    def close(self) -> None:
        self.events.close()
        self.exchange.close()
