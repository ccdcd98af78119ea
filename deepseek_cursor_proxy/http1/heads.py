"""Heads of HTTP/1.1 messages, requests and responses: read strictly, written safely.

The reader refuses what two readers could understand differently, because that is how requests are smuggled past one of
them: lines end in CRLF only, numbers are plain digits, a header that decides something comes once. A client's fault is
a ProtocolError with the status to answer, DeepSeek's a ValueError, which `upstream` translates. A head is bounded (414,
431), and reading it is linear in the bytes, however they were split. This file knows no sockets and no time; bodies are
the subject of `bodies`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from itertools import starmap
from typing import Generic, NamedTuple, TypeVar

from deepseek_cursor_proxy.errors import ProtocolError

MAX_HEAD_BYTES = 65536
MAX_FIELDS = 100
MAX_TARGET_BYTES = 16 * 1024

Fault = Callable[[str, int], Exception]  # ProtocolError towards a client, bad_response towards DeepSeek
_MAX_FIRST_LINE = 32 + 1 + MAX_TARGET_BYTES + len(" HTTP/1.1\r\n")
_MAX_EMPTY_LINES = 4  # before a head. RFC 9112 2.2: old clients send one after a body

_SHORT_HEAD = 8192  # bytes; far from every bound
# Clients send the same lines with every request; the parsed form of short ones is cached.
_SHORT_LINE, _CACHED_LINES = 256, 256

# Possessive quantifiers keep a refusal as cheap as a match: nothing is tried again.
TOKEN, TEXT = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]", r"[\t\x20-\x7e\x80-\xff]"
_FIELD = re.compile(rf"({TOKEN}++):({TEXT}*+)".encode())
# A fragment is the client's own business (RFC 9112 3.2.1), and readers differ about where it leaves the path.
_REQUEST_LINE = re.compile(rf"({TOKEN}{{1,32}}) ([!\"$-~]++) HTTP/([0-9])\.([0-9])".encode())
_STATUS_LINE = re.compile(rf"HTTP/1\.([0-9]) ([1-9][0-9]{{2}})(?: {TEXT}*+)?".encode())
# A registered name without RFC 3986's sub-delims: DNS has none, and a comma means two Hosts that were merged.
_AUTHORITY = r"(?:\[[0-9A-F.]*+:[0-9A-F:.]++\]|(?:[0-9A-Z._~-]++|%[0-9A-F]{2})+)(?::[0-9]{0,5})?"
_LONGEST_HOST = 261  # DNS ends at 255, a port at :65535
_HOST = re.compile(rf"(?=.{{1,{_LONGEST_HOST}}}\Z){_AUTHORITY}", re.IGNORECASE | re.ASCII)
_ABSOLUTE = rf"(?ai)https?://{_AUTHORITY}(?=[/?]|\Z)"  # compiled when a client sends such a target
_LINE_BYTES = bytes(byte for byte in range(256) if byte in b"\t\r\n" or (byte >= 32 and byte != 127))
_REASONS = {status.value: status.phrase for status in HTTPStatus}
# Twice, these would contradict each other about where a body ends, who calls or what was sent.
_SINGLE = {"content-length", "transfer-encoding", "host", "authorization", "api-key", "x-api-key"}
_SINGLE |= {"content-type", "content-encoding", "expect"}


class RequestHead(NamedTuple):
    method: str
    target: str
    version: tuple[int, int]
    headers: dict[str, str]  # names in lower case; several fields of one name are joined by commas


class ResponseHead(NamedTuple):
    status: int
    version: tuple[int, int]
    headers: dict[str, str]


def bad_response(message: str, _: int) -> ValueError:
    """A server's fault, which is answered with no status."""
    return ValueError(message)


class HeadBuffer:
    """Collects the bytes of one head, and refuses what cannot become one without waiting for its end."""

    def __init__(self, fault: Fault = ProtocolError) -> None:
        self._fault = fault
        self._buffer = bytearray()
        self._checked_bytes = self._lines = self._empty_lines = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the head has come; empty lines before it do not count."""
        return not self._buffer

    def feed(self, data: bytes) -> bytes | None:
        """The head without its blank line, once it is complete; `take_rest` has the bytes after it."""
        search_start = max(0, len(self._buffer) - 3)
        self._buffer += data
        while self._checked_bytes == 0 and self._empty_lines < _MAX_EMPTY_LINES and self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]
            self._empty_lines += 1
        end = self._buffer.find(b"\r\n\r\n", search_start)
        self._check(len(self._buffer) if end < 0 else end + 4)
        if end < 0:
            return None
        head, self._buffer = bytes(self._buffer[:end]), self._buffer[end + 4 :]
        return head

    def take_rest(self) -> bytes:
        """The bytes after the head; none at a second call."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest

    def _check(self, size: int) -> None:
        # The byte rules apply only up to the bound that counts now, so a bound reached first is reported first.
        is_first_line = self._lines == 0 and self._buffer.find(b"\n", self._checked_bytes, _MAX_FIRST_LINE) < 0
        bound, status = (_MAX_FIRST_LINE, 414) if is_first_line else (MAX_HEAD_BYTES, 431)
        new = self._buffer[self._checked_bytes : min(size, bound)]
        lines_left = MAX_FIELDS + 2 - self._lines  # the first line and the blank one are no fields
        if new.count(b"\r\n") > lines_left:
            del new[len(new) - len(new.split(b"\r\n", lines_left + 1)[-1]) :]
        ends_in_cr = new.endswith(b"\r")  # its LF comes in the next packet
        pairs = new.count(b"\r\n")
        if new.count(b"\n") != pairs or new.count(b"\r") != pairs + ends_in_cr or new.translate(None, _LINE_BYTES):
            raise self._fault("The head has a control character or a line that does not end in CRLF.", 400)
        self._checked_bytes += len(new) - ends_in_cr
        self._lines += pairs
        if size > bound or pairs > lines_left:
            raise self._fault(f"The head is too large: at most {bound} bytes here and {MAX_FIELDS} fields.", status)


Head = TypeVar("Head", RequestHead, ResponseHead)
# The next bytes, b"" when the sender closed, None when they did not come in time.
Receive = Callable[[], bytes | None]


class ReceivedHead(NamedTuple, Generic[Head]):
    head: Head
    rest: bytes  # what arrived after it


class IncompleteHead(ValueError):
    """The sender closed before the head was complete, or was late; `is_empty` when nothing of the head has come."""

    def __init__(self, *, is_empty: bool, is_late: bool) -> None:
        super().__init__("it ends in the middle of its head")
        self.is_empty, self.is_late = is_empty, is_late


def read_response_head(receive: Receive, first: bytes = b"") -> ReceivedHead[ResponseHead]:
    """The head that begins with the bytes `first`; ValueError, of which IncompleteHead is one."""
    data = first or receive()
    if data and (whole := parse_whole_head(data, parse_response_head)) is not None:
        return whole
    buffer = HeadBuffer(bad_response)
    while data:
        if (raw := buffer.feed(data)) is not None:
            return ReceivedHead(parse_response_head(raw), buffer.take_rest())
        data = receive()
    raise IncompleteHead(is_empty=buffer.is_empty, is_late=data is None)


def parse_whole_head(data: bytes, parse: Callable[[bytes], Head]) -> ReceivedHead[Head] | None:
    """A short head that lies whole in these bytes, as nearly all do; None for any other, which takes a HeadBuffer.

    HeadBuffer would let it pass: no line that parses has a control character, and the bounds are far away. HeadBuffer
    or `parse` after it refuses what does not parse, with the message for what is wrong.
    """
    end = data.find(b"\r\n\r\n")
    if not 0 <= end < _SHORT_HEAD or (head := data[:end]).count(b"\r\n") > MAX_FIELDS:
        return None
    try:
        return ReceivedHead(parse(head), data[end + 4 :])
    except (ProtocolError, ValueError):
        return None


def parse_request_head(head: bytes) -> RequestHead:
    """The values of a head that HeadBuffer let pass; or a ProtocolError with the status to answer."""
    line, *fields = head.split(b"\r\n")
    parse_line = _parse_request_line if len(line) <= _SHORT_LINE else _parse_request_line.__wrapped__
    method, target, version = parse_line(line)
    headers = _parse_fields(fields, ProtocolError)
    host = headers.get("host", "" if version == (1, 1) else "unnamed")
    if len(host) > _LONGEST_HOST or not _is_host(host):
        raise ProtocolError("The Host header is missing or not of the form host[:port].")
    return RequestHead(method, target, version, headers)


@lru_cache(_CACHED_LINES)
def _is_host(text: str) -> bool:
    return _HOST.fullmatch(text) is not None


@lru_cache(_CACHED_LINES)
def _parse_request_line(line: bytes) -> tuple[str, str, tuple[int, int]]:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise ProtocolError("The request line is not of the form `METHOD target HTTP/1.1`.")
    version = int(match[3]), int(match[4])
    if version not in ((1, 0), (1, 1)):
        raise ProtocolError(f"HTTP/{version[0]}.{version[1]} is not supported; use HTTP/1.1.", 505)
    method, target = match[1].decode(), match[2].decode()
    if len(target) > MAX_TARGET_BYTES:
        raise ProtocolError(f"The request target is longer than {MAX_TARGET_BYTES} bytes.", 414)
    if method == "CONNECT" and _HOST.fullmatch(target):
        raise ProtocolError("CONNECT is not supported: this is no forward proxy.", 501)
    if not (target[0] == "/" or (target == "*" and method == "OPTIONS") or re.match(_ABSOLUTE, target)):
        raise ProtocolError("The request target is neither a path nor an http(s) URL.")
    return method, target, version


def parse_response_head(head: bytes) -> ResponseHead:
    """The values of a head that HeadBuffer let pass; or a ValueError."""
    line, *fields = head.split(b"\r\n")
    parse_line = _parse_status_line if len(line) <= _SHORT_LINE else _parse_status_line.__wrapped__
    status, version = parse_line(line)
    return ResponseHead(status, version, _parse_fields(fields, bad_response))


@lru_cache(_CACHED_LINES)
def _parse_status_line(line: bytes) -> tuple[int, tuple[int, int]]:
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ValueError("the status line is not of the form `HTTP/1.1 200 OK`")
    return int(match[2]), (1, int(match[1]))


def _parse_fields(lines: list[bytes], fault: Fault) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        field = _parse_field(line) if len(line) <= _SHORT_LINE else _parse_field.__wrapped__(line)
        if field is None:
            start = line.partition(b":")[0][:40].decode("latin-1")  # never the value: it may be a key
            raise fault(f"The header line that begins with {start!a} is not a plain, unfolded `Name: value`.", 400)
        name, value = field
        if name in headers:
            if name in _SINGLE:
                raise fault(f"The header {name} is there twice.", 400)
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


@lru_cache(_CACHED_LINES)
def _parse_field(line: bytes) -> tuple[str, str] | None:
    match = _FIELD.fullmatch(line)
    return match and (match[1].lower().decode(), match[2].strip(b" \t").decode("latin-1"))


def split_target(target: str) -> tuple[str, str, str]:
    """Path and query of a request target, percent-encoded as they came; and its host[:port] in absolute form, or ""."""
    authority = ""
    if target[0] != "/" and (absolute := re.match(_ABSOLUTE, target)) is not None:
        authority, target = absolute[0].partition("://")[2], target[absolute.end() :]
    path, _, query = target.partition("?")
    return path or "/", query, authority


def expects_continue(head: RequestHead) -> bool:
    """Whether the client waits for a 100 before it sends its body; any other expectation is a ProtocolError."""
    if head.headers.get("expect", "100-continue").lower() != "100-continue":
        raise ProtocolError("Only `Expect: 100-continue` can be met; leave other expectations out.", 417)
    return "expect" in head.headers and head.version >= (1, 1)  # RFC 9110 10.1.1: ignored from an HTTP/1.0 client


def keeps_alive(version: tuple[int, int], headers: Mapping[str, str]) -> bool:
    """Whether the sender of this head wants its connection to stay open."""
    if "connection" not in headers:
        return version >= (1, 1)
    tokens = [token.strip(" \t").lower() for token in headers["connection"].split(",")]
    return "close" not in tokens and (version >= (1, 1) or "keep-alive" in tokens)


def reply_head(status: int, headers: Iterable[tuple[str, str]], own_lines: bytes = b"") -> bytes:
    """The head of a reply to a client, `own_lines` unchecked at its end; refuses a header that would become two."""
    return b"".join([_status_line(status), *starmap(_field_line, headers), own_lines, b"\r\n"])


def request_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of a request to DeepSeek; refuses a target or a header that would become two."""
    line = f"{method} {target} HTTP/1.1".encode()
    if not _REQUEST_LINE.fullmatch(line):
        raise ValueError("the method or the target of the request contains forbidden characters")
    return b"".join([line, b"\r\n", *starmap(_field_line, headers), b"\r\n"])


@lru_cache(_CACHED_LINES)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode()


@lru_cache(_CACHED_LINES)
def _field_line(name: str, value: str) -> bytes:
    line = f"{name}: {value}".encode("latin-1")
    match = _FIELD.fullmatch(line)
    if match is None or len(match[1]) != len(name):
        raise ValueError(f"the header {name[:40]!a} has a name or a value with forbidden characters")
    return line + b"\r\n"
