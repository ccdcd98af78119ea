"""Messages over real sockets: the request, what DeepSeek gets, the response."""

import json
import os
from typing import Any
from unittest import mock

from tests.fake_deepseek import Answer, Call
from tests.support.messages_client import PATH, TOOLS, VERSION, Json, MessagesTestCase, user
from tests.support.raw_upstream import RawUpstream, ScriptedReply
from tests.support.responses_client import request

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')


class TestMessages(MessagesTestCase):
    def test_the_events_of_a_stream_come_in_order(self) -> None:
        self.fake.answer(Answer(reasoning="Hm.", content="Hi.", calls=(CALL,)))
        reply = self.create(self.proxy(), tools=TOOLS, stream=True)
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        thought = ["content_block_start", "content_block_delta", *block[1:]]
        found = [event["type"] for event in reply.events]
        self.assertEqual(["message_start", *thought, *block, *block, "message_delta", "message_stop"], found)
        self.assertNotIn(b"[DONE]", reply.body)
        deltas = [event["delta"]["type"] for event in reply.events if event["type"] == "content_block_delta"]
        self.assertEqual(["thinking_delta", "signature_delta", "text_delta", "input_json_delta"], deltas)

    def test_either_header_brings_the_key_and_a_bearer_token_wins(self) -> None:
        body = {"max_tokens": 2000, "messages": [user("q")]}
        bearer, named = {"Authorization": "Bearer sk-a"}, {"x-api-key": "sk-a"}
        for headers in (bearer, named, {**bearer, **named}):
            self.assertEqual(200, self.send(self.running, body, headers=headers).status)
            self.assertEqual("Bearer sk-a", self.fake.seen[-1].headers["authorization"])
            self.assertNotIn("x-api-key", self.fake.seen[-1].headers)
        # Claude Code sends both when both of its variables are set.
        self.assertEqual(200, self.send(self.running, body, headers={"Authorization": "Bearer sk-b", **named}).status)
        self.assertEqual("Bearer sk-b", self.fake.seen[-1].headers["authorization"])
        reply = self.send(self.running, body, headers={"api-key": "sk-a", "x-api-key": "sk-b"})
        self.assertEqual((400, "invalid_request_error"), (reply.status, reply.error["type"]))
        reply = self.send(self.running, body, headers={})
        self.assertEqual((401, "authentication_error"), (reply.status, reply.error["type"]))
        self.assertEqual(4, len(self.fake.seen))

    def test_a_key_of_anthropic_never_reaches_deepseek(self) -> None:
        """Claude Code with ANTHROPIC_API_KEY left set sends it beside ANTHROPIC_AUTH_TOKEN."""
        body, other = {"max_tokens": 2000, "messages": [user("q")]}, "sk-ant-api03-0123456789"
        for headers in (
            {"Authorization": "Bearer sk-a", "x-api-key": other},
            {"Authorization": f"Bearer {other}", "x-api-key": "sk-a"},
        ):
            self.assertEqual(200, self.send(self.running, body, headers=headers).status)
            self.assertEqual("Bearer sk-a", self.fake.seen[-1].headers["authorization"])
        count = len(self.fake.seen)
        agent = {"User-Agent": "claude-cli/2.1.325 (external, sdk-cli)"}
        for headers in ({"Authorization": f"Bearer {other}"}, {"x-api-key": other}, {"x-api-key": other, **agent}):
            reply = self.send(self.running, body, headers=headers)
            self.assertEqual((401, "authentication_error"), (reply.status, reply.error["type"]))
            self.assertIn("unset ANTHROPIC_API_KEY", reply.error["message"])
            self.assertIn("ANTHROPIC_AUTH_TOKEN", reply.error["message"])
            self.assertNotIn(other.encode(), reply.body)
        self.assertEqual(count, len(self.fake.seen))

    def test_query_strings_and_beta_headers_make_no_difference(self) -> None:
        for path in (PATH, f"{PATH}?beta=true", "/messages", f"{PATH}/"):
            headers = {"x-api-key": "sk-test", "anthropic-beta": "claude-code-20250219,effort-2025-11-24"}
            reply = self.send(self.running, {"max_tokens": 2000, "messages": [user("q")]}, path=path, headers=headers)
            self.assertEqual((200, "Hello."), (reply.status, reply.value["content"][-1]["text"]))

    def test_messages_fields_are_translated_for_deepseek(self) -> None:
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        fields = {"temperature": 0.5, "top_p": 0.5, "stop_sequences": ["END"], "output_config": {"effort": "max"}}
        fields |= {"metadata": {"user_id": '{"device_id":"d1","session_id":"s 1"}'}, "thinking": {"type": "adaptive"}}
        self.complete(self.proxy(), system=system, tools=TOOLS, **fields)
        sent = self.fake.accepted[-1]
        self.assertEqual({"role": "system", "content": "Be brief."}, sent["messages"][0])
        expected = {"temperature": 0.5, "top_p": 0.5, "stop": ["END"], "max_tokens": 1000, "reasoning_effort": "max"}
        self.assertEqual(expected, {name: sent[name] for name in expected})
        self.assertEqual("device_id-d1", sent["user_id"])
        function = {"name": "read_file", "description": "Reads.", "parameters": TOOLS[0]["input_schema"]}
        self.assertEqual([{"type": "function", "function": function}], sent["tools"])

    def test_an_output_schema_reaches_deepseek(self) -> None:
        schema = {"type": "object", "properties": {"title": {"type": "string"}}}
        self.complete(
            self.proxy(), output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}}
        )
        sent = self.fake.accepted[-1]
        self.assertEqual({"type": "json_object"}, sent["response_format"])
        self.assertIn('"title"', sent["messages"][0]["content"])
        for form in (None, {}, {"type": "a form of tomorrow"}):
            self.complete(self.proxy(), output_config={"format": form})
            self.assertNotIn("response_format", self.fake.accepted[-1])

    def test_fields_unknown_to_deepseek_are_accepted_and_left_out(self) -> None:
        ignored: Json = {
            "cache_control": {"type": "ephemeral"},
            "container": "c",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "mcp_servers": [],
            "service_tier": "auto",
            "top_k": 5,
            "inference_geo": "eu",
            "some_field_of_tomorrow": {"x": 1},
            "betas": ["a"],
        }
        self.complete(self.proxy(), **ignored)
        self.assertFalse(set(ignored) & set(self.fake.accepted[-1]))

    def test_a_small_job_of_claude_code_is_answered_without_thinking(self) -> None:
        """Its check of an action: 2,112 tokens that thinking would use up, so that no verdict comes."""
        body = {"model": "deepseek-flash", "max_tokens": 2112, "system": "Judge.", "messages": [user("rm -r build")]}
        for agent, thinking in (("claude-cli/2.1.327 (external, cli)", "disabled"), ("my-agent/1", "enabled")):
            self.fake.answer(Answer(None if thinking == "disabled" else "Hm.", "<block>no"))
            reply = self.send(self.proxy(), body, headers={"x-api-key": "sk-test", "User-Agent": agent})
            self.assertEqual([{"type": "text", "text": "<block>no"}], reply.message["content"])
            self.assertEqual({"type": thinking}, self.fake.accepted[-1]["thinking"])

    def test_a_request_for_anthropics_safety_check_is_refused_by_its_name(self) -> None:
        """Claude Code's contract: it then asks without `safeguards`. A verdict of ours would be a lie."""
        asked = [{"type": "dangerous_tool_use"}]
        reply = self.create(self.proxy(), tools=TOOLS, stream=True, safeguards=asked)
        self.assertEqual((400, "invalid_request_error"), (reply.status, reply.error["type"]))
        self.assertIn("safeguards", reply.error["message"])
        self.assertEqual([], self.fake.seen)
        self.assertEqual("Hello.", self.complete(self.proxy(), tools=TOOLS, safeguards=[])["content"][-1]["text"])
        count = {"model": "deepseek-flash", "messages": [user("q")], "safeguards": asked}
        self.assertEqual(200, self.send(self.proxy(), count, path=f"{PATH}/count_tokens").status)


class TestModels(MessagesTestCase):
    def test_claude_model_names_are_mapped_and_returned(self) -> None:
        configured: dict[str, Any] = {"models": {"claude-sonnet-4*": "deepseek-v4-pro", "mine": "deepseek-flash"}}
        for asked, settings, expected in (
            ("claude-opus-4-5[1m]", {}, "deepseek-v4-pro"),
            ("anthropic/claude-3-haiku", {}, "deepseek-flash"),
            ("claude-deepseek-v4-pro", {"models": {"claude-*": "deepseek-flash"}}, "deepseek-v4-pro"),
            ("claude-mine", configured, "deepseek-flash"),
            ("claude-sonnet-4-5[1m]", configured, "deepseek-v4-pro"),
        ):
            for stream in (True, False):
                with self.subTest(asked, **settings):
                    self.assertEqual(asked, self.complete(self.proxy(**settings), model=asked, stream=stream)["model"])
                    self.assertEqual(expected, self.fake.accepted[-1]["model"])

    def test_the_model_list_has_the_shape_of_the_clients_api(self) -> None:
        proxy = self.proxy(models={"mine": "deepseek-flash"})
        told = self.ask(proxy, "GET", "/v1/models?limit=1000").value
        names = ["deepseek-v4-pro", "deepseek-flash", "mine"]
        self.assertEqual(names, [model["id"] for model in told["data"]])
        self.assertEqual((False, names[0], names[-1]), (told["has_more"], told["first_id"], told["last_id"]))
        for model in told["data"]:
            self.assertEqual("model", model["type"])
            self.assertLessEqual({"display_name", "created_at", "lifecycle"}, model.keys())
        with mock.patch.dict("tests.support.messages_client.VERSION", clear=True):
            other = self.ask(proxy, "GET", "/v1/models").value
        self.assertEqual(("list", names), (other["object"], [model["id"] for model in other["data"]]))

    def test_programs_called_claude_get_names_with_that_word(self) -> None:
        """Claude Code's `/model` shows no other; it asks for the list as claude-code, and chats as claude-cli."""
        proxy = self.proxy(models={"mine": "deepseek-flash", "Claude-x": "deepseek-flash"})
        names = ["claude-deepseek-v4-pro", "claude-deepseek-flash", "claude-mine", "Claude-x"]
        for agent in (
            "claude-code/2.1.327",
            "claude-cli/2.1.327 (external, cli)",
            "Mozilla/5.0 Claude/1.3 Electron/42",
        ):
            headers = {"Authorization": "Bearer sk-test", "User-Agent": agent}
            told = self.ask(proxy, "GET", "/v1/models?limit=1000", headers=headers).value
            self.assertEqual(names, [model["id"] for model in told["data"]])
            self.assertEqual((names[0], names[-1]), (told["first_id"], told["last_id"]))
            shown = [model["display_name"] for model in told["data"]]
            self.assertEqual(["DeepSeek V4 Pro", "DeepSeek Flash", "claude-mine", "Claude-x"], shown)
            for name in names:
                self.assertEqual(name, self.ask(proxy, "GET", f"/v1/models/{name}", headers=headers).value["id"])

    def test_a_single_model_is_returned_in_both_shapes(self) -> None:
        for headers, kind in ((VERSION, "type"), ({"Authorization": "Bearer sk-test"}, "object")):
            for name, status in (("deepseek-flash", 200), ("nobody", 404)):
                reply = request(self.running, "GET", f"/v1/models/{name}", None, headers)
                self.assertEqual(status, reply.status)
                if status == 200:
                    self.assertEqual((name, "model"), (reply.value["id"], reply.value[kind]))
                else:
                    self.assertEqual(kind == "type", reply.value.get("type") == "error")

    def test_every_messages_response_has_a_request_id(self) -> None:
        for stream in (True, False):
            reply = self.create(self.running, stream=stream)
            self.assertRegex(reply.headers["request-id"], r"\Areq_[0-9a-f]{24}\Z")


class TestPassthrough(MessagesTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"ROUTE_KEY": "sk-of-the-route"}))
        self.said = b""
        self.other = self.enterContext(RawUpstream(lambda request: ScriptedReply.of(self.said)))
        routes = {"claude-real-*": {"base_url": f"{self.other.url}/v1", "key_env": "ROUTE_KEY"}}
        self.running = self.proxy(passthrough=routes, access_keys=["sk-test"])
        self.body: Json = {"model": "claude-real-1", "max_tokens": 2000, "messages": [], "stream": True, "odd": [1.50]}

    def test_a_routed_model_gets_the_messages_request_unchanged(self) -> None:
        stream = b'event: message_start\ndata: {"odd":  1}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
        self.said = EVENTS + b"\r\n" + stream
        reply = self.send(self.running, self.body)
        self.assertEqual((200, stream), (reply.status, reply.body))
        head, _, body = self.other.requests[-1].partition(b"\r\n\r\n")
        self.assertEqual(json.dumps(self.body).encode(), body)
        self.assertTrue(head.startswith(b"POST /v1/messages HTTP/1.1\r\n"), head)
        self.assertNotIn(b"sk-test", head)
        self.assertEqual([], self.fake.seen)
        self.assertEqual("Hello.", self.complete(self.running, model="claude-opus-4-5")["content"][-1]["text"])

    def test_a_broken_passthrough_stream_has_the_error_shape_of_messages(self) -> None:
        self.said = EVENTS + b"Content-Length: 900\r\n\r\n: x\n\n"
        reply = self.send(self.running, self.body)
        self.assertIn(b"event: error\n", reply.body)
        event = json.loads(reply.body.split(b"data: ")[-1])
        self.assertEqual(("error", "api_error"), (event["type"], event["error"]["type"]))

    def test_a_route_without_a_key_is_refused_in_the_shape_of_this_api(self) -> None:
        os.environ.pop("ROUTE_KEY")
        self.assertEqual("authentication_error", self.send(self.running, self.body).error["type"])


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
