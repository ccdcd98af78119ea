"""Models that are asked elsewhere: the request goes out as it came in, and the answer comes back byte for byte.

So that Cursor's own GPT models keep working while its base URL points here. The key is the route's own, taken from the
environment; the client's, which is for DeepSeek, is never sent there. Who may spend it is access's part. Nothing is
restored, recorded or tried again.
Of the answer's head only status, content type and the time to wait are kept.
"""

import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from deepseek_cursor_proxy.errors import ClientGone, ProxyError, Unauthorized
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, Peer
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.client import raise_for_redirect
from deepseek_cursor_proxy.upstream.destination import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

_log = logging.getLogger(__name__)

# Nothing that could become a second header.
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,199}")
# A line that does not end is not held back for ever.
_LONGEST_LINE = 1024 * 1024


CHAT = "/chat/completions"
MESSAGES = "/messages"
# By its path, what ends the streams of an API.
_LAST_WORDS = {
    CHAT: re.compile(rb"data: \[DONE\]"),
    "/responses": re.compile(rb"event: response\.(?:completed|incomplete|failed)\b"),
    MESSAGES: re.compile(rb"event: message_stop\b"),
}


@dataclass(frozen=True)
class Passed:
    """A request to pass on, and the [passthrough] key that its model was found by."""

    key: str
    model: str
    body: bytes
    is_stream: bool
    peer: Peer | None = None
    path: str = CHAT


def relay(passed: Passed, services: Services, environment: Mapping[str, str] = os.environ) -> HttpReply:
    """The answer of the place that the route names; ProxyError or ClientGone, with nothing left open, otherwise."""
    route = services.config.passthrough[passed.key]
    setting = f'[passthrough."{passed.key}"]'
    credential = environment.get(route.key_env, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]{1,4096}", credential):
        raise Unauthorized(
            f"{safe_text(passed.model, 60)} goes to {_host(route.base_url)} by {setting}, but the environment variable "
            f"{route.key_env} holds no key. Set it where the proxy is started."
        )
    destination = Destination(route.base_url + passed.path, _host(route.base_url), f"base_url of {setting}")
    told = _Told(services, passed.model, destination.name)
    try:
        (slot,) = services.upstream.call_limits.of(setting).acquire(passed.peer)
        answer = services.upstream.send_to(destination, passed.body, credential, passed.peer, slot)
        if passed.is_stream and answer.status == 200:
            return HttpReply(200, _Stream(answer, told, passed.path), (*_headers(answer), ("X-Accel-Buffering", "no")))
        return _whole(answer, credential, told)
    except (ProxyError, ClientGone) as error:
        told.failure(error)
        raise


def _whole(answer: UpstreamResponse, credential: str, told: "_Told") -> HttpReply:
    with closing(answer):
        raise_for_redirect(answer)
        body = answer.read()
    if answer.status >= 400:
        # A place that quotes the key it was called with would hand it to somebody who does not have it.
        body = body.replace(credential.encode(), b"***")
    told.end(str(answer.status))
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

    # It has no lulls.
    wait_handle = None
    is_over = False

    def __init__(self, answer: UpstreamResponse, told: "_Told", path: str) -> None:
        self._answer = answer
        self._told = told
        self._path = path
        self._is_done = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._lines()
            self._told.end("200")
        except ProxyError as error:
            if self._is_done:
                # It had said all there was; only the end of the connection was missing.
                self._told.end("200")
                return
            self._told.failure(error)
            yield b"\n" + self._failed(error)

    def _failed(self, error: ProxyError) -> bytes:
        if self._path == MESSAGES:
            # Only here: it brings a whole API with it.
            from deepseek_cursor_proxy.protocols.anthropic import errors

            failure = errors.failure(error, f"req_{secrets.token_hex(12)}")
            return sse.event(encode_json(failure), "error")
        words = {"message": error.message, "param": None, "code": error.code}
        if self._path != CHAT:
            return sse.event(encode_json({"type": "error", **words}), "error")
        return sse.event(encode_json({"error": {**words, "type": error.type_in_stream}})) + sse.DONE

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        with closing(self._answer.pieces()) as pieces:
            for piece in pieces:
                data = rest + piece
                end = data.rfind(b"\n") + 1 if len(data) < _LONGEST_LINE else len(data)
                rest = data[end:]
                if not self._is_done and _LAST_WORDS[self._path].search(data, 0, end):
                    self._is_done = True
                    self._answer.hurry()
                if end:
                    yield data[:end]
        if rest:
            yield rest

    def close(self) -> None:
        self._answer.close(was_complete=self._is_done)
        self._told.end("client left")


class _Told:
    """The one line in the console about a request that was passed on."""

    def __init__(self, services: Services, model: str, host: str) -> None:
        self._number = next(services.numbers)
        self._what = f"{safe_text(model, 60)} passed on to {host}"
        self._started = time.monotonic()
        self._is_told = False

    def failure(self, error: ProxyError | ClientGone) -> None:
        self.end(f"{safe_text(error.message)} ({error.status})" if isinstance(error, ProxyError) else "client left")

    def end(self, outcome: str) -> None:
        if not self._is_told:
            self._is_told = True
            _log.info("─ #%d %s · %s · %.1f s", self._number, self._what, outcome, time.monotonic() - self._started)
