"""Messages over real sockets: the request, what DeepSeek gets, the response."""

import json
import os
import time
from dataclasses import replace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.messages.writer import MessageWriter
from tests.fake_deepseek import Answer, Call, Failure
from tests.support.features import needs
from tests.support.harness import read_to_the_end, read_until, request_bytes
from tests.support.messages_client import (
    PATH,
    TOOLS,
    VERSION,
    ClientReply,
    Json,
    MessagesTestCase,
    assistant,
    result,
    user,
)
from tests.support.raw_streams import raw_stream
from tests.support.raw_upstream import RawUpstream, ScriptedReply
from tests.support.skipped_time import SkippedTime
from tests.support.width import width

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')


class TestMessages(MessagesTestCase):
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
            "claude-code/2.1.327", "claude-cli/2.1.327 (external, cli)", "Mozilla/5.0 Claude/1.3 Electron/42",
        ):  # fmt: skip
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
                lines = [f"{key}: {value}" for key, value in headers.items()]
                reply = self.call(self.running, "GET", f"/v1/models/{name}", key="", headers=lines)
                self.assertEqual(status, reply.status)
                if status == 200:
                    self.assertEqual((name, "model"), (reply.value["id"], reply.value[kind]))
                else:
                    self.assertEqual(kind == "type", reply.value.get("type") == "error")

    def test_every_messages_response_has_a_request_id(self) -> None:
        for stream in (True, False):
            reply = self.create(self.running, stream=stream)
            self.assertRegex(reply.headers["request-id"], r"\Areq_[0-9a-f]{24}\Z")


@needs("passthrough")
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


COUNT = f"{PATH}/count_tokens"


class TestCounting(MessagesTestCase):
    def count(self, *messages: Json, path: str = COUNT, **more: object) -> int:
        reply = self.send(self.running, {"model": "claude-opus-4-5", "messages": list(messages), **more}, path=path)
        self.assertEqual((200, {"input_tokens"}), (reply.status, set(reply.value)), reply.body)
        return int(reply.value["input_tokens"])

    def test_count_tokens_grows_with_the_request_and_makes_no_call(self) -> None:
        short = self.count(user("Hello"))
        self.assertGreater(self.count(user("Hello, how are you today?")), short)
        self.assertGreater(self.count(user("Hello"), system="Be brief."), short)
        self.assertGreater(self.count(user("Hello"), tools=TOOLS), short)
        self.assertEqual(short, self.count(user("Hello"), path=f"{COUNT}?beta=true"))
        self.assertEqual([], self.fake.seen)

    def test_thinking_is_counted_where_deepseek_reads_it_even_if_it_was_emptied(self) -> None:
        self.fake.answer(Answer("A long thought. " * 50, "Yes."))
        answer = assistant(self.complete(self.running, tools=TOOLS))
        emptied = [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in answer["content"]]
        whole = self.count(user("q"), answer, user("go on"), tools=TOOLS)
        self.assertEqual(whole, self.count(user("q"), {**answer, "content": emptied}, user("go on"), tools=TOOLS))
        self.assertGreater(whole, 100 + self.count(user("q"), user("Yes."), user("go on"), tools=TOOLS))

    def test_count_tokens_needs_a_key_and_messages(self) -> None:
        reply = self.send(self.running, {"messages": 5}, path=COUNT)
        self.assertEqual((400, "invalid_request_error"), (reply.status, reply.error["type"]))
        reply = self.send(self.running, {"messages": []}, path=COUNT, headers={"x-api-key": ""})
        self.assertEqual((401, "authentication_error"), (reply.status, reply.error["type"]))


TOO_LONG = "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens."


class TestUsage(MessagesTestCase):
    def test_an_answer_without_usage_has_a_usage_object(self) -> None:
        self.fake.answer(raw_stream({"delta": {"content": "Hi"}}, {"delta": {}, "finish_reason": "stop"}))
        usage = self.complete(self.proxy(), stream=True)["usage"]
        self.assertEqual({"input_tokens", "output_tokens"}, {name for name in usage if "cache" not in name})


class TestStopReasons(MessagesTestCase):
    def test_a_stop_sequence_is_named_when_upstream_names_it(self) -> None:
        for word, expected in (("END", ("stop_sequence", "END")), ("other", ("end_turn", None))):
            end = {"delta": {}, "finish_reason": "stop", "stop_reason": word}
            self.fake.answer(raw_stream({"delta": {"content": "Hi"}}, end))
            message = self.complete(self.proxy(), stream=True, stop_sequences=["STOP", "END"])
            self.assertEqual(expected, (message["stop_reason"], message["stop_sequence"]))


class TestRefusals(MessagesTestCase):
    def assert_error(self, told: ClientReply, status: int, kind: str, *, is_final: bool) -> None:
        self.assertEqual((status, kind), (told.status, told.error["type"]), told.body)
        self.assertEqual(told.value["request_id"], told.headers["request-id"])
        self.assertEqual("false" if is_final else None, told.headers.get("x-should-retry"))

    def test_a_prompt_that_is_too_long_has_the_words_that_claude_code_knows(self) -> None:
        for words, expected in (
            (TOO_LONG, "prompt is too long: 140000 tokens > 131072 maximum"),
            ("The prompt is too long.", "prompt is too long: 1048577 tokens > 1048576 maximum"),
        ):
            for stream in (True, False):
                self.fake.answer(Failure(400, words))
                reply = self.create(self.proxy(), stream=stream)
                self.assert_error(reply, 400, "invalid_request_error", is_final=True)
                self.assertEqual(expected, reply.error["message"])

    def test_a_request_without_the_headers_of_the_api_gets_the_error_shape_of_messages(self) -> None:
        sock = self.connect(self.proxy(), request_bytes([], path=PATH))
        self.assertIn(b'{"type":"error","error":{"type":"invalid_request_error"', sock.recv(65536))


class TestSlowAnswers(MessagesTestCase):
    """A message in one piece may take minutes, which nobody between us and the client puts up with in silence."""

    def test_blanks_precede_a_slow_plain_message(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer("A thought.", "Said.", stall_after=2))
        with self.open_stream(proxy, stream=False) as sock:
            seen = read_until(sock, b"\r\n1\r\n \r\n1\r\n ")
            self.assertTrue(seen.startswith(b"HTTP/1.1 200 OK\r\n"), seen)
            self.fake.release.set()
            seen += read_until(sock, b"\r\n0\r\n\r\n")
        body = seen.partition(b"\r\n\r\n")[2]
        message = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
        self.assertEqual(["A thought.", "Said."], [message["content"][0]["thinking"], message["content"][1]["text"]])

    def assert_never_looks_complete(self, *, is_released: bool) -> None:
        with SkippedTime() as time:
            proxy = self.proxy(heartbeat_interval=0.02, request_timeout=time.request_timeout)
            self.fake.answer(Answer("A thought.", "Said.", stall_after=2))
            with self.open_stream(proxy, stream=False) as sock:
                seen = read_until(sock, b"\r\n1\r\n ")
                if is_released:
                    self.fake.release.set()
                else:
                    time.skip(time.request_timeout)
                seen += read_to_the_end(sock)
        self.assertFalse(seen.endswith(b"0\r\n\r\n"), seen)
        self.assertNotIn(b"{", seen)

    def test_a_slow_plain_message_that_fails_never_looks_complete(self) -> None:
        self.assert_never_looks_complete(is_released=False)

    def test_a_bug_in_a_slow_plain_message_never_looks_complete(self) -> None:
        with mock.patch.object(MessageWriter, "message", side_effect=KeyError), self.assertLogs(level="ERROR"):
            self.assert_never_looks_complete(is_released=True)


class TestPings(MessagesTestCase):
    @needs("written_calls")
    def test_a_forced_answer_that_is_held_back_gets_pings(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer(content="Some words.", piece=4, stall_after=3))
        with self.open_stream(proxy, tools=TOOLS, tool_choice={"type": "any"}) as sock:
            seen = read_until(sock, b"event: ping")
            self.assertNotIn(b"Some", seen)
            self.fake.release.set()
            read_until(sock, b"event: message_stop")


MIB = 1024 * 1024


def picture(data: Any, kind: str = "base64") -> Json:
    return {"type": "image", "source": {"type": kind, "media_type": "image/png", "data": data}}


class TestOddities(MessagesTestCase):
    def test_malformed_images_are_an_error_only_of_models_that_see_them(self) -> None:
        for data in ("not base64 at all!", "", "AAAA" * 10 + "é", "data:image/png;base64,AAAA", None):
            with self.subTest(data):
                self.assertEqual(200, self.create(self.proxy(), user(picture(data)), model="deepseek-v4-pro").status)
                seen = self.create(self.proxy(), user(picture(data)), model="deepseek-flash")
                self.assertIn("Unsupported image format", seen.error["message"])
        self.assertEqual(200, self.create(self.proxy(), user(picture("x", kind="a kind of tomorrow"))).status)

    def test_messages_that_end_with_an_assistant_turn_are_sent(self) -> None:
        self.complete(self.proxy(), user("q"), {"role": "assistant", "content": "{"}, tools=TOOLS)
        self.assertEqual("{", self.sent()[-1]["content"])

    def test_searches_are_left_out_of_a_proxy_without_the_feature(self) -> None:
        proxy = self.proxy()
        proxy.server._services = replace(proxy.server.services(), search_apis={})
        search = {"type": "web_search_20250305", "name": "web_search"}
        self.complete(proxy, user("q"), tools=[search, *TOOLS])
        self.assertEqual((1, []), (len(self.fake.accepted[-1]["tools"]), self.fake.refused))


class TestSizes(MessagesTestCase):
    def quickly(self, began: float) -> None:
        # Measured at a fifth of that on a slow machine; what grows with the square of it would take minutes.
        self.assertLess(time.process_time() - began, 30)

    def test_a_block_of_megabytes_costs_no_more_than_its_length(self) -> None:
        size = width(MIB // 4, 10 * MIB)
        proxy, text = self.proxy(), "words and \n" * (size // 10)
        for block in (
            {"type": "text", "text": text}, result("a", text), result("a", [{"type": "text", "text": text}]),
            picture("A" * size), {"type": "thinking", "thinking": "x", "signature": "dcp1." + "A" * size},
            {"type": "thinking", "thinking": text, "signature": "x"}, {"type": "a block of tomorrow", "x": text},
        ):  # fmt: skip
            began = time.process_time()
            with self.subTest(block["type"]):
                self.complete(proxy, user(block), {"role": "assistant", "content": [block]}, user("q"), tools=TOOLS)
                self.quickly(began)
