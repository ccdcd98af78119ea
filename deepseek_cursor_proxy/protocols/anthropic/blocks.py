"""The blocks of a message in Anthropic's API: each writes its own events and is, in the end, a value of `content`."""

from collections.abc import Iterable, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import ServerPiece, join_pieces
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request.partial_json import repair_object
from deepseek_cursor_proxy.reasoning.sealed import Sealer


class Block:
    """One block of the content; `delta` has the type of its deltas and the name of the text in them."""

    delta = ("", "")

    def __init__(self, index: int, beginning: dict[str, Any]) -> None:
        self.index = index
        self.beginning = beginning
        self._pieces: list[str] = []
        kind, name = self.delta
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % index
        self._around = head + b'"delta":{"type":"%b","%b":"' % (kind.encode(), name.encode()), b'"}}\n\n'

    @property
    def value(self) -> dict[str, Any]:
        raise AssertionError

    @property
    def text(self) -> str:
        return join_pieces(self._pieces)

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        self._pieces.append(text)
        return b"".join([string.join(self._around) for string in strings])

    def finish(self) -> bytes:
        return b""


class Thinking(Block):
    delta = ("thinking_delta", "thinking")

    def __init__(self, index: int, sealer: Sealer, is_omitted: bool) -> None:
        super().__init__(index, {"type": "thinking", "thinking": "", "signature": ""})
        self._sealer = sealer
        self._is_omitted = is_omitted

    @property
    def value(self) -> dict[str, Any]:
        thinking = "" if self._is_omitted else self.text
        return {"type": "thinking", "thinking": thinking, "signature": self._sealer.seal(self.text)}

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        deltas = super().write(text, strings)
        return b"" if self._is_omitted else deltas

    def finish(self) -> bytes:
        # Never empty: some clients drop thinking without a signature, or take it for text.
        delta = {"type": "signature_delta", "signature": self._sealer.seal(self.text)}
        return event("content_block_delta", index=self.index, delta=delta)


class Text(Block):
    delta = ("text_delta", "text")

    def __init__(self, index: int, sealer: Sealer, is_omitted: bool) -> None:
        super().__init__(index, {"type": "text", "text": ""})

        self._citations: list[Mapping[str, Any]] = []

    @property
    def value(self) -> dict[str, Any]:
        citations = {"citations": self._citations} if self._citations else {}
        return {"type": "text", "text": self.text, **citations}

    def cite(self, citation: Mapping[str, Any]) -> bytes:
        self._citations.append(citation)
        delta = {"type": "citations_delta", "citation": citation}
        return event("content_block_delta", index=self.index, delta=delta)


class ToolUse(Block):
    delta = ("input_json_delta", "partial_json")

    def __init__(self, index: int, call: int, call_id: str, name: str) -> None:
        super().__init__(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self.call = call

    @property
    def value(self) -> dict[str, Any]:
        return {**self.beginning, "input": repair_object(self.text)}


class ServerBlock(Block):
    """A block of a tool that DeepSeek runs itself, as DeepSeek sent it; the input of a use follows its beginning."""

    delta = ("input_json_delta", "partial_json")

    def __init__(self, index: int, piece: ServerPiece) -> None:
        self._item = dict(piece.item)
        self._has_deltas = self._item["type"] == "server_tool_use"
        super().__init__(index, {**self._item, "input": {}} if self._has_deltas else self._item)
        self.key = piece.key

    @property
    def value(self) -> dict[str, Any]:
        return self._item

    def complete(self, item: Mapping[str, Any]) -> bytes:
        self._item = dict(item)
        if not self._has_deltas or not item.get("input"):
            return b""
        text = encode_json(item["input"]).decode()
        return self.write(text, [encode_json(text)[1:-1]])


def event(kind: str, **rest: Any) -> bytes:
    return sse.event(encode_json({"type": kind, **rest}), kind)
