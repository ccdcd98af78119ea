"""Generating an answer: from an HTTP request for one to the HTTP reply that carries it.

Key first, then body, then the corridor. Everything that a chat needs is imported from here, and nothing else of the
proxy is: what listens and answers small questions is there before the rest of the program has been read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.api import clients, passthrough, plain_reply
from deepseek_cursor_proxy.api.growing_json import GrowingJson
from deepseek_cursor_proxy.api.passthrough import CHAT, Passed
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Batch, Batches, ChatRequest, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek import model_names
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_call import CallContext, GenerationRequest
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer, WaitHandle
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.chat import ChatCompletions
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.display import show_reasoning
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange

_log = logging.getLogger(__name__)


class Generation:
    """Called by handler threads; holds nothing that changes, but for what only saves time."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._chat = ChatCompletions(time)
        self._bodies = GrowingJson()

    @classmethod
    def build(
        cls, config: ProxyConfig, reasoning_store: ReasoningStore, former: "Generation | None" = None
    ) -> "Generation":
        """From a `former` one is taken over whatever has to survive a change of the configuration."""
        return cls(Services.build(config, reasoning_store, former.services if former is not None else None))

    def chat(self, request: HttpRequest, deployment: str) -> HttpReply:
        caller = self.services.access.admit(request)
        raw = request.read_body()
        body = self.decoded(raw)
        if deployment:
            # Azure's way: the path names the model.
            body = {**body, "model": unquote(deployment)}
        passed = self.passed_on(request, caller, body, encode_json(body) if deployment else raw)
        if passed is not None:
            return passed
        return self._generate(
            request, caller, GenerationRequest(self._chat.parse(body, self.services.config), body, len(raw))
        )

    def decoded(self, raw: bytes) -> dict[str, Any]:
        """The JSON of a body, which nobody changes."""
        return self._bodies.decode(raw)

    def passed_on(
        self, request: HttpRequest, caller: Caller, body: Mapping[str, Any], raw: bytes, path: str = CHAT
    ) -> HttpReply | None:
        """The answer of another place, if the model is asked there; its API has the same paths."""
        key = model_names.passthrough_key(body.get("model"), self.services.config)
        if key is None:
            return None
        self.services.access.check_spending(caller)
        is_stream = body.get("stream") is True
        return passthrough.relay(Passed(key, str(body["model"]), raw, is_stream, request.peer, path), self.services)

    def _generate(self, request: HttpRequest, caller: Caller, asked: GenerationRequest) -> HttpReply:
        protocol, chat = self._chat, asked.request
        exchange = self.opened(caller, self.call_context(caller, request.peer), asked)
        batches = exchange.batches(with_lulls=chat.stream)
        shown = batches if _is_json(chat) else show_reasoning(batches, self._form(request, asked), exchange.notice)
        if chat.stream:
            return HttpReply.events(Stream(protocol.stream(chat, shown), exchange))
        return plain_reply.reply(self._made(chat, shown), exchange, failure)

    def _made(self, chat: ChatRequest, shown: Batches) -> plain_reply.Steps:
        items: list[Delta | Heartbeat] = []
        yield from plain_reply.signs_of_life(shown, items.extend, self.services.config.heartbeat_interval)
        yield self._chat.reply(chat, [item for item in items if isinstance(item, Delta)])

    def told(self, chat: ChatRequest, exchange: "Exchange | ChoicesExchange", *, with_lulls: bool = True) -> Batches:
        """The answer for clients that have a place of its own for reasoning, and words for how an answer ended."""
        batches = exchange.batches(with_lulls=with_lulls and chat.stream)
        return batches if _is_json(chat) else show_reasoning(batches, None, exchange.notice, with_end_notices=False)

    def written(
        self, chat: ChatRequest, exchange: "Exchange | ChoicesExchange", write: Callable[[Batch], bytes]
    ) -> Iterator[bytes]:
        """What is told, as somebody writes it, piece by piece."""
        with closing(self.told(chat, exchange)) as told:
            for batch in told:
                said = write(batch)
                # An empty piece is a lull; a batch in which nothing is said, such as a lone role, is none.
                if said or not batch:
                    yield said

    def call_context(self, caller: Caller, peer: Peer | None) -> CallContext:
        namespace = identity.namespace(self.services.config.upstream_base_url, caller.credential)
        held_key = self.services.access.held_key
        return CallContext(namespace, held_key or caller.credential, peer, is_held=held_key is not None)

    def opened(self, caller: Caller, context: CallContext, asked: GenerationRequest) -> "Exchange | ChoicesExchange":
        """The call that DeepSeek accepted; access learns what it thinks of the key."""
        access = self.services.access
        access.check_call(caller)
        try:
            exchange = _opener(asked).open(context, asked, self.services)
        except UpstreamRefused as refusal:
            if refusal.status == 401:
                access.record_refused(caller)
            raise
        access.record_accepted(caller)
        return exchange

    def _form(self, request: HttpRequest, asked: GenerationRequest) -> thinking_blocks.Form | None:
        """How the client of a chat sees the thinking inside the answer; None when it does not."""
        config = self.services.config
        is_off = config.display_reasoning == "off"
        if is_off or (config.display_reasoning == "auto" and not clients.shows_thinking(request, asked.body)):
            return None
        return thinking_blocks.COLLAPSIBLE if config.collapsible_reasoning else thinking_blocks.PLAIN


def _opener(asked: GenerationRequest) -> "type[Exchange | ChoicesExchange]":
    if asked.request.choices == 1:
        return Exchange
    # Only here: hardly anybody asks for several answers at once, and the proxy is smaller without.
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange

    return ChoicesExchange


def _is_json(chat: ChatRequest) -> bool:
    """Whether the answer has to be JSON, which it is not with words of ours before it; the log has those, too."""
    return (chat.params.get("response_format") or {}).get("type") in ("json_object", "json_schema")


def failure(error: Exception) -> ProxyError:
    """What a client is told of whatever ended its answer; of a bug of ours the log tells more."""
    if isinstance(error, ProxyError):
        return error
    if isinstance(error, (ValueError, RecursionError)):
        # Read but not writable again, such as JSON nested to the brim: told like any other failure.
        return UpstreamFailed("DeepSeek sent an event that cannot be passed on.")
    details = _log.isEnabledFor(logging.DEBUG)
    _log.error("unexpected %s while streaming an answer", type(error).__name__, exc_info=details)
    return ProxyError("The proxy failed on this request; please report it.")


class Stream:
    """A streamed answer; closing it ends the exchange even if not a byte of it was asked for."""

    def __init__(self, events: Iterator[bytes], exchange: "Exchange | ChoicesExchange") -> None:
        self._events = events
        self._exchange = exchange

    @property
    def wait_handle(self) -> WaitHandle | None:
        return self._exchange.wait_handle

    @property
    def is_over(self) -> bool:
        return self._exchange.is_closed

    def __iter__(self) -> Iterator[bytes]:
        return self._events

    def close(self) -> None:
        closing = getattr(self._events, "close", None)
        if closing is not None:
            closing()
        self._exchange.close()
