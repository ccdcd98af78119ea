"""HTTP as clients use it: endpoints, bodies and connections, and that every request gets a response."""

import builtins
import errno
import gzip
import json
import socket
import zlib
from dataclasses import replace
from http.server import HTTPServer
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer
from deepseek_cursor_proxy.net.wait import wait_until_client_reads
from deepseek_cursor_proxy.proxy import ROUTES
from deepseek_cursor_proxy.server import connections
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from tests.fake_deepseek import Answer, Failure
from tests.support.features import needs
from tests.support.harness import PATIENCE, RunningProxy, SocketTestCase, read_reply, read_to_the_end, request_bytes

BODY = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class HttpTestCase(SocketTestCase):
    def assert_error(self, proxy: RunningProxy, data: bytes, status: int) -> None:
        reply = self.round_trip(proxy, data)
        self.assertEqual((status, "application/json"), (reply.status, reply.headers["content-type"]), reply.body[:200])
        self.assertLessEqual({"message", "type", "param", "code"}, reply.value["error"].keys())
        self.assertTrue(reply.value["error"]["message"])

    def assert_closed(self, sock: socket.socket) -> None:
        self.assertEqual(b"", sock.recv(1))


class TestEndpoints(HttpTestCase):
    def test_head_is_get_without_a_body(self) -> None:
        last = HEALTH.replace(b"x\r\n", b"x\r\nConnection: close\r\n")
        answer = read_to_the_end(self.connect(self.proxy(), HEALTH.replace(b"GET", b"HEAD") + last))
        self.assertEqual(2, answer.count(b"HTTP/1.1 200 OK"))
        self.assertEqual(2, answer.count(b"Content-Length: 11"))
        self.assertEqual(1, answer.count(b'{"ok":true}'))

    @needs("responses")
    def test_head_of_a_streamed_reply_leaves_the_connection_usable(self) -> None:
        created = {"model": "deepseek-v4-pro", "input": "hi", "background": True, "stream": True}
        events = self.round_trip(self.running, request_bytes(created, path="/v1/responses")).body
        response = json.loads(events.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        path = f"/v1/responses/{response}?stream=true"
        head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-test\r\n\r\n".encode()
        last = HEALTH.replace(b"x\r\n", b"x\r\nConnection: close\r\n")
        answer = read_to_the_end(self.connect(self.running, head + last))
        first, second = (each.split(b"\r\n\r\n", 1) for each in answer.split(b"HTTP/1.1 200 OK\r\n")[1:])
        self.assertEqual((b"", b'{"ok":true}'), (first[1], second[1]))
        self.assertNotIn(b"Content-Length", first[0])

    def test_every_reply_of_the_openai_apis_has_a_request_id_of_its_own(self) -> None:
        stored = {"model": "deepseek-v4-pro", "input": "hi"}
        broken: list[Any] = [{**BODY, "messages": 7}, b"no json"]
        self.fake.answer(*[Answer(content="Hi.")] * 4, *[Failure(402, "Insufficient Balance")] * 2)
        requests = [
            *(request_bytes({**BODY, "stream": stream}) for stream in (True, False)),
            *(request_bytes({**stored, "stream": stream}, path="/v1/responses") for stream in (True, False)),
            *(request_bytes(body, path=path) for body in broken for path in ("/v1/chat/completions", "/responses")),
            *(request_bytes({**BODY, "stream": stream}) for stream in (True, False)),
            request_bytes(BODY).replace(b"Bearer sk-test", b""),
            request_bytes(BODY, path="/v1/unknown"),
            b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/responses/resp_x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-test\r\n\r\n",
        ]
        replies = [self.round_trip(self.running, each) for each in requests]
        self.assertEqual([200] * 4 + [400] * 4 + [402, 402, 401, 404, 405, 404], [reply.status for reply in replies])
        ids = [reply.headers["x-request-id"] for reply in replies]
        self.assertEqual(len(ids), len(set(ids)))
        for each in ids:
            self.assertRegex(each, r"\Areq_[0-9a-f]{24}\Z")

    def test_unknown_paths_are_404_and_wrong_methods_405(self) -> None:
        self.assert_error(self.running, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404)
        self.assert_error(self.running, b"POST /v1/unknown HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 404)
        for data, allow in (
            (b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", "POST, OPTIONS"),
            (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "GET, HEAD, OPTIONS"),
        ):
            status, headers, _ = self.round_trip(self.running, data)
            self.assertEqual((405, allow), (status, headers["allow"]))

    def test_the_azure_path_takes_the_model_from_the_path_and_the_key_from_its_header(self) -> None:
        data = json.dumps({**BODY, "model": "label"}).encode()
        head = "POST /openai/deployments/deepseek-flash/chat/completions?api-version=2024-12-01-preview HTTP/1.1"
        lines = [head, "Host: x", "api-key: sk-azure", f"Content-Length: {len(data)}", "", ""]
        reply = self.round_trip(self.proxy(), "\r\n".join(lines).encode() + data)
        self.assertEqual((200, "deepseek-flash"), (reply.status, reply.value["model"]))
        self.assertEqual("Bearer sk-azure", self.fake.seen[-1].headers["authorization"])
        self.assertEqual("deepseek-flash", self.fake.accepted[-1]["model"])


class TestBodies(HttpTestCase):
    def test_any_legal_way_to_send_a_body_is_understood(self) -> None:
        data = json.dumps(BODY).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: bearer sk\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(data[i : i + 9]), data[i : i + 9]) for i in range(0, len(data), 9))
        packed, deflated = gzip.compress(data), zlib.compress(data)
        for name, request in {
            "length": head + b"Content-Length: %d\r\n\r\n" % len(data) + data,
            "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
            "gzip": head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed,
            "deflate": head + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(deflated) + deflated,
        }.items():
            with self.subTest(name):
                self.assertEqual(200, self.round_trip(self.running, request)[0])

    def test_bad_bodies_are_refused_with_their_reason(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1000)
        bomb = gzip.compress(b" " * 1_000_000)
        for name, request, status in (
            ("empty", request_bytes(b""), 400),
            ("no json", request_bytes(b"hello"), 400),
            ("no object", request_bytes(b"[]"), 400),
            ("wrong field", request_bytes({**BODY, "messages": 7}), 400),
            ("too large", request_bytes(b" " * 1001), 413),
            ("unknown coding", request_bytes(b"x", headers=["Content-Encoding: br"]), 415),
            ("not gzip", request_bytes(b"x", headers=["Content-Encoding: gzip"]), 400),
            ("half gzip", request_bytes(gzip.compress(b"{}")[:-3], headers=["Content-Encoding: gzip"]), 400),
            ("bomb", request_bytes(bomb[:900] if len(bomb) > 900 else bomb, headers=["Content-Encoding: gzip"]), 413),
        ):
            with self.subTest(name):
                self.assert_error(proxy, request, status)
        self.assertEqual([], self.fake.seen)

    def test_a_request_after_a_refused_body_is_answered(self) -> None:
        sock = self.connect(self.proxy(), request_bytes(b"hello", headers=["Content-Encoding: gzip"]) + HEALTH)
        file = self.enterContext(sock.makefile("rb"))
        self.assertEqual(b"HTTP/1.1 400 Bad Request\r\n", file.readline())
        while (line := file.readline()) and b"HTTP/1.1 200 OK" not in line:
            pass
        self.assertTrue(line)

    def test_truncated_requests_are_400(self) -> None:
        chunked = request_bytes(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        for data in (request_bytes(b"x" * 100)[:-99], chunked + b"5\r\nab", b"POST /v1/chat/comp"):
            sock = self.connect(self.running, data)
            sock.shutdown(socket.SHUT_WR)
            self.assertEqual(400, read_reply(sock)[0])

    def test_a_long_value_in_an_error_is_cut(self) -> None:
        body = {**BODY, "tools": [{"type": "x" * 100_000}]}
        self.assertLess(len(self.round_trip(self.proxy(), request_bytes(body))[2]), 1000)


class TestConnections(HttpTestCase):
    def test_a_second_proxy_on_the_port_is_refused_where_http_server_shares_ports(self) -> None:
        """Python 3.14.0 does by default; each of the two would get a part of the requests."""
        with mock.patch.object(HTTPServer, "allow_reuse_port", True, create=True):
            proxy = self.proxy()
            with self.assertRaises(OSError):
                DeepSeekProxyServer(proxy.address).server_close()

    def test_a_slow_but_steady_reader_gets_everything(self) -> None:
        """Each of its reads may take as long as the timeout, and all of them together longer."""
        proxy, waits = self.proxy(write_timeout=7.0), list[float]()

        def wait(client: Peer, seconds: float) -> bool:
            waits.append(seconds)
            return wait_until_client_reads(client, PATIENCE)

        self.fake.answer(Answer(content="x" * 8_000_000, piece=1_000_000))
        with mock.patch.object(connections, "wait_until_client_reads", wait):
            sock, size = self.connect(proxy, request_bytes(BODY)), 0
            while size < 8_000_000:
                received = sock.recv(500_000)
                self.assertTrue(received, "cut off")
                size += len(received)
        self.assertEqual({7.0}, {*waits})
        self.assertGreater(len(waits), 1)

    def test_http_1_0_gets_its_stream_unchunked_until_the_end(self) -> None:
        sock = self.connect(self.proxy())
        request = request_bytes({**BODY, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
        sock.sendall(request)
        _, headers, body = read_reply(sock)
        self.assertNotIn("transfer-encoding", headers)
        self.assertTrue(body.endswith(b"data: [DONE]\n\n"))
        self.assert_closed(sock)

    def test_slow_heads_get_408_and_idle_connections_are_closed(self) -> None:
        self.assert_closed(self.connect(self.proxy(idle_timeout=0.1)))
        self.assertEqual(408, self.round_trip(self.proxy(header_timeout=0.1), b"GET / HT")[0])


class TestUnexpected(HttpTestCase):
    def test_a_bug_of_ours_is_a_500_in_the_error_shape_and_one_line_in_the_log(self) -> None:
        proxy = self.proxy()

        def broken(_: object) -> None:
            raise LookupError("a bug")

        with self.assertLogs(connections.__name__, "ERROR") as logged:
            proxy.server.app = broken  # type: ignore[assignment]
            self.assert_error(proxy, HEALTH, 500)
        self.assertEqual(1, len(logged.output))
        self.assertNotIn("Traceback", logged.output[0])


class TestLazyImports(HttpTestCase):
    def test_a_proxy_that_cannot_import_its_modules_answers_503_and_recovers(self) -> None:
        """Out of descriptors, before the first chat."""
        proxy, really_import = self.proxy(), builtins.__import__

        def without_descriptors(name: str, *rest: Any) -> Any:
            if name == "deepseek_cursor_proxy.api" and "chat" in (rest[2] or ()):
                raise OSError(errno.EMFILE, "Too many open files")
            return really_import(name, *rest)

        with mock.patch.object(builtins, "__import__", without_descriptors):
            self.assertEqual(200, self.round_trip(proxy, HEALTH)[0])
            status, headers, _ = self.round_trip(proxy, request_bytes(BODY))
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual(200, self.round_trip(proxy, request_bytes(BODY))[0])


class TestNewSettings(HttpTestCase):
    def test_new_settings_keep_stored_reasoning_and_drop_old_upstream_connections(self) -> None:
        proxy = self.proxy(retry_budget=1)
        self.assertEqual(200, self.round_trip(proxy, request_bytes(BODY))[0])
        before = proxy.server.services()
        self.assertEqual(1, len(before.upstream_client._pool._idle))
        number = next(before.numbers)
        proxy.server.reconfigure(replace(proxy.server.config, upstream_model="other"))
        after = proxy.server.services()
        self.assertIs(before.chats, after.chats)
        self.assertEqual(number + 1, next(after.numbers))
        self.assertEqual([], before.upstream_client._pool._idle)
        self.assertEqual(200, self.round_trip(proxy, request_bytes(BODY))[0])
        self.assertEqual("other", self.first_model(proxy))

    def test_a_configuration_set_before_the_first_request_is_used(self) -> None:
        self.running.server.reconfigure(replace(self.running.server.config, upstream_model="other"))
        self.assertEqual("other", self.first_model(self.running))

    def first_model(self, proxy: RunningProxy) -> str:
        model: str = self.round_trip(proxy, HEALTH.replace(b"healthz", b"v1/models")).value["data"][0]["id"]
        return model


PLAIN_BODY = {"messages": [{"role": "user", "content": "hi"}]}


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
    def test_a_repeated_v1_in_a_path_counts_once_on_all_apis(self) -> None:
        bodies = {
            "chat/completions": PLAIN_BODY, "responses": {"input": "hi"}, "responses/input_tokens": {"input": "hi"},
            "responses/compact": {"input": "hi"}, "messages": {**PLAIN_BODY, "max_tokens": 2000},
            "messages/count_tokens": PLAIN_BODY,
        }  # fmt: skip
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
