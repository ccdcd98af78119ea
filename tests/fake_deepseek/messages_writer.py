"""Answers of DeepSeek's Messages API: one message, or its events, with the searches that DeepSeek ran for it.

A search is a `server_tool_use` block whose input is streamed in pieces, the `web_search_tool_result` in one piece, and
citations in the text after it. No capture shows DeepSeek's own blocks whole: ids, encrypted fields and the order of the
deltas are those of Anthropic's reference; title, page_age and cited_text are as DeepSeek's harness reads them.
This file knows no socket or script.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json, object_in
from tests.fake_deepseek import messages_contract
from tests.fake_deepseek.completion import Answer, Completion, PrefixCache, pieces
from tests.fake_deepseek.searches import Citation, Search

Json = dict[str, Any]

_STOP_REASONS = {
    "stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal",
    "pause_turn": "pause_turn", "stop_sequence": "stop_sequence",
}  # fmt: skip


@dataclass(frozen=True)
class BlockAnswer(Answer):
    """An answer whose blocks are written out; thinking is left out of it where the request wants none."""

    blocks: tuple[Mapping[str, Any], ...] = ()


class MessageAnswer(Completion):
    def __init__(self, answer: Answer, payload: Mapping[str, Any], cache: PrefixCache, id: str, created: int) -> None:
        super().__init__(answer, payload, cache, id, created)
        self._runs_searches = bool(payload.get("server_tools"))

    def body(self) -> bytes:
        self._cache.keep(self._prompt, self._message(), self._thinking)
        if self._finish not in _STOP_REASONS:
            return encode_json(self._error())
        return encode_json({**self._frame(), "content": self._blocks(), **self._end(), "usage": self._counts()})

    def events(self) -> Iterator[bytes]:
        for event in self._event_objects():
            yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode_json(event))

    def _event_objects(self) -> Iterator[Json]:
        start = {**self._frame(), "content": [], "stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": {**start, "usage": {**self._counts(), "output_tokens": 0}}}
        yield {"type": "ping"}
        for index, block in enumerate(self._blocks()):
            for event in _block_events(block, self._answer.piece):
                yield {**event, "index": index}
        self._cache.keep(self._prompt, self._message(), self._thinking)
        if self._finish not in _STOP_REASONS:
            yield self._error()
            return
        yield {"type": "message_delta", "delta": self._end(), "usage": self._counts()}
        yield {"type": "message_stop"}

    def _frame(self) -> Json:
        return {"id": self._header["id"], "type": "message", "role": "assistant", "model": self._header["model"]}

    def _end(self) -> Json:
        return {"stop_reason": _STOP_REASONS[self._finish], "stop_sequence": None}

    def _error(self) -> Json:
        return {"type": "error", "error": {"type": "overloaded_error", "message": f"Ended with {self._finish}."}}

    def _counts(self) -> Json:
        usage = self._usage()
        counts = {
            "input_tokens": usage["prompt_cache_miss_tokens"], "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage["prompt_cache_hit_tokens"], "output_tokens": usage["completion_tokens"],
        }  # fmt: skip
        count = sum(_is_success(block) for block in self._blocks())
        return {**counts, "server_tool_use": {"web_search_requests": count}} if count else counts

    def _message(self) -> Json:
        """The turn as it is read when it comes back."""
        return messages_contract.turn(self._blocks())

    def _blocks(self) -> list[Json]:
        answer = self._answer
        if not self._runs_searches:
            answer = replace(answer, searches=(), citations=())
        found = answer.blocks if isinstance(answer, BlockAnswer) else _blocks_of(answer, str(self._header["id"]))
        return [dict(block) for block in found if self._thinking or block["type"] != "thinking"]


def _blocks_of(answer: Answer, id: str) -> Iterator[Json]:
    for number, search in enumerate(answer.searches):
        use_id = f"srvtoolu_{id.replace('-', '')[:16]}{number:02}"
        yield from _said(search.reasoning, search.text, id)
        yield {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {"query": search.queries[0]}}
        yield {"type": "web_search_tool_result", "tool_use_id": use_id, "content": _found(search)}
    yield from _said(answer.reasoning, answer.content, id, [_location(each) for each in answer.citations])
    for call in answer.calls:
        # The model may write none, or something that is no object.
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": object_in(call.arguments) or {}}


def _said(reasoning: str | None, text: str | None, id: str, citations: Sequence[Json] = ()) -> Iterator[Json]:
    if reasoning:
        yield {"type": "thinking", "thinking": reasoning, "signature": id}
    if text:
        yield {"type": "text", "text": text, **({"citations": citations} if citations else {})}


def _found(search: Search) -> Json | list[Json]:
    if search.status != "completed":
        return {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    return [
        {
            "type": "web_search_result",
            "url": f"https://example.com/{number}",
            "title": f"About {query}",
            "encrypted_content": f"encrypted {query}",
            "page_age": "2026-11-02",
        }
        for number, query in enumerate(search.queries)
    ]


def _location(source: Citation) -> Json:
    return {
        "type": "web_search_result_location", "url": source.url, "title": source.title,
        "encrypted_index": f"index of {source.url}", "cited_text": f"Words of {source.title}.",
    }  # fmt: skip


def _is_success(block: Mapping[str, Any]) -> bool:
    return block["type"] == "web_search_tool_result" and isinstance(block["content"], list)


def _block_events(block: Json, size: int) -> Iterator[Json]:
    beginning, deltas = _deltas(block, size)
    yield {"type": "content_block_start", "content_block": beginning}
    for delta in deltas:
        yield {"type": "content_block_delta", "delta": delta}
    yield {"type": "content_block_stop"}


def _deltas(block: Json, size: int) -> tuple[Json, list[Json]]:
    match block["type"]:
        case "thinking":
            said = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], size)]
            signature = {"type": "signature_delta", "signature": block.get("signature", "")}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*said, signature]
        case "text":
            said = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], size)]
            cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations", ())]
            return {"type": "text", "text": ""}, [*said[:1], *cited, *said[1:]]
        case "tool_use" | "server_tool_use":
            written = encode_json(block["input"]).decode()
            said = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written, size)]
            return {**block, "input": {}}, said
        case _:
            return block, []
