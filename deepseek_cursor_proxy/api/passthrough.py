"""Models that are asked elsewhere: the request goes out as it came in, and the answer comes back byte for byte.

So that Cursor's own GPT models keep working while its base URL points here. The key is the route's own, taken from the
environment; the client's, which is for DeepSeek, is never sent there. Who may spend it is access's part. Nothing is
restored, recorded or tried again.
Of the answer's head only status, content type and the time to wait are kept.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.api.reply import unexpected
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, Unauthorized
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, Peer
from deepseek_cursor_proxy.lull import BLOCKING, Lull
from deepseek_cursor_proxy.observers.events import PassedThrough
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.client import raise_for_redirect
from deepseek_cursor_proxy.upstream.destination import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

# Nothing that could become a second header.
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,199}")
# A line that does not end is not held back for ever.
_LONGEST_LINE = 1024 * 1024


class StreamEnds(NamedTuple):
    """How a stream of an API ends: what marks its last event, and the events of a failure."""

    last_event: re.Pattern[bytes]
    failure_events: Callable[[ProxyError], bytes]


class PassthroughApi(NamedTuple):
    """An API as another upstream has it, below its base URL; `stream` is None if it has no streams."""

    path: str
    stream: StreamEnds | None = None


class PassthroughRequest(NamedTuple):
    """A request to send as it came, and the [passthrough] key that its model was found by."""

    api: PassthroughApi
    key: str
    body: Mapping[str, Any]
    raw: bytes
    peer: Peer | None = None

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def stream(self) -> StreamEnds | None:
        """None for a request that wants no stream."""
        return self.api.stream if self.body.get("stream") is True else None


def relay(request: PassthroughRequest, services: Services, environment: Mapping[str, str] = os.environ) -> HttpReply:
    """The reply of the upstream that the route names; raises ProxyError or ClientGone with nothing left open."""
    route = services.config.passthrough[request.key]
    setting = f'[passthrough."{request.key}"]'
    credential = environment.get(route.key_env, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]{1,4096}", credential):
        raise Unauthorized(
            f"{safe_text(request.model, 60)} goes to {_host(route.base_url)} by {setting}, but the environment "
            f"variable {route.key_env} holds no key. Set it where the proxy is started."
        )
    destination = Destination(route.base_url + request.api.path, _host(route.base_url), f"base_url of {setting}")
    outcome = _Outcome(services, request.model, destination.name)
    try:
        (slot,) = services.upstream.call_limits.of(setting).acquire(request.peer)
        answer = services.upstream.send_to(destination, request.raw, credential, request.peer, slot)
        if request.stream is not None and answer.status == 200:
            headers = (*_headers(answer), ("X-Accel-Buffering", "no"))
            return HttpReply(200, _Stream(answer, outcome, request.stream), headers)
        return _whole(answer, credential, outcome)
    except (ProxyError, ClientGone) as error:
        outcome.failure(error)
        raise


def _whole(answer: UpstreamResponse, credential: str, outcome: "_Outcome") -> HttpReply:
    with closing(answer):
        raise_for_redirect(answer)
        body = answer.read()
    if answer.status >= 400:
        # A place that quotes the key it was called with would hand it to somebody who does not have it.
        body = body.replace(credential.encode(), b"***")
    outcome.end(str(answer.status))
    return HttpReply(answer.status, body, _headers(answer))


def _headers(answer: UpstreamResponse) -> Headers:
    kind = answer.headers.get("content-type", "")
    headers: Headers = (("Content-Type", kind if _CONTENT_TYPE.fullmatch(kind) else "application/octet-stream"),)
    if answer.retry_after is not None:
        headers += (("Retry-After", str(answer.retry_after)),)
    return headers


def _host(base_url: str) -> str:
    return urlsplit(base_url).hostname or base_url


class _Stream:
    """A streamed answer, in whole lines so that an error can follow whatever was sent; closing it ends the call."""

    is_finished = False

    def __init__(self, answer: UpstreamResponse, outcome: "_Outcome", ends: StreamEnds) -> None:
        self._answer = answer
        self._outcome = outcome
        self._ends = ends
        self._is_done = False

    def __iter__(self) -> Iterator[bytes | Lull]:
        yield BLOCKING
        try:
            yield from self._lines()
            self._outcome.end("200")
        except ClientGone:
            raise
        except Exception as error:
            if self._is_done:
                # All of the answer was sent; only the end of the connection was missing.
                self._outcome.end("200")
                return
            failure = error if isinstance(error, ProxyError) else unexpected(error)
            self._outcome.failure(failure)
            yield b"\n" + self._ends.failure_events(failure)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        with closing(self._answer.pieces()) as pieces:
            for piece in pieces:
                data = rest + piece
                end = data.rfind(b"\n") + 1 if len(data) < _LONGEST_LINE else len(data)
                rest = data[end:]
                if not self._is_done and self._ends.last_event.search(data, 0, end):
                    self._is_done = True
                    self._answer.hurry()
                if end:
                    yield data[:end]
        if rest:
            yield rest

    def close(self) -> None:
        self._answer.close(was_complete=self._is_done)
        self._outcome.end("client left")


class _Outcome:
    """How a passed-through request ended, which is emitted once. Used by one thread."""

    def __init__(self, services: Services, model: str, host: str) -> None:
        self._emit = services.observers.emit
        self._number = next(services.numbers)
        self._model = model
        self._host = host
        self._started = time.monotonic()
        self._is_emitted = False

    def failure(self, error: ProxyError | ClientGone) -> None:
        self.end(f"{error.message} ({error.status})" if isinstance(error, ProxyError) else "client left")

    def end(self, outcome: str) -> None:
        if not self._is_emitted:
            self._is_emitted = True
            seconds = time.monotonic() - self._started
            self._emit(PassedThrough(self._number, self._model, self._host, outcome, seconds))
