"""Sessions and nodes as JSON: those of the API, and the lines of a file for training.

The lists of tokens are null without a tokenizer, and `num_tokens` is then an estimate that says so. Lines are made one
at a time, so that memory does not grow with the number of nodes. Their formats:

openai      {"messages", "tools", "metadata"}, as fine-tuning of chat models takes it
sharegpt    {"conversations": [{"from", "value"}], "tools", "metadata"}
hermes      {"text", "metadata"}: the rendering
nodes       everything that the API has

The rendering is a trajectory as one text: ChatML with the tags that most open models with tools are trained on
("hermes").

    <|im_start|>system        the prompt, then the tools, one JSON object per line between <tools> and </tools>
    <|im_start|>assistant     <think>…</think>, the text, one <tool_call>…</tool_call> with a JSON object per call
    <|im_start|>tool          <tool_response>…</tool_response>

Each piece of the text says which message the model wrote it in, if it wrote it: everything from <think> to the end mark
<|im_end|>, which is a piece by itself: it is the template's unless the upstream sent one. A text of a message that
contains such a tag stays as it is: the rendering is for training, not for parsing back. Messages are in the form of
chat completions, with `reasoning_content`.

`mask` has the tokens of a rendering, in three lists of one length:

    tokens           of the whole text
    masked_tokens    the same, with MASKED for every token that the model did not write alone, in this session
    logprobs         1.0 where masked; a number only if the upstream sent one for exactly these bytes; None otherwise

A token that is partly template counts as template, and so does the end mark of an answer, unless the upstream sent one
with its tokens: as the model's own <|im_end|>, or as the mark of DeepSeek's models. Nothing is interpolated: a value
without evidence is None.
"""

import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy.features.sessions.trajectory import Json, Node, Session
from deepseek_cursor_proxy.features.tokens.estimate import estimate_text
from deepseek_cursor_proxy.json_codec import as_list, as_object, object_in

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
        "tool_parser": HERMES,
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
    pieces = render(node.messages, node.tools)
    text = text_of(pieces)
    lists = (None, None, None) if tokenizer is None else mask(pieces, node.own, tokenizer, node.logprobs)
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
    text = text_of(render(messages, tools, for_answer=True))
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
        for message, value in zip(node.messages, message_texts(node.messages), strict=True)
    ]
    return {"conversations": turns, "tools": json.dumps(list(node.tools)), "metadata": _metadata(node)}


def _hermes(node: Node) -> Json:
    return {"text": text_of(render(node.messages, node.tools)), "metadata": _metadata(node)}


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


# The rendering …

HERMES = "hermes"
END_MARK = "<|im_end|>"
MASKED = -100
_MASKED_LOGPROB = 1.0
_ENDS = (END_MARK.encode(), "<｜end▁of▁sentence｜>".encode())
_TOOLS_BEFORE = "You can call these functions; each line describes one:\n<tools>\n"
_TOOLS_AFTER = (
    '\n</tools>\nTo call one, write {"name": its name, "arguments": an object} between <tool_call> and </tool_call>.'
)


class Piece(NamedTuple):
    """A part of the text, and the index of the message that a model wrote it in; None for template and other roles."""

    text: str
    author: int | None = None
    # The end mark of an answer.
    is_end: bool = False


def render(messages: Sequence[Json], tools: Sequence[Json] = (), *, for_answer: bool = False) -> list[Piece]:
    """The pieces of a trajectory; with `for_answer` it ends where the model continues."""
    pieces = list(_system(messages, tools))
    begins = 1 if messages and messages[0].get("role") == "system" else 0
    for index, message in enumerate(messages[begins:], begins):
        pieces += _message(message, index)
    return [*pieces, Piece("<|im_start|>assistant\n")] if for_answer else pieces


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def message_texts(messages: Sequence[Json]) -> list[str]:
    """Each message by itself: an answer with its thoughts and calls in tags, without the marks of the template."""
    texts = ((message, _text(message.get("content"))) for message in messages)
    return [_answer(message, text) if message.get("role") == "assistant" else text for message, text in texts]


def _system(messages: Sequence[Json], tools: Sequence[Json]) -> Iterator[Piece]:
    prompt = _text(messages[0].get("content")) if messages and messages[0].get("role") == "system" else ""
    lines = "\n".join(_compact(as_object(tool.get("function"))) for tool in tools)
    about_tools = f"{_TOOLS_BEFORE}{lines}{_TOOLS_AFTER}" if tools else ""
    if text := "\n\n".join(filter(None, (prompt, about_tools))):
        yield Piece(f"<|im_start|>system\n{text}<|im_end|>\n")


def _message(message: Json, index: int) -> Iterator[Piece]:
    role, content = message.get("role"), _text(message.get("content"))
    if role == "assistant":
        yield Piece("<|im_start|>assistant\n")
        yield Piece(_answer(message, content), index)
        yield Piece(END_MARK, index, is_end=True)
        yield Piece("\n")
    elif role == "tool":
        yield Piece(f"<|im_start|>tool\n<tool_response>\n{content}\n</tool_response><|im_end|>\n")
    else:
        yield Piece(f"<|im_start|>{role}\n{content}<|im_end|>\n")


def _answer(message: Json, content: str) -> str:
    reasoning = message.get("reasoning_content")
    thoughts = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    calls = [_call(as_object(as_object(call).get("function"))) for call in as_list(message.get("tool_calls"))]
    return thoughts + "\n".join([content, *calls] if content else calls)


def _call(function: Json) -> str:
    arguments = function.get("arguments")
    # Arguments that are no object stay the text that the model wrote.
    value = object_in(arguments) if isinstance(arguments, str) else None
    call = {"name": function.get("name"), "arguments": arguments if value is None else value}
    return f"<tool_call>\n{_compact(call)}\n</tool_call>"


def _text(content: object) -> str:
    """Content as text; a picture or file is named by its type."""
    if isinstance(content, str):
        return content
    parts = map(as_object, as_list(content))
    return "\n".join(str(part["text"]) if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class TokenLists(NamedTuple):
    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float | None]


# By message: lists of tokens that the upstream sent for a part of it, its text or its reasoning.
Evidence = Mapping[int, Sequence[Sequence[Mapping[str, Any]]]]


def mask(pieces: Sequence[Piece], own: Collection[int], tokenizer: "BpeTokenizer", evidence: Evidence) -> TokenLists:
    """The lists for a rendering; `own` are the indexes of the messages that were written in this session."""
    # For each byte of the text whether the model wrote it in this session; and the log probabilities that the upstream
    # sent, by the bytes they are for.
    is_written, known = bytearray(), dict[tuple[int, int], float]()
    for piece in pieces:
        text = piece.text.encode("utf-8", "replace")
        sent = evidence.get(piece.author, ()) if piece.author in own and piece.author is not None else ()
        has_end = any(map(_has_end, sent))
        for tokens in sent:
            part = (tokens[-1:] if piece.is_end else tokens[:-1]) if _has_end(tokens) else tokens
            _add_part(known, text, len(is_written), part)
        is_own = piece.author in own and (has_end or not piece.is_end)
        is_written += bytes([is_own]) * len(text)
    lists = TokenLists([], [], [])
    begin = 0
    for token, length in tokenizer.spans(text_of(pieces)):
        end = begin + length
        is_own = 0 not in is_written[begin:end]
        lists.tokens.append(token)
        lists.masked_tokens.append(token if is_own else MASKED)
        lists.logprobs.append(known.get((begin, end)) if is_own else _MASKED_LOGPROB)
        begin = end
    return lists


def _has_end(tokens: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last token that was sent is an end mark."""
    return bool(tokens) and bytes(tokens[-1]["bytes"]) in _ENDS


def _add_part(known: dict[tuple[int, int], float], text: bytes, at: int, tokens: Sequence[Mapping[str, Any]]) -> None:
    """Add the tokens that were sent for a part of a text that begins at a byte."""
    sent = b"".join(bytes(token["bytes"]) for token in tokens)
    offset = text.find(sent)
    # The same words may come twice, in the thoughts and in the text: then it is not known which are meant.
    if not sent or offset < 0 or text.find(sent, offset + 1) >= 0:
        return
    begin = at + offset
    for token in tokens:
        end = begin + len(token["bytes"])
        known[begin, end] = token["logprob"]
        begin = end
