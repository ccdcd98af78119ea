"""Tools with names that DeepSeek refuses, and with schemas that it refuses, in every API."""

import json
from typing import Any, NamedTuple

from deepseek_cursor_proxy.deepseek.tools.tool_definitions import sent_name
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy
from tests.support.messages_client import MessagesTestCase, add_up_events, events
from tests.unit.deepseek.tools.test_tool_schemas import AUTOMATION, EMPTY

Json = dict[str, Any]
READ, LONG = "mcp.files/read", "mcp_" + "very_" * 20 + "long"
SCHEMA = {"properties": {"path": {"type": "string"}}, "required": None}
CALLS = (Call("call_1", sent_name(READ), '{"path": "a.py"}'), Call("call_2", sent_name(LONG), "{}"))
CHOICE = {"type": "function", "function": {"name": READ}}


class ClientAnswer(NamedTuple):
    """The calls of an answer, by name, and what the client adds to its history for it."""

    calls: list[tuple[str, Json]]
    history: list[Json]


class TestToolNames(MessagesTestCase):
    def chat(self, proxy: RunningProxy, history: list[Json], stream: bool, **body: Any) -> ClientAnswer:
        tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in (READ, LONG)]
        body = {"messages": history, "tools": tools, "stream": stream, **body}
        reply = self.send(proxy, body, path="/v1/chat/completions")
        self.assertEqual(200, reply.status, reply.body)
        message: Json = {"role": "assistant", "content": ""}
        for choice in [choice for chunk in reply.chunks or [reply.value] for choice in chunk["choices"]]:
            part = choice.get("message") or choice["delta"]
            message["content"] += part.get("content") or ""
            for call in part.get("tool_calls") or ():
                if call.get("id"):
                    message.setdefault("tool_calls", []).append(call)
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        calls = message.get("tool_calls", [])
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "42"} for call in calls]
        found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        return ClientAnswer(found, [message, *results])

    def responses(self, proxy: RunningProxy, history: list[Json], stream: bool, **body: Any) -> ClientAnswer:
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in (READ, LONG)]
        if "tool_choice" in body:
            body = {"tool_choice": {"type": "function", "name": READ}}
        body = {"input": history, "tools": tools, "stream": stream, "store": False, **body}
        reply = self.send(proxy, body, path="/v1/responses")
        self.assertEqual(200, reply.status, reply.body)
        output = (events(reply.body)[-1]["response"] if stream else reply.value)["output"]
        calls = [item for item in output if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "42"} for call in calls]
        # As a client does that keeps no reasoning.
        kept = [item for item in output if item["type"] != "reasoning"]
        return ClientAnswer([(call["name"], json.loads(call["arguments"])) for call in calls], [*kept, *results])

    def messages(self, proxy: RunningProxy, history: list[Json], stream: bool, **body: Any) -> ClientAnswer:
        tools = [{"name": name, "input_schema": SCHEMA} for name in (READ, LONG)]
        if "tool_choice" in body:
            body = {"tool_choice": {"type": "tool", "name": READ}}
        reply = self.create(proxy, *history, tools=tools, stream=stream, **body)
        self.assertEqual(200, reply.status, reply.body)
        message = add_up_events(reply.events) if stream else reply.value
        content = [block for block in message["content"] if block["type"] != "thinking"]
        calls = [block for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "42"} for call in calls]
        answer = {"role": "assistant", "content": content}
        found = [(call["name"], call["input"]) for call in calls]
        return ClientAnswer(found, [answer, {"role": "user", "content": results}] if calls else [answer])

    def test_calls_go_both_ways_under_their_names_and_keep_their_reasoning(self) -> None:
        proxy = self.running
        for api in (self.chat, self.responses, self.messages):
            for stream in (True, False):
                with self.subTest(api.__name__, stream=stream):
                    self.fake.forget()
                    self.fake.answer(
                        Answer("I must look.", "Let me see.", CALLS, piece=3), Answer("I saw it.", "It is 42.")
                    )
                    history = [{"role": "user", "content": f"{api.__name__} {stream}"}]
                    answer = api(proxy, history, stream)
                    self.assertEqual([(READ, {"path": "a.py"}), (LONG, {})], answer.calls)
                    history += answer.history
                    history += [*api(proxy, history, stream).history, {"role": "user", "content": "Thanks."}]
                    api(proxy, history, stream)
                    self.assertEqual([], self.fake.refused)
                    self.assert_upstream_saw("I must look.", "I saw it.")
                    sent = self.fake.accepted[-1]
                    turn = next(message for message in sent["messages"] if message.get("tool_calls"))
                    names = [sent_name(READ), sent_name(LONG)]
                    self.assertEqual(names, [call["function"]["name"] for call in turn["tool_calls"]])
                    self.assertCountEqual(names, [tool["function"]["name"] for tool in sent["tools"]])
                    # All of it was a prefix of what followed.
                    first, *_, last = [seen.payload["messages"] for seen in self.fake.seen]
                    self.assertEqual(first, last[: len(first)])
                    self.assertEqual(1, len({json.dumps(seen.payload["tools"]) for seen in self.fake.seen}))

    def test_a_forced_tool_is_named_as_it_is_sent_and_found_in_text(self) -> None:
        texts = (
            {"name": sent_name(READ), "input": {"path": "b"}},
            {"name": READ, "input": {"path": "b"}},
            {"path": "b"},
        )
        for api in (self.chat, self.responses, self.messages):
            for stream in (True, False):
                for text in (*texts, {"path": "b"}):
                    with self.subTest(api.__name__, stream=stream, text=text):
                        self.fake.answer(Answer(content=json.dumps(text)))
                        answer = api(self.running, [{"role": "user", "content": "q"}], stream, tool_choice=CHOICE)
                        self.assertEqual([(READ, {"path": "b"})], answer.calls)
                        name = self.fake.accepted[-1]["tool_choice"]["function"]["name"]
                        self.assertEqual(sent_name(READ), name)

    def test_a_custom_tool_and_one_of_a_namespace_may_have_any_name(self) -> None:
        custom = {"type": "custom", "name": "patch.v2"}
        inner = {"type": "function", "name": "spawn now", "parameters": True}
        tools = [custom, {"type": "namespace", "name": "agents", "tools": [inner]}]
        for stream in (True, False):
            with self.subTest(stream=stream):
                body = {"input": [{"role": "user", "content": "q"}], "tools": tools, "stream": stream}
                self.send(self.running, body, path="/v1/responses")
                names = {tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"]}
                [other] = names - {sent_name("patch.v2")}
                calls = (Call("a", sent_name("patch.v2"), '{"input": "+ 1\\n"}'), Call("b", other, "{}"))
                self.fake.answer(Answer("Hm.", calls=calls, piece=2))
                reply = self.send(self.running, body, path="/v1/responses")
                output = (events(reply.body)[-1]["response"] if stream else reply.value)["output"][1:]
                self.assertEqual(["custom_tool_call", "function_call"], [item["type"] for item in output])
                self.assertEqual(("patch.v2", "+ 1\n"), (output[0]["name"], output[0]["input"]))
                self.assertEqual(("spawn now", "agents"), (output[1]["name"], output[1]["namespace"]))
                results = [
                    {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
                    {"type": "function_call_output", "call_id": "b", "output": "2"},
                ]
                body["input"] = [{"role": "user", "content": "q"}, *output, *results]
                self.send(self.running, body, path="/v1/responses")
                self.assert_upstream_saw("Hm.")
        self.assertEqual([], self.fake.refused)


class TestToolSchemas(MessagesTestCase):
    def test_the_tool_without_a_type_that_the_codex_app_sends_is_accepted(self) -> None:
        inner = {"type": "function", "name": "automation_update", "strict": False, "parameters": AUTOMATION}
        tools = [{"type": "namespace", "name": "codex_app", "description": "The app.", "tools": [inner]}]
        reply = self.send(self.running, {"input": "q", "tools": tools}, path="/v1/responses")
        self.assertEqual(200, reply.status, reply.body)
        [tool] = self.fake.accepted[-1]["tools"]
        self.assertEqual("codex_app__automation_update", tool["function"]["name"])
        self.assertEqual({**AUTOMATION, **EMPTY}, tool["function"]["parameters"])

    def test_true_false_null_and_nothing_are_no_parameters(self) -> None:
        for schema in (True, False, None, {}):
            tools = [
                {"type": "function", "function": {"name": "a", "parameters": schema}},
                {"type": "function", "name": "b", "parameters": schema},
                {"name": "c", "input_schema": schema},
                {"type": "function", "function": {"name": "d"}},
            ]
            body = {"messages": [{"role": "user", "content": "q"}], "tools": tools}
            self.assertEqual(200, self.send(self.running, body, path="/v1/chat/completions").status)
            self.assertEqual([EMPTY] * 4, [tool["function"]["parameters"] for tool in self.fake.accepted[-1]["tools"]])

    def test_too_many_tools_are_refused_by_deepseek_with_a_remedy(self) -> None:
        functions = [{"name": f"f{index}", "description": "d", "parameters": EMPTY} for index in range(129)]
        nested = [{"type": "function", "function": each} for each in functions]
        bodies: dict[str, Json] = {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "q"}], "tools": nested},
            "/v1/responses": {"input": "q", "tools": [{"type": "function", **each} for each in functions]},
            "/v1/messages": {
                "max_tokens": 2000,
                "messages": [{"role": "user", "content": "q"}],
                "tools": [{"name": each["name"], "input_schema": EMPTY} for each in functions],
            },
        }
        for path, body in bodies.items():
            reply = self.send(self.running, body, path=path)
            with self.subTest(path):
                self.assertEqual(400, reply.status)
                self.assertIn(
                    "at most 128 functions, got 129. The request has 129 tools. Switch off", reply.body.decode()
                )
                body["tools"].pop()
                self.assertEqual(200, self.send(self.running, body, path=path).status)
        self.assertEqual({128}, {len(payload["tools"]) for payload in self.fake.accepted})
