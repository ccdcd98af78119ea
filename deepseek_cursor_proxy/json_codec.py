"""The one JSON codec.

JSON is read strictly (UTF-8, finite numbers, bounded depth, bounded number of values) and written compactly, as UTF-8,
never ASCII-escaped.
"""

import itertools
import json
import re
from typing import Any, NoReturn

from deepseek_cursor_proxy.errors import BadRequest

# Deeper than any schema people write, and shallow enough for all that walks through it on whatever stack it has left.
# Python's own limit differs by version, and where it is generous the next encoder's may be lower.
MAX_JSON_DEPTH = 200

# Decoding costs by the value, and nobody else runs meanwhile: 45 MB of empty lists were a gigabyte, of short keys
# thirteen seconds. The longest histories of agents have some ten thousand.
MAX_JSON_VALUES = 500_000

_NESTS = frozenset((dict, list))

# Characters of JSON from which on walking through it takes no longer than looking for its brackets.
_LONG_TO_COUNT = 16_384


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
