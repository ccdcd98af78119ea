"""Messages to their end: usage, stop reasons, errors that only this API has, pings and blanks."""

import json
import threading
from collections.abc import Iterator
from unittest import mock

from deepseek_cursor_proxy.features.messages.writer import MessageWriter
from tests.fake_deepseek import Answer, Call, Failure
from tests.support.harness import PATIENCE, read_to_the_end, read_until, request_bytes
from tests.support.messages_client import PATH, TOOLS, ClientReply, MessagesTestCase, assistant, kinds, user
from tests.support.raw_streams import EVENT_STREAM, raw_stream
from tests.support.raw_upstream import RawUpstream, ScriptedReply

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
TOO_LONG = "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens."


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
        self.assert_never_looks_complete(is_released=False, request_timeout=0.3)

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


class TestPings(MessagesTestCase):
    def test_pings_may_come_inside_a_block(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer("A thought.", "y", piece=5, stall_after=2))
        with self.open_stream(proxy) as sock:
            # Others may come before the block begins.
            read_until(sock, b"event: content_block_delta")
            read_until(sock, b"event: ping")
            self.fake.release.set()
            read_until(sock, b"event: message_stop")

    def test_pings_come_between_endless_comments(self) -> None:
        has_pinged = threading.Event()
        end = b'data: {"choices":[{"index":0,"delta":{"content":"Hi."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

        def pieces(request: bytes) -> Iterator[bytes]:
            yield EVENT_STREAM
            while not has_pinged.wait(0.005):
                yield b": keep-alive\n\n"
            yield end

        upstream = self.enterContext(RawUpstream(lambda request: ScriptedReply(pieces(request))))
        with self.open_stream(self.proxy(upstream_base_url=upstream.url, heartbeat_interval=0.1)) as sock:
            seen = read_until(sock, b"event: ping")
            has_pinged.set()
            seen += read_until(sock, b"event: message_stop")
        self.assertLess(seen.count(b"event: ping"), 4)

    def test_a_forced_answer_that_is_held_back_gets_pings(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer(content="Some words.", piece=4, stall_after=3))
        with self.open_stream(proxy, tools=TOOLS, tool_choice={"type": "any"}) as sock:
            seen = read_until(sock, b"event: ping")
            self.assertNotIn(b"Some", seen)
            self.fake.release.set()
            read_until(sock, b"event: message_stop")
