"""For every mix of tools: the body has each once, and the same bytes whatever order they came in. Seeded."""

import json
import random
import unittest
from collections.abc import Iterator
from typing import Any

from deepseek_cursor_proxy.chat_memory import Chat
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message, pack_items
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.features.web_search.messages_api import MESSAGES
from deepseek_cursor_proxy.features.web_search.responses_api import RESPONSES
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning.chats import sort_tools
from tests.support.histories import new_chat
from tests.support.laws import check_law
from tests.support.width import width

APIS = {server_tools.CHAT: CHAT, server_tools.RESPONSES: RESPONSES, server_tools.MESSAGES: MESSAGES}
SERVER_KINDS = {
    server_tools.CHAT: ("deepseek_web_search", "deepseek_read_url"),
    server_tools.RESPONSES: ("deepseek_web_search", "deepseek_read_url", "web_search", "web_search_preview"),
    server_tools.MESSAGES: ("deepseek_web_search", "deepseek_read_url", "web_search_20250305", "web_search_20260209"),
}
# What no endpoint runs.
OTHER_KINDS = ("file_search", "code_interpreter", "image_generation", "mcp", "web_fetch_20250910", "code_execution")


def mix(rng: random.Random, api: str) -> list[dict[str, Any]]:
    makers = (
        lambda name: {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}},
        lambda name: {"type": "function", "name": name, "parameters": {}},
        lambda name: {"type": "custom", "name": name, "description": "text"},
        lambda name: {"type": "namespace", "name": "space", "tools": [{"type": "function", "name": name}]},
        lambda name: {"type": rng.choice(OTHER_KINDS)},
        lambda name: {"type": rng.choice(SERVER_KINDS[api]), **rng.choice(({}, {"name": name}, {"max_uses": 3}))},
    )
    tools = [rng.choice(makers)(rng.choice(("a", "b", "c.d"))) for _ in range(rng.randrange(12))]
    # Of two functions with one name the first is sent, whichever that is: an order of the client's own.
    names: set[str] = set()
    return [tool for tool in tools if "max_uses" in tool or not _is_known(tool, names)]


def _is_known(tool: dict[str, Any], names: set[str]) -> bool:
    name = tool.get("name") or tool.get("function", {}).get("name")
    if tool["type"] == "namespace":
        name = f"space__{tool['tools'][0]['name']}"
    is_known = tool["type"] in ("function", "custom", "namespace") and name in names
    names.add(str(name))
    return is_known


def fewer(tools: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    return (tools[:at] + tools[at + 1 :] for at in range(len(tools)))


def read(tools: list[dict[str, Any]], api: str) -> ChatRequest:
    request = parse({"model": "deepseek-flash", "messages": _HISTORY, "tools": tools}, ProxyConfig(), api=api)
    return sort_tools(request)


_HISTORY = [{"role": "user", "content": f"question {number}"} for number in range(9)]


class TestMixes(unittest.TestCase):
    def test_every_tool_is_sent_once_and_in_one_order(self) -> None:
        for api in APIS:
            memory = new_chat()
            mixes = (mix(random.Random(f"{api} {seed}"), api) for seed in range(width(60, 600)))
            check_law(mixes, lambda tools, api=api, memory=memory: self.check_mix(tools, api, memory), fewer)  # type: ignore[misc]

    def check_mix(self, tools: list[dict[str, Any]], api: str, memory: Chat) -> None:
        request = read(tools, api)
        body = self.check_body(request, APIS[api], memory)
        self.check_tools(tools, body.get("tools", []), request)
        again = [*reversed(tools), *(tool for tool in tools if tool["type"] in SERVER_KINDS[api])]
        self.assertEqual(request, read(again, api))

    def check_body(self, request: ChatRequest, api: UpstreamApi, memory: Chat) -> dict[str, Any]:
        encoded = api.encode(request, memory)
        self.assertEqual(encoded, api.encode(request, memory))
        self.assertEqual(encode_json(api.payload(request)), encoded)
        return dict(json.loads(encoded))

    def check_tools(self, given: list[dict[str, Any]], sent: list[dict[str, Any]], request: ChatRequest) -> None:
        kinds = SERVER_KINDS[request.client_api]
        server = [tool for tool in sent if tool.get("type") in kinds]
        self.assertEqual(server, sent[len(sent) - len(server) :])
        self.assertEqual(len(sent), len({json.dumps(tool, sort_keys=True) for tool in sent}))
        expected = {json.dumps(tool, sort_keys=True) for tool in given if tool["type"] in kinds}
        self.assertEqual(expected, {json.dumps(tool, sort_keys=True) for tool in server})
        others = {tool["type"] for tool in given if tool["type"] in OTHER_KINDS}
        self.assertEqual(
            {f"tool {kind}" for kind in others}, set(request.dropped) & {f"tool {kind}" for kind in OTHER_KINDS}
        )
        names = [tool.get("name") or tool["function"]["name"] for tool in sent if tool not in server]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(request.tools), len(names))

    def test_left_out_the_others_stay_as_they_are(self) -> None:
        for api in APIS:
            mixes = (mix(random.Random(f"out {api} {seed}"), api) for seed in range(width(20, 200)))
            check_law(mixes, lambda tools, api=api: self.check_left(read(tools, api)), fewer)  # type: ignore[misc]

    def check_left(self, request: ChatRequest) -> None:
        left = server_tools.leave_out(request)
        self.assertEqual((request.tools, ()), (left.tools, left.server_tools))
        kinds = {f"tool {tool['type']}" for tool in request.server_tools}
        self.assertLessEqual(kinds, set(left.dropped))
        self.assertEqual(left, server_tools.leave_out(left))

    def test_what_is_known_of_a_chat_with_tools_is_not_sent_without(self) -> None:
        items = {
            server_tools.CHAT: [{"type": "fields", "fields": {"citations": [1]}}],
            server_tools.RESPONSES: [{"type": "web_search_call", "id": "ws_1", "status": "completed"}],
            server_tools.MESSAGES: [
                {"type": "server_tool_use", "id": "ws_1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "ws_1", "content": []},
                {"type": "text", "text": "Found."},
            ],
        }
        for api, upstream_api in APIS.items():
            with self.subTest(api):
                memory = new_chat()
                request = read([{"type": SERVER_KINDS[api][0]}], api)
                turn = Message("assistant", "Found.", "I look.", server_items=pack_items(api, items[api]))
                request = request._replace(messages=(*request.messages, turn, request.messages[0]))
                with_items = self.check_body(request, upstream_api, memory)
                without = self.check_body(server_tools.leave_out(request), CHAT, memory)
                self.assertIn(json.dumps(items[api][0].get("id", "citations")), json.dumps(with_items))
                self.assertEqual(
                    {"role": "assistant", "content": "Found.", "reasoning_content": "I look."}, without["messages"][-2]
                )
