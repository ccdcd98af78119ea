"""PictureDescriber: has a model that sees pictures put one into words.

A description is one call without thinking. It is admitted, retried and paid for as any other call, stored for its
caller, and shared by requests that want it at the same time. `deepseek/images` knows what is asked.
"""

import time
from contextlib import closing
from functools import partial
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_MEMORY
from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.deepseek.apis.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.images import Picture, clean_description, description_request
from deepseek_cursor_proxy.deepseek.usage import read_usage
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.exchange.attempt import read_whole
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.next_step import CALL_ERRORS, Next
from deepseek_cursor_proxy.exchange.pictures.shared_calls import SharedCall
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.targets import open_targets
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.http1.lull import Lull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.observers.events import PictureDescribed, caller_digest
from deepseek_cursor_proxy.redaction import redact_keys
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from deepseek_cursor_proxy.usage.prices import Cost


class PictureDescriber(NamedTuple):
    """Describes pictures for one caller. Called by the thread of a request and those of the calls."""

    context: CallContext
    services: Services
    model: str

    def begin(self, digest: bytes, picture: Picture, waiter: Wakeup) -> SharedCall | None:
        """The call that describes a picture, perhaps for another request already; None without threads."""
        work = partial(self._describe, digest, picture)
        return self.services.shared_calls.join((self.context.namespace, digest), work, waiter)

    def _describe(self, digest: bytes, picture: Picture, peer: Peer) -> str | None:
        """The description, as it is stored; None when there is none. Called by the thread of the call."""
        store, caller = self.services.picture_descriptions, self.context.namespace
        # The call before this one may have ended after the request had looked.
        if found := store.find(caller, [digest]):
            return found[digest]
        started, reply, text = time.monotonic(), Reply(), None
        outcome, status = "described", 200
        try:
            self._ask(picture, reply, peer)
            text = store.record(caller, digest, _read_text(reply))
        except ProxyError as error:
            words = error.message.replace(self.context.credential, "***")
            outcome, status = redact_keys(words), error.status
        except ClientGone:
            outcome, status = "client left", 499
        seconds = time.monotonic() - started
        # An upstream that answers has accepted the key, or was called with one of the owner's, for a known caller.
        has_answer = status == 200 or reply.usage is not None
        key = caller_digest(caller) if has_answer else self.context.report.key
        event = PictureDescribed(
            key, digest.hex()[:12], self.model, outcome, status, seconds, reply.usage, self._cost(reply)
        )
        self.services.observers.emit(event)
        return text

    def _cost(self, reply: Reply) -> Cost | None:
        if reply.usage is None:
            return None
        # With several upstreams, that of another host has another price.
        only = self.services.upstreams.only
        is_deepseek = only is not None and only.may_be_deepseek
        return self.services.prices.cost(self.model, read_usage(reply.usage), time.time(), is_deepseek=is_deepseek)

    def _ask(self, picture: Picture, reply: Reply, peer: Peer) -> None:
        """Add the answer to the reply; raises a ProxyError or ClientGone."""
        request = description_request(picture, self.model)
        images.check(request.messages)
        targets = open_targets(self.context._replace(peer=peer), GenerationRequest(request, {}, 0), self.services)
        try:
            targets.check_key()
            while True:
                (upstream, model), key = targets.current.candidate, targets.credential
                try:
                    self._ask_one(upstream, request._replace(model=model), reply, peer, key)
                    return targets.record_acceptance()
                except CALL_ERRORS as error:
                    error.hide(key)
                    # It has no history to be sent as a transcript.
                    if targets.after(error, is_transcript=True) is Next.GIVE_UP:
                        raise targets.final_error(error) from None
        finally:
            targets.end(was_complete=not reply.is_empty)

    def _ask_one(self, upstream: Upstream, request: ChatRequest, reply: Reply, peer: Peer, key: str) -> None:
        client, api = self.services.upstream, upstream.api(CHAT, request)
        (slot,) = client.call_limits.of(upstream.limit_name(request.model)).acquire(peer)
        body = api.encode(request, NO_MEMORY)
        with closing(client.send(upstream.destination(api.path), body, key, peer, slot)) as response:
            _read(response, api, reply)


def _read(response: UpstreamResponse, api: UpstreamApi, reply: Reply) -> None:
    with closing(read_whole(response, api.read_answer)) as steps:
        for events in steps:
            for item in () if isinstance(events, Lull) else events.batch:
                if isinstance(item, Delta):
                    reply.add(item)


def _read_text(reply: Reply) -> str:
    content = reply.message().content
    text = clean_description(content) if isinstance(content, str) else ""
    if not text:
        raise UpstreamFailed("The answer is empty.")
    return text
