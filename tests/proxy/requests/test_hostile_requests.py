"""Hostile and odd requests over a real socket: each is answered once, in the error shape, and ends its connection.

The rules themselves are in tests/unit/http1; here is what a client gets. Every case is followed by a second request on
the same connection: after a refusal it must not be answered, because a proxy in front of us may have taken it for a
part of the first.
"""

import json
import socket

from tests.support.harness import RunningProxy, SocketTestCase, read_reply, read_to_the_end, request_bytes
from tests.support.hostile_requests import (
    CHAT,
    CHUNKS,
    CODINGS,
    FIELDS,
    LENGTHS,
    LINES,
    NEXT,
    SERVED,
    SMUGGLED,
    Table,
    head,
)


class HostileRequestTestCase(SocketTestCase):
    def received(self, proxy: RunningProxy, data: bytes) -> bytes:
        with self.connect(proxy, data) as sock:
            return read_to_the_end(sock)

    def assert_refused(self, part: str, cases: Table) -> None:
        proxy = self.proxy(max_request_body_bytes=1024 * 1024)
        for data, status in cases:
            with self.subTest(data[:100], part=part):
                self.assert_error(self.received(proxy, data + NEXT), status)
        self.assertEqual(200, self.reply(self.received(proxy, _last(NEXT)))[0], "the server goes on")
        self.assertEqual([], self.fake.seen)

    def assert_error(self, raw: bytes, status: int) -> None:
        """Exactly one reply, an error in OpenAI's shape, said to be the last."""
        got, headers, body = self.reply(raw)
        self.assertEqual((status, 1), (got, raw.count(b"HTTP/1.1 ")), raw[:300])
        self.assertEqual(("application/json", "close"), (headers["content-type"], headers["connection"]))
        self.assertEqual(str(len(body)), headers["content-length"])
        # A refusal of the API has an id, one of the connection has none.
        self.assertEqual(set(headers) - {"x-request-id"}, {"content-type", "content-length", "connection"})
        error = json.loads(body)["error"]
        self.assertEqual(["code", "message", "param", "type"], sorted(error))
        self.assertTrue(error["message"] and error["type"] and error["code"])
        self.assertNotIn("sk-test", error["message"])

    def reply(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        start, _, body = raw.partition(b"\r\n\r\n")
        line, *fields = start.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        return int(line.split()[1]), headers, body


def _last(request: bytes) -> bytes:
    """The same request, after which the connection may end."""
    return request.replace(b"\r\nHost:", b"\r\nConnection: close\r\nHost:", 1)


class TestRefusals(HostileRequestTestCase):
    def test_malformed_lines_fields_lengths_codings_and_chunks_are_refused(self) -> None:
        parts = {"line": LINES, "field": FIELDS, "length": LENGTHS, "coding": CODINGS, "chunks": CHUNKS}
        for part, cases in parts.items():
            self.assert_refused(part, cases)


class TestSmuggling(HostileRequestTestCase):
    def test_a_second_request_hidden_in_the_first_is_never_answered(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1024 * 1024)
        for data, status in SMUGGLED:
            with self.subTest(data[:100]):
                raw = self.received(proxy, data + NEXT)
                got, headers, _ = self.reply(raw)
                self.assertEqual((status, "close", 1), (got, headers["connection"], raw.count(b"HTTP/1.1 ")), raw)
                self.assertNotIn(b'"status":"ok"', raw)


class TestLegalRequests(HostileRequestTestCase):
    def test_odd_but_legal_requests_and_those_after_them_are_answered(self) -> None:
        for data, status in SERVED:
            with self.subTest(data[:100]):
                raw = self.received(self.running, data + _last(NEXT))
                statuses = [int(each[:3]) for each in raw.split(b"HTTP/1.1 ")[1:]]
                self.assertEqual([status, 200], statuses, raw[:300])
                self.assertNotIn(b"\r\nServer:", raw)

    def test_a_dozen_requests_at_once_are_answered_in_order(self) -> None:
        paths = [b"/healthz", b"/health", b"/nowhere", b"/v1/models"] * 3
        requests = [head(line=b"GET " + path + b" HTTP/1.1") for path in paths]
        raw = self.received(self.running, b"".join(requests[:-1]) + _last(requests[-1]))
        replies = raw.split(b"HTTP/1.1 ")[1:]
        marks = [b'"ok":true', b'"status":"ok"', b'"error"', b'"list"'] * 3
        for mark, reply in zip(marks, replies, strict=True):
            self.assertIn(mark, reply)

    def test_an_answer_between_two_pipelined_requests_comes_in_order(self) -> None:
        for stream, end in ((True, b"data: [DONE]\n\n\r\n0\r\n\r\n"), (False, b"}")):
            request = request_bytes({**CHAT, "stream": stream})
            raw = self.received(self.running, NEXT + request + _last(NEXT))
            first, answer, last = raw.split(b"HTTP/1.1 200 OK\r\n")[1:]
            self.assertIn(b'{"ok":true}', first)
            self.assertIn(b'"choices"', answer)
            self.assertTrue(answer.endswith(end), answer)
            self.assertTrue(last.endswith(b'{"ok":true}'))

    def test_http_1_0_ends_its_connection_by_default(self) -> None:
        raw = self.received(self.proxy(), head(line=b"GET /healthz HTTP/1.0", host=b"") + NEXT)
        self.assertEqual(1, raw.count(b"HTTP/1.1 200"))
        self.assertIn(b"Connection: close", raw)

    def test_a_refused_expectation_costs_the_client_no_body(self) -> None:
        """The client waits for a 100 that never comes: it learns at once that its key or path is wrong."""
        for line, status in ((b"POST /nowhere HTTP/1.1", 404), (b"POST /v1/chat/completions HTTP/1.1", 401)):
            sock = self.connect(self.proxy(), head(b"Expect: 100-continue", b"Content-Length: 999999", line=line))
            self.assertEqual(status, read_reply(sock)[0])

    def test_an_early_refusal_can_be_read_while_the_client_still_sends(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1000)
        huge = b"Content-Length: 30000000"
        for line, fields, status in (
            (b"POST /nowhere HTTP/1.1", (huge,), 404),
            (b"POST /v1/chat/completions HTTP/1.1", (huge,), 401),
            (b"POST /v1/chat/completions HTTP/1.1", (huge, b"Authorization: Bearer sk"), 413),
            (b"POST /v1/chat/completions HTTP/1.1", (huge, b"Transfer-Encoding: chunked"), 400),
        ):
            with self.subTest(status):
                # A client such as curl: it looks at the answer only when it has sent everything.
                self.assertEqual(status, self.round_trip(proxy, head(*fields, line=line) + b" " * 30_000_000)[0])

    def test_header_text_from_upstream_or_client_never_comes_back_unchecked(self) -> None:
        raw = self.received(
            self.running, _last(head(b"X-Evil: evil", b"Origin: http://evil", line=b"GET /evil HTTP/1.1"))
        )
        self.assertNotIn(b"evil", raw.partition(b"\r\n\r\n")[0])


class TestHalfClose(HostileRequestTestCase):
    def test_a_half_closed_request_without_a_call_is_answered(self) -> None:
        sock = self.connect(self.proxy(), NEXT)
        sock.shutdown(socket.SHUT_WR)
        self.assertEqual(200, read_reply(sock)[0])


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


class TestDepth(HostileRequestTestCase):
    """However deep, wherever it is: an answer, and a server that goes on. Deeper than 200 levels is 400."""

    def test_a_connection_still_works_after_deep_json(self) -> None:
        sock = self.connect(self.proxy())
        for _ in range(3):
            sock.sendall(request_bytes(b'{"messages":' + nested(100_000).encode() + b"}"))
            self.assertEqual(400, read_reply(sock)[0])
            sock.sendall(request_bytes(CHAT))
            self.assertEqual(200, read_reply(sock)[0])
