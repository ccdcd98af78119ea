"""Agents that speak the Responses API, each as it sends its history back (recorded: Codex 0.166, opencode 1.18)."""

from typing import Any

from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.fake_deepseek import Answer, Call
from tests.support.responses_client import Json, ResponsesTestCase, kinds, output, question

OBJECT = {"type": "object", "properties": {}}
SHELL = {"type": "function", "name": "exec_command", "strict": False, "parameters": OBJECT}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
PATCHES = {"type": "custom", "name": "apply_patch", "description": "Patches files.", "format": GRAMMAR}
SPAWN = {**SHELL, "name": "spawn_agent"}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [SPAWN]}
SEARCH = {"type": "web_search", "external_web_access": True}
TOOL_SEARCH = {"type": "tool_search", "execution": "client", "parameters": OBJECT}
TOOLS = [SHELL, AGENTS, PATCHES, SEARCH, TOOL_SEARCH]
PATCH = '*** Begin Patch\n*** Update File: a.py\n-x = "\\n"\n+x = "é 思 \U0001f600"\n*** End Patch\n'
CALLS = (
    Call("call_00_a1B2c3D4e5F6g7H8i9J0", "exec_command", '{"cmd": "ls"}'),
    Call("call_01_k1L2m3N4o5P6q7R8s9T0", "multi_agent_v1__spawn_agent", '{"message":"go"}'),
)
INSTRUCTIONS: Json = {**question("You are Codex."), "role": "developer"}


class AgentTestCase(ResponsesTestCase):
    def ask(self, history: list[Json], **body: Any) -> list[Json]:
        request = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}, **body}
        return list(self.complete(self.running, history, stream=True, store=False, **request)["output"])

    def assert_nothing_is_kept(self) -> None:
        self.assertEqual(0, self.running.server.services().get(Responses).store.totals()[0])


class TestCodex(AgentTestCase):
    def ask(self, history: list[Json], **body: Any) -> list[Json]:
        return super().ask(history, **{"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True, **body})

    def test_a_codex_tool_loop_with_every_kind_of_tool_keeps_its_reasoning(self) -> None:
        patch = Call("call_02_u1V2w3X4y5Z6a7B8c9D0", "apply_patch", encoded_patch())
        self.fake.answer(
            Answer("First.", "On it.", CALLS), Answer("Second.", calls=(patch,)), Answer("Third.", "Done.")
        )
        history = [INSTRUCTIONS, question("Fix it.")]
        history += self.ask(history)
        self.assertEqual(["reasoning", "message", "function_call", "function_call"], kinds(history[2:]))
        self.assertEqual("First.", history[2]["summary"][0]["text"])
        self.assertEqual(("spawn_agent", "multi_agent_v1"), (history[5]["name"], history[5]["namespace"]))
        history += [output(call.id) for call in CALLS]
        history += self.ask(history)
        self.assertEqual(("custom_tool_call", PATCH), (history[-1]["type"], history[-1]["input"]))
        history.append({"type": "custom_tool_call_output", "call_id": patch.id, "output": "Done!"})
        history += self.ask(history)
        history.append(question("thanks"))
        self.ask(history)
        self.assert_upstream_saw("First.", "Second.", "Third.")
        self.assertEqual([], self.fake.refused)
        sent = self.fake.accepted[-1]
        self.assertEqual(("system", "You are Codex."), (sent["messages"][0]["role"], sent["messages"][0]["content"]))
        names = {"exec_command", "multi_agent_v1__spawn_agent", "apply_patch"}
        self.assertEqual(names, {tool["function"]["name"] for tool in sent["tools"]})
        self.assert_nothing_is_kept()

    def test_half_a_patch_is_never_done(self) -> None:
        patch = Call("call_02_u1V2w3X4y5Z6a7B8c9D0", "apply_patch", encoded_patch())
        half = Call(patch.id, patch.name, patch.arguments[:40])
        for answer, last in (
            (Answer("Hm.", calls=(patch,), piece=10, cut_after=12), "response.failed"),
            (Answer("Hm.", calls=(half,), finish_reason="length"), "response.incomplete"),
            (Answer("Hm.", calls=(half,), finish_reason="aborted"), "response.failed"),
        ):
            with self.subTest(answer.finish_reason):
                self.fake.answer(answer)
                found = self.create(self.running, "Fix it.", tools=TOOLS, stream=True, store=False).events
                self.assertEqual(last, found[-1]["type"])
                done = [event["item"]["type"] for event in found if event["type"] == "response.output_item.done"]
                self.assertEqual(["reasoning"], done)
                call = found[-1]["response"]["output"][1]
                self.assertEqual(("custom_tool_call", "incomplete"), (call["type"], call["status"]))
                self.assertTrue(PATCH.startswith(call["input"]) and call["input"])

    def test_a_codex_chat_keeps_its_prefix(self) -> None:
        self.fake.answer(Answer("First.", "On it.", CALLS), Answer("Second.", "Done."))
        history = [INSTRUCTIONS, question("Fix it.")]
        history += self.ask(history) + [output(call.id) for call in CALLS]
        history += [*self.ask(history), question("thanks")]
        self.ask(history)
        for before, after in zip(self.fake.accepted, self.fake.accepted[1:], strict=False):
            self.assertEqual(before["messages"], after["messages"][: len(before["messages"])])

    def test_tools_inside_a_codex_history_are_read(self) -> None:
        """So it does for names that it takes for gpt-6."""
        declared = {"type": "additional_tools", "role": "developer", "tools": [AGENTS]}
        self.fake.answer(Answer("First.", calls=CALLS[1:]))
        history: list[Json] = [declared, INSTRUCTIONS, question("Go.")]
        history += self.ask(history, tools=None)
        self.assertEqual(("spawn_agent", "multi_agent_v1"), (history[-1]["name"], history[-1]["namespace"]))
        self.ask([*history, output(CALLS[1].id)], tools=None)
        self.assert_upstream_saw("First.")

    def test_an_image_in_a_codex_tool_result_keeps_the_reasoning(self) -> None:
        self.fake.answer(Answer("First.", calls=CALLS[:1]))
        history = [INSTRUCTIONS, question("Look.")]
        history += self.ask(history)
        picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "high"}
        history.append({"type": "function_call_output", "call_id": CALLS[0].id, "output": [picture]})
        self.ask(history)
        self.assert_upstream_saw("First.")


class TestOpencode(AgentTestCase):
    def test_opencode_restores_reasoning_from_encrypted_content_alone(self) -> None:
        """And writes the arguments of calls anew."""
        self.fake.answer(Answer("First.", "On it.", CALLS[:1]), Answer("Second.", "Done."))
        history = [question("Fix it.")]
        history += [echoed(item) for item in self.ask(history, tools=[SHELL])]
        history.append(output(CALLS[0].id))
        history += [*(echoed(item) for item in self.ask(history, tools=[SHELL])), question("thanks")]
        # Another proxy with the same secret could do it as well.
        self.ask(history, tools=[SHELL])
        self.assert_upstream_saw("First.", "Second.")
        self.assertEqual([], self.fake.refused)
        self.assert_nothing_is_kept()


def encoded_patch() -> str:
    """As DeepSeek writes it: spaces, and characters that need no escape escaped."""
    inside = PATCH.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("é", "\\u00e9")
    return '{"input": "' + inside + '"}'


def echoed(item: Json) -> Json:
    kept = {name: value for name, value in item.items() if name not in ("id", "status")}
    if item["type"] == "reasoning":
        return {**kept, "content": None}
    return {**kept, "arguments": item["arguments"].replace(" ", "")} if "arguments" in item else kept
