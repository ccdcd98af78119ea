"""The pictures of one request whose model sees none: look their descriptions up, and have the missing ones made.

    PictureTexts        the descriptions that one request needs
    PictureDescriber    the call that has a model which sees pictures put one into words

A failed description never fails a request: the picture is named instead, and described with the next request. While
descriptions are made the thread of the request waits, a few seconds at a time, so that its client can get a heartbeat.
A description is one call without thinking. It is admitted, retried and paid for as any other call, stored for its
caller, and shared by requests that want it at the same time (`shared_calls`). `deepseek/images` knows the question,
and where the text goes.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_MEMORY
from deepseek_cursor_proxy.conversation import ChatRequest, Reply
from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.images import Picture, PicturedHistory, clean_description, description_request
from deepseek_cursor_proxy.deepseek.model_names import can_see_images, picture_model
from deepseek_cursor_proxy.deepseek.usage import Tokens, read_usage
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.exchange.attempt import decode_answer
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.next_step import CALL_ERRORS, Next
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.shared_calls import SharedCall
from deepseek_cursor_proxy.exchange.targets import open_targets
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wait import finish, wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.observers.events import PictureDescribed
from deepseek_cursor_proxy.redaction import redact_keys

# An old chat may have hundreds, and each is paid for: the newest are described, the rest with the next requests.
_MOST_NEW = 32
_MOST_AT_ONCE = 8
# A description takes some seconds; after this long the answer is worth more.
_MAX_SECONDS = 90.0


def find_texts(context: CallContext, generation: GenerationRequest, services: Services) -> "PictureTexts | None":
    """The texts for the pictures of a request; None if these stay as they are."""
    request, model = generation.request, picture_model(services.config)
    if model is None or can_see_images(request.model):
        return None
    if all(isinstance(message.content, str) for message in request.messages):
        return None
    history = PicturedHistory(request.messages, services.memory)
    return PictureTexts(generation, history, PictureDescriber(context, services, model)) if history.pictures else None


class PictureTexts:
    """The descriptions that a request needs. Used by the thread that serves the request, which must close it."""

    def __init__(self, generation: GenerationRequest, history: PicturedHistory, describer: "PictureDescriber") -> None:
        self._generation = generation
        self._history = history
        self._describer = describer
        self._pictures = history.pictures
        store = describer.services.picture_descriptions
        self._texts = store.find(describer.context.namespace, [*self._pictures])
        self._queue: deque[bytes] = deque()
        if describer.services.config.pictures == "describe":
            missing = [digest for digest in self._pictures if digest not in self._texts]
            self._queue.extend(reversed(missing[-_MOST_NEW:]))
        self._calls: dict[bytes, SharedCall] = {}
        self._deadline = Deadline.after(_MAX_SECONDS)
        # Notified when a call is over; None when there is nothing to wait for.
        self._wakeup: Wakeup | None = None
        if self._queue:
            # If no descriptors are left, the pictures are named.
            with contextlib.suppress(OSError):
                self._wakeup = Wakeup()

    def wait(self, seconds: float) -> bool:
        """Wait for the calls; False if some are not over within that time. Raises as any wait for a client does."""
        deadline = Deadline.after(seconds)
        while self._wakeup is not None:
            for digest, call in [*self._calls.items()]:
                if call.is_over:
                    del self._calls[digest]
                    if call.result is not None:
                        self._texts[digest] = call.result
            while self._queue and len(self._calls) < _MOST_AT_ONCE:
                digest = self._queue.popleft()
                if (begun := self._describer.begin(digest, self._pictures[digest], self._wakeup)) is not None:
                    self._calls[digest] = begun
            if not self._calls:
                break
            if self._deadline.is_over:
                self._leave(lambda: UpstreamTimeout(f"There was no description within {_MAX_SECONDS:.0f} seconds."))
                break
            if deadline.is_over:
                return False
            until = min(deadline, self._deadline)
            if wait_readable(self._wakeup, until - time.monotonic(), self._describer.context.peer):
                self._wakeup.clear()
        return True

    def generation(self) -> GenerationRequest:
        """The request with the descriptions that there are; the client's own messages identify its turns."""
        generation = self._generation
        if not self._texts:
            return generation
        messages = generation.request.messages
        request = generation.request._replace(messages=self._history.place(self._texts))
        return generation._replace(request=request, client_messages=messages)

    def close(self) -> None:
        """Idempotent. Calls that no other request waits for end."""
        self._leave()
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None

    def _leave(self, reason: Callable[[], ProxyError] | None = None) -> None:
        self._queue.clear()
        if self._wakeup is not None:
            for call in self._calls.values():
                self._describer.services.shared_calls.leave(call, self._wakeup, reason)
        self._calls.clear()


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
        """Have the picture described, and store the text; None if that fails. Called by the call's thread."""
        store, caller = self.services.picture_descriptions, self.context.namespace
        # The call before this one may have ended after the request had looked.
        if found := store.find(caller, [digest]):
            return found[digest]
        started, reply, text = time.monotonic(), Reply(), None
        outcome, status, admission = "described", 200, None
        try:
            request = description_request(picture, self.model)
            images.check(request.messages)
            if self.context.named is not None:
                from deepseek_cursor_proxy.exchange.admission import admit_chat

                admission = admit_chat(self.context.named, request, self.services, is_request=False)
            self._ask(request, reply, peer)
            content = reply.message().content
            if not isinstance(content, str) or not (described := clean_description(content)):
                raise UpstreamFailed("The answer is empty.")
            text = store.record(caller, digest, described)
        except ProxyError as error:
            words = error.message.replace(self.context.credential, "***")
            outcome, status = redact_keys(words), error.status
        except ClientGone:
            outcome, status = "client left", 499
        seconds = time.monotonic() - started
        if admission is not None:
            # Of an answer that broke off all counts that was reserved, of a call that failed nothing.
            unknown = None if status in (200, 499) else Tokens(0, 0, 0)
            admission.settle(read_usage(reply.usage) if reply.usage is not None else unknown)
        # An upstream that answers has accepted the caller's key, or was called with the owner's for a known caller.
        has_answer = status == 200 or reply.usage is not None
        key = self.context.report.caller_name if has_answer else self.context.report.key
        cost = None
        if reply.usage is not None:
            # With several upstreams, that of another host has another price.
            only = self.services.upstreams.only
            is_deepseek = only is not None and only.may_be_deepseek
            cost = self.services.prices.cost(self.model, read_usage(reply.usage), time.time(), is_deepseek=is_deepseek)
        event = PictureDescribed(key, digest.hex()[:12], self.model, outcome, status, seconds, reply.usage, cost)
        self.services.observers.emit(event)
        return text

    def _ask(self, request: ChatRequest, reply: Reply, peer: Peer) -> None:
        """Add the answer to the reply; raises a ProxyError or ClientGone."""
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
                    if finish(targets.after(error, is_transcript=True), peer) is Next.GIVE_UP:
                        raise targets.final_error(error) from None
        finally:
            targets.end(was_complete=not reply.is_empty)

    def _ask_one(self, upstream: Upstream, request: ChatRequest, reply: Reply, peer: Peer, key: str) -> None:
        client, api = self.services.upstream, upstream.api(CHAT, request)
        (slot,) = finish(client.call_limits.of(upstream.limit_name(request.model)).acquire(), peer)
        body = api.encode(request, NO_MEMORY)
        steps = client.send(upstream.destination(api.path), body, key, peer, slot)
        with closing(finish(steps, peer)) as response:
            for delta in api.read_answer(decode_answer(finish(response.read(), peer))):
                reply.add(delta)
