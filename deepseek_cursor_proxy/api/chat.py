"""POST /chat/completions, also by the path of an Azure deployment, which names the model."""

import re
from time import time
from urllib.parse import unquote

from deepseek_cursor_proxy.api import clients
from deepseek_cursor_proxy.api.endpoint import GenerationEndpoint
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter, CompletionWriter, failure_events
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning import thinking_blocks

_API = RelayedApi("/chat/completions", re.compile(rb"data: \[DONE\]"), failure_events)


class ChatEndpoint(GenerationEndpoint):
    def create(self, request: HttpRequest, deployment: str) -> HttpReply:
        return self.serve(request, _API, self._create, unquote(deployment) if deployment else None)

    def _create(self, client: ClientRequest) -> HttpReply:
        config = self._services.config
        chat = client.chat = parse(client.body, config, client.memory, name=client.name)
        exchange = self.open(client)
        writer = ChunkWriter(chat, int(time())) if chat.stream else CompletionWriter(chat)
        display = config.display_reasoning
        is_hidden = display == "off" or (display == "auto" and not clients.shows_thinking(client.http, client.body))
        form = thinking_blocks.COLLAPSIBLE if config.collapsible_reasoning else thinking_blocks.PLAIN
        # Without a form of thinking blocks in the text, the client gets `reasoning_content` alone.
        return self.reply(exchange, chat, writer, None if is_hidden else form, with_end_notices=True)
