"""Any request to the Messages API gets a message or an error in its shape; see fuzzing."""

import random
from typing import Any

from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from tests.fake_deepseek import Answer, Call, Search
from tests.proxy.requests import test_fuzz
from tests.support.messages_client import TOOLS, ClientReply, add_up_events, events, result, user

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALLS = [{"type": "tool_use", "id": f"toolu_{number}", "name": "read_file", "input": {"q": "x"}} for number in (1, 2)]
SEARCH: tuple[Any, ...] = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "x"}],
    },
    {"type": "text", "text": "Found.", "citations": [{"type": "web_search_result_location", "url": "u"}]},
)
THINKING = {"type": "thinking", "thinking": "", "signature": "dcp1.AAAA"}
BODIES: tuple[Any, ...] = (
    {
        "model": "claude-opus-4-5[1m]",
        "max_tokens": 2000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            user("q"),
            {"role": "system", "content": "Tools: 12."},
            {"role": "assistant", "content": [THINKING, {"type": "text", "text": "Looking."}, *CALLS]},
            user(result("toolu_2", [PICTURE], is_error=True), result("toolu_1"), {"type": "text", "text": "go on"}),
        ],
        "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}, {**TOOLS[0], "defer_loading": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": '{"device_id":"d"}'},
        "stop_sequences": ["END"],
        "stream": True,
    },
    {
        "model": "claude-haiku-4-5",
        "max_tokens": 2000,
        "messages": [user("q"), {"role": "assistant", "content": [THINKING, *SEARCH]}, user("and?")],
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "tool_choice": {"type": "tool", "name": "web_search"},
        "stream": True,
    },
    {
        "model": "claude-haiku-4-5",
        "max_tokens": 2000,
        "messages": [user(PICTURE, {"type": "text", "text": "?"})],
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "read_file"},
    },
)


class TestBodies(test_fuzz.TestBodies):
    BODIES = BODIES

    def script(self, rng: random.Random) -> None:
        arguments = ('{"c": 1}', "", "{", "[1]")
        calls = tuple(Call(f"call_{number}", "read_file", rng.choice(arguments)) for number in range(2))
        words = rng.choice(("Hello.", '{"name": "read_file", "input": {"q": 1}}', None))
        called = calls if rng.random() < 0.4 else ()
        searches = (Search(),) if rng.random() < 0.3 else ()
        self.fake.answer(
            Answer(rng.choice(("Hm.", None)), words, called, piece=rng.choice((1, 5, 99)), searches=searches)
        )

    def ask(self, body: bytes) -> HttpReply:
        headers = {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"}
        return self.app(HttpRequest("POST", "/v1/messages", "beta=true", headers, lambda: body))

    def assert_answered(self, reply: HttpReply, name: str) -> None:
        self.assertIn(reply.status, self.STATUSES, name)
        if isinstance(reply.body, bytes):
            response = ClientReply(reply.status, {}, reply.body)
            self.assertTrue(
                response.value["type"] == "message" if reply.status == 200 else response.error["message"], name
            )
            return
        try:
            found = events(b"".join(piece for piece in reply.body if isinstance(piece, bytes)))
        finally:
            reply.body.close()
        if "partial_json" not in str(found):
            self.assertEqual("message", add_up_events(found)["type"], name)
        self.assertEqual("message_stop", found[-1]["type"], name)
