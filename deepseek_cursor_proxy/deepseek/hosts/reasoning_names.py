"""Reads reasoning under the names that hosts other than DeepSeek have for it.

Every host is read under every name, because a gateway may pass on the dialect of the server behind it. Afterwards there
is one name, `reasoning_content`, for the display, the store and all clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import ForeignReasoning
from deepseek_cursor_proxy.json_codec import as_list


def read_reasoning(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ForeignReasoning]:
    """A message or delta with its reasoning as `reasoning_content` alone, and what it had under other names.

    The first of the names that has text counts: most hosts that send two send the same text twice.
    """
    details = tuple(each for each in as_list(fields.get("reasoning_details")) if isinstance(each, dict))
    own, other = _text(fields.get("reasoning_content")), _text(fields.get("reasoning"))
    text = own or other or details_text(details)
    known = {name: value for name, value in fields.items() if name not in ("reasoning", "reasoning_details")}
    if text or isinstance(fields.get("reasoning"), str):
        known["reasoning_content"] = text
    name = "reasoning_details" if details else "reasoning"
    return known, ForeignReasoning(name, details, is_native=bool(own))


def details_text(details: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_text(each.get("text")) or _text(each.get("summary")) for each in details)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
