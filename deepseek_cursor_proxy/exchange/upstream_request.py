"""UpstreamRequest: a request as one upstream gets it, and the API to send it with.

It has the tools that DeepSeek runs itself, as web search, as long as the upstream may run them. Without them, a request
that needed another API only for their sake goes to chat completions. This file sends nothing.
"""

from typing import NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.apis.api import CHAT, UpstreamApi, with_server_tools
from deepseek_cursor_proxy.deepseek.error_messages import is_overflow
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.upstreams.upstreams import Upstream
from deepseek_cursor_proxy.upstream.destination import Destination


class UpstreamRequest(NamedTuple):
    upstream: Upstream
    request: ChatRequest
    # The API that the client's API, or one of these tools, asks for; not every upstream has it.
    wanted_api: UpstreamApi
    # Whether the settings want that API for every request of the client's API.
    is_native: bool
    api: UpstreamApi
    # Types of tools that the upstream refused.
    refused_tools: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, upstream: Upstream, request: ChatRequest, wanted_api: UpstreamApi, *, is_native: bool
    ) -> "UpstreamRequest":
        api = upstream.api(wanted_api, request)
        if rules.needs_beta(request) and (upstream.beta_url is None or api.path != CHAT.path):
            request = rules.without_beta(request)
        return cls(upstream, request, wanted_api, is_native, api)

    def can_run_tools(self, caller: bytes) -> bool:
        """Whether the upstream may run what is in the caller's request of tools that DeepSeek runs itself."""
        choice = self.upstream.host_choice
        return not self._has_server_parts or choice.runs_server_tools(self.wanted_api, self.request, caller)

    def with_strict_api(self) -> "UpstreamRequest":
        """The same in DeepSeek's own form, with the reasoning of earlier turns."""
        chat = self.upstream.host_choice.strict_chat_api
        return self._replace(api=with_server_tools(chat) if self.request.server_tools else chat)

    def without_server_tools(self) -> "UpstreamRequest":
        """The request without tools that DeepSeek runs itself; BadRequest if it forces one."""
        request, wanted = server_tools.leave_out(self.request), self.wanted_api if self.is_native else CHAT
        return self._replace(request=request, wanted_api=wanted, api=self.upstream.api(wanted, request))

    def without_refused_tools(self) -> "UpstreamRequest":
        """The same after the upstream refused these tools."""
        # A history may have searches where the request has no tool for more.
        kinds = {tool["type"] for tool in self.request.server_tools} or {"searches"}
        return self.without_server_tools()._replace(refused_tools=tuple(sorted(kinds)))

    def is_refusal_of_tools(self, error: ProxyError) -> bool:
        """Whether a call may have failed because of tools that DeepSeek runs itself."""
        is_refusal = isinstance(error, (UpstreamRefused, UpstreamFailed)) and not isinstance(error, UpstreamDropped)
        if not self._has_server_parts or not is_refusal or is_overflow(error):
            return False
        is_unknown = self.upstream.host_choice.is_learning
        # An answer of another kind than a stream, as a web server gives for any path.
        status = error.status if isinstance(error, UpstreamRefused) else 200
        return server_tools.is_refusal(self.request, status, error.message, is_unknown=is_unknown)

    def is_refusal_in_answer(self, error: ProxyError) -> bool:
        """The same for an error in place of an answer; from DeepSeek itself that is one of a tool that runs."""
        is_unknown = self._has_server_parts and self.upstream.host_choice.is_learning
        return (
            is_unknown
            and isinstance(error, UpstreamFailed)
            and server_tools.mentions_tools(error.message, self.request)
        )

    @property
    def _has_server_parts(self) -> bool:
        """Whether the request has tools that DeepSeek runs itself or, for another API than usual, items of them."""
        return bool(self.request.server_tools) or not (self.wanted_api is CHAT or self.is_native)

    @property
    def destination(self) -> Destination:
        is_beta = rules.needs_beta(self.request)
        return self.upstream.destination(self.api.path, is_unversioned=self.api.is_unversioned, is_beta=is_beta)

    @property
    def absence_means_none(self) -> bool:
        """Whether an answer without reasoning means that the model thought nothing."""
        host = self.api.host
        return host.absence_means_none or (host.requires_reasoning and not self.request.thinking)
