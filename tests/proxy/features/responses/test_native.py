"""Responses by DeepSeek's own Responses API, which a search needs: all else is as by chat completions."""

import json
from typing import Any

from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw, Rules
from tests.fake_deepseek.native import MISSING_REASONING_TEXT
from tests.support.features import needs
from tests.support.harness import PATIENCE, RunningProxy
from tests.support.raw_streams import EVENT_STREAM
from tests.support.responses_client import ResponsesTestCase

CALL = Call("call_1", "read_file", '{"path": "a.py"}')
TOOLS = [
    {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}},
    {"type": "web_search"},
]
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
REFUSAL = Failure(400, MISSING_REASONING_TEXT, "invalid_request_error", "invalid_request_error")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@needs("web_search")
class NativeCase(ResponsesTestCase):
    def ask(self, proxy: RunningProxy, asked: Any, **fields: Any) -> dict[str, Any]:
        reply = self.create(proxy, asked, **{"model": "deepseek-v4-pro", "tools": TOOLS, "stream": False, **fields})
        self.assertEqual(200, reply.status, reply.body)
        return reply.response

    def chat(self, proxy: RunningProxy, messages: list[Any]) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": "read_file"}}]
        body = {"model": "deepseek-v4-pro", "messages": messages, "tools": tools}
        reply = self.send(proxy, "POST", "/v1/chat/completions", body)
        self.assertEqual(200, reply.status, reply.body)
        return dict(reply.value["choices"][0]["message"])

    def assert_native(self) -> None:
        self.assertEqual({"/responses"}, {seen.path for seen in self.fake.seen})
        self.assertEqual([], self.fake.refused)


class TestToolLoops(NativeCase):
    def script(self) -> None:
        self.fake.answer(
            Answer(reasoning="I must look.", content="Let me see.", calls=(CALL,)),
            Answer(reasoning="I saw it.", content="It is 42."),
            Answer(reasoning="Easy.", content="You are welcome."),
        )

    def test_chats_and_native_responses_share_stored_reasoning(self) -> None:
        self.script()
        proxy = self.proxy(display_reasoning=False)
        said = self.chat(proxy, [user("What is it?")])
        call = {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": CALL.arguments}
        words = {"role": "assistant", "content": said["content"]}
        found = self.ask(proxy, [user("What is it?"), words, call, OUTPUT])
        self.assert_upstream_saw("I must look.")
        spoken = {name: said[name] for name in ("role", "content", "tool_calls")}
        told = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
        ended = {"role": "assistant", "content": found["output_text"]}
        self.chat(proxy, [user("What is it?"), spoken, told, ended, user("Thanks.")])
        self.assert_upstream_saw("I must look.", "I saw it.")
        paths = ["/chat/completions", "/responses", "/chat/completions"]
        self.assertEqual((paths, []), ([seen.path for seen in self.fake.seen], self.fake.refused))


class TestRequests(NativeCase):
    def test_a_native_request_has_the_fields_of_the_responses_api(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
        self.fake.answer(Answer(reasoning="Hm.", content='{"a": "b"}'))
        fields = {"text": {"format": form}, "max_output_tokens": 2000, "user": "me", "metadata": {"a": "b"}}
        fields |= {"reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
        found = self.ask(self.proxy(), "hi", instructions="Be brief.", **fields)
        self.assertEqual('{"a": "b"}', found["output_text"])
        self.assertIn("encrypted_content", found["output"][0])
        sent = self.sent_body()
        self.assertEqual({"model", "input", "reasoning", "tools", "text", "max_output_tokens", "user"}, sent.keys())
        self.assertEqual(({"format": form}, {"effort": "high"}), (sent["text"], sent["reasoning"]))
        self.assertEqual(["system", "user"], [item["role"] for item in sent["input"]])
        self.assertEqual(("me", 2000), (sent["user"], sent["max_output_tokens"]))

    def test_a_trace_has_the_native_request(self) -> None:
        self.ask(self.proxy(trace_dir=self.folder), "hi")
        (path,) = self.folder.iterdir()
        self.assertEqual(self.sent_body(), json.loads(path.read_text(encoding="utf-8"))["upstream_request"])


class TestEnds(NativeCase):
    def test_native_answers_that_end_early_are_incomplete_or_failed(self) -> None:
        proxy = self.proxy()
        for finish, status, reason in (
            ("length", "incomplete", "max_output_tokens"),
            ("content_filter", "incomplete", "content_filter"),
            ("insufficient_system_resource", "failed", None),
        ):
            with self.subTest(finish):
                self.fake.answer(Answer(reasoning="Hm.", content="Hel", finish_reason=finish))
                found = self.ask(proxy, "hi", stream=True)
                self.assertEqual(status, found["status"])
                self.assertEqual(reason, (found["incomplete_details"] or {}).get("reason"))
                self.assertEqual(status == "failed", found["error"] is not None)

    def test_the_reasoning_before_a_broken_native_stream_is_stored(self) -> None:
        proxy = self.proxy()
        self.fake.answer(Answer(reasoning="A thought.", content="An answer.", piece=99, cut_after=11))
        found = self.ask(proxy, "hi", stream=True)
        self.assertEqual(("failed", "An answer."), (found["status"], found["output_text"]))
        answer = {"role": "assistant", "content": "An answer."}
        self.ask(proxy, [user("hi"), answer, user("Go on.")])
        self.assert_upstream_saw("A thought.")

    def test_cancelling_a_native_background_response_ends_its_call(self) -> None:
        self.fake.answer(Answer(reasoning="Hm.", content="Hello.", stall_after=5))
        proxy = self.proxy()
        queued = self.ask(proxy, "hi", background=True)
        self.assertEqual("queued", queued["status"])
        self.fake.stalls.get(timeout=PATIENCE)
        reply = self.send(proxy, "POST", f"/v1/responses/{queued['id']}/cancel")
        self.assertEqual("cancelled", reply.value["status"])
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
        self.assert_native()


class TestRecovery(NativeCase):
    LOST = (
        user("hi"),
        {"type": "function_call", "call_id": "call_0", "name": "read_file", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_0", "output": "41"},
        {"role": "assistant", "content": "It is 41."},
        user("And now?"),
    )

    def test_missing_reasoning_is_recovered_before_a_native_call(self) -> None:
        found = self.ask(self.proxy(), list(self.LOST), stream=True)
        self.assertTrue(found["output_text"].startswith(NOTICE))
        self.assert_native()

    def test_a_native_refusal_of_missing_reasoning_is_recovered(self) -> None:
        thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Foreign."}]}
        history = [self.LOST[0], thought, *self.LOST[1:3], thought, *self.LOST[3:]]
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.fake.forget()
                self.fake.answer(REFUSAL, Answer(reasoning="Hm.", content="It is 42."))
                found = self.ask(self.proxy(), history, stream=stream)
                self.assertTrue(found["output_text"].endswith("It is 42."))
                self.assertEqual([400, 200], [seen.status for seen in self.fake.seen])
                self.assertNotIn("function_call", {item.get("type") for item in self.sent_body()["input"]})

    def test_a_native_refusal_inside_a_stream_is_recovered(self) -> None:
        failed = {"type": "response.failed", "response": {"error": {"message": MISSING_REASONING_TEXT}}}
        created = b'event: response.created\ndata: {"type":"response.created"}\n\n'
        self.fake.answer(Raw(EVENT_STREAM + created + b"data: " + json.dumps(failed).encode() + b"\n\n"))
        self.fake.answer(Answer(content="Hello."))
        found = self.ask(self.proxy(), [user("hi"), {"role": "assistant", "content": "Hm?"}, user("hi")], stream=True)
        self.assertEqual("completed", found["status"])
        self.assertTrue(found["output_text"].endswith("Hello."))

    def test_empty_reasoning_is_never_sent_to_a_native_call(self) -> None:
        with FakeDeepSeek(rules=Rules(refuses_empty=True)) as fake:
            fake.answer(Answer(calls=(CALL,)), Answer(content="Done."))
            proxy = self.proxy(upstream_base_url=fake.url)
            first = self.ask(proxy, "hi")
            self.ask(proxy, [OUTPUT], previous_response_id=first["id"])
            self.assertEqual([], fake.refused)
