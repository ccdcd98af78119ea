"""The ends of messages: usage, stop reasons, and every failure in the error shape of this API."""

import json
from unittest import mock

from deepseek_cursor_proxy.protocols.anthropic_writer import MessageWriter
from tests.fake_deepseek import Answer, Call, Failure, Raw
from tests.support.harness import PATIENCE, read_to_the_end, read_until, request_bytes
from tests.support.messages_client import PATH, TOOLS, ClientReply, MessagesTestCase, assistant, blocks, kinds, user
from tests.support.raw_streams import EVENT_STREAM, raw_stream

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
TOO_LONG = "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens."
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


class TestUsage(MessagesTestCase):
    def test_cached_tokens_are_not_part_of_input_tokens(self) -> None:
        for stream in (True, False):
            words = user(f"{stream} words " * 100)
            first = self.complete(self.running, words, stream=stream)
            answer = self.complete(self.running, words, assistant(first), user("go on"), stream=stream)
            usage = answer["usage"]
            self.assertGreater(usage["cache_read_input_tokens"], 100)
            self.assertEqual(0, usage["cache_creation_input_tokens"])
            self.assertGreater(usage["output_tokens"], 0)
            self.assertLess(0, usage["input_tokens"])
            self.assertLess(usage["input_tokens"], usage["cache_read_input_tokens"])

    def test_message_start_estimates_the_input_tokens(self) -> None:
        reply = self.create(self.proxy(), user("words " * 1000), stream=True)
        start = reply.events[0]["message"]["usage"]
        self.assertTrue(1000 < start["input_tokens"] < 2000, start)
        self.assertEqual(0, start["output_tokens"])
        self.assertEqual(reply.message["usage"], reply.events[-2]["usage"])

    def test_an_answer_without_usage_has_a_usage_object(self) -> None:
        self.fake.answer(raw_stream({"delta": {"content": "Hi"}}, {"delta": {}, "finish_reason": "stop"}))
        usage = self.complete(self.proxy(), stream=True)["usage"]
        self.assertEqual({"input_tokens", "output_tokens"}, {name for name in usage if "cache" not in name})


class TestStopReasons(MessagesTestCase):
    def test_finish_reasons_become_stop_reasons(self) -> None:
        for answer, expected in (
            (Answer(content="x"), "end_turn"),
            (Answer(content="x", finish_reason="length"), "max_tokens"),
            (Answer(content="x", finish_reason="content_filter"), "refusal"),
            (Answer(calls=(CALL,)), "tool_use"),
            (Answer(calls=(CALL,), finish_reason="stop"), "tool_use"),
            (Answer(content="x", finish_reason="a reason of tomorrow"), "end_turn"),
            (Answer(calls=(CALL,), finish_reason="a reason of tomorrow"), "tool_use"),
            (Answer(content="x", finish_reason="tool_calls"), "end_turn"),
        ):
            for stream in (True, False):
                with self.subTest(expected, stream=stream):
                    self.fake.answer(answer)
                    message = self.complete(self.proxy(), tools=TOOLS, stream=stream)
                    self.assertEqual((expected, None), (message["stop_reason"], message["stop_sequence"]))

    def test_a_stop_sequence_is_named_when_upstream_names_it(self) -> None:
        for word, expected in (("END", ("stop_sequence", "END")), ("other", ("end_turn", None))):
            end = {"delta": {}, "finish_reason": "stop", "stop_reason": word}
            self.fake.answer(raw_stream({"delta": {"content": "Hi"}}, end))
            message = self.complete(self.proxy(), stream=True, stop_sequences=["STOP", "END"])
            self.assertEqual(expected, (message["stop_reason"], message["stop_sequence"]))

    def test_a_tool_call_that_was_cut_is_still_a_block(self) -> None:
        """As far as it is whole, which is also what the official packages make of the stream."""
        cut = Call(CALL.id, CALL.name, '{"path": "a.py", "line": 1')
        self.fake.answer(Answer(calls=(cut,), finish_reason="length"))
        message = self.complete(self.proxy(), tools=TOOLS)
        self.assertEqual(("max_tokens", ["tool_use"]), (message["stop_reason"], kinds(message)))
        self.assertEqual("a.py", message["content"][0]["input"]["path"])


class TestRefusals(MessagesTestCase):
    def assert_error(self, told: ClientReply, status: int, kind: str, *, is_final: bool) -> None:
        self.assertEqual((status, kind), (told.status, told.error["type"]), told.body)
        self.assertEqual(told.value["request_id"], told.headers["request-id"])
        self.assertEqual("false" if is_final else None, told.headers.get("x-should-retry"))

    def test_a_refusal_of_deepseek_has_the_error_shape_of_messages(self) -> None:
        for status, expected, kind, is_final in (
            (400, 400, "invalid_request_error", True),
            (401, 401, "authentication_error", True),
            (402, 402, "billing_error", True),
            (403, 403, "permission_error", True),
            (404, 404, "not_found_error", True),
            (413, 413, "request_too_large", True),
            (422, 422, "invalid_request_error", True),
            (429, 429, "rate_limit_error", False),
            (500, 500, "api_error", False),
            (502, 500, "api_error", False),
            (503, 529, "overloaded_error", False),
            (504, 500, "api_error", False),
        ):
            for stream in (True, False):
                with self.subTest(status, stream=stream):
                    self.fake.answer(Failure(status, f"words of {status}"))
                    reply = self.create(self.proxy(), stream=stream)
                    self.assert_error(reply, expected, kind, is_final=is_final)
                    self.assertIn(f"words of {status}", reply.error["message"])

    def test_a_messages_error_keeps_retry_after(self) -> None:
        for status in (429, 503):
            for headers, expected in (((("Retry-After", "7"),), "7"), ((), None)):
                self.fake.answer(Failure(status, headers=headers))
                reply = self.create(self.proxy(), stream=True)
                self.assertIn(reply.headers["retry-after"], (expected,) if expected else map(str, range(1, 600)))

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

    def test_a_refusal_of_the_proxy_has_the_error_shape_of_messages(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1000)
        self.assert_error(self.create(proxy, user("x" * 2000)), 413, "request_too_large", is_final=True)
        self.assert_error(self.create(proxy, max_tokens=None), 400, "invalid_request_error", is_final=True)
        self.assert_error(self.send(proxy, b"{"), 400, "invalid_request_error", is_final=True)
        for path in (PATH, f"/{PATH}", "/v1//messages/"):
            reply = self.send(proxy, {}, path=path, headers={})
            self.assert_error(reply, 401, "authentication_error", is_final=True)
        listed = self.proxy(access_keys=("sk-somebody-elses-key",))
        self.assert_error(self.create(listed), 401, "authentication_error", is_final=True)
        self.assertEqual([], self.fake.seen)

    def test_a_409_of_missing_reasoning_tells_clients_not_to_retry(self) -> None:
        """Libraries try a 409 again by themselves."""
        call = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
        history = (user("q"), {"role": "assistant", "content": [call]}, user("go on"))
        reply = self.create(self.proxy(missing_reasoning_strategy="reject"), *history, tools=TOOLS)
        self.assert_error(reply, 409, "invalid_request_error", is_final=True)

    def test_the_key_is_in_no_messages_error(self) -> None:
        self.fake.answer(Failure(401, "Your api key sk-a-rather-secret-key is invalid"))
        reply = self.create(self.proxy(), key="sk-a-rather-secret-key")
        self.assertNotIn(b"secret", reply.body)

    def test_a_plain_answer_that_breaks_is_an_error(self) -> None:
        for step, status, kind in (
            (Answer("Hm.", "Some text.", cut_after=2), 500, "api_error"),
            (Answer("Hm.", "x", finish_reason="insufficient_system_resource"), 529, "overloaded_error"),
            (Answer("Hm.", "x", finish_reason="aborted"), 500, "api_error"),
            (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope"), 500, "api_error"),
        ):
            with self.subTest(step):
                self.fake.answer(step)
                self.assert_error(self.create(self.proxy()), status, kind, is_final=False)

    def test_a_request_without_the_headers_of_the_api_gets_the_error_shape_of_messages(self) -> None:
        sock = self.connect(self.proxy(), request_bytes([], path=PATH))
        self.assertIn(b'{"type":"error","error":{"type":"invalid_request_error"', sock.recv(65536))


class TestBreaks(MessagesTestCase):
    def test_an_error_midway_closes_the_open_block_first(self) -> None:
        error = b'data: {"error": {"message": "Insufficient capacity"}}\n\n'
        nonsense = b"data: {nope\n\n"
        for step, kind in (
            (Answer("Hm. " * 9, "Some text.", cut_after=3, piece=4), "api_error"),
            (Answer("Hm.", "Some text.", cut_after=4, piece=4), "api_error"),
            (Answer("Hm.", None, (CALL,), cut_after=5, piece=4), "api_error"),
            (Answer("Hm.", "x", cut_after=0), "api_error"),
            (Raw(EVENT_STREAM + PIECE + error), "api_error"),
            (Raw(EVENT_STREAM + PIECE + nonsense), "api_error"),
            (Answer("Hm.", "x", finish_reason="insufficient_system_resource"), "overloaded_error"),
            (Answer("Hm.", "x", finish_reason="aborted"), "api_error"),
        ):
            with self.subTest(step):
                self.fake.answer(step)
                reply = self.create(self.proxy(), stream=True, tools=TOOLS)
                *found, last = reply.events
                self.assertEqual((200, "error", kind), (reply.status, last["type"], last["error"]["type"]))
                self.assertTrue(last["request_id"].startswith("req_"))
                self.assertTrue(last["error"]["message"])
                kinds_of = {event["type"] for event in found}
                self.assertFalse({"message_delta", "message_stop"} & kinds_of)
                if found[-1]["type"] == "content_block_stop" and "partial_json" not in str(found):
                    blocks(found[1:])
                self.assertIn(found[-1]["type"], ("message_start", "content_block_stop"))

    def test_the_reasoning_before_a_broken_stream_is_stored(self) -> None:
        self.fake.answer(Answer("A thought.", "Half of it.", piece=10, cut_after=3))
        reply = self.create(self.running, stream=True)
        said = blocks([event for event in reply.events if event["type"].startswith("content_block")])
        self.assertEqual("Half of it", said[1]["text"])
        dropped = {"role": "assistant", "content": said[1:]}
        self.complete(self.running, user("q"), dropped, user("go on"), tools=TOOLS)
        self.assert_upstream_saw("A thought.")


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

    def assert_never_looks_complete(self, is_released: bool, **settings: float) -> None:
        proxy = self.proxy(heartbeat_interval=0.02, **settings)
        self.fake.answer(Answer("A thought.", "Said.", stall_after=2))
        with self.open_stream(proxy, stream=False) as sock:
            seen = read_until(sock, b"\r\n1\r\n ")
            if is_released:
                self.fake.release.set()
            seen += read_to_the_end(sock)
        self.assertFalse(seen.endswith(b"0\r\n\r\n"), seen)
        self.assertNotIn(b"{", seen)

    def test_a_slow_plain_message_that_fails_never_looks_complete(self) -> None:
        self.assert_never_looks_complete(is_released=False, request_timeout=1.0)

    def test_a_bug_in_a_slow_plain_message_never_looks_complete(self) -> None:
        with mock.patch.object(MessageWriter, "message", side_effect=KeyError), self.assertLogs(level="ERROR"):
            self.assert_never_looks_complete(is_released=True)

    def test_a_disconnect_from_a_slow_plain_message_ends_the_call(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer("A thought.", "Said.", stall_after=2))
        with self.open_stream(proxy, stream=False) as sock:
            read_until(sock, b"\r\n1\r\n ")
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
        self.fake.release.set()
