"""Models with a route of their own: the request there, its answer, and what never leaves."""

import contextlib
import gzip
import json
import os
from dataclasses import replace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.passthrough import feature as passthrough
from deepseek_cursor_proxy.upstream import response
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from tests.fake_deepseek import Failure, Raw
from tests.support.harness import PATIENCE, RawReply, RunningProxy, SocketTestCase, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.ports import closed_port

KEY = "sk-of-the-route"
# Spaces, order and fields that no encoder of ours would write.
BODY = b'{ "stream" :false,"model":"gpt-9",  "messages":[{"role":"user","content":"hi"}], "store": true, "n": 3 }'
STREAMED = BODY.replace(b"false", b"true")
EVENTS = b'data: {"odd":  1}\r\n\r\n: hello\n\ndata: {"a":2}\n\nevent: x\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nX-Request-Id: 7\r\nSet-Cookie: a=b\r\n"


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> Raw:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + end)


def patient_heads() -> contextlib.AbstractContextManager[object]:
    """Let `request_timeout` bound the silence after the head of an answer, and not the time until the head."""
    read_head = UpstreamResponse.read_head

    def read_patiently(response: UpstreamResponse) -> None:
        config, response._config = response._config, replace(response._config, request_timeout=PATIENCE)
        read_head(response)
        response._config = config

    return mock.patch.object(UpstreamResponse, "read_head", read_patiently)


class PassthroughTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other, self.to_other = self.route()

    def passing(self, url: str | None = None, **settings: Any) -> RunningProxy:
        route = {**self.to_other, "base_url": url or self.to_other["base_url"]}
        return self.proxy(**{"passthrough": {"gpt-*": route}, "access_keys": ["sk-test"], **settings})

    def ask(self, body: bytes = BODY, proxy: RunningProxy | None = None, **details: Any) -> RawReply:
        return self.round_trip(proxy or self.passing(), request_bytes(body, **details))


class TestRequest(PassthroughTestCase):
    def test_a_routed_request_is_sent_unchanged_with_the_key_of_its_route(self) -> None:
        self.other.answer(Failure(400), Failure(400))
        for body in (BODY, STREAMED):
            self.ask(body)
            seen = self.other.seen[-1]
            self.assertEqual((body, "/v1/chat/completions"), (seen.body, seen.path))
            self.assertEqual(f"Bearer {KEY}", seen.headers["authorization"])
            self.assertNotIn("sk-test", str(seen))
        self.assertEqual([], self.fake.seen)

    def test_a_compressed_body_is_sent_decompressed(self) -> None:
        self.other.answer(Failure(400))
        self.ask(gzip.compress(BODY), headers=["Content-Encoding: gzip"])
        self.assertEqual(BODY, self.other.seen[-1].body)
        self.assertNotIn("content-encoding", self.other.seen[-1].headers)

    def test_an_azure_deployment_names_the_routed_model(self) -> None:
        self.other.answer(Failure(400))
        self.ask(b'{"messages":[]}', path="/openai/deployments/gpt-9/chat/completions")
        self.assertEqual({"messages": [], "model": "gpt-9"}, self.other.seen[-1].payload)

    def test_other_models_go_to_deepseek_without_the_key_of_the_route(self) -> None:
        for model in ("deepseek-v4-pro", "claude", "gpt-5.6-sol-high"):
            body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]}).encode()
            status, _, _ = self.ask(body, self.passing(models={"gpt-5.6-sol": "deepseek-flash"}))
            self.assertEqual((200, "Bearer sk-test"), (status, self.fake.seen[-1].headers["authorization"]))
        self.assertEqual([], self.other.seen)

    def test_a_route_without_a_key_makes_no_call(self) -> None:
        for value in (None, "", "  ", "two words", "line\nbreak"):
            with self.subTest(value), mock.patch.dict(os.environ):
                os.environ.pop("ROUTE_KEY")
                if value is not None:
                    os.environ["ROUTE_KEY"] = value
                reply = self.ask()
                error = reply.value["error"]
                self.assertEqual((401, "invalid_api_key"), (reply.status, error["code"]))
                self.assertIn("ROUTE_KEY holds no key", error["message"])
        self.assertEqual([], self.other.seen + self.fake.seen)

    def test_a_key_of_anthropic_is_not_sent_to_deepseek_by_a_route(self) -> None:
        with mock.patch.dict(os.environ, ROUTE_KEY="sk-ant-api03-0123456789"):
            reply = self.ask(proxy=self.passing("https://api.deepseek.com"))
            self.assertEqual(401, reply.status)
            self.assertIn("key of Anthropic", reply.value["error"]["message"])
            # Any other host has the key that its owner named for it.
            self.other.answer(Failure(400))
            self.ask()
        self.assertEqual("Bearer sk-ant-api03-0123456789", self.other.seen[-1].headers["authorization"])

    def test_a_client_without_a_key_is_refused_before_the_route(self) -> None:
        without_key = request_bytes(BODY).replace(b"Authorization", b"X-Nothing")
        self.assertEqual(401, self.round_trip(self.passing(), without_key).status)
        self.assertEqual([], self.other.seen)


class TestAnswer(PassthroughTestCase):
    def test_a_routed_stream_is_passed_on_byte_for_byte(self) -> None:
        for pieces in ([EVENTS], [EVENTS[at : at + 1] for at in range(len(EVENTS))], [EVENTS.rstrip(b"\n")]):
            self.other.answer(chunked(*pieces))
            status, headers, body = self.ask(STREAMED)
            self.assertEqual((200, b"".join(pieces)), (status, body))
            self.assertEqual("text/event-stream; charset=utf-8", headers["content-type"])
            self.assertNotIn("set-cookie", headers)
            self.assertRegex(headers["x-request-id"], r"\Areq_[0-9a-f]{24}\Z")

    def test_a_long_line_is_sent_before_its_end(self) -> None:
        line = b"data: " + b"x" * 100
        chunk = b"%x\r\n%b\r\n" % (len(line), line)
        self.other.answer(Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk, then_stall=True))
        with mock.patch.object(passthrough, "_MAX_LINE_BYTES", 50):
            with self.connect(self.passing(), request_bytes(STREAMED)) as sock:
                read_until(sock, line)

    def test_a_routed_plain_answer_is_passed_on_with_its_status(self) -> None:
        answers = {200: b'{ "odd" : 1 }\n', 201: b"", 400: b'{"error":7}', 429: b"<html>", 503: b"x"}
        for status, said in answers.items():
            headers = (("Retry-After", "9"), ("Content-Type", "text/x-odd"), ("X-Secret", "1"))
            for body in (BODY, STREAMED) if status != 200 else (BODY,):
                self.other.answer(Failure(status, headers=headers, body=said))
                found, kept, answer = self.ask(body)
                self.assertEqual((status, said), (found, answer))
                self.assertEqual(("9", "text/x-odd"), (kept["retry-after"], kept["content-type"]))
                self.assertNotIn("x-secret", kept)

    def test_an_error_that_quotes_the_key_does_not_give_it_away(self) -> None:
        self.other.answer(Failure(401, f"Incorrect API key provided: {KEY}"))
        status, _, body = self.ask()
        self.assertEqual(401, status)
        self.assertNotIn(KEY.encode(), body)

    def test_a_host_that_echoes_the_request_does_not_give_the_key_away(self) -> None:
        echo = f'{{"headers": {{"authorization": "Bearer {KEY}"}}, "twice": "{KEY}{KEY}"}}'.encode()
        hidden = echo.replace(KEY.encode(), b"***")
        kind = (("Content-Type", f"text/x-{KEY}"),)
        for status in (200, 201, 400):
            self.other.answer(Failure(status, headers=kind, body=echo))
            found, headers, body = self.ask()
            self.assertEqual((status, hidden, "text/x-***"), (found, body, headers["content-type"]))
        event = b"data: " + echo + b"\n\n"
        for pieces in ([event], [event[at : at + 1] for at in range(len(event))], [event[:50], event[50:]]):
            self.other.answer(chunked(*pieces, b"data: [DONE]\n\n"))
            status, _, body = self.ask(STREAMED)
            self.assertEqual((200, b"data: " + hidden + b"\n\ndata: [DONE]\n\n"), (status, body))
        packed = gzip.compress(echo)
        self.other.answer(Failure(200, headers=(("Content-Encoding", "gzip"),), body=packed))
        self.assertEqual(hidden, self.ask().body)

    def test_a_routed_request_is_not_stored_and_logged_in_one_line(self) -> None:
        proxy = self.passing()
        for body, step in ((STREAMED, chunked(EVENTS)), (BODY, Failure(429))):
            self.other.answer(step)
            with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
                status, _, _ = self.ask(body, proxy)
                wait_until(lambda: len(proxy.server.connections) == 0)
            (line,) = logged.output
            self.assertRegex(line, rf"gpt-9 passed on to 127.0.0.1 · {status} · \d+\.\d s$")
        self.assertEqual(0, proxy.store.stats().reasonings)

    def test_a_routed_stream_that_stays_open_after_its_end_is_ended(self) -> None:
        with mock.patch.object(response, "_USAGE_SECONDS", 0.05):
            self.other.answer(Raw(HEAD + b"\r\n" + EVENTS, then_close=False))
            self.assertEqual((200, EVENTS), self.ask(STREAMED)[::2])

    def test_the_connection_of_a_route_is_reused(self) -> None:
        proxy = self.passing(retry_budget=1)
        self.other.answer(*[Failure(400)] * 3)
        for _ in range(3):
            self.ask(BODY, proxy)
        self.assertEqual(1, self.other.connections)


class TestFaults(PassthroughTestCase):
    def test_faults_of_a_route_before_its_answer_are_the_usual_errors(self) -> None:
        cut = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        redirect = Raw(b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n")
        for step, expected in (
            (Raw(b""), 502), (Raw(b"garbage\r\n\r\n"), 502), (redirect, 502), (cut, 502),
            (Raw(b"", then_close=False), 504),
        ):  # fmt: skip
            for body in (BODY, STREAMED) if step is not cut else (BODY,):
                with self.subTest(step):
                    self.other.answer(step)
                    timeout = PATIENCE if step.then_close else 0.1
                    status, _, answer = self.ask(body, self.passing(request_timeout=timeout, retry_budget=5))
                    self.assertEqual(expected, status)
                    self.assertNotIn("DeepSeek", json.loads(answer)["error"]["message"])
        # One that is given up after a tenth of a second may be read later.
        wait_until(lambda: len(self.other.seen) == 9)

    def test_an_unreachable_route_is_an_error_that_names_the_setting(self) -> None:
        url = f"http://127.0.0.1:{self.enterContext(closed_port())}"
        status, _, body = self.ask(proxy=self.passing(url))
        self.assertEqual(502, status)
        self.assertIn('base_url of [passthrough."gpt-*"]', json.loads(body)["error"]["message"])

    def test_a_routed_stream_that_breaks_ends_in_an_error_event(self) -> None:
        for end, then_close, code in ((b"", True, "upstream_error"), (b"", False, "upstream_timeout")):
            step = chunked(b'data: {"a":1}\n\nda', b'ta: {"half', end=end)
            self.other.answer(Raw(step.data, then_close=then_close))
            with patient_heads():
                status, _, body = self.ask(STREAMED, self.passing(request_timeout=PATIENCE if then_close else 0.1))
            lines = [line for line in body.decode().split("\n") if line]
            self.assertEqual((200, 'data: {"a":1}', "data: [DONE]"), (status, lines[0], lines[-1]))
            error = json.loads(lines[1].removeprefix("data: "))["error"]
            self.assertEqual(("upstream_error", code, 3), (error["type"], error["code"], len(lines)))
