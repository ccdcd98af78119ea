"""The events of an exchange (received, restored, sent, finished), and of requests that become no exchange.

Logic emits these events; only observers print, count or write files. An observer never influences an answer: its
exceptions are logged here and go no further.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.chats.divergence import Divergence
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest

_log = logging.getLogger(__name__)

# Named tuples, because every request makes four, and a frozen dataclass takes three times as long.


class Received(NamedTuple):
    """A client requests a generation. `caller` is a digest, never a key; `body` is what it sent, untouched."""

    number: int
    caller: str
    request: ChatRequest
    body: Mapping[str, Any]
    body_bytes: int


class Restored(NamedTuple):
    """The history is ready to be sent with this API; `is_second_attempt` after DeepSeek refused the first."""

    number: int
    prepared: PreparedRequest
    is_second_attempt: bool
    upstream_api: UpstreamApi = CHAT
    # The first difference from the previous request of the chat, if any.
    divergence: Divergence | None = None


class Sent(NamedTuple):
    """DeepSeek accepted the call, after `retries` that failed."""

    number: int
    # Computes the body, for an observer that shows it.
    payload: Callable[[], Mapping[str, Any]]
    payload_bytes: int
    seconds: float
    retries: int = 0


class Finished(NamedTuple):
    """The exchange ended: `outcome` is "completed", "client left" or the message of an error."""

    number: int
    outcome: str
    status: int
    seconds: float
    first_delta_seconds: float | None
    message: Message | None
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    retries: int = 0
    # The first difference from the previous request of the chat, if any: the reason for tokens that were not cached.
    divergence: Divergence | None = None
    # Names of reasoning that upstream used besides `reasoning_content`, if it used both.
    mixed_names: tuple[str, ...] = ()


class PictureDescribed(NamedTuple):
    """A call to put a picture into words, for a model that sees none, is over: `outcome` is "described" or an error.

    `caller` and `picture` are digests; one call may serve several requests of the caller.
    """

    caller: str
    picture: str
    model: str
    outcome: str
    status: int
    seconds: float
    usage: Mapping[str, Any] | None = None


class Refused(NamedTuple):
    """A request was refused before an exchange began; `route` is the name of its route, or its method and path."""

    route: str
    status: int
    message: str


class PassedThrough(NamedTuple):
    """A request for a model of another upstream is over: `outcome` is its status, "client left" or an error."""

    number: int
    model: str
    host: str
    outcome: str
    seconds: float


Event = Received | Restored | Sent | Finished | PictureDescribed | Refused | PassedThrough


class Observer(Protocol):
    """Called by handler threads, several at a time; events of one exchange come in order."""

    def emit(self, event: Event) -> None: ...


class Observers:
    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer.emit(event)
            except Exception as error:
                _log.warning("%s failed: %s: %s", type(observer).__name__, type(error).__name__, error)
