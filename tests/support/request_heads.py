"""Request heads as a client connection reads them: at once where that is possible, else collected."""

from collections.abc import Iterator

from deepseek_cursor_proxy.http1 import heads


def read_request_head(incoming: Iterator[bytes], first: bytes = b"") -> heads.ReceivedHead[heads.RequestHead]:
    """The head that begins with the bytes `first`; ProtocolError or IncompleteHead."""
    data = first or next(incoming, b"")
    if (whole := heads.parse_whole_head(data, heads.parse_request_head)) is not None:
        return whole
    buffer = heads.HeadBuffer()
    while data:
        if (raw := buffer.feed(data)) is not None:
            return heads.ReceivedHead(heads.parse_request_head(raw), buffer.take_rest())
        data = next(incoming, b"")
    raise heads.IncompleteHead(is_empty=buffer.is_empty, is_late=False)
