"""Message content of every dialect, as text or as parts in OpenAI's chat shape.

Text parts are joined by line breaks, because DeepSeek takes plain strings. Pictures stay parts, whichever dialect they
come in: `image_url` (chat), `input_image` (Responses) and `image` (Anthropic) become one canonical `image_url` part,
so the same picture is the same history. A part of an unknown kind is passed on as its JSON, in which long base64
(sound, a picture, something encrypted) is only named, because no model can read it.
"""

import re
from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Parts
from deepseek_cursor_proxy.protocols.request.fields import Json, bad_field, json_text, object_at, optional_string

_TEXTS = ("text", "input_text", "output_text", "refusal")
# Longer than any hash or token that a model could make use of.
_OPAQUE = re.compile(r"(?:data:[\w/.+;=-]{0,100},)?[A-Za-z0-9+/_-]{1000,}={0,2}")
# What DeepSeek's vision guide allows; the hint of a newer client is worth less than the picture it comes with.
_DETAILS = ("low", "high", "original", "auto")


def read(content: Any, param: str) -> str | Parts:
    """Content as the canonical conversation holds it; absent content is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(param, "a string or a list of parts")
    return join_parts([read_part(part, f"{param}[{index}]") for index, part in enumerate(content)])


def join_parts(parts: Sequence[Json]) -> str | Parts:
    """Parts as one text if they are nothing else."""
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
        return _picture(part, param)
    if kind in ("image", "document"):
        return _anthropic_source(part, param)
    if kind in ("file", "input_file"):
        return _file(part, param)
    return _in_words(part)


def _in_words(part: Json) -> Json:
    """A part as its JSON; without the marks of a cache, which move on with every turn of a chat."""
    return text_part(json_text({name: _readable(value) for name, value in part.items() if name != "cache_control"}))


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return f"[{len(value)} characters]" if _OPAQUE.fullmatch(value) else value
    if isinstance(value, dict):
        return {name: _readable(inner) for name, inner in value.items()}
    return [_readable(inner) for inner in value] if isinstance(value, list) else value


def _picture(part: Json, param: str) -> Json:
    """Chat nests the URL in an object; Responses has it bare, or the id of an uploaded file in its place."""
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
        return _image_url(url) if is_image else _document(part, url, param)
    if kind == "file":
        return {"type": "file", "file": {"file_id": optional_string(source, "file_id", at) or ""}}
    url = optional_string(source, "url", at) or ""
    if kind == "url" and is_image:
        return _image_url(url)
    text = optional_string(source, "data", at)
    if kind == "text" and text is not None:
        title = optional_string(part, "title", param)
        return text_part(f"[document: {title}]\n{text}" if title else text)
    return _in_words(part)


def _document(part: Json, url: str, param: str) -> Json:
    name = optional_string(part, "title", param) or "document"
    return {"type": "file", "file": {"file_data": url, "filename": name}}


def _file(part: Json, param: str) -> Json:
    """Chat nests the fields of a file, Responses does not; a file by URL is nothing DeepSeek could fetch."""
    nested = part.get("file")
    source, at = (nested, f"{param}.file") if isinstance(nested, dict) else (part, param)
    fields = {name: optional_string(source, name, at) for name in ("file_id", "file_data", "filename")}
    if fields["file_id"] is None and fields["file_data"] is None:
        return _in_words(part)
    return {"type": "file", "file": {name: value for name, value in fields.items() if value is not None}}
