"""One call to DeepSeek (or past it): send a payload, hand back the answer, make every network failure a ProxyError.

The call goes through a urllib opener that has exactly one handler, ours, running on the connection pool. So nothing
urllib would do on its own can happen: no redirect is followed (the key must not travel), no proxy of the environment
is handed the request, no error page is raised as an exception. How many calls there are at once is admission's part,
how a connection comes about connecting's, reading what comes back upstream_answer's.
"""

import ssl
import urllib.request
from functools import lru_cache
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.error_messages import read_refusal
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.upstream.call_limit import CallLimits, Slot
from deepseek_cursor_proxy.upstream.connect import Connector, ConnectTimeout, is_permanent
from deepseek_cursor_proxy.upstream.destination import Destination
from deepseek_cursor_proxy.upstream.pool import Connection, ConnectionPool, Origin
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from deepseek_cursor_proxy.upstream.response_head import ClosedBeforeResponse

_CHAT = "/chat/completions"


class Upstream:
    """Called by handler threads; the pool and the gate in front of it are all they share."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._deepseek = config.upstream_base_url.rstrip("/")
        self.call_limits = CallLimits(config.most_calls, config.queue_timeout)
        # That a kept connection is dead may show only after a request was sent on it, which then has to be sent again.
        connect = Connector(config).open
        self._pool = ConnectionPool(connect) if config.retry_budget else ConnectionPool(connect, most_idle=0)
        self._opener = urllib.request.OpenerDirector()
        self._opener.add_handler(_PoolHandler(self._pool, config))

    def send(
        self, body: bytes, credential: str, peer: Peer | None, slot: Slot | None = None, path: str = _CHAT
    ) -> UpstreamResponse:
        """Make the call; returns once DeepSeek accepted it, raises a ProxyError (or ClientGone) otherwise.

        The place that it was admitted to, if it had to be, goes with the answer, and is left when there is none.
        """
        answer = self.send_to(Destination(self._deepseek + path), body, credential, peer, slot)
        try:
            _raise_for_status(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    def send_to(
        self, destination: Destination, body: bytes, credential: str, peer: Peer | None, slot: Slot | None = None
    ) -> UpstreamResponse:
        """The same call, to anybody and with whatever status it is answered."""
        call = _Call(destination, body, peer)
        call.add_unredirected_header("Authorization", f"Bearer {credential}")
        try:
            answer: UpstreamResponse = self._opener.open(call, timeout=self._config.request_timeout)
        except BaseException:
            if slot is not None:
                slot.release()
            raise
        answer.slot = slot
        return answer

    def close(self) -> None:
        self._pool.close()


_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "text/event-stream, application/json"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", f"deepseek-cursor-proxy/{__version__}"),
)


class _Call(urllib.request.Request):
    """A urllib request that knows for whom it is made, and what to say when it fails."""

    def __init__(self, destination: Destination, body: bytes, peer: Peer | None) -> None:
        # As its own __init__ leaves it, which would take the address apart anew for every call.
        self.__dict__.update(_taken_apart(destination.url).__dict__)
        self.headers, self.unredirected_hdrs, self.data = {}, {}, body
        self.destination = destination
        self.body = body
        self.peer = peer


@lru_cache(64)
def _taken_apart(url: str) -> urllib.request.Request:
    return urllib.request.Request(url, method="POST")


class _PoolHandler(urllib.request.BaseHandler):
    """Opens urllib requests on kept-alive connections."""

    def __init__(self, pool: ConnectionPool, config: ProxyConfig) -> None:
        self._pool = pool
        self._config = config

    def http_open(self, call: _Call) -> UpstreamResponse:
        origin = _origin(call.full_url)
        headers = [("Host", call.host), ("Content-Length", str(len(call.body))), *_HEADERS, *call.header_items()]
        request = heads.request_head("POST", call.selector, headers) + call.body
        try:
            return self._ask(origin, request, call, fresh=False)
        except _StaleConnection:
            # A kept connection may have died while it was idle; that shows only now, and says nothing about DeepSeek.
            return self._ask(origin, request, call, fresh=True)

    https_open = http_open

    def _ask(self, origin: Origin, request: bytes, call: _Call, *, fresh: bool) -> UpstreamResponse:
        """Send and read the head of the answer; _StaleConnection when a reused connection turns out to be dead."""
        connection = None
        try:
            connection = self._pool.take(origin, call.peer, fresh=fresh)
            connection.send(request, self._config.write_timeout, call.peer)
            return UpstreamResponse.begin(connection, self._pool, self._config, call.peer, call.destination)
        except (ClientGone, ProxyError):
            # Nobody waits for it any more.
            _close(connection)
            raise
        except (OSError, ValueError) as error:
            _close(connection)
            if connection is not None and connection.is_reused and isinstance(error, ConnectionError):
                raise _StaleConnection from None
            raise _translated(error, origin, call.destination.setting) from None


def raise_for_redirect(answer: UpstreamResponse) -> None:
    if 300 <= answer.status < 400:
        raise UpstreamFailed(
            f"{answer.destination.name} redirects ({answer.status}), which is never followed with your key. "
            f"Correct {answer.destination.setting}."
        )


def _raise_for_status(answer: UpstreamResponse) -> None:
    """Anything but a plain 200 as the error it is."""
    raise_for_redirect(answer)
    if answer.status == 200:
        return
    if not 400 <= answer.status < 600:
        raise UpstreamFailed(f"DeepSeek answered with the unexpected status {answer.status}.")
    raise read_refusal(answer.status, answer.read_refusal(), answer.retry_after)


@lru_cache(64)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Origin(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))


class _StaleConnection(Exception):
    """A kept connection ended before a byte of an answer came back on it."""


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


def _translated(error: Exception, origin: Origin, setting: str) -> ProxyError:
    """What a failure of the network means to the person in front of the editor."""
    host = origin.host
    if isinstance(error, ConnectTimeout):
        return UpstreamTimeout(f"{host} cannot be reached in time. Check network and {setting}, or try again.")
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"{host} did not answer in time. Try again, or raise --request-timeout.")
    if isinstance(error, (ClosedBeforeResponse, heads.IncompleteHead)):
        return UpstreamDropped(f"{host} closed the connection without answering. Try again in a moment.")
    if isinstance(error, ssl.SSLCertVerificationError):
        return UpstreamFailed(
            f"The certificate of {host} is not to be trusted ({error.verify_message}), so nothing was sent to it. "
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
