"""OpenAI chat completions, as Cursor speaks it: the answer half.

Answers edit DeepSeek's own chunks instead of rebuilding them, so fields we do not know survive. What is written into
a chunk: the model name the client asked for, the text with our display in it, usage with the cached tokens, and the
free text of a custom tool's call in place of its JSON.
A stream tells the thinking once: as `reasoning_content` or, where that is null, in the text. A whole answer has both.
It tells its usage as OpenAI does: in one last chunk with no choices, if the client asked for it, else nowhere.
The request half is chat_request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Batches, CallPiece, ChatRequest, Delta, Heartbeat, Run, Shape
from deepseek_cursor_proxy.deepseek.repeated_chunks import split_run, write_run
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request.custom_tools import CustomCallUnwrapper
from deepseek_cursor_proxy.protocols.request.parse import parse

# Stands in a chunk for the text that differs from chunk to chunk; JSON writes it as it is.
_TEXT = "=the text="


class ChatCompletions:
    """The dialect of POST /chat/completions; `now` dates the chunks that DeepSeek did not send."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def parse(self, body: Mapping[str, Any], config: ProxyConfig) -> ChatRequest:
        return parse(body, config)

    def reply(self, request: ChatRequest, deltas: Sequence[Delta]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        choices: list[Any] = []
        unwrapper = CustomCallUnwrapper(request.custom_tools)
        for delta in deltas:
            delta = unwrapper.unwrap(delta, is_whole=True) if request.custom_tools else delta
            edited = _edited(delta, request.requested_model, "message")
            choices += edited["choices"]
            whole = {**whole, **edited}
        # Of several choices the first to be finished comes first; clients count on the order.
        return {**whole, "choices": sorted(choices, key=lambda choice: choice.get("index") or 0)}

    def stream(self, request: ChatRequest, batches: Batches) -> Iterator[bytes]:
        writer = _Writer(request, int(self._now()))
        with closing(batches):
            try:
                for batch in batches:
                    written = writer.write(batch[0]) if len(batch) == 1 else b"".join(map(writer.write, batch))
                    # An empty piece is a lull; a batch of which the client gets nothing is none.
                    if written or not batch:
                        yield written
                if usage := writer.usage():
                    yield usage
            except ProxyError as error:
                yield sse.event(encode_json(_stream_error(error)))
            except (ValueError, RecursionError):
                # Read but not writable again, such as JSON nested to the brim: told like any other failure.
                yield sse.event(
                    encode_json(_stream_error(UpstreamFailed("DeepSeek sent an event that cannot be passed on.")))
                )
            yield sse.DONE

    def error(self, error: ProxyError) -> dict[str, Any]:
        return error.payload()


def _stream_error(error: ProxyError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.type_in_stream, "param": None, "code": error.code}}


class _Writer:
    """Writes one stream; remembers what its chunks look like, for those that DeepSeek did not send."""

    def __init__(self, request: ChatRequest, created: int) -> None:
        self._model = request.requested_model
        self._includes_usage = request.include_usage
        # As it was told last: some hosts count along.
        self._usage: Mapping[str, Any] | None = None
        self._has_finished = False
        self._unwrapper = CustomCallUnwrapper(request.custom_tools) if request.custom_tools else None
        # The shape of the last run, whether its reasoning is shown, and what stands around the text in its chunks.
        self._spliced: tuple[Shape, bool, list[bytes]] | None = None
        # Until the first of DeepSeek's chunks has been seen.
        self._shape: Mapping[str, Any] = {
            "id": "chatcmpl-waiting",
            "object": "chat.completion.chunk",
            "created": created,
            "model": self._model,
        }

    def write(self, item: Delta | Heartbeat) -> bytes:
        if isinstance(item, Heartbeat):
            return sse.comment(item.line) if item.line else self._own(Delta(text=""))
        if item.source is None:
            return self._own(item)
        if item.run is not None:
            return self._write_run(item, item.run)
        if item.usage is not None:
            self._usage = item.usage
        if item.finish_reason:
            self._has_finished = True
        if not item.source.get("choices"):
            # Clients read choices[0] of every chunk that is not the usage they asked for.
            return b"" if self._has_finished else self._own(Delta(text=""))
        if self._unwrapper is not None:
            item = self._unwrapper.unwrap(item)
        return sse.event(encode_json(self._chunk(item)))

    def usage(self) -> bytes:
        """The chunk behind all others that tells the usage; nothing if the client did not ask for it."""
        if self._usage is None or not self._includes_usage:
            return b""
        return sse.event(encode_json({**self._header(), "choices": [], "usage": self._usage}))

    def _chunk(self, delta: Delta) -> Mapping[str, Any]:
        self._shape = chunk = _edited(delta, self._model, "delta")
        if self._includes_usage:
            chunk["usage"] = None
        else:
            chunk.pop("usage", None)
        return chunk

    def _write_run(self, delta: Delta, run: Run) -> bytes:
        """One event per chunk, spliced: what is around its text is the same for all of them."""
        is_shown = run.shape.is_thinking and bool(delta.text)
        cut = self._spliced
        if cut is None or cut[0] is not run.shape or cut[1] != is_shown:
            marked = self._chunk(_shown(run.shape.single(_TEXT)) if is_shown else run.shape.single(_TEXT))
            cut = self._spliced = run.shape, is_shown, sse.event(encode_json(marked)).split(_TEXT.encode())
        around = cut[2]
        if len(around) != 2:
            # Somebody uses the very words that mark the place of the text.
            return b"".join([self.write(_shown(each) if is_shown else each) for each in split_run(delta)])
        return write_run(run, around)

    def _own(self, delta: Delta) -> bytes:
        choice = {"index": delta.choice, "delta": {"content": delta.text}, "finish_reason": None}
        usage = {"usage": None} if self._includes_usage else {}
        return sse.event(encode_json({**self._header(), "choices": [choice], **usage}))

    def _header(self) -> dict[str, Any]:
        """What all chunks of the stream have in common."""
        kept = ("id", "object", "created", "model", "system_fingerprint")
        return {key: self._shape[key] for key in kept if key in self._shape}


def _shown(delta: Delta) -> Delta:
    """A delta of thinking as the display writes it: the reasoning is the text."""
    return delta._replace(reasoning=None, text=delta.reasoning)


def _edited(delta: Delta, model: str, part: str) -> dict[str, Any]:
    """The chunk (or completion) a delta came from, with what changed on the way written into it."""
    edited: dict[str, Any] = {**(delta.source or {}), "model": model}
    if delta.usage is not None:
        edited["usage"] = delta.usage
    choices = edited.get("choices")
    if choices:
        found = choices[0].get(part)
        came = found if isinstance(found, dict) else {}
        said = _said(came, delta)
        if part == "delta" and delta.reasoning is None and came.get("reasoning_content") is not None:
            # Null, not absent: DeepSeek's own chunks have it so while the model answers, and clients read it unasked.
            said = {**said, "reasoning_content": None}
        if said is not came:
            edited["choices"] = [{**choices[0], part: said}]
    return edited


def _said(said: Mapping[str, Any], delta: Delta) -> Mapping[str, Any]:
    if delta.text is not None and said.get("content") != delta.text:
        said = {**said, "content": delta.text}
    if delta.calls:
        calls = said.get("tool_calls")
        written = _written(calls if isinstance(calls, list) else [], delta.calls)
        if written != calls:
            said = {**said, "tool_calls": written}
    return said


def _written(calls: Sequence[Any], pieces: Sequence[CallPiece]) -> list[Any]:
    """The pieces of calls as they came, with the arguments they have by now; new pieces come last."""
    waiting = list(pieces)
    written = []
    for position, call in enumerate(calls):
        index = call.get("index") if isinstance(call, dict) else -1
        index = position if index is None else index
        piece = next((each for each in waiting if each.index == index), None)
        if piece is not None:
            waiting.remove(piece)
            call = _with_arguments(call, piece.arguments)
        written.append(call)
    return [*written, *({"index": each.index, "function": {"arguments": each.arguments}} for each in waiting)]


def _with_arguments(call: Mapping[str, Any], arguments: str) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or (function.get("arguments") or "") == arguments:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
