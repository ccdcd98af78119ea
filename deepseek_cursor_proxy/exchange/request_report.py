"""RequestReport: what is known about one request, and its events; the terminal one is emitted once.

The app opens a report with the request; the endpoint, the exchange, passthrough and a background job add what they
learn. Whichever of them ends the request first emits the terminal event; any later one is dropped.
A number is taken with the first event, so that requests without events leave no gaps.

As long as `access` does not know the caller, its `key` is empty: observers write nothing that lasts for such a request.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.errors import ClientGone, TooManyAttempts
from deepseek_cursor_proxy.observers.events import (
    DIGEST_LENGTH,
    End,
    Observer,
    Refused,
    RequestFacts,
    Terminal,
    caller_digest,
)


class RequestReport:
    """Used by one thread at a time: the client's, and after it that of a background job."""

    __slots__ = (
        "_is_known", "_key", "_number", "_numbers", "api", "body_bytes", "caller", "emit", "has_ended", "path_session",
        "requested_model", "session", "started", "started_at", "stream",
    )  # fmt: skip

    def __init__(self, observers: Observer, numbers: Iterator[int], api: str, path_session: str = "") -> None:
        """`path_session` is any text of the request's path, which no event carries."""
        self.emit = observers.emit
        self._numbers = numbers
        self._number = 0
        self.api = api
        self.started_at = time.time()
        self.started = time.monotonic()
        # The caller's namespace, and whether `access` knows it.
        self.caller = b""
        self._is_known: Callable[[], bool] = lambda: False
        self._key = ""
        self.path_session = path_session
        # The same once it is found to be one of the caller's sessions.
        self.session = ""
        self.requested_model = ""
        self.stream = False
        self.body_bytes = 0
        self.has_ended = False

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
        """The digest that names the caller; "" as long as it is not known (see `access`)."""
        if not self._key and self.caller and self._is_known():
            # A key that was accepted stays so for the rest of the request.
            self._key = caller_digest(self.caller)
        return self._key

    def add_caller(self, namespace: bytes, is_known: Callable[[], bool] = lambda: True) -> None:
        """`is_known` is asked again with every event: an upstream may have accepted the key by then."""
        self.caller = namespace
        self._is_known = is_known

    def add_body(self, body: Mapping[str, Any], size: int) -> None:
        model = body.get("model")
        self.requested_model = model if isinstance(model, str) else ""
        self.stream = body.get("stream") is True
        self.body_bytes = size

    def facts(self, request: ChatRequest | None = None, conversation: bytes = b"") -> RequestFacts:
        """All that is known by now; `conversation` is the digest of the chat, which names its session."""
        if request is None:
            facts = RequestFacts(self.number, self.started_at, self.api, self.key, self.requested_model)
            return facts._replace(stream=self.stream, body_bytes=self.body_bytes, session=self.session)
        return RequestFacts(
            self.number,
            self.started_at,
            self.api,
            self.key,
            request.requested_model,
            request.model,
            self.stream,
            len(request.messages),
            len(request.tools),
            self.body_bytes,
            self.session or conversation.hex()[:DIGEST_LENGTH],
        )

    def copy_for(self, observer: Observer) -> "RequestReport":
        """The same report with its events for this observer, which reports on one of several choices."""
        # Taken now, so that all have the same.
        assert self.number
        other = copy.copy(self)
        other.emit = observer.emit
        return other

    def end(self, event: Terminal) -> None:
        """Emit the terminal event, unless there was one."""
        if not self.has_ended:
            self.has_ended = True
            self.emit(event)

    def refuse(self, route: str, error: BaseException) -> None:
        """End the request with an error that came before an exchange; without effect if it has ended."""
        if self.has_ended:
            return
        # `access` warns about the first, once.
        is_quiet = isinstance(error, (TooManyAttempts, ClientGone))
        self.end(Refused(self.facts(), route, End.of(error), self.seconds, is_quiet))
