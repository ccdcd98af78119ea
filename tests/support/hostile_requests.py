"""Hostile, odd and legal requests as bytes, each with its status; some tests send them, others mutate them."""

import json
from typing import Any, TypeAlias

CHAT = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
# Requests, each with the status of its reply.
Table: TypeAlias = tuple[tuple[bytes, int], ...]
NEXT = b"GET /healthz HTTP/1.1\r\nHost: next\r\n\r\n"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def head(*fields: bytes, line: bytes = b"GET /healthz HTTP/1.1", host: bytes = b"Host: x") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *fields, b"", b""])


def post(*fields: bytes, body: bytes = b"") -> bytes:
    line = b"POST /v1/chat/completions HTTP/1.1"
    return head(b"Authorization: Bearer sk-test", *fields, line=line) + body


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


def sized(length: bytes, body: bytes = BODY) -> bytes:
    return post(b"Content-Length: " + length, body=body)


LINES: Table = (
    *((head(line=line), 400) for line in (
        b"GET /healthz", b"GET", b"   ", b"GET HTTP/1.1", b"/healthz HTTP/1.1", b"GET /healthz HTTP/1.1 more",
        b"GET  /healthz HTTP/1.1", b"GET /healthz  HTTP/1.1", b" GET /healthz HTTP/1.1", b"GET /healthz HTTP/1.1 ",
        b"GET\t/healthz\tHTTP/1.1", b"GET\x0c/healthz\x0cHTTP/1.1", b"GET\xa0/healthz\xa0HTTP/1.1",
        b"G\x00ET /healthz HTTP/1.1", b"GET /heal\x00thz HTTP/1.1", b"GET /\x1b[2J HTTP/1.1", b"GET /\x7f HTTP/1.1",
        b"GET /a\rb HTTP/1.1", b"GET /a\nb HTTP/1.1", "GET /ä HTTP/1.1".encode(), b"GET /\xe4 HTTP/1.1",
        b"GET /healthz#top HTTP/1.1", b"GET healthz HTTP/1.1", b"GET ?a=b HTTP/1.1", b"GET \\healthz HTTP/1.1",
        b"GET * HTTP/1.1", b"GET api.deepseek.com:443 HTTP/1.1", b"GET ftp://x/healthz HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1", b"GET http:///healthz HTTP/1.1", b"GET http://user:pw@x/healthz HTTP/1.1",
        b"GET http://x:80x/healthz HTTP/1.1", b"GE:T /healthz HTTP/1.1", b"G/T /healthz HTTP/1.1",
        b"G[E]T /healthz HTTP/1.1", b'"GET" /healthz HTTP/1.1', b"G" * 40 + b" /healthz HTTP/1.1",
        b"GET /healthz http/1.1", b"GET /healthz Http/1.1", b"GET /healthz HTTP/1", b"GET /healthz HTTP/1.x",
        b"GET /healthz HTTP/1.10", b"GET /healthz HTTP/01.1", b"GET /healthz HTTP/1,1", b"GET /healthz HTTP/+1.1",
        b"GET /healthz HTTP/1. 1", "GET /healthz HTTP/1.١".encode(), b"GET /healthz HTCPCP/1.0",
        b"GET /healthz ICY/1.1", b"HTTP/1.1 200 OK", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x05\x01\x00",
    )),
    *((head(line=b"GET /healthz HTTP/" + version), 505) for version in (
        b"0.9", b"1.2", b"2.0", b"3.0", b"9.9",
    )),
    (head(line=b"CONNECT api.deepseek.com:443 HTTP/1.1"), 501), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (head(line=b"GET /" + b"a" * 20_000 + b" HTTP/1.1"), 414), (b"GET /" + b"a" * 200_000, 414),
    (b"\r\n" * 50 + head(), 400), (b"\n\n" + head(), 400),
)  # fmt: skip

FIELDS: Table = (
    *((head(field), 400) for field in (
        b"X-Header value", b": value", b"X-Header : value", b"X-Header\t: value", b"X Header: value", b"X: a\r\n b",
        b"X: a\r\n\tb", b"X: a\r\n ", b"X: a\rb", b"X: a\rContent-Length: 5", b"X: a\nContent-Length: 5",
        b"X: a\r\r\nY: b", b"X: a\x00b", b"X\x00Y: a", b"X: \x07", b"X: \x1b[2J", b"X: a\x0bb", b"X: a\x0cb",
        b"X: a\x7fb", b"X\xe4: a", "Xä: a".encode(), b"X(: a", b"X,Y: a", b"X/Y: a", b"X@Y: a", b'"X": a', b"X[0]: a",
        b"{X}: a", b"X=Y: a", b"Host: y", b"Host: x",
    )),
    *((head(host=host), 400) for host in (
        b"", b"Host:", b"Host: x/y", b"Host: a@x", b"Host: a b", b"Host: a, b", b"Host: x:8o", b"Host: x:123456",
        b"Host: [x]", b"Host:\r\n x", b"Host: x\x00", b"Host: " + b"a" * 262, b" Host: x",
    )),
    (post(b"Authorization: Bearer other", b"Content-Length: 0"), 400),
    (post(b"Content-Type: a/b", b"Content-Type: c/d", b"Content-Length: 0"), 400),
    (post(b"Content-Encoding: gzip", b"Content-Encoding: gzip", b"Content-Length: 0"), 400),
    (head(b"api-key: a", b"api-key: b"), 400), (head(*(b"X-%d: a" % number for number in range(101))), 431),
    (head(*(b"X-%d: a" % number for number in range(5000))), 431), (head(b"X: " + b"a" * 70_000), 431),
    (head(b"X" * 70_000 + b": a"), 431), (head(b"X: " + b"a" * 300_000)[:-4], 431),
    (head().replace(b"\r\n", b"\n"), 400), (head().replace(b"1.1\r\n", b"1.1\n"), 400), (head()[:-2] + b"\n", 400),
    (head().replace(b"\r\n", b"\r"), 400), (post(b"Expect: 200-ok", b"Content-Length: 0"), 417),
    (post(b"Expect: 100-continue, magic", b"Content-Length: 0"), 417),
    (post(b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: 0"), 400),
)  # fmt: skip

LENGTHS: Table = (
    *((sized(value), 400) for value in (
        b"", b"-1", b"-0", b"+5", b"1_0", b"5.0", b"5e1", b"0x10", b"1F", b"0o7", b"5,5", b"5, 5", b"5, 6", b"5;",
        b"1 0", b'"5"', b"five", b"true", b"NaN", b"Infinity", "٥".encode(), "５".encode(), b"5\xb2", b"9" * 20,
        b"9" * 5000, b"5\x00", b"\x0b5",
    )),
    (post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), 400),
    (post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"), 400),
    (post(b"Content-Length: 5", b"CONTENT-LENGTH: 5", body=b"hello"), 400),
    (post(b"Content-Length:\r\n 5", body=b"hello"), 400), (post(b"Content-Length : 5", body=b"hello"), 400),
    (sized(b"%d" % 10**9, b""), 413), (sized(b"9" * 19, b""), 413), (sized(b"%d" % (1024 * 1024 + 1), b""), 413),
)  # fmt: skip

CODINGS: Table = (
    *((post(b"Transfer-Encoding: " + value, body=b"0\r\n\r\n"), 501) for value in (
        b"gzip", b"identity", b"cow", b"gzip, chunked", b"chunked, chunked", b"chunked;q=1", b'"chunked"', b"chunked,",
        b",chunked", b"xchunked", b"chunkedx", b"", b"chunked\xa0",
    )),
    *((post(*fields, body=b"0\r\n\r\n"), 400) for fields in (
        (b"Transfer-Encoding: chunked, gzip",), (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"), (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 5", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), (b"Transfer-Encoding : chunked",),
        (b"Transfer-Encoding:\r\n chunked",), (b"Transfer-Encoding: \x0bchunked",),
        (b"Transfer-Encoding: chunked\x00",), (b"X: y\rTransfer-Encoding: chunked",),
        (b"X: y\nTransfer-Encoding: chunked",),
    )),
    (chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
)  # fmt: skip

CHUNKS: Table = (
    *((chunked(body), 400) for body in (
        b"\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n", b"0_5\r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n", b"5\t\r\nhello\r\n0\r\n\r\n", b"5.0\r\nhello\r\n0\r\n\r\n",
        b"five\r\nhello\r\n0\r\n\r\n", "٥\r\nhello\r\n0\r\n\r\n".encode(), b"0" * 16 + b"5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n", b"5\rhello\r\n0\r\n\r\n", b"5\x00\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX\r\n0\r\n\r\n", b"5\r\nhello\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"5\r\nhelloXX0\r\n\r\n",
        b"7\r\nhello\r\n0\r\n\r\n", b"5;a=\x00\r\nhello\r\n0\r\n\r\n", b"5;a=\rb\r\nhello\r\n0\r\n\r\n",
        b"5;a=\nb\r\nhello\r\n0\r\n\r\n", b"5;" + b"a" * 20_000, b"0\r\nnothing\r\n\r\n", b"0\r\nX: a\r\n b\r\n\r\n",
        b"0\r\nX : a\r\n\r\n", b"0\r\nX: a\n\r\n", b"0\r\nX: \x00\r\n\r\n", b"0\r\n" + b"X: a\r\n" * 20_000, b"0\r\n\n",
    )),
    (chunked(b"7fffffffffffffff\r\n"), 413), (chunked(b"80000\r\n" + b" " * 0x80000 + b"\r\n80001\r\n"), 413),
)  # fmt: skip

# What a reader that sees another end of the first request would take for a second one.
HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: hidden\r\n\r\n"
CODED, LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(HIDDEN)


def _hiding(line: bytes) -> bytes:
    return head(LENGTH, line=line) + HIDDEN


SMUGGLED: Table = (
    (post(b"Content-Length: 5", CODED, body=b"0\r\n\r\n" + HIDDEN), 400),
    (post(CODED, LENGTH, body=b"0\r\n\r\n" + HIDDEN), 400), (post(b"Transfer-Encoding: xchunked", body=HIDDEN), 501),
    (sized(b"0x0", HIDDEN), 400), (post(b"Content-Length: 0", LENGTH, body=HIDDEN), 400),
    (post(b"X: y\r" + LENGTH, body=HIDDEN), 400), (chunked(b"2;\nxx\r\n0\r\n\r\n" + HIDDEN), 400),
    (chunked(b"1\r\n{}\r\n0\r\n\r\n" + HIDDEN), 400), (_hiding(b"GET /healthz HTTP/1.1"), 200),
    (_hiding(b"HEAD /healthz HTTP/1.1"), 200), (_hiding(b"OPTIONS * HTTP/1.1"), 204),
    (_hiding(b"POST /nowhere HTTP/1.1"), 404), (_hiding(b"POST /v1/chat/completions HTTP/1.1"), 401),
    (head(CODED, line=b"POST /nowhere HTTP/1.1") + b"5\r\nhello\r\n0\r\n\r\n" + HIDDEN, 404),
)  # fmt: skip

SERVED: Table = (
    (head(), 200), (b"\r\n" + head(), 200), (head(line=b"GET http://x/healthz HTTP/1.1"), 200),
    (head(line=b"GET http://x:9000/healthz?a=b HTTP/1.1"), 200), (head(line=b"OPTIONS * HTTP/1.1"), 204),
    (head(line=b"HEAD /healthz HTTP/1.1"), 200), (head(host=b"Host: localhost:9000"), 200),
    (head(host=b"Host: [::1]:9000"), 200), (head(host=b"Host: " + b"a" * 255 + b":65535"), 200),
    (head(host=b"Host: a-b-c.ngrok-free.app"), 200), (head(b"X:y"), 200), (head(b"X: \t y \t "), 200),
    (head(b"X:"), 200), (head(b"X: caf\xe9"), 200), (head(b"!#$%&'*+-.^_`|~9: a"), 200),
    (head(b"Accept: a/b", b"Accept: c/d"), 200), (head(*(b"X-%d: a" % number for number in range(99))), 200),
    (head(b"Content-Length: 0"), 200), (sized(b"000%d" % len(BODY)), 200),
    (post(b"cOnTeNt-LeNgTh: %d" % len(BODY), body=BODY), 200),
    (chunked(b"%X\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)).replace(b": chunked", b": CHUNKED"), 200),
    (chunked(b'%x;a="b";c\r\n%b\r\n000;last\r\nX-Checksum: 1\r\n\r\n' % (len(BODY), BODY)), 200),
    (post(b"Expect: 100-Continue", b"Content-Length: %d" % len(BODY), body=BODY), 200),
    (head(line=b"GET /nowhere HTTP/1.1"), 404), (head(line=b"GET /%00%0d%0aX:%20y/%2e%2e/%ff%zz HTTP/1.1"), 404),
    (head(line=b"GET /../../etc/passwd HTTP/1.1"), 404), (head(line=b"GET /%68ealthz HTTP/1.1"), 404),
    (head(line=b"DELETE /healthz HTTP/1.1"), 405), (head(line=b"TRACE /healthz HTTP/1.1"), 405),
    (head(line=b"get /healthz HTTP/1.1"), 405), (sized(b"5", b"hello"), 400), (sized(b"0", b""), 400),
)  # fmt: skip
