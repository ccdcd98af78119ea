"""Access over real sockets: which keys are served, what a refusal costs, and which key goes to which upstream."""

import json
import os
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.features.responses.feature import Responses
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw
from tests.support.harness import RunningProxy, SocketTestCase, read_reply, request_bytes
from tests.support.histories import TOOLS
from tests.support.polling import wait_until
from tests.support.raw_streams import EVENT_STREAM
from tests.unit.api.test_clients import CHAT, CLAUDE, CODEX, CURSOR, MESSAGES, NAMES, RESPONSES

OWNER, STRANGER, HELD = "sk-the-key-of-the-owner", "sk-the-key-of-a-stranger", "sk-held-by-the-proxy-0001"
BODY = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
PATHS = ("/v1/chat/completions", "/chat/completions", "/openai/deployments/deepseek-v4-pro/chat/completions")
PLAIN: dict[str, Any] = {}
LISTED: dict[str, Any] = {"access_keys": [OWNER]}
EXPOSED: dict[str, Any] = {"ngrok": True}


class AccessTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ))
        os.environ.pop("DEEPSEEK_API_KEY", None)

    def ask(self, proxy: RunningProxy, key: str = OWNER, body: Any = BODY) -> Any:
        return self.round_trip(proxy, request_bytes(body, key=key))

    def status(self, proxy: RunningProxy, key: str = OWNER, body: Any = BODY) -> int:
        return self.ask(proxy, key, body)[0]

    def reply_to_head(self, proxy: RunningProxy, *lines: str, path: str = PATHS[0]) -> tuple[int, dict[str, str], Any]:
        """The answer to a head that announces a body of which nothing is ever sent."""
        head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Length: 40000000", *lines, "", ""]
        reply = self.round_trip(proxy, "\r\n".join(head).encode())
        return reply.status, reply.headers, reply.value["error"]

    def keys_upstream(self) -> list[str]:
        return [seen.headers["authorization"].removeprefix("Bearer ") for seen in self.fake.seen]


class TestAccessKeys(AccessTestCase):
    def test_an_unlisted_key_is_refused_before_the_body_is_read(self) -> None:
        proxy = self.proxy(access_keys=[OWNER])
        for path in PATHS:
            named = (f"Authorization: Bearer {STRANGER}", f"api-key: {STRANGER}")
            for line in (*named, "X-Api-Key: x", "Expect: 100-continue"):
                with self.subTest(path, line=line):
                    status, headers, error = self.reply_to_head(proxy, line, path=path)
                    self.assertEqual((401, "Bearer"), (status, headers["www-authenticate"]))
                    self.assertEqual("close", headers["connection"])
                    self.assertEqual(("authentication_error", "invalid_api_key"), (error["type"], error["code"]))
                    self.assertNotIn(STRANGER, error["message"])
        self.assertEqual([], self.fake.seen)

    def test_a_listed_key_is_served_in_either_header(self) -> None:
        proxy = self.proxy(access_keys=[AccessKey.of(OWNER).line])
        self.assertEqual(200, self.status(proxy))
        data = json.dumps(BODY).encode()
        head = [f"POST {PATHS[2]} HTTP/1.1", "Host: x", f"api-key: {OWNER}", f"Content-Length: {len(data)}", "", ""]
        self.assertEqual(200, self.round_trip(proxy, "\r\n".join(head).encode() + data)[0])
        self.assertEqual([OWNER, OWNER], self.keys_upstream())

    def test_only_health_and_the_model_list_answer_without_a_key(self) -> None:
        for settings in (PLAIN, LISTED, EXPOSED):
            proxy = self.proxy(**settings)
            for method, path, expected in (
                ("GET", "/healthz", 200), ("GET", "/v1/healthz", 200), ("HEAD", "/v1/models", 200),
                ("GET", "/models", 200), ("OPTIONS", PATHS[0], 204), ("POST", PATHS[0], 401), ("POST", PATHS[1], 401),
                ("POST", PATHS[2], 401), ("POST", "//v1//chat//completions/", 401), ("GET", PATHS[0], 405),
                ("POST", "/v1/models", 405), ("POST", "/v1/responses", 401), ("GET", "/v1/responses/resp_1", 401),
                ("GET", "/v1/responses/resp_1/input_items", 401), ("DELETE", "/v1/responses/resp_1", 401),
                ("POST", "/v1/responses/resp_1/cancel", 401), ("PUT", "/v1/responses/resp_1", 405),
                ("POST", "/v1/embeddings", 404), ("GET", "/", 404), ("GET", "/metrics", 404),
            ):  # fmt: skip
                with self.subTest(path, method=method, **settings):
                    with self.connect(proxy, f"{method} {path} HTTP/1.0\r\n\r\n".encode()) as sock:
                        self.assertTrue(sock.makefile("rb").readline().startswith(b"HTTP/1.1 %d " % expected))

    def test_after_many_wrong_keys_strangers_have_to_wait_and_the_owner_does_not(self) -> None:
        proxy = self.proxy(access_keys=[OWNER])
        with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
            # Each says it is somebody else.
            lines = [(f"Authorization: Bearer {STRANGER}-{n}", f"X-Forwarded-For: 192.0.2.{n}") for n in range(40)]
            replies = [self.reply_to_head(proxy, *each) for each in lines]
        statuses = [status for status, _, _ in replies]
        self.assertEqual([401] * 20, statuses[:20])
        self.assertIn(429, statuses)
        _, headers, error = next(reply for reply in replies if reply[0] == 429)
        self.assertIn(headers["retry-after"], ("1", "2", "3"))
        self.assertEqual(("rate_limit_error", "rate_limit_exceeded"), (error["type"], error["code"]))
        self.assertEqual(200, self.status(proxy))
        log = "\n".join(logged.output)
        self.assertEqual(1, log.count("too many wrong keys from 127.0.0.1"))
        self.assertEqual(0, log.count(" 429 "))
        self.assertNotIn(STRANGER, log)

    def test_a_key_that_deepseek_refused_is_not_sent_again(self) -> None:
        strict = self.enterContext(FakeDeepSeek(keys=[OWNER]))
        proxy = self.proxy(upstream_base_url=strict.url)
        self.assertEqual(200, self.status(proxy))
        with self.assertLogs("deepseek_cursor_proxy.access", "WARNING"):
            statuses = [self.status(proxy, f"{STRANGER}-{number}") for number in range(40)]
        self.assertEqual([401] * 20, statuses[:20])
        self.assertIn(429, statuses)
        self.assertEqual(1 + statuses.count(401), len(strict.seen))
        self.assertEqual(200, self.status(proxy))


class TestPinning(AccessTestCase):
    def test_the_first_accepted_key_is_the_only_one_served(self) -> None:
        proxy = self.proxy(ngrok=True)
        self.fake.answer(Failure(401, "no"), Failure(500), Answer(content="Hello."))
        with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
            self.assertEqual([401, 500, 200], [self.status(proxy, key) for key in (STRANGER, STRANGER, OWNER)])
            status, _, error = self.reply_to_head(proxy, f"Authorization: Bearer {STRANGER}")
            self.assertEqual([200, 200], [self.status(proxy), self.status(proxy, body={**BODY, "stream": True})])
        self.assertEqual(401, status)
        self.assertIn("serves only the key that was used first since it started", error["message"])
        self.assertEqual([STRANGER, STRANGER, OWNER, OWNER, OWNER], self.keys_upstream())
        lines = "\n".join(logged.output)
        self.assertEqual(1, lines.count(f"only the key {AccessKey.of(OWNER)} is served"))
        self.assertNotIn(OWNER, lines)

    def test_a_slow_body_is_refused_when_another_key_was_pinned_meanwhile(self) -> None:
        proxy = self.proxy(ngrok=True)
        request = request_bytes(BODY, headers=["Expect: 100-continue"], key=STRANGER)
        head, end, body = request.partition(b"\r\n\r\n")
        sock = self.connect(proxy, head + end)
        self.assertEqual(100, read_reply(sock)[0])  # let in
        self.assertEqual(200, self.status(proxy))
        sock.sendall(body)
        self.assertEqual(401, read_reply(sock)[0])
        self.assertEqual([OWNER], self.keys_upstream())


class TestHeldKey(AccessTestCase):
    def setUp(self) -> None:
        super().setUp()
        os.environ["DEEPSEEK_API_KEY"] = HELD

    def test_deepseek_gets_the_held_key_and_never_the_access_key(self) -> None:
        proxy = self.proxy(access_keys=[OWNER, STRANGER])
        for key in (OWNER, STRANGER):
            for stream in (False, True):
                self.assertEqual(200, self.status(proxy, key, {**BODY, "stream": stream}))
        self.assertEqual([HELD] * 4, self.keys_upstream())
        for seen in self.fake.seen:
            everything = repr(seen.headers).encode() + seen.body
            self.assertNotIn(OWNER.encode(), everything)
            self.assertNotIn(STRANGER.encode(), everything)

    def test_the_held_key_is_not_used_without_access_keys(self) -> None:
        for settings in (PLAIN, EXPOSED):
            self.assertEqual(200, self.status(self.proxy(**settings)))
        self.assertEqual([OWNER] * 2, self.keys_upstream())

    def test_two_access_keys_share_no_reasoning(self) -> None:
        proxy = self.proxy(access_keys=[OWNER, STRANGER], display_reasoning=False)
        call = Call("call_00_abcdefghijklmnopqrst", "get_date", "{}")
        self.fake.answer(Answer(reasoning="Secret thoughts.", content="", calls=(call,)))
        owner = self.client(proxy, key=OWNER)
        owner.ask("What day is it?")
        self.assert_upstream_saw("Secret thoughts.")
        self.fake.forget()
        self.assertEqual(200, self.status(proxy, STRANGER, {**BODY, "messages": owner.messages[:-1], "tools": TOOLS}))
        self.assertEqual(1, len(self.fake.accepted))
        self.assertNotIn("Secret thoughts.", json.dumps(self.fake.accepted))

    def test_a_held_key_that_deepseek_refuses_is_not_the_callers_fault(self) -> None:
        proxy = self.proxy(access_keys=[OWNER])
        for _ in range(25):
            self.fake.answer(Failure(401, f"Authentication Fails, Your api key: {HELD} is invalid"))
            reply = self.ask(proxy)
            self.assertEqual((502, "held_key_refused"), (reply.status, reply.value["error"]["code"]))
            self.assertNotIn(HELD[-4:].encode(), reply.body)
        self.assertIn(b"DEEPSEEK_API_KEY", reply.body)

    def test_the_held_key_is_in_no_response_and_no_log(self) -> None:
        proxy = self.proxy(access_keys=[OWNER], trace_dir=self.folder, verbose=True)
        quoting = Raw(EVENT_STREAM + b'data: {"error": {"message": "bad key %s"}}\n\n' % HELD.encode())
        odd = json.dumps({"error": {"message": HELD, HELD: [{"a": f"<{HELD}>"}, 1, None]}}).encode()
        with self.assertLogs("deepseek_cursor_proxy", "DEBUG") as logged:
            for step, stream, expected in (
                (Failure(403, f"{HELD} may not do that"), False, 403), (Failure(402, HELD), True, 402),
                (Failure(400, body=odd), False, 400), (Failure(500, body=f"<html>{HELD}".encode()), False, 500),
                (quoting, True, 200),
            ):  # fmt: skip
                with self.subTest(step):
                    self.fake.answer(step)
                    status, headers, body = self.ask(proxy, body={**BODY, "stream": stream})
                    self.assertEqual(expected, status)
                    self.assertNotIn(HELD, repr(headers) + body.decode())
            wait_until(lambda: len(proxy.server.connections) == 0)
        traces = [path.read_text(encoding="utf-8") for path in self.folder.iterdir()]
        self.assertEqual(5, len(traces))
        for text in ("\n".join(logged.output), "".join(traces)):
            self.assertNotIn(HELD, text)
            self.assertNotIn(OWNER, text)
            self.assertIn("***", text)

    def test_an_upstream_that_echoes_its_headers_does_not_give_the_held_key_away(self) -> None:
        proxy = self.proxy(access_keys=[OWNER])
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "echo": f"Bearer {HELD}"}
        choice = {"index": 0, "delta": {"content": "x"}, "message": {"content": "x"}, "finish_reason": "stop"}
        event = json.dumps({**chunk, "choices": [choice]}).encode()
        for body, stream in ((EVENT_STREAM + b"data: %b\n\ndata: [DONE]\n\n" % event, True), (event, False)):
            self.fake.answer(Raw(body) if stream else Failure(200, body=body))
            reply = self.ask(proxy, body={**BODY, "stream": stream})
            self.assertEqual(200, reply.status)
            self.assertNotIn(HELD.encode(), reply.body)
            self.assertIn(b"Bearer ***", reply.body)


class RouteTestCase(AccessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other, route = self.route()
        self.routes = {"gpt-*": route}


class TestPassthrough(RouteTestCase):
    def passed(self, proxy: RunningProxy, key: str) -> tuple[int, str]:
        self.other.answer(Failure(418, body=b"{}"))
        reply = self.ask(proxy, key, {**BODY, "model": "gpt-9"})
        return reply.status, reply.value.get("error", {}).get("message", "")

    def test_routes_are_for_listed_keys_when_there_are_any(self) -> None:
        proxy = self.proxy(access_keys=[OWNER], passthrough=self.routes, ngrok=True)
        self.assertEqual(([418, 401]), [self.passed(proxy, key)[0] for key in (OWNER, STRANGER)])

    def test_routes_of_a_public_proxy_are_for_the_pinned_key_only(self) -> None:
        proxy = self.proxy(passthrough=self.routes, ngrok=True)
        status, message = self.passed(proxy, OWNER)
        self.assertEqual(401, status)
        self.assertRegex(message, "Ask a DeepSeek model first, or name your key in access_keys")
        self.assertEqual(200, self.status(proxy, OWNER))
        self.assertEqual(([418, 401]), [self.passed(proxy, key)[0] for key in (OWNER, STRANGER)])
        self.assertEqual(1, len(self.other.seen))


class TestForeignNames(RouteTestCase):
    """A web page reaches this machine under its own name (DNS rebinding); a key of the owner is not for it."""

    ENDPOINTS = (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/openai/deployments/gpt-9/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "store": False}),
        ("/v1/responses", {"input": "hi", "background": True}),
        ("/v1/messages", {"max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}),
    )
    FOREIGN = (
        (b"Host: evil.example", b""), (b"Host: EVIL.EXAMPLE.:9000", b""),
        (b"Host: localhost\r\nOrigin: http://evil.example", b""), (b"Host: localhost\r\nOrigin: null", b""),
        (b"Host: evil.example\r\nX-Forwarded-Host: localhost", b""), (b"Host: localhost", b"http://evil.example"),
        (b"Host: evil.example", b"http://localhost"),
    )  # fmt: skip

    def send(self, proxy: RunningProxy, path: str, body: dict[str, Any], name: tuple[bytes, bytes]) -> tuple[int, Any]:
        """The answer to a request with these header lines in place of its Host, and this in front of its path."""
        head, target = name
        raw = (
            request_bytes(body, path=path, key=OWNER)
            .replace(b"Host: localhost", head, 1)
            .replace(b"POST /", b"POST " + target + b"/", 1)
        )
        reply = self.round_trip(proxy, raw)
        return reply.status, reply.value

    def test_no_page_spends_the_key_of_a_route(self) -> None:
        proxy = self.proxy(passthrough=self.routes, access_keys=[OWNER])
        for path, body in self.ENDPOINTS:
            for name in self.FOREIGN:
                with self.subTest(path, name=name):
                    status, answer = self.send(proxy, path, {"model": "gpt-9", **body, "stream": True}, name)
                    self.assertEqual((403, "permission_error"), (status, answer["error"]["type"]))
                    self.assertIn("public_hosts", answer["error"]["message"])
        self.assertEqual([], self.other.seen + self.fake.seen)

    def test_no_page_spends_the_held_key(self) -> None:
        os.environ["DEEPSEEK_API_KEY"] = HELD
        proxy = self.proxy(access_keys=[OWNER])
        for path, body in self.ENDPOINTS:
            for name in self.FOREIGN:
                for stream in (True, False):
                    with self.subTest(path, name=name):
                        request = {"model": "deepseek-v4-pro", **body, "stream": stream}
                        self.assertEqual(403, self.send(proxy, path, request, name)[0])
        self.assertEqual([], self.fake.seen)
        self.assertEqual(0, proxy.server.services().get(Responses).store.totals()[0])
        status, _ = self.send(proxy, *self.ENDPOINTS[0], (b"Host: localhost:9", b"http://127.0.0.1:9"))
        self.assertEqual((200, [HELD]), (status, self.keys_upstream()))

    def test_a_foreign_host_name_serves_callers_with_their_own_key_and_pins_none(self) -> None:
        proxy = self.proxy(ngrok=True, passthrough=self.routes)
        with self.assertLogs("deepseek_cursor_proxy.access", "WARNING") as logged:
            for path, body in self.ENDPOINTS[::2]:
                for name in self.FOREIGN:
                    self.assertEqual(200, self.send(proxy, path, {"model": "deepseek-v4-pro", **body}, name)[0])
        self.assertEqual(1, len(logged.output))
        status, answer = self.send(proxy, *self.ENDPOINTS[1], (b"Host: localhost", b""))
        self.assertEqual(401, status)
        self.assertIn("no caller has proved to be the owner yet", answer["error"]["message"])
        self.assertEqual((200, 401), (self.status(proxy, STRANGER), self.status(proxy, OWNER)))

    def test_routes_accept_the_host_name_of_the_tunnel_once_it_is_known(self) -> None:
        proxy = self.proxy(passthrough=self.routes, access_keys=[OWNER], ngrok=True)
        tunnel = (b"Host: a-b.ngrok-free.app\r\nX-Forwarded-Host: a-b.ngrok-free.app", b"")
        self.assertEqual(403, self.send(proxy, *self.ENDPOINTS[1], tunnel)[0])
        proxy.server.set_tunnel_url("https://a-b.ngrok-free.app")
        self.other.answer(Failure(418, body=b"{}"), Failure(418, body=b"{}"))
        self.assertEqual(418, self.send(proxy, *self.ENDPOINTS[1], tunnel)[0])
        proxy.server.reconfigure(proxy.server.config)
        self.assertEqual(418, self.send(proxy, *self.ENDPOINTS[1], tunnel)[0])


class TestCors(AccessTestCase):
    def headers(self, proxy: RunningProxy, method: str, path: str, *lines: str) -> dict[str, str]:
        head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]
        return self.round_trip(proxy, "\r\n".join(head).encode()).headers

    def test_cors_allows_every_page_without_credentials(self) -> None:
        proxy = self.proxy(cors=True, access_keys=[OWNER])
        origin = ("Origin: https://evil.example", "Cookie: a=b")
        names = "Access-Control-Request-Headers: authorization, x-stainless-os"
        wanted = ("Access-Control-Request-Method: POST", names)
        for method, path, lines in (
            *(("OPTIONS", path, wanted) for path in (*PATHS, "/v1/models", "/nowhere")),
            *(("POST", path, ()) for path in PATHS), ("GET", "/v1/models", ()), ("GET", "/nowhere", ()),
        ):  # fmt: skip
            with self.subTest(path, method=method):
                headers = self.headers(proxy, method, path, *origin, *lines)
                self.assertEqual("*", headers["access-control-allow-origin"])
                self.assertNotIn("access-control-allow-credentials", headers)
                self.assertNotIn("evil", repr(headers))
                allowed = headers["access-control-allow-headers"].lower().split(", ")
                self.assertLessEqual({"authorization", "content-type", "api-key", "*"}, set(allowed))
                self.assertIn("POST", headers["access-control-allow-methods"])

    def test_cors_is_off_by_default(self) -> None:
        for method in ("OPTIONS", "POST"):
            headers = self.headers(self.proxy(), method, PATHS[0], "Origin: https://evil.example")
            self.assertFalse([name for name in headers if name.startswith("access-control")])


BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000},
}


class TestKeyErrors(SocketTestCase):
    def told(self, path: str, agent: str, key: str | None, stream: bool, **settings: Any) -> str:
        services = self.build_services(**settings)
        headers = {"user-agent": agent, **({"authorization": f"Bearer {key}"} if key else {})}
        data = json.dumps({"model": "m", "stream": stream, **BODIES[path]}).encode()
        app = App(services.config, lambda: services, ROUTES)
        reply = app(HttpRequest("POST", path, headers=headers, read_body=lambda: data))
        self.assertEqual(401, reply.status)
        return str(json.loads(reply.body)["error"]["message"])

    def test_every_401_about_the_key_names_the_setting_of_its_client(self) -> None:
        for path, agent, named in ((CHAT, CURSOR, "Cursor"), (RESPONSES, CODEX, "Codex"), (MESSAGES, CLAUDE, "Claude")):
            for stream in (False, True):
                with self.subTest(path, stream=stream):
                    self.fake.answer(Failure(401, "Authentication Fails"))
                    messages = {
                        "No API key.": self.told(path, agent, None, stream),
                        "not among the access keys": self.told(path, agent, "sk-x", stream, access_keys=["sk-other"]),
                        "Authentication Fails": self.told(path, agent, "sk-wrong", stream),
                    }
                    for words, message in messages.items():
                        self.assertIn(words, message)
                        self.assertIn(named, message)
                        others = {"Cursor", "Codex", "Claude"} - {named}
                        self.assertFalse([other for other in others if other in message], message)

    def test_an_unknown_client_reads_of_no_other_clients_setting(self) -> None:
        message = self.told(CHAT, "curl/8", None, False)
        self.assertFalse([name for name in NAMES if name in message], message)
