"""Requests with pictures on every API, and what upstream saw of them."""

import base64
from collections.abc import Callable
from typing import Any

from tests.support.harness import RawReply, RunningProxy, SocketTestCase, request_bytes
from tests.support.histories import TOOLS

Json = dict[str, Any]
PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"
CALL_ID = "call_00_abcdefghijklmnop123456"


def data_of(name: str) -> str:
    """The base64 of a picture that no other name has."""
    return base64.b64encode(b"\x89PNG\r\n" + name.encode()).decode()


def part(name: str) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data_of(name)}"}}


def user(*content: str | Json) -> Json:
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    return {"role": "user", "content": parts}


def call(call_id: str = CALL_ID) -> Json:
    function = {"name": "read_file", "arguments": "{}"}
    tool_calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls, "reasoning_content": "Let me look."}


def result(*content: str | Json, call_id: str = CALL_ID) -> Json:
    return {**user(*content), "role": "tool", "tool_call_id": call_id}


# A question with a picture, and one whose tool returned a picture, in the shape of each API.


def _chat(name: str) -> Json:
    return {"messages": [user("Look.", part(name))]}


def _responses(name: str) -> Json:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data_of(name)}", "detail": "high"}
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]}]}


def _block(name: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data_of(name)}}


def _messages(name: str) -> Json:
    return {"max_tokens": 1000, "messages": [user("Look.", _block(name))]}


def _chat_result(name: str) -> Json:
    return {"messages": [user("Take one."), call(), result("Done.", part(name))], "tools": TOOLS}


def _responses_result(name: str) -> Json:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data_of(name)}"}
    made = {"type": "function_call", "call_id": CALL_ID, "name": "read_file", "arguments": "{}"}
    output = [{"type": "input_text", "text": "Done."}, picture]
    items = [{"role": "user", "content": "Take one."}, made]
    return {"input": [*items, {"type": "function_call_output", "call_id": CALL_ID, "output": output}]}


def _messages_result(name: str) -> Json:
    use = {"type": "tool_use", "id": CALL_ID, "name": "read_file", "input": {}}
    content = [{"type": "text", "text": "Done."}, _block(name)]
    answer = {"type": "tool_result", "tool_use_id": CALL_ID, "content": content}
    turns = [user("Take one."), {"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return {"max_tokens": 1000, "messages": turns}


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
QUESTIONS: dict[str, Callable[[str], Json]] = {"chat": _chat, "responses": _responses, "messages": _messages}
RESULTS: dict[str, Callable[[str], Json]] = {
    "chat": _chat_result, "responses": _responses_result, "messages": _messages_result,
}  # fmt: skip


class PictureTestCase(SocketTestCase):
    def post(self, proxy: RunningProxy, api: str, body: Json, *, key: str = "sk-test") -> RawReply:
        body = {"model": PRO, **body}
        reply = self.round_trip(proxy, request_bytes(body, path=PATHS[api], key=key))
        self.assertEqual(200, reply.status, reply.body)
        return reply

    def chat(self, proxy: RunningProxy, *messages: Json, key: str = "sk-test", **fields: Any) -> RawReply:
        return self.post(proxy, "chat", {"messages": list(messages), **fields}, key=key)

    def sent_to(self, model: str = PRO) -> list[list[Json]]:
        """The messages of every call to a model that was answered."""
        return [payload["messages"] for payload in self.fake.accepted if payload["model"] == model]

    def assert_named(self, text: str) -> None:
        self.assertRegex(text, r"\[image: image/png, \d+ B, [0-9a-f]{12}\]")
