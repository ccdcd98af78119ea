"""One request in its chat: order its tools as the chat did before, and find where it diverged from the last request.

Tools are at the front of DeepSeek's prompt, so the same tools in another order make it read, and bill, the whole chat
anew: measured hits fell from 99.9 % to 0. Some clients shuffle theirs from request to request. Therefore:

    sticky   a chat's first request sorts by name; later ones keep the order last sent and add what is new after it
    sorted   always by name: nothing to remember, but a new tool moves its neighbours
    client   as they came

Rule: in whatever order a client sends the same tools again, DeepSeek gets the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.reasoning.chats import divergence
from deepseek_cursor_proxy.reasoning.chats.divergence import tool_name
from deepseek_cursor_proxy.reasoning.chats.store import ChatBranch, ChatStore, LastPrompt, PromptTokens
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest

Tools = tuple[Mapping[str, Any], ...]

_canonical_json = json.JSONEncoder(sort_keys=True).encode


class ChatTracker:
    """Used by the one thread that runs the exchange."""

    def __init__(self, request: ChatRequest, history: History, store: ChatStore, mode: str) -> None:
        self._store = store
        self._mode = mode
        self._conversation = history.conversation
        # As the client sent it: restoring and repairing do the same to every request.
        self._client_outline = self._outline = divergence.outline(request, history)
        self._branch: ChatBranch | None = None
        # Known after `order_tools`.
        self.divergence: divergence.Divergence | None = None
        self._prompt: LastPrompt | None = None

    @property
    def last_prompt(self) -> PromptTokens | None:
        """The tokens of the last request of the chat, if they are known."""
        prompt = self._branch.prompt if self._branch is not None else None
        return prompt.tokens if prompt is not None else None

    def record_tokens(self, tokens: PromptTokens) -> None:
        """Record the tokens of this request, for the next one of the chat."""
        if self._prompt is not None:
            self._prompt.tokens = tokens

    def order_tools(self, prepared: PreparedRequest) -> PreparedRequest:
        """The request with its tools in the order of the chat."""
        branch = self._branch = self._store.find(self._conversation, self._outline)
        request = prepared.request
        if self._client_outline.tools:
            tools = order_tools(request.tools, branch.order if branch is not None else None, self._mode)
            server_tools = order_server_tools(request.server_tools, self._mode)
            # From all of them: an upstream that is asked next may run tools that the last one refused.
            self._outline = self._client_outline.with_tools([tool_name(tool) for tool in (*tools, *server_tools)])
            # Most requests are in order already.
            if tools != request.tools or server_tools != request.server_tools:
                prepared = prepared._replace(request=request._replace(tools=tools, server_tools=server_tools))
        last = branch.last if branch is not None else None
        self.divergence = divergence.diagnose(last, self._outline) if last is not None else None
        return prepared

    def record(self) -> None:
        """Record the request in the store; before the client sees the end of the answer and sends the next one."""
        # The other modes need no recorded order.
        order = tuple(self._outline.tools) if self._mode == "sticky" else ()
        self._prompt = self._store.record(self._conversation, self._branch, self._outline, order)


def order_tools(tools: Tools, last_sent: Sequence[str] | None, mode: str) -> Tools:
    """The functions in the order to send; `last_sent` are the names as this chat last sent them."""
    by_name = {tool_name(tool): tool for tool in tools}
    if mode == "client" or len(tools) < 2 or len(by_name) < len(tools):
        # Two tools of one name differ by their positions alone.
        return tools
    if mode == "sticky" and last_sent is not None and [*by_name] == [*last_sent]:
        return tools
    kept = [name for name in dict.fromkeys(last_sent or ()) if name in by_name] if mode == "sticky" else []
    return tuple([by_name[name] for name in (*kept, *sorted(by_name.keys() - set(kept)))])


def order_server_tools(tools: Tools, mode: str) -> Tools:
    """The tools that DeepSeek runs itself, which follow the others, in the order to send."""
    return tools if mode == "client" or len(tools) < 2 else tuple(sorted(tools, key=_canonical_json))
