"""A session and its nodes as JSON, for the API and for export.

The lists of tokens are null without a tokenizer, and `num_tokens` is then an estimate that says so.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from deepseek_cursor_proxy.sessions import rendering, token_masks
from deepseek_cursor_proxy.sessions.rendering import Piece
from deepseek_cursor_proxy.sessions.trajectory import Json, Node, Session
from deepseek_cursor_proxy.tokens.estimate import estimate_text


class Tokenizer(token_masks.Encoder, Protocol):
    def encode(self, text: str) -> list[int]: ...


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


def node_json(node: Node, tokenizer: Tokenizer | None) -> dict[str, Any]:
    pieces = rendering.render(node.messages, node.tools)
    lists = None if tokenizer is None else token_masks.mask(pieces, node.own, tokenizer, node.logprobs)
    return {
        "id": node.id,
        "parent": node.parent,
        "messages": list(node.messages),
        "tools": list(node.tools),
        "full_text": rendering.text_of(pieces),
        "tokens": None if lists is None else lists.tokens,
        "masked_tokens": None if lists is None else lists.masked_tokens,
        "logprobs": None if lists is None else lists.logprobs,
        **_token_count(pieces, None if lists is None else len(lists.tokens)),
        **node.info,
    }


def prompt_json(messages: Sequence[Json], tools: Sequence[Json], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What would be sent, as the text that a model goes on from."""
    pieces = rendering.render(messages, tools, for_answer=True)
    text = rendering.text_of(pieces)
    token_ids = None if tokenizer is None else tokenizer.encode(text)
    count = None if token_ids is None else len(token_ids)
    return {"prompt_text": text, "token_ids": token_ids, **_token_count(pieces, count)}


def _token_count(pieces: list[Piece], count: int | None) -> dict[str, Any]:
    if count is not None:
        return {"num_tokens": count}
    return {"num_tokens": round(estimate_text(rendering.text_of(pieces))), "estimated": True}
