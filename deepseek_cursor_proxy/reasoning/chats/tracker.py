"""One request in its chat: order its tools as the chat did before, and find where it diverged from the last request."""

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.reasoning.chats import divergence, tool_order
from deepseek_cursor_proxy.reasoning.chats.store import ChatBranch, ChatStore, LastPrompt, PromptTokens
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest


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
        self._branch = self._store.find(self._conversation, self._outline)
        request = prepared.request
        if self._client_outline.tools:
            request = self._order(request)
        last = self._branch.last if self._branch else None
        self.divergence = divergence.diagnose(last, self._outline) if last is not None else None
        return prepared if request is prepared.request else prepared._replace(request=request)

    def _order(self, request: ChatRequest) -> ChatRequest:
        tools = tool_order.order(request.tools, self._branch.order if self._branch else None, self._mode)
        server_tools = tool_order.order_server_tools(request.server_tools, self._mode)
        # From all of them: an upstream that is asked next may run tools that the last one refused.
        self._outline = self._client_outline.with_tools(tool_order.names((*tools, *server_tools)))
        # Most requests are in order already.
        if tools == request.tools and server_tools == request.server_tools:
            return request
        return request._replace(tools=tools, server_tools=server_tools)

    def record(self) -> None:
        """Record the request in the store; before the client sees the end of the answer and sends the next one."""
        # The other modes need no recorded order.
        order = tuple(self._outline.tools) if self._mode == "sticky" else ()
        self._prompt = self._store.record(self._conversation, self._branch, self._outline, order)
