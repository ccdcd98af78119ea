"""Getting an answer out of DeepSeek: prepare the request, send it, and send it again when there is hope.

Two things are tried again, and only while the client has seen nothing of an answer: what passes by itself (DeepSeek is
busy, a connection broke), and the refusal of a history for missing reasoning, which is sent once more with the turns in
doubt as a transcript. Everything else is raised as it is.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chats.divergence import Divergence
from deepseek_cursor_proxy.chats.tracker import ChatTracker
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.error_messages import explain
from deepseek_cursor_proxy.errors import ProxyError, TooLarge, UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.observers.events import Event, Restored, Sent
from deepseek_cursor_proxy.reasoning.identity import identify
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, StoredTexts, look_up, prepare, prepare_retry
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from deepseek_cursor_proxy.upstream.retry import Retries


class CallContext(NamedTuple):
    """Who asks: the root of their identities, the key to call DeepSeek with, and how to notice that they left.

    The key is theirs, or with `is_held` the proxy's own, which they must never see.
    """

    namespace: bytes
    credential: str
    peer: Peer | None = None
    is_held: bool = False
    # For the first call, when several are made at once; else each call gets its own.
    slot: Slot | None = None

    def __repr__(self) -> str:
        """Without the key."""
        return f"CallContext({self.namespace.hex()[:12]})"


class GenerationRequest(NamedTuple):
    """A client's request, parsed and as it came, and what DeepSeek is to be asked in."""

    request: ChatRequest
    body: Mapping[str, Any]
    body_bytes: int
    upstream_api: UpstreamApi = CHAT


class UpstreamCall:
    """The calls of one exchange, until one is answered. Used by the thread that runs the exchange."""

    def __init__(self, number: int, context: CallContext, generation: GenerationRequest, services: Services) -> None:
        self._number = number
        self._context = context
        self._request = generation.request
        self._upstream_api = generation.upstream_api
        self._services = services
        self._started = time.monotonic()
        self._slot = context.slot
        self._retries = Retries(services.config.retry_budget)
        self._has_healed = False
        self._emit: Callable[[Event], None] = services.observers.emit
        self._found: StoredTexts = {}
        self._tracker: ChatTracker | None = None
        self._sent: Sent | None = None
        self.prepared: PreparedRequest | None = None
        self.answer: UpstreamResponse | None = None

    @property
    def divergence(self) -> Divergence | None:
        """Where the request parted from the last one of its chat, if it did."""
        return self._tracker.divergence if self._tracker is not None else None

    @property
    def retries(self) -> int:
        return self._retries.count

    def open(self) -> None:
        """Prepare the request and have it accepted; raises a ProxyError or ClientGone otherwise."""
        request, config, memory = self._request, self._services.config, self._services.memory
        history = identify(self._context.namespace, request.messages, request.conversation, memory)
        self._found = look_up(request, history, self._services.reasoning_store.find)
        self._tracker = ChatTracker(request, history, self._services.conversations, config.tool_order)
        try:
            self._send(prepare(request, history, self._found, config.missing_reasoning_strategy, memory))
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            self._heal()

    def begin_again(self, error: UpstreamFailed, *, is_unsaid: bool, is_untold: bool) -> bool:
        """Make the call once more if there is hope, and tell whether there was.

        A refusal inside a good answer, as some gateways send it, is healed as long as the model has said nothing;
        what passes by itself is tried again only before anything at all was told to the client.
        """
        assert self.prepared is not None
        if _is_reasoning_refusal(error):
            if not is_unsaid:
                raise _still_refused()
            self.close()
            self._heal()
            return True
        if not is_untold or not self._is_worth_another_try(error):
            return False
        try:
            self._transmit(self.prepared)
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            self._heal()
        return True

    def _is_worth_another_try(self, error: ProxyError) -> bool:
        # Others may call while this one waits.
        self.close()
        return self._retries.wait(error, self._context.peer)

    def settle(self) -> None:
        """Remember and tell that DeepSeek accepted the call; nothing of an answer has to wait for that. Idempotent.

        Before its end is seen, though: from then on the chat may go on.
        """
        if self._sent is not None and self._tracker is not None:
            sent, self._sent = self._sent, None
            self._tracker.record()
            self._emit(sent)

    def close(self, *, was_complete: bool = False) -> None:
        self.settle()
        if self.answer is not None:
            self.answer.close(was_complete=was_complete)

    def _send(self, prepared: PreparedRequest) -> None:
        assert self._tracker is not None
        self._check_size(prepared)
        self.prepared = self._tracker.order_tools(prepared)
        self._emit(Restored(self._number, self.prepared, self._has_healed, self._upstream_api, self.divergence))
        self._transmit(self.prepared)

    def _check_size(self, prepared: PreparedRequest) -> None:
        """TooLarge when the reasonings alone are: a short history may name the same long one a thousand times."""
        most = max(rules.MAX_BODY_BYTES, self._services.config.max_request_body_bytes)
        size = sum([len(each.reasoning) for each in prepared.request.messages if each.reasoning])
        # All choices of a request are asked for at once.
        if size * prepared.request.choices > most:
            raise TooLarge(
                f"The history with its reasoning is larger than {most} bytes, which is more than DeepSeek takes. "
                "Start a new chat."
            )

    def _transmit(self, prepared: PreparedRequest) -> None:
        body = self._upstream_api.encode(prepared.request, self._services.memory)
        self.answer = self._call(body)
        if prepared.request.stream:
            self.answer.raise_unless_stream()
        payload = partial(self._upstream_api.payload, prepared.request)
        self._sent = Sent(self._number, payload, len(body), time.monotonic() - self._started, self.retries)

    def _call(self, body: bytes) -> UpstreamResponse:
        while True:
            try:
                context, slot = self._context, self._admitted()
                return self._services.upstream.send(
                    body, context.credential, context.peer, slot, self._upstream_api.path
                )
            except (UpstreamRefused, UpstreamDropped) as error:
                if not self._is_worth_another_try(error):
                    raise self._told(error) if isinstance(error, UpstreamRefused) else error from None

    def _admitted(self) -> Slot:
        """The place that was brought, for the first call; one that is waited for, for any other."""
        slot, self._slot = self._slot, None
        if slot is None:
            (slot,) = self._services.upstream.call_limits.of(self._request.model).acquire(self._context.peer)
        return slot

    def _told(self, refusal: UpstreamRefused) -> ProxyError:
        if refusal.status == 401 and self._context.is_held:
            # As a 401 it would send people to look at a key that has nothing to do with it.
            return UpstreamFailed(
                "DeepSeek does not accept the key of this proxy. Whoever runs it has to set DEEPSEEK_API_KEY anew and "
                "start it again.",
                code="held_key_refused",
            )
        return explain(refusal)

    def _heal(self) -> None:
        """DeepSeek misses reasoning that we thought it would do without: once more, with those turns as text."""
        assert self.prepared is not None
        if self._has_healed:
            raise _still_refused()
        self._has_healed = True
        strategy = self._services.config.missing_reasoning_strategy
        try:
            self._send(prepare_retry(self._request, self._found, self.prepared, strategy))
        except UpstreamRefused as refusal:
            if not _is_reasoning_refusal(refusal):
                raise
            raise _still_refused() from None


def _still_refused() -> UpstreamFailed:
    return UpstreamFailed(
        "DeepSeek keeps refusing this history, even with the doubtful turns as a transcript. Start a new chat.",
        code="reasoning_refused",
    )


def _is_reasoning_refusal(error: ProxyError) -> bool:
    status = error.status if isinstance(error, UpstreamRefused) else 400
    return rules.is_reasoning_refusal(status, error.message)
