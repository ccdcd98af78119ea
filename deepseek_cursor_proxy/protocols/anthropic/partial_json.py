"""What JSON that was cut off says so far.

Members and items that are whole count; a text, name, number or word that broke off does not. So do the official
packages read the pieces of a tool's input: whoever is told the whole message at once gets the same object.
"""

import re

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# What follows would be a part of the same number or word.
_SCALAR = r"(?:-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null)(?![\w.+-])"
_TOKEN = re.compile(rf"\s*+(?:({_STRING})|{_SCALAR}|([{{\[])|([}}\]])|([,:]))", re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def closed(text: str) -> str:
    """The text up to the last value that is whole, and all that is still open closed; no JSON if it was none before."""
    open_ones: list[str] = []
    kept = 0
    before = ""
    at = 0
    while found := _TOKEN.match(text, at):
        string, opening, closing, sign = found.groups()
        is_name = bool(string and open_ones and open_ones[-1] == "}" and before in ("{", ","))
        before = opening or sign or ""
        at = found.end()
        if opening:
            open_ones.append(_CLOSING[opening])
        elif closing and open_ones:
            open_ones.pop()
        if not sign and not is_name:
            kept = at
    # What opens or closes is kept, so since then nothing else is open.
    return text[:kept] + "".join(reversed(open_ones))
