"""Anthropic Messages: from an HTTP request for a message to the HTTP reply that carries it, and how long it would be.

How an answer comes about is generation's part; what is said in this API's words, protocols/anthropic's.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.api import plain_reply
from deepseek_cursor_proxy.api.chat import Generation, Stream, failure
from deepseek_cursor_proxy.api.passthrough import MESSAGES
from deepseek_cursor_proxy.conversation import Batch
from deepseek_cursor_proxy.errors import ClientGone, MethodNotAllowed, ProxyError
from deepseek_cursor_proxy.exchange.upstream_call import CallContext, GenerationRequest
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.protocols.anthropic import errors
from deepseek_cursor_proxy.protocols.anthropic import request as anthropic
from deepseek_cursor_proxy.protocols.anthropic.writer import PING, MessageWriter
from deepseek_cursor_proxy.reasoning.sealed import Sealer

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange
    from deepseek_cursor_proxy.exchange.exchange import Exchange

# What a stream says at its beginning about its input, which DeepSeek counts at its end.
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class _Planned:
    """A message that is to be made, and for whom."""

    context: CallContext
    asked: anthropic.Asked
    sealer: Sealer
    size: int

    def writer(self) -> MessageWriter:
        return MessageWriter(f"msg_{secrets.token_hex(12)}", self.asked, self.sealer, self.size // _BYTES_PER_TOKEN)


class Messaging:
    """Called by handler threads; holds nothing that changes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._services = generation.services

    def create(self, request: HttpRequest) -> HttpReply:
        caller = self._services.access.admit(request)
        raw = request.read_body()
        body = self._generation.decoded(raw)
        passed = self._generation.passed_on(request, caller, body, raw, MESSAGES)
        if passed is not None:
            return passed
        context = self._generation.call_context(caller, request.peer)
        sealer = Sealer(self._services.secret.read(), context.namespace)
        planned = _Planned(context, anthropic.parse(body, self._services.config, sealer), sealer, len(raw))
        chat = planned.asked.request
        # DeepSeek streams in any case: so it is known while a message takes its time that it is being made.
        exchange = self._generation.opened(
            caller, context, GenerationRequest(chat._replace(stream=True), body, len(raw))
        )
        if chat.stream:
            return _identified(HttpReply.events(Stream(self._events(planned, exchange), exchange)))
        return _identified(plain_reply.reply(self._made(planned, exchange), exchange, failure))

    def count_tokens(self, request: HttpRequest) -> HttpReply:
        caller = self._services.access.admit(request)
        body = self._generation.decoded(request.read_body())
        sealer = Sealer(self._services.secret.read(), self._generation.call_context(caller, None).namespace)
        asked = anthropic.parse(body, self._services.config, sealer, needs_limit=False)
        return HttpReply.json({"input_tokens": self._services.counter.count(asked.request)})

    def _made(self, planned: _Planned, exchange: "Exchange | ChoicesExchange") -> plain_reply.Steps:
        writer, told = planned.writer(), self._generation.told(planned.asked.request, exchange)
        yield from plain_reply.signs_of_life(told, writer.write, self._services.config.heartbeat_interval)
        yield writer.message()

    def _events(self, planned: _Planned, exchange: "Exchange | ChoicesExchange") -> Iterator[bytes]:
        writer = planned.writer()
        awake = _Awake(writer, self._services.config.heartbeat_interval)
        yield writer.begin()
        try:
            yield from self._generation.written(planned.asked.request, exchange, awake.write)
            last = writer.end()
        except ClientGone:
            raise
        except Exception as error:
            last = writer.fail(failure(error), request_id())
        yield last


class _Awake:
    """Writes a message, and pings between what is told of it.

    DeepSeek may think for minutes of which nothing is told, and Claude Code gives up after five of silence.
    """

    def __init__(self, writer: MessageWriter, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds
        self._quiet_until = monotonic() + seconds

    def write(self, batch: Batch) -> bytes:
        said, now = self._writer.write(batch), monotonic()
        if not said and batch and now >= self._quiet_until:
            said = PING
        if said:
            self._quiet_until = now + self._seconds
        return said


def _identified(reply: HttpReply) -> HttpReply:
    """With the name that Anthropic's clients know a request by when they ask about it."""
    return reply._replace(headers=(*reply.headers, ("request-id", request_id())))


def request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def failed(error: ProxyError) -> HttpReply:
    """A failure as the reply of this API."""
    name = request_id()
    headers = [("request-id", name)]
    if errors.is_final(error):
        headers.append(("x-should-retry", "false"))
    if isinstance(error, MethodNotAllowed):
        headers.append(("Allow", error.allow))
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    return HttpReply.json(errors.failure(error, name), errors.status(error), tuple(headers))
