"""Images and files inside messages: DeepSeek's limits, and a placeholder for models that cannot see them.

Parts are canonical here: `{"type": "image_url", "image_url": {"url": …}}` with a data URL or a remote one, or
`{"type": "file", "file": {…}}`. The placeholder depends on the part alone, so it is the same in every later request and
DeepSeek's prefix cache hits. Only users and tools send pictures. The limits are those of DeepSeek's vision guide
(September 2026).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.errors import BadRequest, TooLarge

_MIB = 1024 * 1024
MAX_BYTES_INLINE = 32 * _MIB
MAX_BYTES_TOGETHER = 64 * _MIB
MAX_IMAGES = 600
LONGEST_URL = 8192

# Enough of a URL or a file name to recognize it.
_MAX_TEXT = 200


def placeholder(part: Mapping[str, Any]) -> str:
    """The text in place of an image or file: its kind, name or URL, size and digest."""
    kind, name, url = "image", "", ""
    if part["type"] == "image_url":
        url = _source(part)
    else:
        kind, file = "file", part["file"]
        name, url = file.get("filename") or file.get("file_id") or "", file.get("file_data") or ""
    media, data = _split_url(url)
    facts = [_printable(name)] if name else []
    if data is not None:
        facts += [_printable(media), _size_text(_decoded_size(data))]
    elif url:
        facts.append(_printable(url))
    digest = hashlib.sha256(f"{name}\0{url}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"[{kind}: {', '.join([*facts, digest])}]"


def check(messages: Iterable[Message]) -> None:
    """Raise a BadRequest or TooLarge that names the limit if DeepSeek's vision models would refuse the images."""
    # Images of system and assistant messages become placeholders.
    visible = [each.content for each in messages if not isinstance(each.content, str) and each.role in ("user", "tool")]
    urls = [_source(part) for parts in visible for part in parts if part["type"] == "image_url"]
    total = 0
    for url in urls:
        _, data = _split_url(url)
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
            raise _too_large(f"A picture has {_size_text(size)}; DeepSeek takes at most 32 MiB per inline picture.")
    if total > MAX_BYTES_TOGETHER:
        raise _too_large(f"The pictures have {_size_text(total)} together; DeepSeek takes at most 64 MiB inline.")
    if len(urls) > MAX_IMAGES:
        raise _too_large(f"The request has {len(urls)} pictures; DeepSeek takes at most {MAX_IMAGES}.")


def attachments(message: Message) -> list[Mapping[str, Any]]:
    return [] if isinstance(message.content, str) else [part for part in message.content if part["type"] != "text"]


def _split_url(url: str) -> tuple[str, str | None]:
    """The media type and the data of a data URL; the data is None for a remote URL."""
    if url[:5].lower() != "data:":
        return "", None
    head, _, data = url[5:].partition(",")
    return head.split(";")[0] or "text/plain", data


def _decoded_size(data: str) -> int:
    padding = 2 if data.endswith("==") else int(data.endswith("="))
    return max(0, len(data) * 3 // 4 - padding)


def _size_text(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{round(size / 1000)} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _printable(text: str) -> str:
    """A name from the client in one printable line."""
    short = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in short)


def _too_large(sentence: str) -> TooLarge:
    return TooLarge(f"{sentence} Send fewer or smaller pictures.", param="messages", code="image_too_large")


Picture = Mapping[str, Any]


def has_new_picture(messages: Sequence[Message]) -> bool:
    """Whether the turn that is to be answered has a picture that no message before it has.

    The turn begins with its last question: the last user messages in a row that do not follow a tool result, because
    some clients put reminders behind those.
    """
    start = len(messages) - 1
    while start > 0 and (messages[start].role != "user" or messages[start - 1].role in ("user", "tool")):
        start -= 1
    new = {_source(part) for message in messages[start:] for part in _pictures(message)}
    return bool(new) and bool(new - {_source(part) for message in messages[:start] for part in _pictures(message)})


def _pictures(message: Message) -> list[Picture]:
    if isinstance(message.content, str) or message.role not in ("user", "tool"):
        return []
    return [part for part in message.content if _is_picture(part)]


def _is_picture(part: Picture) -> bool:
    if part["type"] != "file":
        return bool(part["type"] == "image_url")
    # An uploaded file may be anything.
    data = part["file"].get("file_data")
    return bool(data[:11].lower() == "data:image/" if data else part["file"].get("file_id"))


def _source(part: Picture) -> str:
    """The URL, the data or the file id of a picture."""
    if part["type"] == "image_url":
        url: str = part["image_url"]["url"]
        return url
    return part["file"].get("file_data") or f"file id {part['file'].get('file_id')}"
