"""One request's place in its chat: its tools in the chat's order, and where it left the path of the last request.

place      before it is sent: find the chat's line, order the tools, diagnose
accepted   DeepSeek took it: from here the chat goes on
"""

from deepseek_cursor_proxy.chats import divergence, tool_order
from deepseek_cursor_proxy.chats.store import ConversationStore, Line
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest


class ChatTracker:
    """Used by the one thread that runs the exchange."""

    def __init__(self, request: ChatRequest, history: History, store: ConversationStore, mode: str) -> None:
        self._store = store
        self._mode = mode
        self._conversation = history.conversation
        # As the client sent it: what is restored and repaired is the same in every request.
        self._looks = divergence.outline(request, history)
        self._line: Line | None = None
        # Where the request parted from the last one of its chat; known once it is placed.
        self.divergence: divergence.Divergence | None = None

    def place(self, prepared: PreparedRequest) -> PreparedRequest:
        """The request with its tools in the order the chat is used to."""
        self._line = self._store.find(self._conversation, self._looks)
        tools = tool_order.order(prepared.request.tools, self._line.order if self._line else None, self._mode)
        self._looks = self._looks.with_tools(tool_order.names(tools))
        last = self._line.last if self._line else None
        self.divergence = divergence.diagnose(last, self._looks) if last is not None else None
        # Most requests are in place already.
        if tools == prepared.request.tools:
            return prepared
        return prepared._replace(request=prepared.request._replace(tools=tools))

    def accepted(self) -> None:
        """Remember what was sent; before the end of the answer is seen, because from then on the chat may go on."""
        # Only an order of ours is worth keeping; the client brings its own, and sorting needs none.
        order = tuple(self._looks.tools) if self._mode == "sticky" else ()
        self._store.record(self._conversation, self._line, self._looks, order)
