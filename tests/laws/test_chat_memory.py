"""The law of the chat memory: with it and without it, DeepSeek and the client get the same bytes."""

import re
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.exchange import services
from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.support.apis import APIS, CHAT, MESSAGES, RESPONSES, Api, ApiReply, ApiTestCase, Json
from tests.support.harness import request_bytes

TURNS = 8
# Longer than the bodies that are decoded without the memory.
FILE = 'value = look_up("…")\n' * 800
SEALED = "reasoning.encrypted_content"
STAGES = {
    CHAT: {"tools", "parse messages", "identify", "restore", "repair", "roles", "encode"},
    RESPONSES: {"unseal", "tools", "parse items", "identify", "restore", "repair", "roles", "encode"},
    MESSAGES: {"unseal", "tools", "parse messages", "identify", "restore", "repair", "roles", "encode"},
}
# Random ids, times, and what is sealed with a random secret.
VOLATILE = re.compile(
    rb'[0-9a-f-]{24,}|"(created|created_at|completed_at)":[0-9.]+|"(signature|encrypted_content)":"[^"]*"'
)


def kept(reply: ApiReply) -> list[Json]:
    """What the client of this API keeps of an answer; Codex sends the sealed reasoning back without its text."""
    turn = reply.turn()
    return (
        turn
        if reply.api is not RESPONSES
        else [{**item, "content": []} if "summary" in item else item for item in turn]
    )


def marked(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a mark on its last block, as Claude Code sends it; in the next request another block has it."""
    *before, last = body["messages"]
    if isinstance(last["content"], str):
        return body
    content = [*last["content"][:-1], {**last["content"][-1], "cache_control": {"type": "ephemeral"}}]
    return {**body, "messages": [*before, {**last, "content": content}]}


class TestChatMemory(ApiTestCase):
    def play(self, api: Api, memory: ChatMemory) -> list[bytes]:
        """A chat of tool turns, each asked for plainly and as a stream: what DeepSeek and the client got."""
        seen: list[bytes] = []
        fields = {"store": False, "include": [SEALED]} if api is RESPONSES else {}
        with FakeDeepSeek() as fake, mock.patch.object(services, "ChatMemory", return_value=memory):
            proxy = self.proxy(upstream_base_url=fake.url)
            history = [api.user("Fix it.")]
            for turn in range(TURNS):
                call = Call(f"call_00_{turn:024x}", "read_file", '{"path":"a.py"}')
                answer = Answer(reasoning=f"I think, {turn}.", content=f"Turn {turn}.", calls=(call,))
                for is_stream in (True, False):
                    fake.answer(answer)
                    body = api.body(history, stream=is_stream, **fields)
                    data = request_bytes(marked(body) if api is MESSAGES else body, path=api.path)
                    reply = self.send(proxy, api, data)
                    seen += VOLATILE.sub(b"*", fake.seen[-1].body), VOLATILE.sub(b"*", reply.body)
                history += [*kept(reply), *api.results([(call.id, FILE)])]
            self.assertEqual([], fake.refused)
            reasonings = [each.get("reasoning_content") for each in fake.seen[-1].payload["messages"]]
            self.assertEqual([f"I think, {turn}." for turn in range(TURNS - 1)], [*filter(None, reasonings)])
        return seen

    def test_the_memory_changes_no_byte_on_any_api(self) -> None:
        for api in APIS:
            with self.subTest(api):
                memory = ChatMemory()
                self.assertEqual(self.play(api, ChatMemory(0)), self.play(api, memory))
                (chat,) = memory.chats()
                self.assertEqual(STAGES[api], {stage.name for stage in chat.entries})
