"""The order in which tools are sent.

Tools are at the front of DeepSeek's prompt, so the same tools in another order make it read, and bill, the whole chat
anew: measured hits fell from 99.9 % to 0. Some clients shuffle theirs from request to request. Therefore:

    sticky   a chat's first request sorts by name; later ones keep the order last sent and add what is new after it
    sorted   always by name: nothing to remember, but a new tool moves its neighbours
    client   as they came

Rule: in whatever order a client sends the same tools again, DeepSeek gets the same bytes. Pure: the order last sent is
an argument.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_canonical_json = json.JSONEncoder(sort_keys=True).encode

Tools = tuple[Mapping[str, Any], ...]


def order(tools: Sequence[Mapping[str, Any]], last_sent: Sequence[str] | None, mode: str) -> Tools:
    """The tools in the order to send; `last_sent` are the names as this chat last sent them."""
    sent = names(tools)
    if mode == "client" or len(sent) < 2 or len(set(sent)) < len(sent):
        # Two tools of one name differ by their positions alone.
        return tuple(tools)
    if mode == "sticky" and last_sent is not None and sent == tuple(last_sent):
        return tuple(tools)
    positions = {name: at for at, name in enumerate(last_sent or ())} if mode == "sticky" else {}
    return tuple(sorted(tools, key=lambda tool: (positions.get(name_of(tool), len(positions)), name_of(tool))))


def order_server_tools(tools: Tools, mode: str) -> Tools:
    """The tools that DeepSeek runs itself, which follow the others, in the order to send."""
    return tools if mode == "client" or len(tools) < 2 else tuple(sorted(tools, key=_canonical_json))


def names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple([name_of(tool) for tool in tools])


def name_of(tool: Mapping[str, Any]) -> str:
    """The name of a function, the type of a tool that DeepSeek runs itself."""
    function = tool.get("function")
    name: str = tool["type"] if function is None else function["name"]
    return name
