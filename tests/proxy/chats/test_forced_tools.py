"""A forced tool call that DeepSeek writes as text, in every protocol."""

import json
from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy
from tests.support.messages_client import ClientReply, MessagesTestCase, add_up_events, events
from tests.unit.deepseek.tools.test_forced_tools import ARGUMENTS, CALL_TEXT, CALLS, NAMED, NO_CALLS, tool


class TestForcedTools(MessagesTestCase):
    def chat(self, proxy: RunningProxy, stream: bool) -> tuple[Any, str]:
        """The call, if there is one, and the words."""
        tools = [tool("look_up"), tool("other")]
        body = {"messages": [{"role": "user", "content": "q"}], "tools": tools, "tool_choice": NAMED, "stream": stream}
        reply = self.send(proxy, body, path="/v1/chat/completions")
        lines = [json.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]
        choices = [choice for chunk in (lines or [reply.value]) for choice in chunk["choices"]]
        deltas = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        self.assertEqual("assistant", deltas[0].get("role"))
        calls = [call for each in deltas for call in each.get("tool_calls") or ()]
        self.assertEqual("tool_calls" if calls else "stop", choices[-1]["finish_reason"])
        text = "".join(each.get("content") or "" for each in deltas)
        arguments = "".join(call["function"]["arguments"] for call in calls)
        return ({"name": calls[0]["function"]["name"], "arguments": arguments} if calls else None), text

    def responses(self, proxy: RunningProxy, stream: bool) -> tuple[Any, str]:
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look_up", "other")]
        choice = {"type": "function", "name": "look_up"}
        body = {"input": "q", "tools": tools, "tool_choice": choice, "stream": stream}
        reply = self.send(proxy, body, path="/v1/responses")
        response = events(reply.body)[-1]["response"] if stream else reply.value
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        return (calls[0] if calls else None), response["output_text"]

    def messages(self, proxy: RunningProxy, stream: bool) -> tuple[Any, str]:
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("look_up", "other")]
        choice = {"type": "tool", "name": "look_up"}
        reply: ClientReply = self.create(proxy, tools=tools, tool_choice=choice, stream=stream)
        message = add_up_events(reply.events) if stream else reply.value
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        self.assertEqual("tool_use" if calls else "end_turn", message["stop_reason"])
        text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        call = {"name": calls[0]["name"], "arguments": json.dumps(calls[0]["input"])} if calls else None
        return call, text

    def test_every_protocol_converts_a_call_as_text_and_leaves_other_text(self) -> None:
        for api in (self.chat, self.responses, self.messages):
            for stream in (True, False):
                for name, text in CALLS.items():
                    with self.subTest(name, api=api.__name__, stream=stream):
                        self.fake.answer(Answer(content=text, piece=5))
                        call, text = api(self.running, stream)
                        self.assertEqual(("look_up", ARGUMENTS), (call["name"], json.loads(call["arguments"])))
                        self.assertEqual("", text)
                for text in NO_CALLS[1:-2]:
                    with self.subTest(text[:50], api=api.__name__, stream=stream):
                        self.fake.answer(Answer(content=text, piece=5))
                        self.assertEqual((None, text), api(self.running, stream))

    def test_a_real_call_of_a_forced_tool_reaches_every_protocol(self) -> None:
        for api in (self.chat, self.responses, self.messages):
            for stream in (True, False):
                self.fake.answer(Answer(content=CALL_TEXT, calls=(Call("call_1", "look_up", '{"real": 1}'),)))
                call, text = api(self.running, stream)
                self.assertEqual(({"real": 1}, CALL_TEXT), (json.loads(call["arguments"]), text))

    def test_a_forced_custom_tool_gets_its_free_text(self) -> None:
        patch = '*** Begin\n+ {"a": 1}\n'
        tools = [{"type": "custom", "name": "apply_patch"}]
        choice = {"type": "custom", "name": "apply_patch"}
        for text in ({"input": patch}, {"name": "apply_patch", "input": patch}, {"arguments": {"input": patch}}):
            self.fake.answer(Answer(content=json.dumps(text)))
            body = {"input": "q", "tools": tools, "tool_choice": choice}
            [item] = self.send(self.running, body, path="/v1/responses").value["output"]
            self.assertEqual(("custom_tool_call", patch), (item["type"], item["input"]))

    def test_each_of_several_choices_is_converted(self) -> None:
        self.fake.answer(Answer(content=CALL_TEXT), Answer(content=CALL_TEXT))
        body = {
            "messages": [{"role": "user", "content": "q"}],
            "tools": [tool("look_up")],
            "tool_choice": NAMED,
            "n": 2,
        }
        choices = self.send(self.proxy(), body, path="/v1/chat/completions").value["choices"]
        calls = [choice["message"]["tool_calls"][0] for choice in choices]
        self.assertEqual([ARGUMENTS] * 2, [json.loads(call["function"]["arguments"]) for call in calls])
        self.assertEqual(2, len({call["id"] for call in calls}))
