"""Redaction: text that is safe in a log or on a terminal, without API keys, control characters and endless lines."""

import json
import re
from typing import Any


def redact_keys(text: str) -> str:
    """Replace everything that looks like an API key, also inside JSON."""
    return _KEY.sub("sk-***", text) if "sk-" in text else text


def safe_text(text: object, limit: int = 200) -> str:
    """Foreign text for a log line or a terminal: no control characters, line breaks or keys, at most `limit` long."""
    result = str(text)
    if len(result) > limit:
        result = result[: limit - 1] + "…"
    result = redact_keys(result)
    if result.isprintable():
        return result
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), result)


def readable_json(value: Any) -> str:
    """JSON for a log line or a terminal, with text of any language readable; without keys."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return redact_keys(_UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text))


# Characters that move the cursor, break a line, change the direction of writing, hide other text, or cannot be encoded.
# Joiners stay: emoji and several scripts need them.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)

# Not after a letter, as in task-list, unless that letter belongs to a JSON escape.
_KEY = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))sk-[A-Za-z0-9_-]{8,}")
