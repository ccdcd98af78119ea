"""Any bytes get a response in the right shape.

Seeded and bounded, see fuzzing. The log is part of the verdict: an error in it is a bug, however good the response.
"""

import json
import random
import socket
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES
from tests.fake_deepseek import Answer, Call
from tests.proxy.requests.test_shapes import APPLY_PATCH, BARE, FLAT
from tests.support import hostile_requests as hostile
from tests.support.fuzzing import cases, mutated, mutated_value
from tests.support.harness import RunningProxy, SocketTestCase, read_to_the_end
from tests.support.messages_client import result, user
from tests.unit.http1.test_split_bytes import LIMIT, SEEDS, read_all


class FuzzTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        # A bug is logged, not raised: it must not hide behind a good-looking 500.
        self.enterContext(self.assertNoLogs("deepseek_cursor_proxy", "ERROR"))

    def assert_error_shape(self, body: bytes, name: str) -> None:
        error = json.loads(body)["error"]
        self.assertTrue({"message", "type", "code", "param"} <= set(error), f"{name}: {error}")
        self.assertTrue(isinstance(error["message"], str) and error["message"], name)


class TestSockets(FuzzTestCase):
    STATUSES = frozenset({100, 200, 204, 400, 401, 404, 405, 408, 413, 414, 415, 417, 431, 501, 505})

    def test_mutated_requests_get_whole_responses_and_no_extra_one(self) -> None:
        proxy = self.proxy(max_request_body_bytes=LIMIT)
        for name, rng in cases(250):
            data = mutated(rng, SEEDS)
            with self.subTest(name):
                replies = list(self.replies(self.exchanged(proxy, data), name))
                # A request cut off in the middle, or refused, is told so: one reply more than there are requests.
                self.assertLessEqual(len(replies), len(read_all([data])), f"{name}: {data!r}")
        sock = self.connect(proxy, hostile.NEXT)
        self.assertIn(b"200 OK", sock.recv(1000))

    def exchanged(self, proxy: RunningProxy, data: bytes) -> bytes:
        """All that comes back; we have no more to say, so whatever waits for more ends, calls to DeepSeek included."""
        with self.connect(proxy, data) as sock:
            sock.shutdown(socket.SHUT_WR)
            return read_to_the_end(sock)

    def replies(self, raw: bytes, name: str) -> Iterable[int]:
        while raw:
            start, _, rest = raw.partition(b"\r\n\r\n")
            head = heads.parse_response_head(start)
            self.assertIn(head.status, self.STATUSES, f"{name}: {raw[:200]!r}")
            self.assertNotIn("server", head.headers)
            if head.status == 100:
                raw = rest
                continue
            # Without a table of requests nobody knows which replies were to HEAD: those have a length and no body.
            is_bodiless = not rest or rest.startswith(b"HTTP/1.1 ")
            body = bodies.LengthBody(0) if is_bodiless else bodies.response_decoder(head)
            payload = body.feed(rest)
            body.end()
            if head.status >= 400 and payload:
                self.assert_error_shape(payload, name)
            raw = b"" if is_bodiless and not rest else body.rest if not is_bodiless else rest
            yield head.status


USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "Shell", "arguments": '{"c": 1}'}}
TEXT = {"type": "text", "text": "42"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NESTED = {"type": "function", "function": {"name": "Shell", "parameters": {"type": "object", "properties": {}}}}
TOOL_TURN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]},
    {"role": "assistant", "content": "Looking.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    {"role": "user", "content": "and?"},
]
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
GREP = {"type": "tool_use", "id": "toolu_1", "name": "Grep", "input": {"q": "x"}}
USE = {"role": "assistant", "content": [THINKING, GREP]}
BODIES: tuple[Any, ...] = (
    {"model": "deepseek-v4-pro", "messages": [USER]},
    {"model": "deepseek-v4-pro", "messages": TOOL_TURN, "tools": [NESTED, FLAT, BARE, APPLY_PATCH], "stream": True},
    {
        "model": "gpt-4o-high",
        "messages": [USER],
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 2000,
        "max_completion_tokens": 2000,
        "stop": ["a", "b"],
        "seed": 1,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_choice": {"type": "function", "function": {"name": "Shell"}},
        "tools": [NESTED],
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "high",
        "thinking": {"type": "enabled"},
        "user": "u",
        "metadata": {"a": "b"},
    },
    {
        "model": "gpt-5.6-sol",
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "call_1", "name": "Shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "42"},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "ApplyPatch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
        ],
        "tools": [FLAT, APPLY_PATCH],
        "reasoning": {"effort": "medium"},
        "stream": True,
    },
    {
        "model": "claude-sonnet",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            user({"type": "text", "text": "hi"}),
            USE,
            user(result("toolu_1", [{"type": "text", "text": "4"}])),
        ],
        "tools": [BARE],
        "max_tokens": 2000,
    },
    {"model": "deepseek-flash", "messages": [{"role": "user", "content": [PICTURE]}], "functions": [{"name": "f"}]},
)


class TestBodies(FuzzTestCase):
    BODIES = BODIES
    STATUSES = frozenset({200, 400, 401, 404, 409, 413, 422})

    def setUp(self) -> None:
        super().setUp()
        services = self.build_services(models={"gpt-4o*": "deepseek-flash"})
        self.app = App(services.config, lambda: services, ROUTES)

    def test_mutated_bodies_get_an_answer_or_a_refusal_that_says_why(self) -> None:
        for name, rng in cases(300):
            body = self.body(rng)
            self.script(rng)
            with self.subTest(name):
                self.assert_answered(self.ask(body), f"{name}: {body[:2000]!r}")
            # The fake notes all it has seen, which is much in a long run.
            self.fake.forget()

    def body(self, rng: random.Random) -> bytes:
        # Escaped, so that lone surrogates get through; some are harmed once more as bytes.
        body = json.dumps(mutated_value(rng, self.BODIES)).encode()
        return mutated(rng, [body]) if rng.random() < 0.15 else body

    def script(self, rng: random.Random) -> None:
        """DeepSeek's answers vary as well; one that is not asked for is forgotten."""
        arguments = ('{"c": 1}', '{"input": "x"}', "{")
        calls = (Call("call_9", rng.choice(("Shell", "ApplyPatch")), rng.choice(arguments)),)
        called = calls if rng.random() < 0.3 else ()
        self.fake.answer(Answer("Hm.", "Hello.", called, piece=rng.choice((1, 5, 99))))

    def ask(self, body: bytes) -> HttpReply:
        headers = {"authorization": "Bearer sk-test"}
        return self.app(HttpRequest("POST", "/v1/chat/completions", "", headers, lambda: body))

    def assert_answered(self, reply: HttpReply, name: str) -> None:
        self.assertIn(reply.status, self.STATUSES, name)
        if isinstance(reply.body, bytes):
            answer = json.loads(reply.body)
            if reply.status == 200:
                self.assertIn("choices", answer, name)
            else:
                self.assert_error_shape(reply.body, name)
            return
        try:
            stream = b"".join(piece for piece in reply.body if isinstance(piece, bytes))
        finally:
            reply.body.close()
        events = [line for line in stream.split(b"\n") if line.startswith(b"data: ")]
        self.assertEqual(b"data: [DONE]", events[-1], name)
        for event in events[:-1]:
            message = json.loads(event.removeprefix(b"data: "))
            self.assertTrue("choices" in message or "error" in message, name)
