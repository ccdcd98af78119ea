"""ClientRequest, one request of a caller with all that is known about it, and RequestReport, its events."""

import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.chat_memory import NO_CHAT
from deepseek_cursor_proxy.conversation import UNNAMED, Batches, ChatRequest, Delta, Reply, ToolCall
from deepseek_cursor_proxy.deepseek.api import CHAT
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents, Read
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs, Tokens
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, TooManyAttempts
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.observers.events import End, Event, Observers, Refused, RequestFacts, Terminal, caller_digest

if TYPE_CHECKING:
    from deepseek_cursor_proxy.upstream.response import StreamedResponse


class Admission(Protocol):
    """What is reserved of the limits of a named key for one request; settled once."""

    def end(self, event: Terminal) -> None:
        """Settle what the request used, as its last event says."""

    def settle(self, tokens: Tokens | None, cost: int | None = None) -> None:
        """Settle these tokens, at this cost if it is known; None: all that was reserved."""


class RequestReport:
    """The facts of one request, and its events; the terminal one is emitted once.

    The app opens a report with the request; the endpoint, the exchange, passthrough and a background job add what they
    learn. Whichever of them ends the request first emits the terminal event; any later one is dropped. A number is
    taken with the first event, so that requests without events leave no gaps.

    As long as `access` does not know the caller, `key` is empty: observers write nothing that lasts for such a request.
    Used by one thread at a time: the client's, and after it that of a background job.
    """

    # The caller's, and whether `access` knows it.
    namespace = b""
    # That of its [keys.NAME], if it has one.
    name = ""
    # What names the chat: the beginning of its digest, or what a feature calls it.
    conversation = ""
    requested_model = ""
    # The name of the program that sent it.
    client = ""
    stream = False
    body_bytes = 0
    # What is reserved of the limits of the caller's key, if it has any.
    admission: Admission | None = None
    has_ended = False
    _number = 0
    _key = ""

    def __init__(self, observers: Observers, numbers: Iterator[int], api: str, prefix: str = "") -> None:
        """`prefix` is unchecked text from the path; never logged."""
        self.emit: Callable[[Event], None] = observers.emit
        self._numbers = numbers
        self.api = api
        self.started_at = time.time()
        self.started = time.monotonic()
        self._is_known: Callable[[str], bool] = lambda digest: False
        self.prefix = prefix

    @property
    def number(self) -> int:
        if not self._number:
            self._number = next(self._numbers)
        return self._number

    @property
    def seconds(self) -> float:
        """The age of the request."""
        return time.monotonic() - self.started

    @property
    def key(self) -> str:
        """The name of the caller, or a digest that names it; "" as long as it is not known (see `access`)."""
        if not self._key and self.namespace and self._is_known(digest := caller_digest(self.namespace)):
            # A key that was accepted stays so for the rest of the request.
            self._key = self.name or digest
        return self._key

    def add_caller(
        self, namespace: bytes, is_known: Callable[[str], bool] = lambda digest: True, name: str = ""
    ) -> None:
        """`is_known` is asked by the caller's digest, again with every event: its key may be accepted by then."""
        self.namespace = namespace
        self._is_known = is_known
        self.name = name

    def add_body(self, body: Mapping[str, Any], size: int) -> None:
        model = body.get("model")
        self.requested_model = model if isinstance(model, str) else ""
        self.stream = body.get("stream") is True
        self.body_bytes = size

    def facts(self, request: ChatRequest | None = None) -> RequestFacts:
        """All that is known by now."""
        request = request or ChatRequest(self.requested_model, "", ())
        # In the order of the fields: with names it takes twice as long.
        return RequestFacts(
            self.number, self.started_at, self.api, self.key, request.requested_model, request.model, self.stream,
            len(request.messages), len(request.tools), self.body_bytes, self.conversation, self.client,
            request.chat_name.id[:_LONGEST_CHAT_ID],
        )  # fmt: skip

    def copy_for(self, emit: Callable[[Event], None]) -> "RequestReport":
        """A copy of the report, of one of several choices, whose events go to this function."""
        # The number is taken now, so that all copies have the same.
        assert self.number
        other = copy.copy(self)
        other.emit = emit
        # Settled once, at the end of all.
        other.admission = None
        return other

    def end(self, event: Terminal) -> None:
        """Emit the terminal event, unless there was one."""
        if not self.has_ended:
            self.has_ended = True
            if self.admission is not None:
                self.admission.end(event)
            self.emit(event)

    def refuse(self, route: str, error: BaseException) -> None:
        """End the request with an error that came before an exchange; without effect if it has ended."""
        if self.has_ended:
            return
        # `access` itself warns about too many attempts, once.
        is_logged_elsewhere = isinstance(error, (TooManyAttempts, ClientGone))
        self.end(Refused(self.facts(), route, End.of(error), self.seconds, is_logged_elsewhere))


class AnswerCache(Protocol):
    """The response cache in one exchange."""

    # The value of the header X-Cache.
    @property
    def state(self) -> str: ...

    def find(self, caller: bytes, url: str, body: bytes) -> "StreamedResponse | None": ...
    def wrap(self, read: Read) -> Read: ...
    def store_answer(self, reply: Reply, tokens: Tokens | None, cost: Cost | None) -> None: ...


class OpenExchange(Protocol):
    """An exchange whose call DeepSeek accepted, of one answer or of several choices. Used by one thread."""

    is_closed: bool

    # The value of the header X-Cache, if it has one.
    @property
    def cache_state(self) -> str: ...
    # Whether an upstream accepted it.
    @property
    def is_sent(self) -> bool: ...
    def notice(self, choice: int) -> str: ...
    def deltas(self) -> Batches: ...
    def fail(self, error: Exception) -> None: ...
    def close(self) -> None: ...


class WrittenCalls(Protocol):
    """Converts the calls of one answer that the model wrote as text."""

    # Those that it converted, and the text as it came.
    calls: list[ToolCall]
    markup: list[str]

    def read(self, read: Read, data: bytes) -> ParsedEvents: ...
    def convert(self, delta: Delta, *, is_whole: bool = False) -> list[Delta]: ...


class RelayedApi(NamedTuple):
    """An API of clients as another upstream has it, below its base URL, and the last event of its streams, if any."""

    path: str
    last_event: re.Pattern[bytes] | None = None
    failure_events: Callable[[ProxyError], bytes] = lambda error: b""


# Those of agents have up to about 80 characters.
_LONGEST_CHAT_ID = 100


class ClientRequest:
    """A request of an admitted caller: who asks, what is asked, and how it is answered. Each step adds what it learns.

    Three kinds of key may pay for it. The first two are `credential`, the third takes its place for one call:

        the caller's own    it came with the request
        a held key          the owner's: DEEPSEEK_API_KEY, or the variable of an `upstream_key_env`; then `has_held_key`
        a leased key        the owner's: one of the `key_env` of a table [upstreams], see `Target.lease`

    No client may see a key of the owner. Used by one thread at a time, as its report is.
    """

    # Whether to convert calls in the model's own markup, whatever the upstream.
    reads_written_calls = False
    # Where to collect the log probabilities of the answer, if the request asks for them.
    logprobs: TokenLogprobs | None = None
    # The decoded body, which must not be changed, and what the last request of this chat left.
    body: Mapping[str, Any] = MappingProxyType({})
    memory = NO_CHAT
    # What the headers call the chat; the body may have a better name, which is in `chat`.
    name = UNNAMED
    # The body, parsed, and the API of DeepSeek to send it with.
    chat = ChatRequest("", "", ())
    upstream_api = CHAT
    # Set if the response cache may answer it. It is then streamed, whatever the client wants.
    cache: AnswerCache | None = None
    # Whether the client gets nothing before the end of the answer, though it is streamed to us; and whether it is then
    # joined to one chat completion, because the Writer of its API does not join it.
    is_plain = False
    wants_completion = False
    # Why this caller may not spend the keys of `key_env`; None if it may.
    spend_refusal: ProxyError | None = None

    # No named tuple: each `_replace` of so many fields took three times as long as making the first.
    def __init__(
        self, http: HttpRequest, caller: Caller, report: RequestReport, namespace: bytes, held_key: str | None = None
    ) -> None:
        self.http = http
        self.caller = caller
        self.report = report
        # The caller's namespace: its reasoning is stored under digests made of this.
        self.namespace = namespace
        self.credential = held_key or caller.credential
        self.has_held_key = held_key is not None
        # The client to watch; a background job has its own.
        self.peer = http.peer
