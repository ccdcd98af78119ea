"""The dialects clients speak, each a pair of translations to and from the canonical conversation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Batches, ChatRequest, Delta
from deepseek_cursor_proxy.errors import ProxyError


class ClientProtocol(Protocol):
    """One dialect. Clock and ids are handed in by whoever builds the protocol, so that its output is a pure value."""

    def parse(self, body: Mapping[str, Any], config: ProxyConfig) -> ChatRequest:
        """The request a JSON body asks for; raises BadRequest naming the field that is wrong."""
        ...

    def reply(self, request: ChatRequest, deltas: Sequence[Delta]) -> dict[str, Any]:
        """A whole answer as the client's JSON."""
        ...

    def stream(self, request: ChatRequest, batches: Batches) -> Iterator[bytes]:
        """An answer as the client's events, one piece of bytes per batch, ended properly whatever happens."""
        ...

    def error(self, error: ProxyError) -> dict[str, Any]:
        """A failure as the client's JSON."""
        ...
