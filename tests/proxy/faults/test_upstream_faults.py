"""An upstream that fails at any byte: the client gets a whole answer or an error in time, and nothing stays open.

The widest run (see `tests.support.width`) tries every byte; otherwise every byte of the head and a seeded sample of
the rest are tried, or a sample of both.
"""

import itertools
import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.upstream import response
from tests.support.faults import PATIENCE, REPORTED, WHOLE, FaultTestCase, Reply
from tests.support.harness import RunningProxy
from tests.support.raw_replies import ANSWER, CHUNKED, EVENTS, GOOD, JSON, SSE, STREAM_HEAD, chunk, delta, event, head
from tests.support.raw_upstream import CLOSE, HANG, KEEP, RESET, ScriptedReply
from tests.support.width import IS_LONG, some, width

SEED = 20_261_116
BODY_SAMPLE = width(8, 40)
ODD_CHOICES: tuple[Any, ...] = (None, 7, "x", {}, [], [7], [None], [[]])
ODD_CALLS: tuple[Any, ...] = (7, "x", {}, [7], [{"index": 400_000}], [{"index": "x"}])


def cuts(good: Any, *, sample: int = BODY_SAMPLE) -> list[int]:
    """After how many bytes to fail: all of the head, some of the rest, and what lies around the end."""
    if IS_LONG:
        return list(range(len(good.data) + 1))
    rest = range(good.head_bytes, len(good.data))
    edges = {good.complete_at - 1, good.complete_at, len(good.data)}
    some = random.Random(SEED).sample(rest, min(sample, len(rest)))
    return sorted({*range(0, good.head_bytes, width(8, 1)), *some, *edges})


class TestEveryByte(FaultTestCase):
    def test_a_connection_closed_at_any_byte_is_an_error_or_a_whole_answer(self) -> None:
        for good in GOOD:
            self.assert_error(good, CLOSE, cuts(good))

    def test_a_connection_reset_at_any_byte_is_an_error_or_a_whole_answer(self) -> None:
        for good in GOOD:
            self.assert_error(good, RESET, cuts(good) if IS_LONG else cuts(good)[::3])

    def test_a_connection_silent_from_any_byte_is_an_error_or_a_whole_answer(self) -> None:
        for good in GOOD:
            some = random.Random(SEED).sample(cuts(good), width(4, 12))
            at = cuts(good) if IS_LONG else [*some, good.complete_at - 1, good.complete_at, len(good.data)]
            # Without a length, only the end of the connection ends the answer, and that never comes.
            complete_at = good.complete_at if good is not GOOD[2] else len(good.data) + 1
            self.assert_error(good, HANG, [cut for cut in at if cut < complete_at], request_timeout=0.15)
            # What is complete has no hurry to be found so by a slow machine.
            with mock.patch.object(response, "_USAGE_SECONDS", 0.05):
                for cut in sorted({cut for cut in at if cut >= complete_at}):
                    # One by one: a complete answer's connection is kept, and here nobody listens on it any more.
                    self.assert_error(good, HANG, [cut], request_timeout=PATIENCE)

    def assert_error(self, good: Any, then: str, at: list[int], **settings: Any) -> None:
        plays = [ScriptedReply.of(good.data[:cut], then) for cut in at]
        proxy, _ = self.scripted_proxy(plays, **settings)
        workers = 16 if then == HANG else 2
        with ThreadPoolExecutor(workers) as pool:
            shares = pool.map(lambda first: self.share(proxy, good, range(first, len(at), workers)), range(workers))
        replies = dict(pair for share in shares for pair in share)
        for number, cut in enumerate(at):
            with self.subTest(good.name, then=then, cut=cut):
                verdict = replies[number].verdict
                expected = WHOLE if cut >= good.complete_at and (then != HANG or good is not GOOD[2]) else REPORTED
                if then == RESET and cut >= good.complete_at:
                    continue  # what was on its way may be lost, which is told; the verdict has been given
                self.assertEqual(expected, verdict)
                if then == HANG and verdict == REPORTED:
                    self.assertEqual("upstream_timeout", replies[number].error["code"])
        proxy.close()

    def share(self, proxy: RunningProxy, good: Any, numbers: range) -> list[tuple[int, Reply]]:
        with socket.create_connection(proxy.address, timeout=PATIENCE) as sock:
            return [(number, self.ask(sock, number, stream=good.is_stream)) for number in numbers]


class TestOddAnswers(FaultTestCase):
    """Part by part what upstreams have been seen, or are feared, to do."""

    def assert_status(self, status: int, data: bytes, *, stream: bool = True, **settings: Any) -> Reply:
        reply = self.reply_to(data, stream=stream, **settings)
        self.assertEqual((status, REPORTED), (reply.status, reply.verdict), reply.body)
        return reply

    def assert_told_in_stream(self, data: bytes) -> Reply:
        reply = self.reply_to(data)
        self.assertEqual((200, REPORTED), (reply.status, reply.verdict), reply.body)
        return reply

    def test_redirects_are_never_followed(self) -> None:
        elsewhere = self.upstream(lambda _: ScriptedReply.of(GOOD[0].data))
        places = (elsewhere.url, f"{elsewhere.url}/chat/completions", f"//127.0.0.1:{elsewhere.port}/")
        cases = itertools.product((300, 301, 302, 303, 304, 305, 307, 308), (True, False), places)
        for status, stream, place in some(cases, 5):
            with self.subTest(status, place=place):
                data = head(f"Location: {place}", "Content-Length: 0", status=f"{status} Elsewhere")
                self.assert_status(502, data, stream=stream)
        self.assertEqual(0, elsewhere.connections)

    def test_the_connection_of_a_status_without_an_answer_is_closed(self) -> None:
        for status in ("304 Not Modified", "204 No Content", "302 Found"):
            with self.subTest(status):
                odd = ScriptedReply.of(head("Content-Length: 0", status=status), KEEP)
                proxy, upstream = self.scripted_proxy([odd, ScriptedReply.of(GOOD[0].data)])
                self.assertEqual(502, self.ask(self.connect(proxy), 0).status)
                self.assertTrue(upstream.hung_up.wait(PATIENCE))

    def test_a_success_that_is_no_chat_answer_is_an_error(self) -> None:
        cases = {
            "nothing": b"",
            "garbage": b"\x16\x03\x01\x02\x00garbage",
            "another protocol": b"220 smtp.example.test ESMTP\r\n",
            "an empty line": b"\r\n\r\n\r\n\r\n\r\n\r\n",
            "HTTP/0.9": ANSWER,
            "HTTP/2": b"HTTP/2 200\r\n\r\n",
            "a status of words": b"HTTP/1.1 OK\r\n\r\n",
            "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
            "a switch of protocols": head("Upgrade: websocket", status="101 Switching Protocols"),
            "announcements for ever": head(status="103 Early Hints") * 10_000,
            "too many announcements": head(status="103 Early Hints") * 17 + GOOD[0].data,
            "a page": head("Content-Type: text/html", "Content-Length: 13") + b"<html></html>",
            "a picture": head("Content-Type: image/png", "Content-Length: 4") + b"\x89PNG",
            "no content": head(status="204 No Content"),
            "a status beyond all statuses": head("Content-Length: 0", status="600 What"),
            "the last of all numbers": head(JSON, f"Content-Length: {len(ANSWER)}", status="999 No") + ANSWER,
            "reset content": head("Content-Length: 0", status="205 Reset Content"),
            "partial content": head(JSON, f"Content-Length: {len(ANSWER)}", status="206 Partial") + ANSWER,
            "a length with a sign": head(JSON, "Content-Length: -5") + ANSWER,
            "a length of words": head(JSON, "Content-Length: many") + ANSWER,
            "two lengths": head(JSON, "Content-Length: 5", "Content-Length: 6") + ANSWER,
            "a terabyte": head(JSON, f"Content-Length: {1024**4}") + ANSWER,
            "more digits than numbers": head(JSON, f"Content-Length: {'9' * 30}") + ANSWER,
            "a length and chunks": head(JSON, "Content-Length: 5", CHUNKED) + chunk(ANSWER) + chunk(b""),
            "an unknown transfer": head(JSON, "Transfer-Encoding: gzip") + ANSWER,
            "an unknown packing": head(JSON, "Content-Encoding: br") + ANSWER,
            "a stream in an unknown packing": head(SSE, "Content-Encoding: br") + ANSWER,
            "a packing that is none": head(JSON, "Content-Encoding: gzip", "Content-Length: 8") + b"not gzip",
            "chunks that are none": head(JSON, CHUNKED) + b"zz\r\n{}\r\n",
            "chunks without line ends": head(JSON, CHUNKED) + b"2\r\n{}XX0\r\n\r\n",
            "a stream of a terabyte": head(SSE, f"Content-Length: {1024**4}") + ANSWER,
            "a folded header": head(JSON, "X-A: a", " b") + ANSWER,
            "a CR in a header": b"HTTP/1.1 200 OK\r\nX-A: a\rSet-Cookie: b\r\n\r\n" + ANSWER,
            "a NUL in a header": head("X-A: a\0b") + ANSWER,
            "a header without a name": head(": x") + ANSWER,
            "a header without a colon": head("X") + ANSWER,
            "a space before the colon": head("X : y") + ANSWER,
            "a head without end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
            "a thousand headers": head(*(f"X-{n}: y" for n in range(1000))) + ANSWER,
        }
        for number, (name, data) in enumerate(cases.items()):
            for stream in width((number % 2 == 0,), (True, False)):
                with self.subTest(name, stream=stream):
                    self.assert_status(502, data, stream=stream)

    def test_an_absurd_content_length_is_an_error_at_once(self) -> None:
        data = head(JSON, f"Content-Length: {1024**4}") + ANSWER
        reply = self.reply_to(data, stream=False, then=HANG, request_timeout=PATIENCE)
        self.assertEqual((502, REPORTED), (reply.status, reply.verdict))

    def test_a_plain_answer_of_the_wrong_shape_is_an_error(self) -> None:
        for name, body in {
            "nothing": b"",
            "blank": b"\n\n\n",
            "no JSON": b"<html>",
            "half of it": ANSWER[:50],
            "no object": b"[]",
            "no choices": b"{}",
            "empty choices": b'{"choices": []}',
            "choices that are none": b'{"choices": {"0": {}}}',
            "choices of numbers": b'{"choices": [1, 2]}',
            "a choice without a message": b'{"choices": [{"index": 0, "finish_reason": "stop"}]}',
            "a message that is none": b'{"choices": [{"message": null, "finish_reason": "stop"}]}',
            "a message of words": b'{"choices": [{"message": "hi", "finish_reason": "stop"}]}',
            "a chunk of a stream": json.dumps(delta("stop", content="x")).encode(),
            "an error": b'{"error": {"message": "out of order"}}',
            "an error in words": b'{"error": "out of order"}',
            "not UTF-8": ANSWER.replace("漢".encode(), b"\xff"),
            "deep": b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "just readable": b'{"x": ' + b"[" * 400 + b"]" * 400 + b', "choices": [{}]}',
            "a number without end": b'{"choices": [{}], "x": ' + b"9" * 5000 + b"}",
        }.items():
            with self.subTest(name):
                reply = self.assert_status(502, head(JSON, f"Content-Length: {len(body)}") + body, stream=False)
                if "error" in name:
                    self.assertIn("out of order", reply.error["message"])

    def test_a_stream_that_breaks_or_is_malformed_is_an_error(self) -> None:
        start = STREAM_HEAD + EVENTS[0] + EVENTS[2]
        for name, data in {
            "nothing": STREAM_HEAD,
            "no finish": start,
            "no finish but [DONE]": start + b"data: [DONE]\n\n",
            "an error": start + event({"error": {"message": "out of order"}}),
            "an error in words": start + event({"error": "out of order"}),
            "no JSON": start + b"data: <html>\n\n",
            "half of it": start + b'data: {"choices": [\n\n',
            "deep": start + b"data: " + b"[" * 100_000 + b"\n\n",
            "deep and closed": start + b'data: {"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n",
            "an endless line": start + b"data: " + b"x" * (17 * 1024 * 1024),
            "endless lines": start + b"data: xx\n" * 200_000,
            "a stream that is a page": STREAM_HEAD + b"<html><body>Sign in</body></html>",
        }.items():
            with self.subTest(name):
                reply = self.assert_told_in_stream(data + b"".join(EVENTS[3:5]))
                if "error" in name:
                    self.assertIn("out of order", reply.error["message"])

    def test_malformed_chunks_are_an_error(self) -> None:
        for name, body in {
            "a size of words": b"zz\r\n",
            "a negative size": b"-5\r\n",
            "a prefix": b"0x5\r\nhello\r\n",
            "a size without end": b"1" * 5000,
            "no line end behind": chunk(EVENTS[0])[:-2] + b"XX" + chunk(EVENTS[3]),
            "a bare LF": b"5\nhello\n",
            "cut in the data": chunk(EVENTS[0])[:-10],
            "no last one": chunk(EVENTS[0]),
            "endless trailers": b"0\r\n" + b"X-A: b\r\n" * 10_000,
        }.items():
            with self.subTest(name):
                self.assert_told_in_stream(head(SSE, CHUNKED) + chunk(EVENTS[2]) + body)

    def test_odd_but_readable_streams_are_whole(self) -> None:
        events = b"".join(EVENTS)
        long = event({**delta(content=""), "padding": "x" * 3_000_000})
        for name, data in {
            "no type": head() + events,
            "text": head("Content-Type: text/plain; charset=utf-8") + events,
            "bytes": head("Content-Type: application/octet-stream") + events,
            "a type in capitals": head("Content-Type: TEXT/Event-Stream ; charset=UTF-8") + events,
            "announcements": head(status="100 Continue")
            + head("Link: x", status="103 Early Hints") * 5
            + STREAM_HEAD
            + events,
            "CRLF": STREAM_HEAD + events.replace(b"\n", b"\r\n"),
            "CR": STREAM_HEAD + events.replace(b"\n", b"\r"),
            "a mark at the start": STREAM_HEAD + b"\xef\xbb\xbf" + events,
            "no space behind the colon": STREAM_HEAD + events.replace(b"data: ", b"data:"),
            "fields we do not know": STREAM_HEAD + b"id: 1\nretry: 2\nevent: x\nfoo: bar\n" + events,
            "several lines per event": STREAM_HEAD + events.replace(b', "', b',\ndata: "'),
            "a line of 3 MB": STREAM_HEAD + long + events,
            "comments": STREAM_HEAD + b": x\n\n:\n\n" * 2000 + events,
            "blank data": STREAM_HEAD + b"data:\n\ndata: \n\n" + events,
            "something behind [DONE]": STREAM_HEAD + events + event({"error": "late"}) + event(delta(content="late")),
            "no [DONE]": STREAM_HEAD + b"".join(EVENTS[:-1]),
            "no usage": STREAM_HEAD + b"".join((*EVENTS[:-2], EVENTS[-1])),
            "errors that are none": STREAM_HEAD + events.replace(b'{"id"', b'{"error": null, "id"'),
            "an error behind the finish": STREAM_HEAD + b"".join(EVENTS[:-2]) + event({"error": "late"}),
            "HTTP/1.0": STREAM_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + events,
            "choices of wrong shapes": STREAM_HEAD
            + b"".join(event({"choices": odd}) for odd in ODD_CHOICES)
            + b"".join(map(event, (None, 7, "x", [], {}, {"choices": [{"delta": 7}]}, {"choices": [{"index": {}}]})))
            + events,
            "calls of wrong shapes": STREAM_HEAD + b"".join(event(delta(tool_calls=odd)) for odd in ODD_CALLS) + events,
            "numbers that are none": STREAM_HEAD + b'data: {"x": [NaN, -Infinity, 1e999], "choices": []}\n\n' + events,
        }.items():
            with self.subTest(name):
                reply = self.reply_to(data)
                self.assertEqual((200, WHOLE), (reply.status, reply.verdict))
                self.assertNotIn(b"400000", reply.body)
                self.assertNotIn(b"late", reply.body)
                self.assertNotIn(b'"error"', reply.body)

    def test_lone_and_split_surrogates_are_passed_on(self) -> None:
        halves = [delta(content="\ud83d"), delta(content="\ude00"), delta(content="\ud800 alone"), delta("stop")]
        data = STREAM_HEAD + b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in halves)
        reply = self.reply_to(data)
        self.assertEqual("\ud83d\ude00\ud800 alone", reply.text)
        whole = json.loads(ANSWER)
        whole["choices"][0]["message"] = {"content": "\ud800", "reasoning_content": "\udfff"}
        body = json.dumps(whole).encode()
        reply = self.reply_to(head(JSON, f"Content-Length: {len(body)}") + body, stream=False)
        self.assertEqual((200, "\ud800"), (reply.status, reply.text))

    def test_only_retry_after_is_kept_of_the_head_of_a_refusal(self) -> None:
        fields = ("Retry-After: 7", "Set-Cookie: a=b", "Server: evil", "X-Request-Id: 9", "Location: http://x")
        body = json.dumps({"error": {"message": "Busy.", "type": "t", "param": None, "code": "c"}}).encode()
        for status in (400, 401, 402, 404, 413, 422, 429, 500, 502, 503, 504, 599):
            with self.subTest(status):
                data = head(JSON, f"Content-Length: {len(body)}", *fields, status=f"{status} No") + body
                reply = self.reply_to(data)
                self.assertEqual((status, "7"), (reply.status, reply.headers["retry-after"]))
                self.assertIn("Busy.", reply.error["message"])
                own = {"content-type", "content-length", "connection", "x-request-id"}
                self.assertEqual(own | {"retry-after"}, reply.headers.keys())
                self.assertNotEqual("9", reply.headers["x-request-id"])

    def test_a_refusal_of_any_shape_gets_the_error_shape(self) -> None:
        for name, body in {
            "nothing": b"",
            "a page": b"<html><body><h1>502 Bad Gateway</h1>\r\n<hr>nginx</body></html>",
            "no error in it": b'{"detail": "x"}',
            "a list": b"[1]",
            "deep": b'{"error": ' + b"[" * 100_000,
            "just readable": b'{"error": ' + b"[" * 400 + b"]" * 400 + b"}",
            "bytes": bytes(range(256)),
            "a megabyte too much": b"x" * (1024 * 1024 + 10),
            "an error without words": b'{"error": {}}',
            "an error that is a number": b'{"error": 7}',
        }.items():
            with self.subTest(name):
                reply = self.reply_to(head(f"Content-Length: {len(body)}", status="500 Broken") + body)
                self.assertEqual(500, reply.status)
                self.assertTrue(reply.error["type"])

    def test_a_refusal_inside_a_200_gets_its_status(self) -> None:
        body = b'{"error": {"message": "out of order"}}'
        reply = self.assert_status(502, head(JSON, f"Content-Length: {len(body)}") + body)
        self.assertIn("out of order", reply.error["message"])

    def test_arguments_of_any_depth_are_only_text(self) -> None:
        for arguments in (
            "[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, '{"input":"' + "\\\\" * 1000, "9" * 9999,
        ):  # fmt: skip
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            data = STREAM_HEAD + event(delta(tool_calls=[call])) + event(delta("tool_calls"))
            with self.subTest(arguments[:10]):
                tools = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "f2"}}]
                proxy, _ = self.scripted_proxy([ScriptedReply.of(data)])
                reply = self.ask(self.connect(proxy), tools=tools)
                self.assertNotIn("error", reply.chunks[-1])
                called = {"role": "assistant", "tool_calls": [{**call, "index": None}]}
                result = {"role": "tool", "tool_call_id": "call_1", "content": arguments}
                messages = [{"role": "user", "content": "0"}, called, result, {"role": "user", "content": "0"}]
                echoed = self.ask(self.connect(proxy), tools=tools, messages=messages)
                self.assertNotIn("error", echoed.chunks[-1])
