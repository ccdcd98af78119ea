"""OpenAI chat completions, as Cursor speaks it: the answer half.

Answers edit DeepSeek's own chunks instead of rebuilding them, so fields we do not know survive. What is written into
a chunk: the model name the client asked for, the text with our display in it, usage with the cached tokens.
The request half is chat_request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from deepseek_cursor_proxy import sse
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Aside, Batches, ChatRequest, Delta
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed
from deepseek_cursor_proxy.protocols.chat_request import parse
from deepseek_cursor_proxy.wire import encode_json


class ChatCompletions:
    """The dialect of POST /chat/completions; `now` dates the chunks that DeepSeek did not send."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def parse(self, body: Mapping[str, Any], config: ProxyConfig) -> ChatRequest:
        return parse(body, config)

    def reply(self, request: ChatRequest, deltas: Sequence[Delta]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        choices: list[Any] = []
        for delta in deltas:
            edited = _edited(delta, request.asked_model, "message")
            choices += edited["choices"]
            whole = {**whole, **edited}
        return {**whole, "choices": choices}

    def stream(self, request: ChatRequest, batches: Batches) -> Iterator[bytes]:
        writer = _Writer(request.asked_model, int(self._now()))
        with closing(batches):
            try:
                for batch in batches:
                    yield b"".join(map(writer.write, batch))
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
    # After the first byte every failure is upstream's; the code tells which.
    return {"error": {"message": error.message, "type": "upstream_error", "param": None, "code": error.code}}


class _Writer:
    """Writes one stream; remembers what its chunks look like, for those that DeepSeek did not send."""

    def __init__(self, model: str, created: int) -> None:
        self._model = model
        # Until the first of DeepSeek's chunks has been seen.
        self._shape: Mapping[str, Any] = {
            "id": "chatcmpl-waiting",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def write(self, item: Delta | Aside) -> bytes:
        if isinstance(item, Aside):
            return sse.comment(item.line) if item.line else self._own(Delta(text=""))
        if item.source is None:
            return self._own(item)
        self._shape = chunk = _edited(item, self._model, "delta")
        return sse.event(encode_json(chunk))

    def _own(self, delta: Delta) -> bytes:
        kept = ("id", "object", "created", "model", "system_fingerprint")
        chunk = {key: self._shape[key] for key in kept if key in self._shape}
        choice = {"index": delta.choice, "delta": {"content": delta.text}, "finish_reason": None}
        return sse.event(encode_json({**chunk, "choices": [choice]}))


def _edited(delta: Delta, model: str, part: str) -> dict[str, Any]:
    """The chunk (or completion) a delta came from, with what changed on the way written into it."""
    edited: dict[str, Any] = {**(delta.source or {}), "model": model}
    if delta.usage is not None:
        edited["usage"] = delta.usage
    choices = edited.get("choices")
    if choices and delta.text is not None:
        said = choices[0].get(part)
        if not isinstance(said, dict) or said.get("content") != delta.text:
            said = {**said, "content": delta.text} if isinstance(said, dict) else {"content": delta.text}
            edited["choices"] = [{**choices[0], part: said}]
    return edited
