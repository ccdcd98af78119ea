"""Nodes as lines of a file for training, one at a time, so that memory does not grow with the number of nodes.

openai      {"messages", "tools", "metadata"}, as fine-tuning of chat models takes it
sharegpt    {"conversations": [{"from", "value"}], "tools", "metadata"}
hermes      {"text", "metadata"}: the rendering
nodes       everything that the API has
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.sessions import rendering
from deepseek_cursor_proxy.sessions.node_json import Tokenizer, node_json
from deepseek_cursor_proxy.sessions.trajectory import Json, Node

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


@dataclass(frozen=True)
class Filter:
    """Which nodes are exported."""

    since: float | None = None
    # Answers of the model in this session.
    min_turns: int = 0
    only_complete: bool = False

    def accepts(self, node: Node) -> bool:
        if self.since is not None and (node.info.get("finished") or 0) < self.since:
            return False
        if len(node.own) < self.min_turns:
            return False
        return not self.only_complete or bool((node.info.get("metadata") or {}).get("is_complete"))


def lines(nodes: Iterable[Node], format: str, chosen: Filter, tokenizer: Tokenizer | None = None) -> Iterator[bytes]:
    """The lines of the nodes that the filter accepts."""
    write = FORMATS[format]
    for node in nodes:
        if chosen.accepts(node):
            line = node_json(node, tokenizer) if write is None else write(node)
            yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file; raises OSError or ValueError."""
    # Only here: reading the merges takes a second and 13 MB.
    from deepseek_cursor_proxy.tokens.bpe import BpeTokenizer, UnsupportedTokenizer

    try:
        return BpeTokenizer(json.loads(path.read_bytes()))
    except UnsupportedTokenizer as problem:
        raise ValueError(f"it has {problem}, which this program does not know") from None


def _openai(node: Node) -> Json:
    return {"messages": list(node.messages), "tools": list(node.tools), "metadata": _metadata(node)}


def _sharegpt(node: Node) -> Json:
    turns = [
        {"from": _SHAREGPT_ROLES.get(message["role"], message["role"]), "value": value}
        for message, value in zip(node.messages, rendering.message_texts(node.messages), strict=True)
    ]
    return {"conversations": turns, "tools": json.dumps(list(node.tools)), "metadata": _metadata(node)}


def _hermes(node: Node) -> Json:
    return {"text": rendering.text_of(rendering.render(node.messages, node.tools)), "metadata": _metadata(node)}


def _metadata(node: Node) -> dict[str, Any]:
    known = node.info
    fields = {name: known.get(name) for name in ("model", "usage", "cost", "started", "finished")}
    return {"node": node.id, "parent": node.parent, **fields, **(known.get("metadata") or {})}


FORMATS: dict[str, Callable[[Node], Json] | None] = {
    "openai": _openai,
    "sharegpt": _sharegpt,
    "hermes": _hermes,
    "nodes": None,
}
