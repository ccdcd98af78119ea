"""A strict client of the Messages API: it checks the laws of a stream on every stream it reads."""

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import responses_client
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes
from tests.support.harness import events as events
from tests.support.responses_client import join_utf16

Json = dict[str, Any]
PATH = "/v1/messages"
VERSION = {"anthropic-version": "2023-06-01"}
# As Claude Code asks for it.
THINKING: Json = {"thinking": {"type": "adaptive"}}
TOOLS = [{"name": "read_file", "description": "Reads.", "input_schema": {"type": "object", "properties": {}}}]
_TEXTS = {
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"}, "text": {"text_delta": "text"},
    "tool_use": {"input_json_delta": "partial_json"}, "server_tool_use": {"input_json_delta": "partial_json"},
}  # fmt: skip


class ClientReply(responses_client.ClientReply):
    @property
    def message(self) -> Json:
        return add_up_events(self.events) if self.is_stream else self.value


def add_up_events(found: Sequence[Json]) -> Json:
    """The message that the events of a whole stream add up to, as the official libraries do it."""
    events = [event for event in found if event["type"] != "ping"]
    assert events[0]["type"] == "message_start", found
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"], found
    message = dict(events[0]["message"])
    assert (message["content"], message["stop_reason"]) == ([], None), message
    message["content"] = blocks(events[1:-2])
    return {**message, **events[-2]["delta"], "usage": {**message["usage"], **events[-2]["usage"]}}


def blocks(found: Sequence[Json]) -> list[Json]:
    """The content that block events add up to: one open block at a time, numbered from 0 on."""
    content: list[Json] = []
    open_block: Json | None = None
    written: dict[str, str] = {}
    for event in found:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None, found
            assert event["index"] == len(content), event
            open_block, written = dict(event["content_block"]), {}
            content.append(open_block)
            continue
        assert open_block is not None, event
        assert event["index"] == len(content) - 1, event
        if kind == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "citations_delta":
                assert open_block["type"] == "text", event
                open_block.setdefault("citations", []).append(delta["citation"])
                continue
            name = _TEXTS[open_block["type"]][delta["type"]]
            assert delta[name], event
            assert "signature" not in written, event
            written[name] = join_utf16(written.get(name, ""), delta[name])
        else:
            assert kind == "content_block_stop", event
            close(open_block, written)
            open_block = None
    assert open_block is None, found
    return content


def close(block: Json, written: Mapping[str, str]) -> None:
    if block["type"] in ("tool_use", "server_tool_use"):
        assert block["input"] == {}, block
        block["input"] = json.loads(written.get("partial_json", "") or "{}")
    else:
        assert not any(block[name] for name in written), block
        block.update(written)
    assert block["type"] != "thinking" or block["signature"], block


def user(*content: Any) -> Json:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(message: Json) -> Json:
    return {"role": "assistant", "content": message["content"]}


def result(call_id: str, content: Any = "42", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def kinds(message: Json) -> list[str]:
    return [block["type"] for block in message["content"]]


def without_ids(message: Json) -> Json:
    """A message without id and usage, which differ from call to call."""
    return {name: value for name, value in message.items() if name not in ("id", "usage")}


class MessagesTestCase(SocketTestCase):
    def send(
        self, proxy: RunningProxy, body: Any, *, path: str = PATH, headers: Mapping[str, str] | None = None
    ) -> ClientReply:
        return self.ask(proxy, "POST", path, body, headers)

    def ask(
        self, proxy: RunningProxy, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> ClientReply:
        given = {**VERSION, **({"x-api-key": "sk-test"} if headers is None else headers)}
        lines = [f"{name}: {value}" for name, value in given.items()]
        return ClientReply(*self.call(proxy, method, path, body, key="", headers=lines))

    def create(self, proxy: RunningProxy, *messages: Json, key: str = "sk-test", **body: Any) -> ClientReply:
        fields = {"model": "deepseek-v4-pro", "max_tokens": 1000, "messages": list(messages or [user("q")])}
        return self.send(proxy, {**fields, **THINKING, **body}, headers={"x-api-key": key})

    def complete(self, proxy: RunningProxy, *messages: Json, **body: Any) -> Json:
        reply = self.create(proxy, *messages, **body)
        self.assertEqual(200, reply.status, reply.body)
        return reply.message

    def open_stream(self, proxy: RunningProxy, **body: Any) -> socket.socket:
        """A connection on which a stream was requested and not read yet."""
        fields = {"max_tokens": 1000, "messages": [user("q")], "stream": True, **THINKING, **body}
        return self.connect(proxy, request_bytes(fields, path=PATH))
