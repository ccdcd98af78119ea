"""The JSON codec of the proxy, and the checks of single fields.

It decodes strictly (UTF-8, finite numbers, limited depth and number of values) and encodes compactly, as UTF-8, never
ASCII-escaped. `repair_object` reads JSON that was cut off.

In a client's JSON a field of the wrong type raises a BadRequest that names it; null counts as absent, as in OpenAI's
clients. In upstream's JSON such a field counts as absent (`as_object`, `as_list`, `as_text`).
"""

import codecs
import json
import json.encoder
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from deepseek_cursor_proxy.errors import BadRequest

Json = Mapping[str, Any]
Kind = TypeVar("Kind")

# Characters in the name of a model (which every chunk repeats), of a tool or of a user. OpenAI allows 64 for most.
LONGEST_NAME = 512

# Deeper than any schema people write, and shallow enough for every recursive function on any thread's stack. Python's
# own limit differs by version, and an encoder's may be lower than the decoder's.
MAX_JSON_DEPTH = 200

# Decoding costs per value and holds the GIL: 45 MB of empty lists took a gigabyte, of short keys thirteen seconds. The
# longest histories of agents have some ten thousand values.
MAX_JSON_VALUES = 500_000

# Longer texts are processed in slices. One call for all of 28 MB holds the interpreter for up to 150 ms, while the
# streams of others wait; and a copy of a text with a single emoji takes four bytes for each of its characters.
LONG_TEXT = 65_536

_NESTS = frozenset((dict, list))

_WHOLE_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# None of these may follow it: they would be a part of the same number or word.
_SCALAR = r"(?:-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null)(?![\w.+-])"
# Compiled when an answer is cut off.
_TOKEN = rf"(?s)\s*+(?:({_WHOLE_STRING})|{_SCALAR}|([{{\[])|([}}\]])|([,:]))"
_CLOSING = {"{": "}", "[": "]"}

# From this many characters on, walking the value takes no longer than counting brackets.
_LONG_TO_COUNT = 16_384


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 JSON; raises ValueError for NaN and infinity, RecursionError for cycles."""
    text = "".join(_encode(value, 0))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form; escaped it is still the same JSON string.
        return "".join(_encode_ascii(value, 0)).encode()


def decode_json_object(body: bytes) -> dict[str, Any]:
    """A request body as a JSON object; BadRequest says what is wrong with it."""
    if not body or body.isspace():
        raise BadRequest("The request body is empty; send a JSON object.", code="empty_body")
    try:
        text = body.removeprefix(codecs.BOM_UTF8).decode()
        if len(body) > MAX_JSON_VALUES:
            _check_value_count(body)
        value = _decode(text)
        if len(text) >= _LONG_TO_COUNT or text.count("{") + text.count("[") > MAX_JSON_DEPTH:
            count_values(value)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
    except RecursionError:
        raise BadRequest(
            f"The request body is nested too deeply: at most {MAX_JSON_DEPTH} levels.", code="invalid_json"
        ) from None
    except ValueError as error:
        # Without Python's advice to programmers about numbers of thousands of digits.
        why = str(error).partition("; use sys.")[0]
        raise BadRequest(f"The request body is not valid JSON: {why}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.", code="invalid_json")
    return value


def decode_upstream_json(data: str | bytes) -> Any:
    """JSON from upstream; numbers that JSON lacks (some gateways write -Infinity) become null."""
    text = data if isinstance(data, str) else data.decode()
    try:
        value = _decode_upstream(text)
        # Counting is cheap, and enough for the events of a stream.
        if len(text) >= _LONG_TO_COUNT or text.count("{") + text.count("[") > MAX_JSON_DEPTH:
            count_values(value)
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def object_in(text: str) -> dict[str, Any] | None:
    """The object that a text is the JSON of; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def repair_object(arguments: str) -> dict[str, Any]:
    """The arguments as an object, as far as they came; other text as the one field of an object."""
    for text in (arguments or "{}", close_json(arguments)):
        try:
            value = decode_upstream_json(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {"arguments": arguments} if arguments.strip() else {}


def close_json(text: str) -> str:
    """JSON that was cut off, up to its last whole value, with every open object and list closed.

    A string, name, number or word that was cut is left out. The official packages read the pieces of a tool's input the
    same way, so a plain message and a streamed one have the same object.
    """
    closings: list[str] = []
    end_of_last = 0
    before = ""
    at = 0
    match = re.compile(_TOKEN).match
    while token := match(text, at):
        string, opening, closing, sign = token.groups()
        is_name = bool(string and closings and closings[-1] == "}" and before in ("{", ","))
        before = opening or sign or ""
        at = token.end()
        if opening:
            closings.append(_CLOSING[opening])
        elif closing and closings:
            closings.pop()
        if not sign and not is_name:
            end_of_last = at
    # A bracket moves `end_of_last`, so all closings belong to brackets before it.
    return text[:end_of_last] + "".join(reversed(closings))


def optional(source: Json, name: str, kind: type[Kind], expected: str, param: str | None = None) -> Kind | None:
    """A field of the given type; absent and null are None, anything else a BadRequest."""
    value = source.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise bad_field(param or name, expected)
    return value


def optional_string(source: Json, name: str, param: str) -> str | None:
    """A string field of the object at `param`; absent and null are None."""
    value = source.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad_field(f"{param}.{name}", "a string")


def optional_name(source: Json, name: str) -> str | None:
    """A string of at most LONGEST_NAME characters, because it is repeated or stored; absent and null are None."""
    value = optional(source, name, str, "a string")
    if value is not None and len(value) > LONGEST_NAME:
        raise too_long(name, LONGEST_NAME)
    return value


def too_long(param: str, most: int) -> BadRequest:
    return BadRequest(f"{param} is too long: at most {most} characters.", param=param, code="string_above_max_length")


def object_at(value: Any, param: str) -> Json:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise bad_field(param, "an object")
    return value


def json_text(value: Any) -> str:
    """A value as compact JSON, for values that DeepSeek takes as text only."""
    return encode_json(value).decode()


def bad_field(param: str, expected: str) -> BadRequest:
    return BadRequest(f"{param} must be {expected}.", param=param)


def as_object(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one: in JSON from upstream a field of the wrong shape is absent."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_value_count(body: bytes) -> None:
    """Raise BadRequest for too many values; commas and brackets inside strings do not count."""
    if count_value_starts(body) <= MAX_JSON_VALUES:
        return
    # A value has at most two strings, its name and itself, so more strings are too many values as well.
    rest, strings = _STRING.subn(b"", body, 2 * MAX_JSON_VALUES + 1)
    if strings > 2 * MAX_JSON_VALUES or count_value_starts(rest) > MAX_JSON_VALUES:
        raise BadRequest(
            f"The request body has too many values: at most {MAX_JSON_VALUES}. Shorten its lists and objects.",
            code="too_many_values",
        )


def count_value_starts(body: bytes) -> int:
    """An upper bound for the number of values: each begins after one of these bytes."""
    if len(body) > LONG_TEXT:
        return sum([count_value_starts(body[at : at + LONG_TEXT]) for at in range(0, len(body), LONG_TEXT)])
    return len(body) - len(body.translate(None, b",[{"))


def count_values(value: Any, outside: int = 0) -> int:
    """How many values `count_value_starts` counts for it, but for those in strings.

    Raises RecursionError for a value that is nested too deeply, as Python does for a much deeper one; it may be inside
    others, so many levels down.
    """
    kind = type(value)
    if kind is not dict and kind is not list:
        return 0
    if outside == MAX_JSON_DEPTH:
        raise RecursionError
    count = len(value) or 1
    for inner in value.values() if kind is dict else value:
        # Strings are most of a request.
        if type(inner) in _NESTS:
            count += count_values(inner, outside + 1)
    return count


# Also matches an unterminated string, so that the regex never backtracks.
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


def _make_decoder(decoder: json.JSONDecoder) -> Callable[[str], Any]:
    """Its `decode` without the search for white space around a value: for a small one half of the time."""
    scan_once: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]

    def decode(text: str) -> Any:
        try:
            value, end = scan_once(text, 0)
        except StopIteration:
            # White space before the value, or no value.
            return decoder.decode(text)
        return decoder.decode(text) if text[end:].strip(" \t\r\n") else value

    return decode


_decode_upstream = _make_decoder(json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite_or_none))
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_decode = _make_decoder(_decoder)
# The value that begins at an index of a text, and the index after it; StopIteration if there is none.
scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


# The same text for all spellings of a value: keys sorted, no white space.
def canonical_json(value: Any) -> str:
    return "".join(_encode_sorted(value, 0))


def _make_encoder(*, ensure_ascii: bool, is_canonical: bool = False) -> Callable[[Any, int], Iterable[str]]:
    """The C encoder that JSONEncoder makes anew for every value: kept, it takes a fifth less time for a chunk.

    It looks for no cycles, which decoded JSON has not: its memory for them would be shared by all threads.
    """
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))
    make: Callable[..., Callable[[Any, int], Iterable[str]]] = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    encode_string = json.encoder.encode_basestring_ascii if ensure_ascii else json.encoder.encode_basestring
    indent, skip_keys, sort_keys, allow_nan = None, False, is_canonical, is_canonical
    return make(None, encoder.default, encode_string, indent, ":", ",", sort_keys, skip_keys, allow_nan)


_encode = _make_encoder(ensure_ascii=False)
_encode_ascii = _make_encoder(ensure_ascii=True)
_encode_sorted = _make_encoder(ensure_ascii=True, is_canonical=True)
