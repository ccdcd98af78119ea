"""Tools as Codex 0.166 lists them, shortened; with some names of models it declares them inside the history."""

import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
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
    def test_a_client_that_echoes_the_upstream_name_has_the_same_chat(self) -> None:
        """Cursor gets these calls as chat chunks, which have no namespace."""
        echoed = {**SPAWNED, "name": "multi_agent_v1__spawn_agent", "namespace": None}
        items = [echoed if item is SPAWNED else item for item in HISTORY]
        self.assertEqual(request(*TOOLS).messages, request(*TOOLS, input=items).messages)
