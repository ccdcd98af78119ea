"""Tool calls on every API: forced and written as text, without ids, under names and schemas that DeepSeek refuses."""

import json
from typing import Any

from deepseek_cursor_proxy.deepseek.tool_definitions import sent_name
from tests.fake_deepseek import Answer, Call, Raw
from tests.support.apis import CHAT, RESPONSES, Api, ApiTestCase, Json, each_api, each_form
from tests.support.raw_streams import streamed
from tests.support.width import some
from tests.unit.deepseek.test_tool_definitions import AUTOMATION, EMPTY
from tests.unit.features.written_calls.test_forced_tools import ARGUMENTS, CALL_TEXT, CALLS, NO_CALLS

READ, LONG = "mcp.files/read", "mcp_" + "very_" * 20 + "long"
NAMED = (Call("call_1", sent_name(READ), '{"path": "a.py"}'), Call("call_2", sent_name(LONG), "{}"))


class TestForcedTools(ApiTestCase):
    def forced(self, api: Api, stream: bool, answer: Answer) -> Any:
        self.fake.answer(answer)
        return self.ask(self.running, api, tools="look_up other", tool_choice="look_up", stream=stream).said

    @each_form()
    def test_a_forced_call_written_as_text_becomes_a_call_and_other_text_stays(self, api: Api, stream: bool) -> None:
        for name, text in some(CALLS.items(), 3):
            with self.subTest(name):
                said = self.forced(api, stream, Answer(content=text, piece=5))
                self.assertEqual(("", [("look_up", ARGUMENTS)], "tool_calls"), (said.text, said.inputs, said.end), text)
        for text in some(NO_CALLS[1:-2], 3):
            with self.subTest(text[:50]):
                said = self.forced(api, stream, Answer(content=text, piece=5))
                self.assertEqual((text, (), "stop"), (said.text, said.calls, said.end))

    @each_form()
    def test_a_real_call_of_a_forced_tool_reaches_the_client(self, api: Api, stream: bool) -> None:
        answer = Answer(content=CALL_TEXT, calls=(Call("call_1", "look_up", '{"real": 1}'),))
        said = self.forced(api, stream, answer)
        self.assertEqual((CALL_TEXT, [("look_up", {"real": 1})]), (said.text, said.inputs))

    def test_a_forced_custom_tool_gets_its_free_text(self) -> None:
        patch = '*** Begin\n+ {"a": 1}\n'
        custom = {"type": "custom", "name": "apply_patch"}
        for text in ({"input": patch}, {"name": "apply_patch", "input": patch}, {"arguments": {"input": patch}}):
            self.fake.answer(Answer(content=json.dumps(text)))
            [item] = self.ask(self.running, RESPONSES, tools=[custom], tool_choice=custom).value["output"]
            self.assertEqual(("custom_tool_call", patch), (item["type"], item["input"]))

    def test_each_of_several_choices_is_converted(self) -> None:
        self.fake.answer(Answer(content=CALL_TEXT), Answer(content=CALL_TEXT))
        reply = self.ask(self.running, CHAT, tools="look_up", tool_choice="look_up", n=2)
        calls = [choice["message"]["tool_calls"][0] for choice in reply.value["choices"]]
        self.assertEqual([ARGUMENTS] * 2, [json.loads(call["function"]["arguments"]) for call in calls])
        self.assertEqual(2, len({call["id"] for call in calls}))


class TestIncompleteCalls(ApiTestCase):
    """Some hosts leave out ids, indexes and the finish_reason; every client can run the calls all the same."""

    def from_host(self, stream: bool) -> Raw:
        """An answer with two calls, of which nothing but the order tells which is which; streamed, each in a chunk."""
        calls = [{"function": {"name": "read_file", "arguments": json.dumps({"path": path})}} for path in ("a", "b")]
        if stream:
            return streamed({"reasoning_content": "Both."}, *({"tool_calls": [each]} for each in calls))
        message = {"role": "assistant", "content": None, "reasoning_content": "Both.", "tool_calls": calls}
        body = json.dumps({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        return Raw(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{body}".encode())

    @each_form()
    def test_calls_get_ids_that_lead_back_to_their_reasoning(self, api: Api, stream: bool) -> None:
        # A plain message is read as a stream, too.
        self.fake.answer(self.from_host(stream or api.name == "messages"))
        history = [api.user("What is in a and b?")]
        reply = self.ask(self.running, api, history, stream=stream)
        said = reply.said
        self.assertEqual(("tool_calls", [("read_file", {"path": path}) for path in "ab"]), (said.end, said.inputs))
        if api is CHAT:
            choices = [each["choices"][0] for each in (reply.chunks if stream else [reply.value])]
            parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
            calls = [call for part in parts for call in part.get("tool_calls", ())]
            self.assertEqual(["function"] * 2, [call["type"] for call in calls])
            self.assertEqual([0, 1], [call.get("index", at) for at, call in enumerate(calls)])
        ids = [call.id for call in said.calls]
        self.assertEqual(2, len(set(ids) - {""}))
        history += [*reply.turn(keeps_thinking=False), *api.results((each, "1") for each in ids)]
        self.ask(self.running, api, history, stream=stream)
        self.assert_upstream_saw("Both.")
        self.assertEqual(ids, [call["id"] for call in self.fake.accepted[-1]["messages"][1]["tool_calls"]])


class TestToolNames(ApiTestCase):
    def tools(self, api: Api) -> list[Json]:
        return [api.tool(name, {"properties": {"path": {"type": "string"}}, "required": None}) for name in (READ, LONG)]

    @each_form()
    def test_calls_go_both_ways_under_their_names_and_keep_their_reasoning(self, api: Api, stream: bool) -> None:
        self.fake.answer(Answer("I must look.", "Let me see.", NAMED, piece=3), Answer("I saw it.", "It is 42."))
        history = [api.user("What is it?")]
        self.loop(self.running, api, history, tools=self.tools(api), stream=stream)
        history.append(api.user("Thanks."))
        self.ask(self.running, api, history, tools=self.tools(api), stream=stream)
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

    @each_form()
    def test_a_forced_tool_is_named_as_it_is_sent_and_found_in_text(self, api: Api, stream: bool) -> None:
        named: list[Json] = [{"name": name, "input": {"path": "b"}} for name in (sent_name(READ), READ)]
        for text in (*named, {"path": "b"}):
            self.fake.answer(Answer(content=json.dumps(text)))
            said = self.ask(self.running, api, tools=self.tools(api), tool_choice=READ, stream=stream).said
            self.assertEqual([(READ, {"path": "b"})], said.inputs)
            self.assertEqual(sent_name(READ), self.fake.accepted[-1]["tool_choice"]["function"]["name"])

    def test_a_custom_tool_and_one_of_a_namespace_may_have_any_name(self) -> None:
        inner = {"type": "function", "name": "spawn now", "parameters": True}
        tools = [{"type": "custom", "name": "patch.v2"}, {"type": "namespace", "name": "agents", "tools": [inner]}]
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.ask(self.running, RESPONSES, tools=tools, stream=stream)
                names = {tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"]}
                [other] = names - {sent_name("patch.v2")}
                calls = (Call("a", sent_name("patch.v2"), '{"input": "+ 1\\n"}'), Call("b", other, "{}"))
                self.fake.answer(Answer("Hm.", calls=calls, piece=2))
                output = self.ask(self.running, RESPONSES, tools=tools, stream=stream).turn(keeps_thinking=False)
                self.assertEqual(["custom_tool_call", "function_call"], [item["type"] for item in output])
                self.assertEqual(("patch.v2", "+ 1\n"), (output[0]["name"], output[0]["input"]))
                self.assertEqual(("spawn now", "agents"), (output[1]["name"], output[1]["namespace"]))
                result = {"type": "custom_tool_call_output", "call_id": "a", "output": "1"}
                history = [RESPONSES.user("q"), *output, result, *RESPONSES.results([("b", "2")])]
                self.ask(self.running, RESPONSES, history, tools=tools, stream=stream)
                self.assert_upstream_saw("Hm.")
        self.assertEqual([], self.fake.refused)


class TestToolSchemas(ApiTestCase):
    def test_the_tool_without_a_type_that_the_codex_app_sends_is_accepted(self) -> None:
        inner = {"type": "function", "name": "automation_update", "strict": False, "parameters": AUTOMATION}
        tools = [{"type": "namespace", "name": "codex_app", "description": "The app.", "tools": [inner]}]
        self.ask(self.running, RESPONSES, tools=tools)
        [tool] = self.fake.accepted[-1]["tools"]
        self.assertEqual("codex_app__automation_update", tool["function"]["name"])
        self.assertEqual({**AUTOMATION, **EMPTY}, tool["function"]["parameters"])

    @each_api()
    def test_true_false_null_and_nothing_are_no_parameters(self, api: Api) -> None:
        for schema in (True, False, None, {}):
            self.ask(self.running, api, tools=[api.tool("a", schema)])
            self.assertEqual([EMPTY], [tool["function"]["parameters"] for tool in self.fake.accepted[-1]["tools"]])

    @each_api()
    def test_too_many_tools_are_refused_by_deepseek_with_a_remedy(self, api: Api) -> None:
        tools = [api.tool(f"f{index}", EMPTY) for index in range(129)]
        reply = self.post(self.running, api, tools=tools)
        self.assertEqual(400, reply.status)
        words = "at most 128 functions, got 129. The request has 129 tools. Switch off"
        self.assertIn(words, reply.error["message"])
        self.ask(self.running, api, tools=tools[1:])
