"""The events of a request: received, restored, sent, and how it ended.

    Finished         an exchange ended: completed, failed, or its client left
    Refused          the request ended before an exchange began
    PassedThrough    the request went to another upstream

Every request that asks for a generation, or is refused, ends in exactly one of these three. One that is answered
without a generation (a list of models, a count of tokens, a stored response) has no event.

Logic emits these events; only observers print, count or write files. An observer never influences an answer: its
exceptions are logged here and go no further.
"""

import logging
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.conversation import ChatRequest, Message, ToolCall
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.reasoning.chats import PromptTokens
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest

_log = logging.getLogger(__name__)

# Of mixed text; only ever shown as an estimate.
_CHARACTERS_PER_TOKEN = 4
# Hexadecimal digits of a digest that tell callers and chats apart.
DIGEST_LENGTH = 12
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}}")


@lru_cache(256)
def is_name(key: str) -> bool:
    """Whether a caller is called by the name of its key, and not by a digest."""
    return bool(key) and _DIGEST.fullmatch(key) is None


def caller_digest(namespace: bytes) -> str:
    """The name of a caller in logs and stores."""
    return namespace.hex()[:DIGEST_LENGTH]


class Result(StrEnum):
    """How a request ended, in one word."""

    COMPLETED = "completed"
    FAILED = "failed"
    CLIENT_LEFT = "client_left"
    # By this proxy: key, body, size, queue or limit.
    REFUSED = "refused"
    PASSED_THROUGH = "passed_through"

    def __init__(self, word: str) -> None:
        # Whether it counts as failed: in the ledger, in reports and on the dashboard.
        self.is_failure = word in ("failed", "refused")


# Named tuples, because every request makes several, and a frozen dataclass takes three times as long.


class End(NamedTuple):
    """How a request ended, with its status and a text: "completed", "client left" or the message of an error."""

    result: Result
    status: int
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "End":
        if isinstance(error, (errors.ClientGone, GeneratorExit)):
            return CLIENT_LEFT
        if not isinstance(error, errors.ProxyError):
            return cls(Result.FAILED, 500, f"unexpected {type(error).__name__}")
        return cls(Result.FAILED if isinstance(error, _FAILURES) else Result.REFUSED, error.status, error.message)


_FAILURES = (
    errors.UpstreamFailed,
    errors.UpstreamRefused,
    errors.UpstreamTimeout,
    errors.InternalError,
    errors.ProxyStopping,
)
COMPLETED = End(Result.COMPLETED, 200, "completed")
# The status is what nginx calls a request whose client closed the connection.
CLIENT_LEFT = End(Result.CLIENT_LEFT, 499, "client left")


class RequestFacts(NamedTuple):
    """What is known about a request however it ends; "" and 0 stand for what was not read."""

    number: int
    # Unix time.
    started_at: float
    # chat, responses or messages; other for a path without an API.
    api: str
    # The name of the caller's key, else twelve hexadecimal digits of a digest of the caller, never a key; "" as long as
    # no upstream has accepted its key (see `access`): nothing that lasts may be written for such a request.
    key: str = ""
    requested_model: str = ""
    model: str = ""
    stream: bool = False
    messages: int = 0
    tools: int = 0
    body_bytes: int = 0
    # Twelve hexadecimal digits that all requests of a chat have in common, else what a feature calls the chat.
    conversation: str = ""
    # The name of the program that sent it, by its User-Agent.
    client: str = ""
    # Its own id of the chat, cut short.
    chat: str = ""


class Progress(NamedTuple):
    """How far a running request is, and of its answer the characters and the seconds until the first of them."""

    facts: RequestFacts
    age_seconds: float
    # Whether an upstream accepted it.
    is_sent: bool = False
    characters: int = 0
    first_delta_seconds: float | None = None

    @property
    def phase(self) -> str:
        """queued, sent or streaming."""
        return "streaming" if self.first_delta_seconds is not None else "sent" if self.is_sent else "queued"

    @property
    def output_tokens_estimate(self) -> int:
        return self.characters // _CHARACTERS_PER_TOKEN


class Received(NamedTuple):
    """A client requests a generation. `body` is what it sent, untouched."""

    number: int
    request: ChatRequest
    body: Mapping[str, Any]
    body_bytes: int
    # The digest that names the caller; "" if that is not known yet.
    key: str
    # Reads how far the request is; any thread may call it until the request has ended.
    progress: Callable[[], Progress]


class Restored(NamedTuple):
    """The history is ready to be sent with this API; `is_second_attempt` after DeepSeek refused the first."""

    number: int
    prepared: PreparedRequest
    is_second_attempt: bool
    upstream_api: UpstreamApi = CHAT
    # The first difference from the previous request of the chat, if any.
    divergence: str | None = None
    # Types of tools that DeepSeek runs itself and the upstream refused: the request is sent once more, without them.
    refused_tools: tuple[str, ...] = ()
    # Whether its tools are those of the request before it in the chat, because the client left them out.
    has_old_tools: bool = False


class Sent(NamedTuple):
    """DeepSeek accepted the call, after `retries` that failed."""

    number: int
    # Computes the body, for an observer that shows it.
    payload: Callable[[], Mapping[str, Any]]
    payload_bytes: int
    seconds: float
    retries: int = 0
    # The upstream that accepted it, where there are several.
    upstream: str = ""


class Timing(NamedTuple):
    """Seconds of a request: in our queue, until connected, until the first delta, in all. None: it never got there."""

    total: float
    first_delta: float | None = None
    queue: float | None = None
    # 0 on a connection that was open already.
    connect: float | None = None


class Repair(NamedTuple):
    """What was done about a broken turn: calls made of text, with the text as it came, or a second request."""

    calls: tuple[ToolCall, ...] = ()
    markup: tuple[str, ...] = ()
    is_repeated: bool = False

    def summary(self) -> str:
        """One line for the log: `2 calls written as text, empty turn retried`."""
        count = len(self.calls)
        parts = [f"{count} call{'' if count == 1 else 's'} written as text"] if count else []
        return ", ".join(parts + ["empty turn retried"] * self.is_repeated)


class Finished(NamedTuple):
    """The exchange ended."""

    facts: RequestFacts
    end: End
    timing: Timing
    message: Message | None
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    # The upstream that was called; none for an answer of the response cache.
    upstream: str = ""
    is_cached: bool = False
    # The request as it was last sent, if it was.
    prepared: PreparedRequest | None = None
    retries: int = 0
    # The first difference from the previous request of the chat, if any: the reason for tokens that were not cached.
    divergence: str | None = None
    # Read from the usage.
    tokens: Tokens | None = None
    # The tokens of the previous request of the chat, if they are known.
    last_prompt: PromptTokens | None = None
    # None if nothing was used, or the price is not known.
    cost: Cost | None = None
    # Names of reasoning that upstream used besides `reasoning_content`, if it used both.
    mixed_names: tuple[str, ...] = ()
    # The further answers of a request with n > 1; `usage` is the sum of all.
    other_messages: tuple[Message, ...] = ()
    # A word for each retry: http_ and a status, or dropped.
    retry_reasons: tuple[str, ...] = ()
    # The upstreams that failed, so that another was asked.
    rerouted: tuple[str, ...] = ()
    # None if the turn was not broken.
    repair: Repair | None = None


class Refused(NamedTuple):
    """A request ended before an exchange began; `route` is the name of its route, or its method and path."""

    facts: RequestFacts
    route: str
    end: End
    seconds: float
    # Whether it needs no line in the log: `access` has reported it, or the client has left.
    is_logged_elsewhere: bool = False


class PassedThrough(NamedTuple):
    """A request for a model of another upstream is over; the message of its end is the status or an error."""

    facts: RequestFacts
    host: str
    end: End
    seconds: float
    # Whether the upstream may charge for it: it accepted the request, or had it when the client left.
    may_cost: bool = False


class Rerouted(NamedTuple):
    """A call failed at one upstream, and another is asked."""

    number: int
    failed: str
    reason: str
    upstream: str


class UpstreamChanged(NamedTuple):
    """An upstream, or only one of its keys or models, is not asked for some seconds, or answers again.

    The key is named by its digest; with a model it is left alone for such requests only.
    """

    upstream: str
    is_ready: bool
    reason: str = ""
    seconds: float = 0.0
    key: str = ""
    model: str = ""


Terminal = Finished | Refused | PassedThrough
Event = Received | Restored | Sent | Finished | Refused | PassedThrough | Rerouted | UpstreamChanged


Handlers = Mapping[type[Event], Callable[[Any], None]]


class Observers:
    """Passes every event to the functions that handle its type.

    Called by any thread, several at a time; events of one exchange come in order.
    """

    def __init__(self, *observers: Handlers) -> None:
        self._handlers: dict[type[Event], list[Callable[[Any], None]]] = {}
        for handlers in observers:
            for kind, handle in handlers.items():
                self._handlers.setdefault(kind, []).append(handle)

    def emit(self, event: Event) -> None:
        for handle in self._handlers.get(type(event), ()):
            try:
                handle(event)
            except Exception as error:
                name = getattr(handle, "__qualname__", handle)
                _log.warning("%s failed: %s: %s", name, type(error).__name__, error)
