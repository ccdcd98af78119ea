"""OpenAI chat completions: writes an answer as chunks (`ChunkWriter`) or as one completion (`CompletionWriter`).

Both edit DeepSeek's own chunks instead of rebuilding them, so fields we do not know survive. A delta has its chunk as
it came; its own values are written into the chunk here and nowhere else: text with our thinking block, reasoning,
calls, finish_reason, usage with the cached tokens. So are the model name that the client asked for, and the free text
of a custom tool's call in place of its JSON.
A stream has the reasoning once: as `reasoning_content` or, where that is null, in the text. A completion has both.
The usage of a stream is

    include_usage: true      in one last chunk with no choices, as OpenAI has it
    include_usage: false     nowhere
    else                     in the chunk with the finish_reason, as DeepSeek has it, whatever the upstream does
"""

import secrets
from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, Heartbeat, Run
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.errors import ClientGone, ProxyError
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_list, as_object, as_text, encode_json
from deepseek_cursor_proxy.protocols.tools import CustomCallUnwrapper

# The placeholder for the text that differs from chunk to chunk; JSON writes it as it is, and no chunk contains it.
_TEXT = secrets.token_hex(16)


class ChunkWriter:
    """Writes one stream. Used by one thread; `created` dates the chunks that DeepSeek did not send."""

    def __init__(self, request: ChatRequest, created: int) -> None:
        self._model = request.requested_model
        self._includes_usage = request.include_usage
        # The latest usage: some hosts send it with every chunk.
        self._usage: Mapping[str, Any] | None = None
        self._has_finished = False
        # The chunk with the finish_reason, until the usage comes that some hosts send after it, or the end.
        self._held: Mapping[str, Any] | None = None
        custom, nested = request.custom_tools, request.openai_custom_tools
        self._unwrapper = CustomCallUnwrapper(custom, nested) if custom else None
        # The template of the last run, whether it has text, and the bytes around the text of its chunks.
        self._run_parts: tuple[Any, bool, list[bytes]] | None = None
        # The last chunk; until DeepSeek sends one, a chunk of our own.
        self._last: Mapping[str, Any] = {
            "id": "chatcmpl-waiting",
            "object": "chat.completion.chunk",
            "created": created,
            "model": self._model,
        }

    def begin(self) -> bytes:
        return b""

    def write(self, batch: Batch) -> bytes:
        # Nearly all chunks arrive alone.
        return self._write(batch[0]) if len(batch) == 1 else b"".join(map(self._write, batch))

    def end(self) -> bytes:
        if self._usage is None or not self._includes_usage:
            return self._take_held() + sse.DONE
        return sse.event(encode_json({**self._header(), "choices": [], "usage": self._usage})) + sse.DONE

    def fail(self, error: ProxyError) -> bytes:
        return self._take_held() + failure_events(error)

    def _write(self, item: Delta | Heartbeat) -> bytes:
        if not isinstance(item, Delta):
            return sse.comment(item.line) if item.line else self._own(Delta(text=""))
        if item.run is not None:
            begun = self._begin_held(self._held, item.choice) if self._held is not None else b""
            return begun + self._write_run(item, item.run)
        if item.chunk is None:
            return self._own(item)
        if item.usage is not None:
            self._usage = item.usage
        if item.finish_reason:
            self._has_finished = True
        if not item.chunk.get("choices"):
            # Clients read choices[0] of every chunk that is not the usage they asked for.
            if self._has_finished:
                return self._take_held() if self._usage is not None else b""
            return self._own(Delta(text=""))
        if self._unwrapper is not None:
            item = self._unwrapper.unwrap(item)
        chunk = self._chunk(item)
        if not item.finish_reason or self._includes_usage is not None:
            begun = self._begin_held(self._held, item.choice) if self._held is not None else b""
            return begun + sse.event(encode_json(chunk))
        earlier, self._held = self._take_held(), chunk
        return earlier + self._take_held() if self._usage is not None else earlier

    def _begin_held(self, held: Mapping[str, Any], index: int) -> bytes:
        """What the held chunk has beside its finish_reason, before content of the same choice that comes after that."""
        choice = held["choices"][0]
        if choice["index"] != index or not any(choice["delta"].values()):
            return b""
        self._held = {**held, "choices": [{**choice, "delta": {}}]}
        return sse.event(encode_json({**held, "choices": [{**choice, "finish_reason": None}]}))

    def _take_held(self) -> bytes:
        chunk, self._held = self._held, None
        if chunk is None:
            return b""
        return sse.event(encode_json(chunk if self._usage is None else {**chunk, "usage": self._usage}))

    def _chunk(self, delta: Delta) -> Mapping[str, Any]:
        self._last = chunk = _edit(delta, self._model, "delta", self._unwrapper)
        if self._includes_usage:
            chunk["usage"] = None
        else:
            chunk.pop("usage", None)
        return chunk

    def _write_run(self, delta: Delta, run: Run) -> bytes:
        """One event per chunk, spliced: the bytes around the text are the same in all of them."""
        has_text = bool(delta.text)
        parts = self._run_parts
        if parts is None or parts[0] is not run.template or parts[1] != has_text:
            marked = self._chunk(delta._replace(text=_TEXT) if has_text else delta._replace(reasoning=_TEXT))
            parts = self._run_parts = run.template, has_text, sse.event(encode_json(marked)).split(_TEXT.encode())
        if len(run.strings) == 1:
            return run.strings[0].join(parts[2])
        return b"".join([string.join(parts[2]) for string in run.strings])

    def _own(self, delta: Delta) -> bytes:
        choice = {"index": delta.choice, "delta": {"content": delta.text}, "finish_reason": None}
        usage = {"usage": None} if self._includes_usage else {}
        return sse.event(encode_json({**self._header(), "choices": [choice], **usage}))

    def _header(self) -> dict[str, Any]:
        """The fields that all chunks of the stream have in common."""
        names = ("id", "object", "created", "model", "system_fingerprint")
        return {name: self._last[name] for name in names if name in self._last}


def failure_events(error: ProxyError) -> bytes:
    fields = {"message": error.message, "type": error.type_in_stream, "param": None, "code": error.code}
    return sse.event(encode_json({"error": fields})) + sse.DONE


class CompletionWriter:
    """Writes one completion, at its end. Used by one thread."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._deltas: list[Delta] = []

    def begin(self) -> bytes:
        return b""

    def write(self, batch: Batch) -> bytes:
        self._deltas += [item for item in batch if isinstance(item, Delta)]
        return b""

    def end(self) -> bytes:
        request = self._request
        completion: dict[str, Any] = {}
        choices: list[Any] = []
        custom, nested = request.custom_tools, request.openai_custom_tools
        unwrapper = CustomCallUnwrapper(custom, nested) if custom else None
        for delta in self._deltas:
            delta = unwrapper.unwrap(delta, is_whole=True) if unwrapper is not None else delta
            edited = _edit(delta, request.requested_model, "message", unwrapper)
            choices += edited["choices"]
            completion = {**completion, **edited}
        if len(choices) > 1:
            # The first to be finished comes first; clients count on the order.
            choices.sort(key=lambda choice: choice.get("index") or 0)
        return encode_json({**completion, "choices": choices})

    def fail(self, error: ProxyError) -> bytes:
        """Break off: a completion has no field for a failure."""
        raise ClientGone


def _edit(delta: Delta, model: str, part: str, unwrapper: CustomCallUnwrapper | None) -> dict[str, Any]:
    """The chunk (or completion) a delta came from, with the delta's own values written into it."""
    edited: dict[str, Any] = {**(delta.chunk or {}), "model": model}
    if delta.usage is not None:
        edited["usage"] = delta.usage
    choices = edited.get("choices")
    if not choices:
        return edited
    choice = choices[0]
    before = as_object(choice.get(part))
    content, reasoning, entries = before.get("content"), before.get("reasoning_content"), before.get("tool_calls")
    message = before
    if delta.server is not None and isinstance(content, list):
        if delta.text is not None:
            message = {**message, "content": _edit_blocks(content, delta.text)}
    elif delta.text != content:
        message = {**message, "content": delta.text}
    if delta.reasoning != reasoning and (delta.reasoning is not None or (part == "delta" and reasoning is not None)):
        # Null, not absent: DeepSeek's own chunks have it so while the model answers, and clients read it unasked.
        message = {**message, "reasoning_content": delta.reasoning}
    if delta.calls or entries:
        # The entries as they came, each with the values of its CallPiece; new ones come last.
        sent, calls = as_list(entries), []
        for at, piece in enumerate(delta.calls):
            entry = _edit_call(as_object(sent[at]) if at < len(sent) else {}, piece, part)
            calls.append(entry if unwrapper is None else unwrapper.nest(entry, delta.choice, piece.index))
        if not calls:
            message = {name: value for name, value in message.items() if name != "tool_calls"}
        elif calls != entries:
            message = {**message, "tool_calls": calls}
    ends_alike = choice.get("finish_reason") in (delta.finish_reason, delta.finish_reason or "")
    is_same = ends_alike and delta.choice == choice.get("index", 0)
    if message is not choice.get(part) or not is_same:
        fields = {"index": delta.choice, "finish_reason": delta.finish_reason}
        edited["choices"] = [{**choice, **(fields if not is_same else {}), part: message}]
    return edited


def _edit_blocks(blocks: list[Any], text: str) -> list[Any]:
    """Blocks of a search and of text, with the text of ours around theirs in blocks of its own."""
    own = server_tools.text_of(blocks)
    before, _, after = text.partition(own) if own else (text, "", "")
    lead, trail = ([{"type": "text", "text": part}] if part else [] for part in (before, after))
    return [*lead, *blocks, *trail]


def _edit_call(entry: Mapping[str, Any], piece: CallPiece, part: str) -> Mapping[str, Any]:
    edited, function = {**entry}, {**as_object(entry.get("function"))}
    if part == "delta" or "index" in entry:
        edited["index"] = piece.index
    if piece.id != as_text(entry.get("id")):
        edited["id"] = piece.id
        if not piece.id:
            # The client has another one, which we made before this came.
            del edited["id"]
    if piece.id and not entry.get("type"):
        edited["type"] = "function"
    for name, value in (("name", piece.name), ("arguments", piece.arguments)):
        if value != as_text(function.get(name)):
            function[name] = value
    if function != as_object(entry.get("function")):
        edited["function"] = function
    return edited
