"""The HTTP reply that carries an answer: a Writer is driven over the batches of an exchange, streamed or plain.

A failure before the first byte of a reply is raised, and becomes an HTTP error. Later, `failure` alone decides what the
client reads, and the Writer encodes it as its API does.

A plain reply may take long: DeepSeek queues a call for up to ten minutes, and tunnels cut off a silent reply. Spaces,
which JSON allows before a value, keep it open. The first one is sent with status 200. A later failure is an error
inside the value where the API has one; elsewhere the reply breaks off, and clients ask again.

An exchange opens before the first byte of a reply, so that a refusal is an HTTP error.
"""

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta
from deepseek_cursor_proxy.errors import ClientGone, InternalError, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1.messages import Body, Headers, HttpReply

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.client_request import OpenExchange

_log = logging.getLogger(__name__)

Events = Generator[bytes, None, None]


class Writer(Protocol):
    """Writes one answer in the format of one API, as events or as one JSON value. Used by one thread.

    A plain reply sends only the bytes of `end` or `fail`.
    """

    def begin(self) -> bytes: ...

    def write(self, batch: Batch) -> bytes:
        """The bytes of a batch; none if the API has no event for it."""
        ...

    def end(self) -> bytes:
        """The last bytes of an answer that came to its end; raises ProxyError if DeepSeek broke it off."""
        ...

    def fail(self, error: ProxyError) -> bytes:
        """The last bytes of an answer that failed; raises ClientGone to break a plain reply off."""
        ...


def stream_reply(exchange: "OpenExchange", events: Events) -> HttpReply:
    state = exchange.cache_state
    return HttpReply.events(_AnswerBody(exchange, events), (("X-Cache", state),) if state else ())


def write_events(exchange: "OpenExchange", batches: Batches, writer: Writer) -> Events:
    """A whole streamed answer."""
    if beginning := writer.begin():
        yield beginning
    try:
        with closing(batches):
            try:
                for batch in batches:
                    if written := writer.write(batch):
                        yield written
            except Exception as error:
                exchange.fail(error)
                raise
        last = writer.end()
    except ClientGone:
        raise
    except Exception as error:
        last = writer.fail(failure(error))
    yield last


def plain_reply(exchange: "OpenExchange", batches: Batches, writer: Writer, space_seconds: float) -> HttpReply:
    """The reply: the whole value or, if that takes longer than `space_seconds`, a body that begins with a space."""
    spaces = _take_all(exchange, batches, writer, space_seconds)
    body: bytes | Body
    try:
        if next(spaces, None) is not None:
            body = _AnswerBody(exchange, write_events(exchange, spaces, _WhitespaceWriter(writer)))
        else:
            body = writer.end()
            exchange.close()
    except BaseException:
        exchange.close()
        raise
    headers: Headers = (("Content-Type", "application/json"),)
    if state := exchange.cache_state:
        headers += (("X-Cache", state),)
    return HttpReply(200, body, headers)


class _WhitespaceWriter:
    """Writes a space for every batch while the client of a plain answer waits, then what the other writer returns."""

    def __init__(self, writer: Writer) -> None:
        self.end, self.fail = writer.end, writer.fail

    def begin(self) -> bytes:
        return b" "

    def write(self, batch: Batch) -> bytes:
        return b" "


def failure(error: Exception) -> ProxyError:
    """The error that the client gets for an exception that ended its answer."""
    if isinstance(error, ProxyError):
        return error
    if isinstance(error, (ValueError, RecursionError)):
        # It can be read but not written, such as JSON nested as deep as the reader allows.
        return UpstreamFailed("DeepSeek sent an event that cannot be forwarded.")
    return internal_error(error)


def internal_error(error: Exception) -> InternalError:
    """Log a bug, and return the error for the client."""
    details = _log.isEnabledFor(logging.DEBUG)
    _log.error("unexpected %s while streaming an answer", type(error).__name__, exc_info=details)
    return InternalError()


def _take_all(exchange: "OpenExchange", batches: Batches, writer: Writer, space_seconds: float) -> Batches:
    """Write every batch of an answer; yields an empty one each time the client has waited `space_seconds`."""
    due = monotonic() + space_seconds
    try:
        for batch in batches:
            writer.write(batch)
            if monotonic() < due:
                continue
            # After the finish_reason the reply follows at once; it may be a failure, which needs its own status.
            if not any(isinstance(item, Delta) and item.finish_reason is not None for item in batch):
                due = monotonic() + space_seconds
                yield []
    except Exception as error:
        exchange.fail(error)
        raise
    finally:
        batches.close()


@dataclass(eq=False, slots=True)
class _AnswerBody:
    """An answer that is written while it is sent; closing it ends the exchange, also before the first byte."""

    exchange: "OpenExchange"
    events: Events

    @property
    def is_finished(self) -> bool:
        return self.exchange.is_closed

    def __iter__(self) -> Iterator[bytes]:
        return self.events

    def close(self) -> None:
        self.events.close()
        self.exchange.close()
