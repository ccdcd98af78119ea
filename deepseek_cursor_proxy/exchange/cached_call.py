"""CachedUpstreamCall: the calls of an exchange that uses the response cache.

Before a body is sent, the cache is asked for an answer to it. A hit takes the place of the response, and everything
after that is as usual. While an identical question is in flight, nothing is sent: its answer is this one's, too, and if
it gets none, this one is sent. An answer is kept if it came to its own end, `stop` or `tool_calls`, can be used by a
client, and the upstream ended the stream by itself.
"""

import json
from functools import cached_property

from deepseek_cursor_proxy.conversation import Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange.response_cache.replay import ReplayedResponse
from deepseek_cursor_proxy.exchange.response_cache.service import CacheLookup, cache_key
from deepseek_cursor_proxy.exchange.upstream_call import UpstreamCall
from deepseek_cursor_proxy.exchange.upstream_events import UpstreamEvents
from deepseek_cursor_proxy.http1.lull import BLOCKING
from deepseek_cursor_proxy.json_codec import canonical_json, object_in
from deepseek_cursor_proxy.storage.answers import CachedAnswer
from deepseek_cursor_proxy.usage.prices import Cost


class CachedUpstreamCall(UpstreamCall):
    """Used by the thread that runs the exchange."""

    @cached_property
    def _lookup(self) -> CacheLookup:
        services = self._services
        return services.response_cache.open_lookup(self._context.peer, services.config.heartbeat_interval)

    @property
    def cache_state(self) -> str:
        return self._lookup.state.value

    def _transmit(self, body: bytes) -> None:
        self._use_answer(self._lookup.find(self._key(body)))
        if self._response is None and not self._lookup.is_waiting:
            super()._transmit(body)

    def _use_answer(self, answer: ReplayedResponse | None) -> None:
        self._response = answer
        self.is_cached = answer is not None
        # A hit is a request of its chat like any other; that it was sent is not reported.
        self._sent = self._sent_event(0) if answer is not None else None

    def _key(self, body: bytes) -> bytes:
        """The digest of a question: caller, upstream and its API, body, whatever the order of keys in its objects.

        How the answer is read is no part of it: the bytes are kept as they came, and read again.
        """
        url = self.upstream_request.destination.url
        return cache_key((self._context.namespace, url.encode(), canonical_json(json.loads(body)).encode()))

    def read(self, *, with_lulls: bool) -> UpstreamEvents:
        if self._lookup.is_waiting:
            return self._read_shared(with_lulls)
        return super().read(with_lulls=with_lulls)

    def _read_shared(self, with_lulls: bool) -> UpstreamEvents:
        """Heartbeats until the identical question is over, then the answer."""
        yield BLOCKING
        while not self._lookup.wait():
            yield ParsedEvents([Heartbeat()])
            yield BLOCKING
        self._use_answer(self._lookup.take())
        if self._response is None:
            self._send_until_accepted()
        yield from self.read(with_lulls=with_lulls)

    def _open_reader(self) -> EventReader:
        return self._lookup.open_reader(super()._open_reader())

    def store_answer(self, reply: Reply, tokens: Tokens | None, cost: Cost | None) -> None:
        """Keep an answer that came to its end and is of use, unless it is a hit itself."""
        if not _is_usable(reply):
            return
        figures = CachedAnswer(b"", tokens.prompt + tokens.output if tokens is not None else 0)
        if cost is not None:
            figures = figures._replace(cost=cost.amount, currency=cost.currency)
        self._lookup.store(figures)

    def end(self, *, was_complete: bool, has_left: bool) -> None:
        self._lookup.end(has_failed=not has_left)
        super().end(was_complete=was_complete, has_left=has_left)


def _is_usable(reply: Reply) -> bool:
    """Whether a client can use an answer: one with text, or with calls whose arguments are objects."""
    message = reply.message()
    if reply.finish_reason() == "tool_calls":
        are_whole = [bool(call.name) and object_in(call.arguments) is not None for call in message.tool_calls]
        return bool(are_whole) and all(are_whole)
    return reply.finish_reason() == "stop" and isinstance(message.content, str) and bool(message.content.strip())
