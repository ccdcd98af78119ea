"""POST /messages, Anthropic's API, and POST /messages/count_tokens: how long its input is."""

import re
import secrets
from time import monotonic

from deepseek_cursor_proxy.api.clients import is_small_job
from deepseek_cursor_proxy.api.endpoint import GenerationEndpoint
from deepseek_cursor_proxy.api.routes import new_request_id
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.api import CHAT
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi
from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.messages.request import parse
from deepseek_cursor_proxy.features.messages.writer import MessageHead, MessageWriter, PlainMessageWriter, failure_event
from deepseek_cursor_proxy.features.tokens.feature import TokenCounter
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest

# To estimate the input tokens, which a stream names at its beginning and DeepSeek counts only at its end.
_BYTES_PER_TOKEN = 4


_LAST_EVENT = re.compile(rb"event: message_stop\b")
_API = RelayedApi("/messages", _LAST_EVENT, lambda error: failure_event(error, new_request_id()))


class MessagesEndpoint(GenerationEndpoint):
    def create(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, _API, self._create)

    def _create(self, client: ClientRequest) -> HttpReply:
        sealer = self._sealer(client)
        message = parse(client.body, self._services.config, sealer, client.memory, client.name)
        chat = message.request
        if is_small_job(client.http, client.body):
            chat = chat._replace(thinking=False)
        # DeepSeek streams in any case, so that a plain reply can tell a long answer from a dead call.
        # Its own Messages API serves the tools that it runs there, and histories with their items.
        upstream_api = self._services.search_apis.get("messages", CHAT) if server_tools.has_any(chat) else CHAT
        client.chat, client.upstream_api, client.is_plain = chat._replace(stream=True), upstream_api, not chat.stream
        exchange = self.open(client)
        tokens = client.report.body_bytes // _BYTES_PER_TOKEN
        head = MessageHead(f"msg_{secrets.token_hex(12)}", new_request_id(), tokens)
        kind = MessageWriter if chat.stream else PlainMessageWriter
        writer = kind(head, message, sealer, monotonic, self._services.config.heartbeat_interval)
        reply = self.reply(exchange, chat, writer)
        return reply._replace(headers=(*reply.headers, ("request-id", head.request_id)))

    def count_tokens(self, request: HttpRequest, _: str) -> HttpReply:
        return self.serve(request, None, self._count_tokens)

    def _count_tokens(self, client: ClientRequest) -> HttpReply:
        services = self._services
        message = parse(client.body, services.config, self._sealer(client), client.memory, needs_limit=False)
        return HttpReply.json({"input_tokens": services.get(TokenCounter).count(message.request)})

    def _sealer(self, client: ClientRequest) -> Sealer:
        return Sealer(self._services.secret.read(), client.namespace)
