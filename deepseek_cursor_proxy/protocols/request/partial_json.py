"""JSON that was cut off, closed so that it can be parsed.

Whole members and items count; a string, name, number or word that was cut does not. The official packages read the
pieces of a tool's input the same way, so a plain message and a streamed one have the same object.
"""

import re
from typing import Any

from deepseek_cursor_proxy.json_codec import decode_upstream_json

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# None of these may follow it: they would be a part of the same number or word.
_SCALAR = r"(?:-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null)(?![\w.+-])"
_TOKEN = re.compile(rf"\s*+(?:({_STRING})|{_SCALAR}|([{{\[])|([}}\]])|([,:]))", re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def repair_object(arguments: str) -> dict[str, Any]:
    """The arguments as an object, as far as they came; other text as the one field of an object."""
    for text in (arguments or "{}", close(arguments)):
        try:
            found = decode_upstream_json(text)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {"arguments": arguments} if arguments.strip() else {}


def close(text: str) -> str:
    """The text up to its last whole value, with every open object and list closed."""
    closings: list[str] = []
    end_of_last = 0
    before = ""
    at = 0
    while found := _TOKEN.match(text, at):
        string, opening, closing, sign = found.groups()
        is_name = bool(string and closings and closings[-1] == "}" and before in ("{", ","))
        before = opening or sign or ""
        at = found.end()
        if opening:
            closings.append(_CLOSING[opening])
        elif closing and closings:
            closings.pop()
        if not sign and not is_name:
            end_of_last = at
    # A bracket moves `end_of_last`, so all closings belong to brackets before it.
    return text[:end_of_last] + "".join(reversed(closings))
