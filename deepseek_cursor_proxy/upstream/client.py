"""Sends one call to DeepSeek or a passthrough upstream: a body out, an UpstreamResponse back, network failures as
ProxyErrors. A pooled connection that turns out to be closed is replaced once.

A call is a urllib request, opened by an opener that has exactly one handler, ours, which uses a pooled connection. So
urllib does nothing on its own: it follows no redirect (the key must not travel), hands the request to no proxy of the
environment, and raises no error page as an exception. `call_limit` bounds the calls at once, `connections` opens
connections, `response` reads what comes back.
"""

import ssl
import time
import urllib.request
from functools import lru_cache
from typing import NamedTuple

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.error_messages import read_refusal
from deepseek_cursor_proxy.errors import (
    ClientGone,
    ConnectionTimeout,
    ProxyError,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import Action, no_action
from deepseek_cursor_proxy.upstream.call_limit import CallLimits, Slot
from deepseek_cursor_proxy.upstream.connections import (
    Connection,
    ConnectionPool,
    Connector,
    ConnectTimeout,
    Destination,
    Origin,
    is_permanent,
)
from deepseek_cursor_proxy.upstream.response import ClosedBeforeResponse, UpstreamResponse


class Call(NamedTuple):
    """A body for a destination, and the client to watch meanwhile.

    `before_wait` runs before every wait, usually once: when the request has been sent.
    """

    destination: Destination
    credential: str
    body: bytes = b""
    peer: Peer | None = None
    before_wait: Action = no_action


class UpstreamClient:
    """Called by any thread; all share the pool and the call limits."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self.call_limits = CallLimits(config.most_calls, config.queue_timeout)
        connect = Connector(config).open
        # A pooled connection may turn out to be dead after a request was sent on it. The request is then sent again,
        # which users without a retry budget do not want.
        self._pool = ConnectionPool(connect) if config.retry_budget else ConnectionPool(connect, most_idle=0)
        self._connect = connect
        self._opener = urllib.request.OpenerDirector()
        self._opener.add_handler(_PoolHandler(self._pool, config))
        # The moment, of `time.monotonic`, at which an upstream last answered a call; -inf before the first.
        self.reached_at = float("-inf")

    def send(self, call: Call, slot: Slot | None = None) -> UpstreamResponse:
        """Make the call; ProxyError or ClientGone unless upstream accepts it. The slot ends with the response."""
        answer = self.send_to(call, slot)
        if answer.status == 200:
            return answer
        try:
            raise_for_redirect(answer)
            if not 400 <= answer.status < 600:
                raise UpstreamFailed(f"{call.destination.name} answered with the unexpected status {answer.status}.")
            raise read_refusal(answer.status, answer.read_refusal(), answer.retry_after, call.destination.name)
        finally:
            answer.close()

    def send_to(self, call: Call, slot: Slot | None = None) -> UpstreamResponse:
        """The same call; returns a response of any status."""
        destination = call.destination
        try:
            request = _parsed_request(destination, call.credential).with_call(call)
            answer: UpstreamResponse = self._opener.open(request, timeout=self._config.request_timeout)
        except BaseException as error:
            if slot is not None:
                slot.release()
            if isinstance(error, (OSError, ValueError)):
                raise _to_proxy_error(error, destination.origin, destination.setting) from None
            raise
        self.reached_at = time.monotonic()
        answer.slot = slot
        return answer

    def probe(self, destination: Destination) -> None:
        """Open a connection and close it again, without a request; raises a ProxyError if that fails."""
        try:
            self._connect(destination.origin, None).close()
        except (OSError, ValueError) as error:
            raise _to_proxy_error(error, destination.origin, destination.setting) from None

    def close(self) -> None:
        self._pool.close()


_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "text/event-stream, application/json"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", f"deepseek-cursor-proxy/{__version__}"),
)


class _PooledRequest(urllib.request.Request):
    """A urllib request with its encoded head, and the call that it is made for."""

    call: Call

    def __init__(self, destination: Destination, credential: str) -> None:
        # Without the host urllib would parse the URL twice.
        self.origin = destination.origin
        super().__init__(destination.url, origin_req_host=self.origin.host, method=destination.method)
        self.add_unredirected_header("Authorization", f"Bearer {credential}")
        headers = [("Host", self.host), *_HEADERS, *self.unredirected_hdrs.items()]
        # Without the line that depends on the body, and the blank one.
        self.head = heads.request_head(destination.method, self.selector, headers)[:-2]
        # A plain dictionary is copied in half the time.
        self._fields = {**self.__dict__}

    def with_call(self, call: Call) -> "_PooledRequest":
        """A copy for this call."""
        request = object.__new__(_PooledRequest)
        request.__dict__ = {**self._fields, "call": call}
        return request


# Parsing a URL and encoding a head for every call took a quarter of the instructions of sending it.
_parsed_request = lru_cache(256)(_PooledRequest)


class _PoolHandler(urllib.request.BaseHandler):
    """Sends urllib requests on pooled connections. Called by any thread."""

    def __init__(self, pool: ConnectionPool, config: ProxyConfig) -> None:
        self._pool = pool
        self._config = config

    def http_open(self, request: _PooledRequest) -> UpstreamResponse:
        """Raises OSError, ValueError or ClientGone, with nothing left open."""
        call = request.call
        origin, peer = request.origin, call.peer
        connection = self._pool.take(origin, peer, call.before_wait)
        try:
            return self._call(request, connection)
        except ConnectionError:
            if not connection.is_reused:
                raise
            # It died while it was idle, which is no failure of DeepSeek.
            return self._call(request, self._pool.take(origin, peer, call.before_wait, is_new=True))

    def _call(self, request: _PooledRequest, connection: Connection) -> UpstreamResponse:
        """Send the request and read the head of the response."""
        call = request.call
        head = b"%bContent-Length: %d\r\n\r\n" % (request.head, len(call.body))
        try:
            # Both together for no longer than that: DeepSeek may think for minutes.
            connection.send(head + call.body, self._config.write_timeout, call.peer, call.before_wait)
            call.before_wait()
            answer = UpstreamResponse(connection, self._pool, self._config, call.peer, call.destination)
            try:
                answer.read_head()
            except ClientGone as gone:
                gone.connect_seconds = answer.connect_seconds
                raise
        except BaseException:
            connection.close()
            raise
        return answer

    https_open = http_open


def raise_for_redirect(answer: UpstreamResponse) -> None:
    if 300 <= answer.status < 400:
        raise UpstreamFailed(
            f"{answer.destination.name} redirects ({answer.status}), which is never followed with your key. "
            f"Correct {answer.destination.setting}."
        )


def _to_proxy_error(error: Exception, origin: Origin, setting: str) -> ProxyError:
    """A failure of the network as an error that the user understands."""
    host = origin.host
    if isinstance(error, ConnectTimeout):
        return ConnectionTimeout(f"{host} cannot be reached in time. Check network and {setting}, or try again.")
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"{host} did not answer in time. Try again, or raise --request-timeout.")
    if isinstance(error, (ClosedBeforeResponse, heads.IncompleteHead)):
        return UpstreamDropped(f"{host} closed the connection without answering. Try again in a moment.")
    if isinstance(error, ssl.SSLCertVerificationError):
        return UpstreamFailed(
            f"The certificate of {host} is not trusted ({error.verify_message}), so nothing was sent to it. "
            f"Check {setting}, or name the certificate of your network's own authority in SSL_CERT_FILE."
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return UpstreamFailed(f"No secure connection to {host}: {error.reason or error}. Check {setting}.")
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return (UpstreamFailed if is_permanent(error) else UpstreamDropped)(
            f"{host}:{origin.port} cannot be reached ({reason}). Check network and {setting}."
        )
    return UpstreamFailed(f"{host} answered something that is not HTTP: {error}.")
