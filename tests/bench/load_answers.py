"""The answers of the benchmark's DeepSeek, as bytes for the socket, HTTP included.

The last user message of a request holds a command (`parse_command`). Answers are encoded beforehand wherever they can
be, and %-formatted where they must differ, to cost the measured machine little time. No two plain answers, turns or
streams have the same reasoning, so that a proxy has to store each of them. Chunks look like the real
DeepSeek's, which have 250 to 300 bytes, and every event is an HTTP chunk of its own.
Pure: this file knows no socket and no clock.
"""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek.completion import model_entry

# A mark is a moment in nanoseconds between two of these; no JSON writer escapes any of it.
MARK = re.compile(rb"@(\d{19})@")

_COMMAND = re.compile(rb"bench:(plain|turn|stream|paced)(?: (\d+)(?:/s (\d+))?)?")
# A reasoning that is there and says something: blanks, spelt out or escaped, are what placeholders are made of.
_REASONING = re.compile(rb'"reasoning_content"\s*:\s*"(?!(?:\s|\\[nrt])*")')
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Command:
    """The command of a request: `chunks` of a stream, `rate` per second of a paced one."""

    kind: str
    chunks: int = 0
    rate: int = 0


def parse_command(request: bytes) -> Command | None:
    """The last command of a request; None if there is none."""
    found = _COMMAND.match(request, max(0, request.rfind(b"bench:")))
    if found is None:
        return None
    kind, first, second = found[1].decode(), int(found[2] or 0), int(found[3] or 0)
    if kind == "paced":
        return Command(kind, second, first) if first and second else None
    return Command(kind, first)


def count_reasonings(request: bytes) -> int:
    """How many messages of a request carry a reasoning that is not blank."""
    return len(_REASONING.findall(request))


def json_answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return _head(len(body), status) + body


def plain(serial: int) -> bytes:
    """A small completion with reasoning."""
    return _PLAIN % (serial, serial)


def turn(serial: int) -> bytes:
    """A completion that calls one tool, under an id like DeepSeek's."""
    id = "call_00_" + "".join(random.choices(_ALPHABET, k=24))
    return json_answer(_TURN % (serial, serial, random.choice(_THOUGHTS), id.encode(), serial))


def _head(length: int, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, length)


def _completion(message: bytes, finish_reason: bytes) -> bytes:
    return (
        b'{"id":"7a1f0c2e-3b5d-4e6f-8a9b-%%012d","object":"chat.completion","created":1786000000,"model":"deepseek-v4-pro",'
        b'"choices":[{"index":0,"message":{"role":"assistant",%b},"logprobs":null,"finish_reason":"%b"}],'
        b'"usage":%b,"system_fingerprint":"fp_9954b31ca7"}' % (message, finish_reason, _USAGE)
    )


_USAGE = encode_json(
    {
        "prompt_tokens": 1200,
        "completion_tokens": 340,
        "total_tokens": 1540,
        "prompt_tokens_details": {"cached_tokens": 1152},
        "completion_tokens_details": {"reasoning_tokens": 210},
        "prompt_cache_hit_tokens": 1152,
        "prompt_cache_miss_tokens": 48,
    }
)
_PLAIN_BODY = _completion(
    b'"content":"It is a quarter past ten.","reasoning_content":"They ask for the time of day, number %012d."', b"stop"
)
# The serial number has a fixed width, so one length is right for all of them.
_PLAIN = _head(len(_PLAIN_BODY % (0, 0))) + _PLAIN_BODY
_TURN = _completion(
    b'"content":"I read the next file.","reasoning_content":"Number %012d. %b","tool_calls":[{"index":0,"id":"%b",'
    b'"type":"function","function":{"name":"tool_7","arguments":"{\\"path\\": \\"src/part_%012d.py\\"}"}}]',
    b"tool_calls",
)
_SENTENCE = "so the next thing to look at is where this value comes from and who else may change it before we do"
_WORDS = _SENTENCE.split()
# As long as real ones between two calls: some 300 to 900 characters, and no mark of percent in them.
_THOUGHTS = tuple(" ".join(islice(cycle(_WORDS), count)).encode() for count in range(70, 210, 10))
MODELS = json_answer(
    encode_json({"object": "list", "data": [model_entry("deepseek-flash"), model_entry("deepseek-v4-pro")]})
)
REFUSAL = json_answer(
    encode_json({"error": {"message": "This DeepSeek only answers the benchmark.", "type": "invalid_request_error"}}),
    b"400 Bad Request",
)


def stream(chunks: int, serial: int) -> bytes:
    """A whole stream of that many chunks: the first half thinks, the second speaks."""
    first = _chunk(b'{"content":null,"reasoning_content":"%012d"}' % serial)
    return opening() + first + _rest(chunks - 1) + ending()


@lru_cache(maxsize=8)
def opening() -> bytes:
    """What precedes the chunks: the head, and DeepSeek's first event, which has the role alone."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + _chunk(b'{"role":"assistant","content":null,"reasoning_content":""}')


def marked_chunk(moment: int, is_thinking: bool) -> bytes:
    """A chunk that contains the moment it was sent."""
    return _marked_template(is_thinking) % moment


@lru_cache(maxsize=8)
def ending() -> bytes:
    """What follows the chunks: the finish reason, the usage, and the end of the events and of the body."""
    last = _event(b'{"content":"","reasoning_content":null}', b'"stop"', b',"usage":' + _USAGE)
    return _http_chunk(last) + _http_chunk(b"data: [DONE]\n\n") + _http_chunk(b"")


@lru_cache(maxsize=8)
def _rest(chunks: int) -> bytes:
    words = islice(cycle(_WORDS), chunks)
    # With the first one, which is not among these, half of them think.
    thinking = (chunks + 1) // 2 - 1
    templates = (b'{"content":null,"reasoning_content":" %b"}', b'{"content":" %b","reasoning_content":null}')
    return b"".join(_chunk(templates[number >= thinking] % word.encode()) for number, word in enumerate(words))


@lru_cache(maxsize=8)
def _marked_template(is_thinking: bool) -> bytes:
    names = (b"content", b"reasoning_content") if is_thinking else (b"reasoning_content", b"content")
    # Written with a moment of the same width, so that the length of the HTTP chunk is right; then made a template.
    moment = b"0" * 19
    return _chunk(b'{"%b":null,"%b":"@%b@"}' % (*names, moment)).replace(b"@%b@" % moment, b"@%019d@")


def _chunk(delta: bytes) -> bytes:
    return _http_chunk(_event(delta, b"null", b""))


def _event(delta: bytes, finish_reason: bytes, usage: bytes) -> bytes:
    return (
        b'data: {"id":"2d9e4b6c-1f3a-4c5d-9e7f-0a1b2c3d4e5f","object":"chat.completion.chunk","created":1786000000,'
        b'"model":"deepseek-v4-pro","system_fingerprint":"fp_9954b31ca7","choices":[{"index":0,"delta":%b,'
        b'"logprobs":null,"finish_reason":%b}]%b}\n\n' % (delta, finish_reason, usage)
    )


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
