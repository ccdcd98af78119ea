"""The law of the chat memory: with it and without it, DeepSeek and the client get the same bytes."""

import http.client
import json
import re
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.exchange import services
from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.support.harness import PATIENCE, SocketTestCase
from tests.support.histories import TOOLS

TURNS = 8
# Longer than the bodies that are decoded without the memory.
FILE = 'value = look_up("…")\n' * 800
SEALED = "reasoning.encrypted_content"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
STAGES = {
    CHAT: {"parse messages", "identify", "restore", "repair", "roles", "encode"},
    RESPONSES: {"unseal", "parse items", "identify", "restore", "repair", "roles", "encode"},
    MESSAGES: {"unseal", "parse messages", "identify", "restore", "repair", "roles", "encode"},
}
# Random ids, times, and what is sealed with a random secret.
VOLATILE = re.compile(
    rb'[0-9a-f-]{24,}|"(created|created_at|completed_at)":[0-9.]+|"(signature|encrypted_content)":"[^"]*"'
)


def first_body(path: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "deepseek-v4-pro"}
    if path == RESPONSES:
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        question = {"type": "message", "role": "user", "content": "Fix it."}
        return {**body, "input": [question], "tools": tools, "store": False, "include": [SEALED]}
    body["messages"] = [{"role": "user", "content": "Fix it."}]
    if path == CHAT:
        return {**body, "tools": TOOLS}
    tools = [{"name": each["function"]["name"], "input_schema": each["function"]["parameters"]} for each in TOOLS]
    return {**body, "tools": tools, "max_tokens": 1000, "thinking": {"type": "enabled", "budget_tokens": 500}}


def continued(path: str, body: dict[str, Any], reply: dict[str, Any], call_id: str) -> dict[str, Any]:
    """The next request, with the answer as a client of this API sends it back."""
    if path == RESPONSES:
        result = {"type": "function_call_output", "call_id": call_id, "output": FILE}
        # Codex sends the sealed reasoning back, without its text.
        items = [{**item, "content": []} if item["type"] == "reasoning" else item for item in reply["output"]]
        return {**body, "input": [*body["input"], *items, result]}
    if path == MESSAGES:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": FILE}
        answer = {"role": "assistant", "content": reply["content"]}
        return {**body, "messages": [*body["messages"], answer, {"role": "user", "content": [block]}]}
    answer = {**reply["choices"][0]["message"]}
    answer.pop("reasoning_content", None)
    result = {"role": "tool", "tool_call_id": call_id, "content": FILE}
    return {**body, "messages": [*body["messages"], answer, result]}


def marked(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a mark on its last block, as Claude Code sends it; in the next request another block has it."""
    *before, last = body["messages"]
    if isinstance(last["content"], str):
        return body
    content = [*last["content"][:-1], {**last["content"][-1], "cache_control": {"type": "ephemeral"}}]
    return {**body, "messages": [*before, {**last, "content": content}]}


class TestChatMemory(SocketTestCase):
    def play(self, path: str, memory: ChatMemory) -> list[bytes]:
        """A chat of tool turns, each asked for plainly and as a stream: what DeepSeek and the client got."""
        seen: list[bytes] = []
        with FakeDeepSeek() as fake, mock.patch.object(services, "ChatMemory", return_value=memory):
            proxy = self.proxy(upstream_base_url=fake.url)
            with closing(http.client.HTTPConnection(*proxy.address, timeout=PATIENCE)) as connection:
                body = first_body(path)
                for turn in range(TURNS):
                    call = Call(f"call_00_{turn:024x}", TOOLS[0]["function"]["name"], '{"path":"a.py"}')
                    answer = Answer(reasoning=f"I think, {turn}.", content=f"Turn {turn}.", calls=(call,))
                    for is_stream in (True, False):
                        fake.answer(answer)
                        headers = {"Authorization": "Bearer sk-test"}
                        sent = marked(body) if path == MESSAGES else body
                        connection.request("POST", path, json.dumps({**sent, "stream": is_stream}), headers)
                        reply = connection.getresponse().read()
                        seen += VOLATILE.sub(b"*", fake.seen[-1].body), VOLATILE.sub(b"*", reply)
                    body = continued(path, body, json.loads(reply), call.id)
            self.assertEqual([], fake.refused)
            reasonings = [each.get("reasoning_content") for each in fake.seen[-1].payload["messages"]]
            self.assertEqual([f"I think, {turn}." for turn in range(TURNS - 1)], [*filter(None, reasonings)])
        return seen

    def test_the_memory_changes_no_byte_on_any_api(self) -> None:
        for path in (CHAT, RESPONSES, MESSAGES):
            with self.subTest(path):
                memory = ChatMemory()
                self.assertEqual(self.play(path, ChatMemory(0)), self.play(path, memory))
                (chat,) = memory.chats()
                self.assertEqual(STAGES[path], {stage.name for stage in chat._entries})
