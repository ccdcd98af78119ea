"""Text that may be shown: no API keys, no control characters, bounded length."""

import json
import re
from typing import Any


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


# What moves a cursor, breaks a line, turns the direction of writing, hides other text, or cannot be encoded. Characters
# that join others are left alone: emoji and several scripts need them.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)

# Not the end of a word, as in task-list; but an escape of JSON's in front of it is none.
_KEY = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))sk-[A-Za-z0-9_-]{8,}")
