"""What a call is made of: CallContext, for whom it is made, and GenerationRequest, what is asked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek.apis.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.tools.server_tools import CHAT as CLIENT_CHAT
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.exchange.request_report import RequestReport
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.upstream.call_limit import Slot


class CallContext(NamedTuple):
    """For whom DeepSeek is called: the root of the caller's identities, the key to call with, the client to watch.

    The key is the caller's or, with `is_held`, the proxy's own, which no client may see.
    """

    namespace: bytes
    credential: str
    peer: Peer | None = None
    is_held: bool = False
    # The slot of the first call, if it was acquired with those of other choices; each retry acquires its own.
    slot: Slot | None = None
    # The report of the client's request; an exchange without one opens its own.
    report: RequestReport | None = None
    # Why no key of the owner is spent for this caller at one of several upstreams; None if it may be.
    spend_refusal: ProxyError | None = None
    # Whether calls that the model writes as text become calls, whatever the upstream: the session asks for that.
    reads_written_calls: bool = False

    def __repr__(self) -> str:
        """Without the key."""
        return f"CallContext({self.namespace.hex()[:12]})"


class GenerationRequest(NamedTuple):
    """A client's request, parsed and as it came, and the API of DeepSeek to send it with."""

    request: ChatRequest
    body: Mapping[str, Any]
    body_bytes: int
    upstream_api: UpstreamApi = CHAT
    # The messages as the client sent them, which identify its turns, if the request has descriptions in them.
    client_messages: tuple[Message, ...] | None = None
    # Whether the response cache may answer it. It is then streamed, whatever the client wants.
    uses_cache: bool = False
    # Whether the client wants that stream as one chat completion.
    is_joined: bool = False

    def with_cache(self) -> "GenerationRequest":
        """The request as the cache needs it: plain and streamed ones are the same question to the upstream."""
        is_joined = not self.request.stream and self.request.client_api == CLIENT_CHAT
        return self._replace(request=self.request._replace(stream=True), uses_cache=True, is_joined=is_joined)
