"""Pictures at DeepSeek: which requests are refused for theirs.

The limits are those of the vision guide (September 2026); no capture shows the words, so these are ours.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MIB = 1024 * 1024
_MAX_BYTES = 32 * _MIB
_MAX_BYTES_TOGETHER = 64 * _MIB
_MAX_PICTURES = 600
_LONGEST_URL = 8192
# JPEG, PNG, GIF and WebP are told by their first bytes, whatever the media type says.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")


def problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    urls = [part["image_url"]["url"] for part in _parts(messages) if part["type"] == "image_url"]
    if len(urls) > _MAX_PICTURES:
        yield f"Too many images: {len(urls)}, at most {_MAX_PICTURES}"
    sizes = []
    for url in urls:
        if not url.startswith("data:"):
            if not url.startswith(("http://", "https://")) or len(url) > _LONGEST_URL:
                yield "Invalid image URL"
            continue
        data = _decode(url)
        if data is None or not data.startswith(_SIGNATURES):
            yield "Unsupported image format: expected JPEG, PNG, GIF or WebP"
            return
        sizes.append(len(data))
    if any(size > _MAX_BYTES for size in sizes) or sum(sizes) > _MAX_BYTES_TOGETHER:
        yield "The images are too large"


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from message["content"]


def _decode(url: str) -> bytes | None:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except ValueError:
        return None
