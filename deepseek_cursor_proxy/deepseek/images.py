"""Pictures and files inside messages: what they are called where nobody can see them, and how many may be shown.

A part is canonical here: `{"type": "image_url", "image_url": {"url": …}}` with a data URL or a remote one, or
`{"type": "file", "file": {…}}`. The words for one depend on nothing but the part, so they are the same in every later
request and DeepSeek's prefix cache goes on hitting. The limits are those of DeepSeek's vision guide (September 2026).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.errors import BadRequest, TooLarge

_MIB = 1024 * 1024
MAX_BYTES_INLINE = 32 * _MIB
MAX_BYTES_TOGETHER = 64 * _MIB
MAX_IMAGES = 600
LONGEST_URL = 8192

# Enough of a remote address to tell what it is.
_SHOWN_URL = 200


def placeholder(part: Mapping[str, Any]) -> str:
    """The words for a picture or file: its kind, its size and a digest that tells it from any other."""
    if part["type"] == "image_url":
        return _words("image", "", _url(part))
    file = part["file"]
    return _words("file", file.get("filename") or file.get("file_id") or "", file.get("file_data") or "")


def _words(kind: str, name: str, url: str) -> str:
    media, data = _split(url)
    facts = [_shown(name)] if name else []
    if data is not None:
        facts += [_shown(media), _amount(_decoded_size(data))]
    elif url:
        facts.append(_shown(url))
    digest = hashlib.sha256(f"{name}\0{url}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"[{kind}: {', '.join([*facts, digest])}]"


def check(messages: Iterable[Message]) -> None:
    """Refuse what DeepSeek's vision models would refuse, naming the limit."""
    count = total = 0
    for part in _shown_pictures(messages):
        count += 1
        url = _url(part)
        _, data = _split(url)
        if data is None:
            if len(url) > LONGEST_URL:
                raise BadRequest(
                    f"The URL of a picture is {len(url)} characters long; DeepSeek takes at most {LONGEST_URL}.",
                    param="messages",
                    code="image_url_too_long",
                )
            continue
        size = _decoded_size(data)
        total += size
        if size > MAX_BYTES_INLINE:
            raise _too_large(f"A picture has {_amount(size)}; DeepSeek takes at most 32 MiB per inline picture.")
    if total > MAX_BYTES_TOGETHER:
        raise _too_large(f"The pictures have {_amount(total)} together; DeepSeek takes at most 64 MiB inline.")
    if count > MAX_IMAGES:
        raise _too_large(f"The request has {count} pictures; DeepSeek takes at most {MAX_IMAGES}.")


def attachments(message: Message) -> list[Mapping[str, Any]]:
    """The pictures and files of a message."""
    return [] if isinstance(message.content, str) else [part for part in message.content if part["type"] != "text"]


def _shown_pictures(messages: Iterable[Message]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        # Those of systems and assistants are only ever named.
        if message.role in ("user", "tool"):
            yield from (part for part in attachments(message) if part["type"] == "image_url")


def _url(part: Mapping[str, Any]) -> str:
    url: str = part["image_url"]["url"]
    return url


def _split(url: str) -> tuple[str, str | None]:
    """The media type and the data of a data URL; without data, it is a remote one."""
    if url[:5].lower() != "data:":
        return "", None
    head, _, data = url[5:].partition(",")
    return head.split(";")[0] or "text/plain", data


def _decoded_size(data: str) -> int:
    padding = 2 if data.endswith("==") else int(data.endswith("="))
    return max(0, len(data) * 3 // 4 - padding)


def _amount(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{round(size / 1000)} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _shown(text: str) -> str:
    # Whatever a client calls its file, it stays one line.
    shown = text if len(text) <= _SHOWN_URL else text[: _SHOWN_URL - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in shown)


def _too_large(sentence: str) -> TooLarge:
    return TooLarge(f"{sentence} Send fewer or smaller pictures.", param="messages", code="image_too_large")
