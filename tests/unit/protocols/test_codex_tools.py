"""Tools as Codex 0.166 lists them, shortened; with some names of models it declares them inside the history."""

import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, ToolCall
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request import parse

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
EXEC = {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": SCHEMA}
SPAWN = {"type": "function", "name": "spawn_agent", "description": "Spawns.", "strict": False, "parameters": SCHEMA}
AGENTS: dict[str, Any] = {"type": "namespace", "name": "multi_agent_v1", "description": "Tools for agents."}
AGENTS["tools"] = [SPAWN, {**SPAWN, "name": "wait_agent"}]
SEARCH = {"type": "web_search", "external_web_access": True}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": LARK}
TOOLS = (EXEC, AGENTS, SEARCH, PATCH)
SPAWNED = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1"}
SPAWNED |= {"name": "spawn_agent", "namespace": "multi_agent_v1", "arguments": '{"message": "hi"}'}
HISTORY = (
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
    SPAWNED,
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "done"},
)


def request(*tools: Any, **body: Any) -> ChatRequest:
    return parse({"model": "deepseek-v4-pro", "input": list(HISTORY), "tools": list(tools), **body}, ProxyConfig())


class TestCodexTools(unittest.TestCase):
    def test_codex_tools_become_functions_that_map_back(self) -> None:
        found = request(*TOOLS)
        names = [tool["function"]["name"] for tool in found.tools]
        inside = {f"multi_agent_v1__{name}": ("multi_agent_v1", name) for name in ("spawn_agent", "wait_agent")}
        self.assertEqual(["exec_command", *inside, "apply_patch"], names)
        self.assertEqual(inside, found.tool_namespaces)
        self.assertEqual(frozenset({"apply_patch"}), found.custom_tools)
        self.assertEqual(("tool web_search",), found.dropped)
        spawn = found.tools[1]["function"]
        self.assertEqual("Part of multi_agent_v1: Tools for agents.\n\nSpawns.", spawn["description"])
        self.assertEqual(SCHEMA, spawn["parameters"])

    def test_a_codex_call_has_the_same_upstream_name_without_its_tool(self) -> None:
        offered, gone = request(*TOOLS), request()
        call = ToolCall("call_1", "multi_agent_v1__spawn_agent", '{"message": "hi"}')
        self.assertEqual((call,), offered.messages[2].tool_calls)
        self.assertEqual(offered.messages, gone.messages)
        self.assertEqual({}, gone.tool_namespaces)

    def test_a_codex_call_follows_its_tool_in_a_name_collision(self) -> None:
        outside = {**EXEC, "name": "multi_agent_v1__spawn_agent"}
        found = request(AGENTS, outside)
        [called] = found.messages[2].tool_calls
        self.assertNotEqual(outside["name"], called.name)
        self.assertEqual(("multi_agent_v1", "spawn_agent"), found.tool_namespaces[called.name])

    def test_codex_tools_in_the_history_work_like_those_in_the_body(self) -> None:
        custom = {"type": "namespace", "name": "functions", "tools": [{**PATCH, "name": "exec"}]}
        declared = {"type": "additional_tools", "role": "developer", "tools": [custom, AGENTS]}
        call = {"type": "custom_tool_call", "call_id": "c", "name": "exec", "namespace": "functions", "input": "{x"}
        found = request(input=[declared, *HISTORY, call])
        self.assertEqual(frozenset({"functions__exec"}), found.custom_tools)
        self.assertEqual(("functions", "exec"), found.tool_namespaces["functions__exec"])
        self.assertEqual(3, len(found.tools))
        self.assertEqual((ToolCall("c", "functions__exec", '{"input":"{x"}'),), found.messages[-1].tool_calls)

    def test_a_client_that_echoes_the_upstream_name_has_the_same_chat(self) -> None:
        """Cursor gets these calls as chat chunks, which have no namespace."""
        echoed = {**SPAWNED, "name": "multi_agent_v1__spawn_agent", "namespace": None}
        items = [echoed if item is SPAWNED else item for item in HISTORY]
        self.assertEqual(request(*TOOLS).messages, request(*TOOLS, input=items).messages)

    def test_the_same_codex_chat_gives_the_same_bytes(self) -> None:
        first, second = (encode_json(chat_api.payload(request(*TOOLS))) for _ in range(2))
        self.assertEqual(first, second)

    def test_a_codex_tool_can_be_forced_unless_it_is_unsupported(self) -> None:
        choice = {"type": "function", "name": "spawn_agent", "namespace": "multi_agent_v1"}
        forced = {"type": "function", "function": {"name": "multi_agent_v1__spawn_agent"}}
        self.assertEqual(forced, request(*TOOLS, tool_choice=choice).tool_choice)
        with self.assertRaises(BadRequest) as caught:
            request(*TOOLS, tool_choice={"type": "web_search"})
        self.assertEqual("tool_choice", caught.exception.param)
