"""Sessions and nodes as JSON: those of the API, and the lines of a file for training.

The lists of tokens are null without a tokenizer, and `num_tokens` is then an estimate that says so. Lines are made one
at a time, so that memory does not grow with the number of nodes. Their formats:

openai      {"messages", "tools", "metadata"}, as fine-tuning of chat models takes it
sharegpt    {"conversations": [{"from", "value"}], "tools", "metadata"}
hermes      {"text", "metadata"}: the rendering
nodes       everything that the API has
"""

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.features.sessions import rendering
from deepseek_cursor_proxy.features.sessions.trajectory import Json, Node, Session
from deepseek_cursor_proxy.features.tokens.estimate import estimate_text

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def session_json(session: Session, base_url: str) -> dict[str, Any]:
    options = session.options
    return {
        "uuid": session.uuid,
        "name": options.name,
        "tags": list(options.tags),
        "model_name": session.model,
        "tool_parser": options.tool_parser,
        "track_tree": options.track_tree,
        "base_url": base_url,
        "created_at": session.created_at,
        "last_accessed": session.used_at,
        "num_requests": session.requests,
        "num_nodes": session.nodes,
        "tokens": session.tokens,
        "cost": session.cost,
    }


def node_json(node: Node, tokenizer: "BpeTokenizer | None") -> dict[str, Any]:
    pieces = rendering.render(node.messages, node.tools)
    text = rendering.text_of(pieces)
    lists = (None, None, None) if tokenizer is None else rendering.mask(pieces, node.own, tokenizer, node.logprobs)
    return {
        "id": node.id,
        "parent": node.parent,
        "messages": list(node.messages),
        "tools": list(node.tools),
        "full_text": text,
        **dict(zip(("tokens", "masked_tokens", "logprobs"), lists, strict=True)),
        **_token_count(text, lists[0]),
        **node.info,
    }


def prompt_json(messages: Sequence[Json], tools: Sequence[Json], tokenizer: "BpeTokenizer | None") -> dict[str, Any]:
    """The prompt that would be sent, as the text that a model continues."""
    text = rendering.text_of(rendering.render(messages, tools, for_answer=True))
    token_ids = None if tokenizer is None else tokenizer.encode(text)
    return {"prompt_text": text, "token_ids": token_ids, **_token_count(text, token_ids)}


def _token_count(text: str, tokens: Sequence[int] | None) -> dict[str, Any]:
    if tokens is not None:
        return {"num_tokens": len(tokens)}
    return {"num_tokens": round(estimate_text(text)), "estimated": True}


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


def lines(
    nodes: Iterable[Node], format: str, chosen: Filter, tokenizer: "BpeTokenizer | None" = None
) -> Generator[bytes, None, None]:
    """The lines of the nodes that the filter accepts."""
    write = FORMATS[format]
    for node in nodes:
        if chosen.accepts(node):
            line = node_json(node, tokenizer) if write is None else write(node)
            yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


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
