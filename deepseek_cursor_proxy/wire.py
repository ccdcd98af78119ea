"""The plain values between the server and the app, and the one JSON codec.

HttpRequest reads its body on demand, so that a wrong path or key is answered before a byte of it is read.
JSON is read strictly (UTF-8, finite numbers, bounded depth, not too many values) and written compactly, as UTF-8,
never ASCII-escaped.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

from deepseek_cursor_proxy.errors import BadRequest, ProxyError

Headers = tuple[tuple[str, str], ...]

# Deeper than any schema people write, and shallow enough for all that walks through it on whatever stack it has left.
# Python's own limit differs by version, and where it is generous the next encoder's may be lower.
MAX_JSON_DEPTH = 200
# Decoding costs by the value, and nobody else runs meanwhile: 45 MB of empty lists were a gigabyte, of short keys
# thirteen seconds. The longest histories of agents have some ten thousand.
MAX_JSON_VALUES = 500_000
_NESTS = frozenset((dict, list))
# Characters of JSON from which on walking through it takes no longer than looking for its brackets.
_LONG_TO_COUNT = 16_384


class Awaited(Protocol):
    """What has to say something before an answer can go on."""

    @property
    def until(self) -> float:
        """The moment from which on the answer goes on without that."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether the answer can only go on with what it waits for."""
        ...

    def fileno(self) -> int: ...

    def wait(self) -> None:
        """Returns when the answer can go on."""
        ...

    def passed_on(self) -> bytes | None:
        """What has come, as the client gets it, if the answer can do without seeing it; None if it has to go on."""
        ...

    def interrupt(self, error: Exception) -> None:
        """The answer goes on at once, with this failure."""
        ...


class Body(Protocol):
    """A reply that is produced while it is sent; `close` ends it even if it was never iterated.

    As long as there is something `awaited`, asking for the next piece waits for nobody: an empty piece is a lull, and
    whoever asks waits for it when it is drained. Where nothing is awaited, the next piece may take its time.
    """

    @property
    def awaited(self) -> Awaited | None: ...

    @property
    def is_over(self) -> bool:
        """Whether all that is still to come, if anything is, is there without waiting for anybody."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Peer(Protocol):
    """The client as someone who may leave, or be left: a descriptor to wait on, and what to ask when it stirs."""

    @property
    def parting(self) -> ProxyError | None:
        """What the client has to be told because the proxy ends its answer; None as long as it does not."""
        ...

    def fileno(self) -> int: ...

    def has_left(self) -> bool:
        """Raises nothing. True once the client closed or half-closed its connection."""
        ...


# Named tuples, because these take a fraction of the time that a frozen dataclass does.


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    read_body: Callable[[], bytes] = bytes
    peer: Peer | None = None
    # The socket's other end, which in a tunnel is this machine: good for counting, never for trusting.
    source: str = ""
    # The host[:port] of a request target in absolute form; empty for a plain path.
    authority: str = ""

    def header(self, name: str) -> str | None:
        """A header's value; `name` is in lower case, as the reader stores them."""
        return self.headers.get(name)


class HttpReply(NamedTuple):
    status: int
    body: bytes | Body = b""
    headers: Headers = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers = ()) -> "HttpReply":
        return cls(status, encode_json(value), (("Content-Type", "application/json"), *headers))

    @classmethod
    def events(cls, body: "bytes | Body") -> "HttpReply":
        # X-Accel-Buffering keeps an nginx in between from holding events back.
        headers = (
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Cache-Control", "no-cache"),
            ("X-Accel-Buffering", "no"),
        )
        return cls(200, body, headers)


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 JSON; raises ValueError for NaN, infinity and cycles."""
    text = _encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form; escaped it is still the same JSON string.
        return _encode_ascii(value).encode()


def decode_json_object(body: bytes) -> dict[str, Any]:
    """A request body as a JSON object, or a BadRequest that says what is wrong with it."""
    if not body or body.isspace():
        raise BadRequest("The request body is empty; send a JSON object.", code="empty_body")
    try:
        text = body.decode("utf-8-sig")
        _refuse_crowd(body)
        value = _decode(text)
        _refuse_depth(text, value)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
    except RecursionError:
        raise BadRequest(
            f"The request body is nested too deeply: at most {MAX_JSON_DEPTH} levels.", code="invalid_json"
        ) from None
    except ValueError as error:
        # Python's advice about numbers of thousands of digits is for programmers.
        why = str(error).partition("; use sys.")[0]
        raise BadRequest(f"The request body is not valid JSON: {why}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.", code="invalid_json")
    return value


def decode_foreign_json(data: str | bytes) -> Any:
    """JSON of upstream's; numbers that JSON has no word for (some gateways write -Infinity) become null."""
    text = data if isinstance(data, str) else data.decode()
    try:
        value = _decode_foreign(text)
        _refuse_depth(text, value)
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def without_keys(text: str) -> str:
    """The text with everything that looks like an API key blotted out, also where it stands inside JSON."""
    return _KEY.sub("sk-***", text) if "sk-" in text else text


def safe_text(text: object, limit: int = 200) -> str:
    """Foreign text for a log line or a terminal: no control characters, no line breaks, no keys, not endless."""
    shown = str(text)
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    shown = without_keys(shown)
    if shown.isprintable():
        return shown
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), shown)


def readable_json(value: Any) -> str:
    """JSON for a log line or a terminal, in which people can read text of any language; without keys."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return without_keys(_UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text))


def _refuse_crowd(body: bytes) -> None:
    """BadRequest for more values than anybody means; text may have as many commas and braces as it likes."""
    if len(body) <= MAX_JSON_VALUES or beginnings(body) <= MAX_JSON_VALUES:
        return
    # A value has at most two strings, its name and itself, so there is no need to see more of them.
    rest, strings = _STRING.subn(b"", body, 2 * MAX_JSON_VALUES + 1)
    if strings > 2 * MAX_JSON_VALUES or beginnings(rest) > MAX_JSON_VALUES:
        raise BadRequest(
            f"The request body has too many values: at most {MAX_JSON_VALUES}. Shorten its lists and objects.",
            code="too_many_values",
        )


def beginnings(body: bytes) -> int:
    """How often a value may begin here: behind each of these."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _refuse_depth(text: str, value: Any) -> None:
    """RecursionError, as Python itself raises for what is much deeper."""
    if len(text) < _LONG_TO_COUNT and text.count("{") + text.count("[") <= MAX_JSON_DEPTH:
        # Counting costs nothing, and is all that events of a stream need.
        return
    refuse_depth(value)


def refuse_depth(value: Any) -> None:
    """RecursionError for a value that is nested too deeply."""
    # Only what can be deep: strings and numbers are most of a request.
    level = [value] if type(value) in _NESTS else []
    for _ in range(MAX_JSON_DEPTH):
        inside = itertools.chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [each for each in inside if type(each) in _NESTS]
        if not level:
            return
    raise RecursionError


# One without an end is taken, too, so that no byte is looked at twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

# What moves a cursor, breaks a line, turns the direction of writing, hides other text, or cannot be encoded. Characters
# that join others are left alone: emoji and several scripts need them.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)

# Not the end of a word, as in task-list; but an escape of JSON's in front of it is none.
_KEY = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))sk-[A-Za-z0-9_-]{8,}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _finite_or_none(text: str) -> float | None:
    number = float(text)
    return number if abs(number) != float("inf") else None


_decode_foreign = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite_or_none).decode
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_decode = _decoder.decode
# The one value that begins at a place of a text, and where it ends; ValueError where none does.
scan = _decoder.raw_decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
