"""Reads message content of every API as text, or as parts in the shape of chat completions.

Text parts are joined by line breaks, because DeepSeek takes plain strings. Images stay parts: `image_url` (chat),
`input_image` (Responses) and `image` (Anthropic) become one canonical `image_url` part, so that the same image is the
same history. A part of an unknown kind becomes its JSON as text, with a placeholder for long base64 (sound, images,
encrypted data), which no model can read.
"""

import re
from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Parts
from deepseek_cursor_proxy.protocols.request.field_checks import Json, bad_field, json_text, object_at, optional_string

_TEXTS = ("text", "input_text", "output_text", "refusal")
# Longer than any hash or token that a model could use.
_OPAQUE = re.compile(r"(?:data:[\w/.+;=-]{0,100},)?[A-Za-z0-9+/_-]{1000,}={0,2}")
# The values of DeepSeek's vision guide; any other value is left out rather than refused.
_DETAILS = ("low", "high", "original", "auto")


def read(content: Any, param: str) -> str | Parts:
    """Canonical content; absent content is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(param, "a string or a list of parts")
    return join_parts([read_part(part, f"{param}[{index}]") for index, part in enumerate(content)])


def join_parts(parts: Sequence[Json]) -> str | Parts:
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return tuple(parts)


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def read_part(part: Any, param: str) -> Json:
    """One part in its canonical shape: `text`, `image_url` or `file`."""
    if isinstance(part, str):
        return text_part(part)
    part = object_at(part, param)
    kind = part.get("type")
    if kind in _TEXTS or (kind is None and "text" in part):
        return text_part(optional_string(part, "refusal" if kind == "refusal" else "text", param) or "")
    if kind in ("image_url", "input_image"):
        return _image(part, param)
    if kind in ("image", "document"):
        return _anthropic_source(part, param)
    if kind in ("file", "input_file"):
        return _file(part, param)
    return _json_part(part)


def _json_part(part: Json) -> Json:
    """A part as its JSON, without `cache_control`, which moves with every turn of a chat."""
    return text_part(
        json_text({name: _shorten_opaque(value) for name, value in part.items() if name != "cache_control"})
    )


def _shorten_opaque(value: Any) -> Any:
    if isinstance(value, str):
        return f"[{len(value)} characters]" if _OPAQUE.fullmatch(value) else value
    if isinstance(value, dict):
        return {name: _shorten_opaque(inner) for name, inner in value.items()}
    return [_shorten_opaque(inner) for inner in value] if isinstance(value, list) else value


def _image(part: Json, param: str) -> Json:
    """Chat nests the URL in an object; Responses has the bare URL, or the id of an uploaded file."""
    image = part.get("image_url")
    detail = optional_string(part, "detail", param)
    if isinstance(image, dict):
        url = optional_string(image, "url", f"{param}.image_url")
        detail = optional_string(image, "detail", f"{param}.image_url") or detail
    else:
        url = optional_string(part, "image_url", param)
    if url is None:
        file_id = optional_string(part, "file_id", param)
        if file_id is None:
            raise bad_field(f"{param}.image_url", "a URL")
        return {"type": "file", "file": {"file_id": file_id}}
    return _image_url(url, detail)


def _image_url(url: str, detail: str | None = None) -> Json:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail in _DETAILS else {})}}


def _anthropic_source(part: Json, param: str) -> Json:
    source = object_at(part.get("source"), f"{param}.source")
    at = f"{param}.source"
    kind, is_image = source.get("type"), part["type"] == "image"
    if kind == "base64":
        media = optional_string(source, "media_type", at) or ("image/png" if is_image else "application/pdf")
        url = f"data:{media};base64,{optional_string(source, 'data', at) or ''}"
        if is_image:
            return _image_url(url)
        name = optional_string(part, "title", param) or "document"
        return {"type": "file", "file": {"file_data": url, "filename": name}}
    if kind == "file":
        return {"type": "file", "file": {"file_id": optional_string(source, "file_id", at) or ""}}
    url = optional_string(source, "url", at) or ""
    if kind == "url" and is_image:
        return _image_url(url)
    text = optional_string(source, "data", at)
    if kind == "text" and text is not None:
        title = optional_string(part, "title", param)
        return text_part(f"[document: {title}]\n{text}" if title else text)
    return _json_part(part)


def _file(part: Json, param: str) -> Json:
    """Chat nests the fields of a file, Responses does not. A file by URL becomes text: DeepSeek cannot fetch it."""
    nested = part.get("file")
    source, at = (nested, f"{param}.file") if isinstance(nested, dict) else (part, param)
    fields = {name: optional_string(source, name, at) for name in ("file_id", "file_data", "filename")}
    if fields["file_id"] is None and fields["file_data"] is None:
        return _json_part(part)
    return {"type": "file", "file": {name: value for name, value in fields.items() if value is not None}}
