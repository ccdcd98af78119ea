"""Redaction: text that is safe in a log or on a terminal, without API keys, control characters and endless lines."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# A shorter key is a word, as EMPTY for a server without keys, which other texts contain as well.
SHORTEST_SECRET = 8
_NAME_LENGTH = 60


def redact_keys(text: str) -> str:
    """Replace everything that looks like an API key, also inside JSON."""
    return re.sub(_KEY, "sk-***", text) if "sk-" in text else text


def hide_secret(text: str, secret: str) -> str:
    """A text of an upstream, which may quote the key that it was called with, without that key and all others."""
    return redact_keys(text.replace(secret, "***"))


def safe_text(text: object, limit: int = 200) -> str:
    """Text from outside for a log or a terminal: no control characters, line breaks or keys, at most `limit` long."""
    result = str(text)
    if len(result) > limit:
        result = result[: limit - 1] + "…"
    result = redact_keys(result)
    if result.isprintable():
        return result
    return re.sub(_UNSAFE, lambda match: match[0].encode("unicode_escape").decode(), result)


def safe_name(name: str) -> str:
    """The same for a name, such as that of a model: nearly every request has the names of the last one."""
    return _short_name(name) if len(name) <= _NAME_LENGTH else safe_text(name, _NAME_LENGTH)


_short_name = lru_cache(256)(safe_text)


def readable_json(value: Any) -> str:
    """JSON for a log line or a terminal, with text of any language readable; without keys."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return redact_keys(re.sub(_UNSAFE, lambda match: json.dumps(match[0])[1:-1], text))


def hide_texts(value: Any) -> Any:
    """The same JSON with every text hidden: a raw option of a host may be a key, in any form."""
    if isinstance(value, Mapping):
        return {name: hide_texts(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_texts(inner) for inner in value]
    return "…" if isinstance(value, str) else value


class SecretFilter:
    """Replaces a secret in a stream of bytes, also where it is cut into pieces. Used by one thread.

    The end of a piece that may be the beginning of the secret is held back until the next one; events end in a line
    break, which no key has, so no event waits.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held = b""

    def feed(self, piece: bytes, *, is_last: bool) -> bytes:
        data = (self._held + piece).replace(self._secret, b"***")
        size = 0
        if data and not is_last and data[-1] in self._secret:
            sizes = range(min(len(self._secret) - 1, len(data)), 0, -1)
            size = next((size for size in sizes if data.endswith(self._secret[:size])), 0)
        cut = len(data) - size
        self._held = data[cut:]
        return data[:cut]


# Characters that move the cursor, break a line, change the direction of writing, hide other text, or cannot be encoded.
# Joiners stay: emoji and several scripts need them.
# `re` compiles these two when they are first used.
_UNSAFE = (
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)

# Not after a letter, as in task-list, unless that letter belongs to a JSON escape.
_KEY = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))sk-[A-Za-z0-9_-]{8,}"
