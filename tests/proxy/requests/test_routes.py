"""Responses to requests by their path and method."""

import json
from typing import Any

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES
from tests.support.harness import SocketTestCase

BODY = {"messages": [{"role": "user", "content": "hi"}]}


class AppTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.services = self.build_services()
        self.app = App(self.services.config, lambda: self.services, ROUTES)

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> HttpReply:
        data = json.dumps(body or {}).encode()
        sent = {"authorization": "Bearer sk-test", **{name.replace("_", "-"): each for name, each in headers.items()}}
        return self.app(HttpRequest(method, path, headers=sent, read_body=lambda: data))


class TestApp(AppTestCase):
    def test_a_look_whether_the_proxy_is_there_succeeds_without_a_line(self) -> None:
        """As Claude Code does it at its start."""
        for path in ("/", "/api/hello"):
            with self.assertNoLogs("deepseek_cursor_proxy"):
                self.assertEqual((200, b""), self.ask(path, method="HEAD")[:2])
        self.assertEqual(404, self.ask("/other", method="HEAD").status)


class TestPaths(AppTestCase):
    """What a base URL that is slightly wrong leads to."""

    def test_a_repeated_v1_in_a_path_counts_once_on_all_apis(self) -> None:
        bodies = {
            "chat/completions": BODY,
            "responses": {"input": "hi"},
            "responses/input_tokens": {"input": "hi"},
            "responses/compact": {"input": "hi"},
            "messages": {**BODY, "max_tokens": 2000},
            "messages/count_tokens": BODY,
        }
        for path, body in bodies.items():
            for before in ("/v1/v1/", "//v1//v1/", "/v1/v1/v1/"):
                self.assertEqual(200, self.ask(before + path, body).status, path)
        for path in ("models", "healthz"):
            self.assertEqual(200, self.ask(f"/v1/v1/{path}", method="GET").status, path)

    def test_a_path_without_a_route_is_a_404_in_the_shape_of_its_api_with_the_remedy(self) -> None:
        version = {"anthropic_version": "2023-06-01"}
        for path, headers, is_anthropic, words in (
            ("/v1/chat/complete", {}, False, "/v1/chat/completions: the base URL of OpenAI clients and Cursor ends in"),
            ("/v2/responses", {}, False, "/v1/responses: the base URL of OpenAI clients ends in /v1"),
            ("/v1/responses/a/b/c", version, False, "/v1/responses"),
            ("/anthropic/v1/messages", {}, True, "ANTHROPIC_BASE_URL is the address of this proxy without /v1"),
            ("/v1/messages/batches", {}, True, "ANTHROPIC_BASE_URL"),
            ("/a/b/messages", version, True, "ANTHROPIC_BASE_URL"),
            ("/v1/threads/t/messages", {}, False, "/v1/chat/completions"),
            ("/", {}, False, "/v1/chat/completions"),
        ):
            with self.subTest(path), self.assertLogs("deepseek_cursor_proxy.observers.console", "INFO") as logs:
                reply = self.ask(path, **headers)
                body = json.loads(reply.body)
                self.assertEqual((404, is_anthropic), (reply.status, body.get("type") == "error"))
                self.assertIn(words, body["error"]["message"])
                self.assertIn(f"POST {path} refused: 404", logs.output[0])

    def test_the_log_names_a_path_without_keys_or_control_characters(self) -> None:
        for path, expected in (
            ("/v1/\x1b[31mred\n", "POST /v1/\\x1b[31mred\\n refused"),
            ("/v1/" + "a/" * 900, "POST /v1/a/a"),
            ("/v1/sk-0123456789abcdef0123456789abcdef", "POST /v1/*** refused"),
            ("/v1/sk-short1234", "POST /v1/sk-*** refused"),
            ("/v1/%73%6b-0123456789abcdef/x", "POST /v1/***/x refused"),
        ):
            with self.subTest(path[:40]), self.assertLogs("deepseek_cursor_proxy.observers.console", "INFO") as logs:
                self.ask(path)
            self.assertIn(expected, logs.output[0])
            self.assertLess(len(logs.output[0]), 500)
