"""Hostile, odd and legal requests as bytes, each with its status; some tests send them, others mutate them."""

import json
from collections.abc import Mapping
from typing import Any

CHAT = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
NEXT = b"GET /healthz HTTP/1.1\r\nHost: next\r\n\r\n"


def nested(depth: int) -> Any:
    """Lists in lists, as a value."""
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


LINES: Mapping[str, tuple[bytes, int]] = {
    **{
        name: (head(line=line), 400)
        for name, line in {
            "http 0.9": b"GET /healthz",
            "one word": b"GET",
            "nothing but spaces": b"   ",
            "no target": b"GET HTTP/1.1",
            "no method": b"/healthz HTTP/1.1",
            "four words": b"GET /healthz HTTP/1.1 more",
            "two spaces": b"GET  /healthz HTTP/1.1",
            "two spaces later": b"GET /healthz  HTTP/1.1",
            "space in front": b" GET /healthz HTTP/1.1",
            "space behind": b"GET /healthz HTTP/1.1 ",
            "tabs": b"GET\t/healthz\tHTTP/1.1",
            "form feed": b"GET\x0c/healthz\x0cHTTP/1.1",
            "no-break space": b"GET\xa0/healthz\xa0HTTP/1.1",
            "nul in the method": b"G\x00ET /healthz HTTP/1.1",
            "nul in the target": b"GET /heal\x00thz HTTP/1.1",
            "escape in the target": b"GET /\x1b[2J HTTP/1.1",
            "delete in the target": b"GET /\x7f HTTP/1.1",
            "bare cr in the target": b"GET /a\rb HTTP/1.1",
            "bare lf in the target": b"GET /a\nb HTTP/1.1",
            "raw utf-8": "GET /ä HTTP/1.1".encode(),
            "latin-1": b"GET /\xe4 HTTP/1.1",
            "fragment": b"GET /healthz#top HTTP/1.1",
            "relative": b"GET healthz HTTP/1.1",
            "query alone": b"GET ?a=b HTTP/1.1",
            "backslash in front": b"GET \\healthz HTTP/1.1",
            "asterisk for get": b"GET * HTTP/1.1",
            "authority for get": b"GET api.deepseek.com:443 HTTP/1.1",
            "other scheme": b"GET ftp://x/healthz HTTP/1.1",
            "file scheme": b"GET file:///etc/passwd HTTP/1.1",
            "no host in the url": b"GET http:///healthz HTTP/1.1",
            "credentials in the url": b"GET http://user:pw@x/healthz HTTP/1.1",
            "odd port in the url": b"GET http://x:80x/healthz HTTP/1.1",
            "method with colon": b"GE:T /healthz HTTP/1.1",
            "method with slash": b"G/T /healthz HTTP/1.1",
            "method with brackets": b"G[E]T /healthz HTTP/1.1",
            "method with quotes": b'"GET" /healthz HTTP/1.1',
            "method too long": b"G" * 40 + b" /healthz HTTP/1.1",
            "version in lower case": b"GET /healthz http/1.1",
            "version in mixed case": b"GET /healthz Http/1.1",
            "version without minor": b"GET /healthz HTTP/1",
            "version with letters": b"GET /healthz HTTP/1.x",
            "version of two digits": b"GET /healthz HTTP/1.10",
            "version with leading zero": b"GET /healthz HTTP/01.1",
            "version with comma": b"GET /healthz HTTP/1,1",
            "version with sign": b"GET /healthz HTTP/+1.1",
            "version with space": b"GET /healthz HTTP/1. 1",
            "version in other digits": "GET /healthz HTTP/1.١".encode(),
            "other protocol": b"GET /healthz HTCPCP/1.0",
            "icy": b"GET /healthz ICY/1.1",
            "a reply": b"HTTP/1.1 200 OK",
            "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "socks": b"\x05\x01\x00",
        }.items()
    },
    **{
        f"version {version.decode()}": (head(line=b"GET /healthz HTTP/" + version), 505)
        for version in (b"0.9", b"1.2", b"2.0", b"3.0", b"9.9")
    },
    "authority for connect": (head(line=b"CONNECT api.deepseek.com:443 HTTP/1.1"), 501),
    "preface of http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "long target": (head(line=b"GET /" + b"a" * 20_000 + b" HTTP/1.1"), 414),
    "endless target": (b"GET /" + b"a" * 200_000, 414),
    "many empty lines": (b"\r\n" * 50 + head(), 400),
    "empty lines of lf": (b"\n\n" + head(), 400),
}

FIELDS: Mapping[str, tuple[bytes, int]] = {
    **{
        name: (head(field), 400)
        for name, field in {
            "no colon": b"X-Header value",
            "no name": b": value",
            "space before the colon": b"X-Header : value",
            "tab before the colon": b"X-Header\t: value",
            "space in the name": b"X Header: value",
            "folded": b"X: a\r\n b",
            "folded with a tab": b"X: a\r\n\tb",
            "folded and empty": b"X: a\r\n ",
            "bare cr in the value": b"X: a\rb",
            "bare cr injects a field": b"X: a\rContent-Length: 5",
            "bare lf in the value": b"X: a\nContent-Length: 5",
            "cr cr lf": b"X: a\r\r\nY: b",
            "nul in the value": b"X: a\x00b",
            "nul in the name": b"X\x00Y: a",
            "bell in the value": b"X: \x07",
            "escape in the value": b"X: \x1b[2J",
            "vertical tab in the value": b"X: a\x0bb",
            "form feed in the value": b"X: a\x0cb",
            "delete in the value": b"X: a\x7fb",
            "latin-1 in the name": b"X\xe4: a",
            "utf-8 in the name": "Xä: a".encode(),
            "parenthesis in the name": b"X(: a",
            "comma in the name": b"X,Y: a",
            "slash in the name": b"X/Y: a",
            "at in the name": b"X@Y: a",
            "quotes in the name": b'"X": a',
            "brackets in the name": b"X[0]: a",
            "braces in the name": b"{X}: a",
            "equals in the name": b"X=Y: a",
            "second host": b"Host: y",
            "second host, the same": b"Host: x",
        }.items()
    },
    **{
        f"host {name}": (head(host=host), 400)
        for name, host in {
            "missing": b"",
            "empty": b"Host:",
            "with a path": b"Host: x/y",
            "with a user": b"Host: a@x",
            "with a space": b"Host: a b",
            "with a comma": b"Host: a, b",
            "with an odd port": b"Host: x:8o",
            "with a long port": b"Host: x:123456",
            "in brackets without colon": b"Host: [x]",
            "folded": b"Host:\r\n x",
            "with a nul": b"Host: x\x00",
            "longer than any name": b"Host: " + b"a" * 262,
            "behind a space": b" Host: x",
        }.items()
    },
    "two authorizations": (post(b"Authorization: Bearer other", b"Content-Length: 0"), 400),
    "two content types": (post(b"Content-Type: a/b", b"Content-Type: c/d", b"Content-Length: 0"), 400),
    "two codings": (post(b"Content-Encoding: gzip", b"Content-Encoding: gzip", b"Content-Length: 0"), 400),
    "two api keys": (head(b"api-key: a", b"api-key: b"), 400),
    "101 fields": (head(*(b"X-%d: a" % number for number in range(101))), 431),
    "thousands of fields": (head(*(b"X-%d: a" % number for number in range(5000))), 431),
    "long value": (head(b"X: " + b"a" * 70_000), 431),
    "long name": (head(b"X" * 70_000 + b": a"), 431),
    "endless value": (head(b"X: " + b"a" * 300_000)[:-4], 431),
    "lines of lf": (head().replace(b"\r\n", b"\n"), 400),
    "one line of lf": (head().replace(b"1.1\r\n", b"1.1\n"), 400),
    "blank line of lf": (head()[:-2] + b"\n", 400),
    "lines of cr": (head().replace(b"\r\n", b"\r"), 400),
    "expectation": (post(b"Expect: 200-ok", b"Content-Length: 0"), 417),
    "two expectations in one": (post(b"Expect: 100-continue, magic", b"Content-Length: 0"), 417),
    "expectation twice": (post(b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: 0"), 400),
}

LENGTHS: Mapping[str, tuple[bytes, int]] = {
    **{
        f"length {name}": (sized(value), 400)
        for name, value in {
            "empty": b"",
            "negative": b"-1",
            "negative zero": b"-0",
            "with a plus": b"+5",
            "with an underscore": b"1_0",
            "with a point": b"5.0",
            "with an exponent": b"5e1",
            "in hex": b"0x10",
            "in hex digits": b"1F",
            "in octal": b"0o7",
            "with a comma": b"5,5",
            "a list of equals": b"5, 5",
            "a list of others": b"5, 6",
            "with a semicolon": b"5;",
            "with a space inside": b"1 0",
            "in quotes": b'"5"',
            "a word": b"five",
            "true": b"true",
            "nan": b"NaN",
            "inf": b"Infinity",
            "in arabic digits": "٥".encode(),
            "in full-width digits": "５".encode(),
            "with a superscript": b"5\xb2",
            "of twenty digits": b"9" * 20,
            "of five thousand digits": b"9" * 5000,
            "with a nul": b"5\x00",
            "with a vertical tab": b"\x0b5",
        }.items()
    },
    "length twice, equal": (post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), 400),
    "length twice, not equal": (post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"), 400),
    "length twice, in other case": (post(b"Content-Length: 5", b"CONTENT-LENGTH: 5", body=b"hello"), 400),
    "length folded": (post(b"Content-Length:\r\n 5", body=b"hello"), 400),
    "length behind a space": (post(b"Content-Length : 5", body=b"hello"), 400),
    "length above the limit": (sized(b"%d" % 10**9, b""), 413),
    "length of nineteen digits": (sized(b"9" * 19, b""), 413),
    "length one too many": (sized(b"%d" % (1024 * 1024 + 1), b""), 413),
}

CODINGS: Mapping[str, tuple[bytes, int]] = {
    **{
        f"coding {name}": (post(b"Transfer-Encoding: " + value, body=b"0\r\n\r\n"), 501)
        for name, value in {
            "gzip": b"gzip",
            "identity": b"identity",
            "unknown": b"cow",
            "gzip and chunked": b"gzip, chunked",
            "chunked twice": b"chunked, chunked",
            "chunked with a parameter": b"chunked;q=1",
            "chunked in quotes": b'"chunked"',
            "chunked with a comma": b"chunked,",
            "chunked after a comma": b",chunked",
            "xchunked": b"xchunked",
            "chunkedx": b"chunkedx",
            "empty": b"",
            "chunked and a no-break space": b"chunked\xa0",
        }.items()
    },
    **{
        f"coding {name}": (post(*fields, body=b"0\r\n\r\n"), 400)
        for name, fields in {
            "chunked and gzip": (b"Transfer-Encoding: chunked, gzip",),
            "and length": (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
            "and then length": (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
            "and a length of zero": (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
            "identity and length": (b"Content-Length: 5", b"Transfer-Encoding: identity"),
            "twice": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
            "twice, another": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
            "behind a space": (b"Transfer-Encoding : chunked",),
            "folded": (b"Transfer-Encoding:\r\n chunked",),
            "with a vertical tab": (b"Transfer-Encoding: \x0bchunked",),
            "with a nul": (b"Transfer-Encoding: chunked\x00",),
            "behind a bare cr": (b"X: y\rTransfer-Encoding: chunked",),
            "behind a bare lf": (b"X: y\nTransfer-Encoding: chunked",),
        }.items()
    },
    "coding of http 1.0": (chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
}

CHUNKS: Mapping[str, tuple[bytes, int]] = {
    f"chunk {name}": (chunked(body), 400)
    for name, body in {
        "size empty": b"\r\nhello\r\n0\r\n\r\n",
        "size negative": b"-5\r\nhello\r\n0\r\n\r\n",
        "size with a plus": b"+5\r\nhello\r\n0\r\n\r\n",
        "size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
        "size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
        "size with a space in front": b" 5\r\nhello\r\n0\r\n\r\n",
        "size with a space behind": b"5 \r\nhello\r\n0\r\n\r\n",
        "size with a tab behind": b"5\t\r\nhello\r\n0\r\n\r\n",
        "size with a point": b"5.0\r\nhello\r\n0\r\n\r\n",
        "size a word": b"five\r\nhello\r\n0\r\n\r\n",
        "size in other digits": "٥\r\nhello\r\n0\r\n\r\n".encode(),
        "size of seventeen digits": b"0" * 16 + b"5\r\nhello\r\n0\r\n\r\n",
        "size ended by lf": b"5\nhello\r\n0\r\n\r\n",
        "size ended by cr": b"5\rhello\r\n0\r\n\r\n",
        "size with a nul": b"5\x00\r\nhello\r\n0\r\n\r\n",
        "data too long": b"5\r\nhelloXX\r\n0\r\n\r\n",
        "data ended by lf": b"5\r\nhello\n0\r\n\r\n",
        "data not ended": b"5\r\nhello0\r\n\r\n",
        "data ended by other bytes": b"5\r\nhelloXX0\r\n\r\n",
        "data too short": b"7\r\nhello\r\n0\r\n\r\n",
        "extension with a nul": b"5;a=\x00\r\nhello\r\n0\r\n\r\n",
        "extension with a bare cr": b"5;a=\rb\r\nhello\r\n0\r\n\r\n",
        "extension with a bare lf": b"5;a=\nb\r\nhello\r\n0\r\n\r\n",
        "extension without end": b"5;" + b"a" * 20_000,
        "trailer without colon": b"0\r\nnothing\r\n\r\n",
        "trailer folded": b"0\r\nX: a\r\n b\r\n\r\n",
        "trailer behind a space": b"0\r\nX : a\r\n\r\n",
        "trailer ended by lf": b"0\r\nX: a\n\r\n",
        "trailer with a nul": b"0\r\nX: \x00\r\n\r\n",
        "trailers without end": b"0\r\n" + b"X: a\r\n" * 20_000,
        "end by lf": b"0\r\n\n",
    }.items()
} | {
    "chunk size above the limit": (chunked(b"7fffffffffffffff\r\n"), 413),
    "chunks above the limit": (chunked(b"80000\r\n" + b" " * 0x80000 + b"\r\n80001\r\n"), 413),
}

# What a reader that sees another end of the first request would take for a second one.
HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: hidden\r\n\r\n"
CODED, LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(HIDDEN)


def _hiding(line: bytes) -> bytes:
    return head(LENGTH, line=line) + HIDDEN


SMUGGLED: Mapping[str, tuple[bytes, int]] = {
    "length before coding": (post(b"Content-Length: 5", CODED, body=b"0\r\n\r\n" + HIDDEN), 400),
    "coding before length": (post(CODED, LENGTH, body=b"0\r\n\r\n" + HIDDEN), 400),
    "coding that others take for none": (post(b"Transfer-Encoding: xchunked", body=HIDDEN), 501),
    "length that others round": (sized(b"0x0", HIDDEN), 400),
    "two lengths, the first is ours": (post(b"Content-Length: 0", LENGTH, body=HIDDEN), 400),
    "field behind a bare cr": (post(b"X: y\r" + LENGTH, body=HIDDEN), 400),
    "chunk extension over lines": (chunked(b"2;\nxx\r\n0\r\n\r\n" + HIDDEN), 400),
    "chunk that is longer than it says": (chunked(b"1\r\n{}\r\n0\r\n\r\n" + HIDDEN), 400),
    "body of a get": (_hiding(b"GET /healthz HTTP/1.1"), 200),
    "body of a head": (_hiding(b"HEAD /healthz HTTP/1.1"), 200),
    "body of options": (_hiding(b"OPTIONS * HTTP/1.1"), 204),
    "body to an unknown path": (_hiding(b"POST /nowhere HTTP/1.1"), 404),
    "body without a key": (_hiding(b"POST /v1/chat/completions HTTP/1.1"), 401),
    "chunks to an unknown path": (
        head(CODED, line=b"POST /nowhere HTTP/1.1") + b"5\r\nhello\r\n0\r\n\r\n" + HIDDEN,
        404,
    ),
}

SERVED: Mapping[str, tuple[bytes, int]] = {
    "plain": (head(), 200),
    "after an empty line": (b"\r\n" + head(), 200),
    "absolute form": (head(line=b"GET http://x/healthz HTTP/1.1"), 200),
    "absolute form with port and query": (head(line=b"GET http://x:9000/healthz?a=b HTTP/1.1"), 200),
    "options of everything": (head(line=b"OPTIONS * HTTP/1.1"), 204),
    "head": (head(line=b"HEAD /healthz HTTP/1.1"), 200),
    "host with port": (head(host=b"Host: localhost:9000"), 200),
    "host of ipv6": (head(host=b"Host: [::1]:9000"), 200),
    "host of the greatest length": (head(host=b"Host: " + b"a" * 255 + b":65535"), 200),
    "host of a tunnel": (head(host=b"Host: a-b-c.ngrok-free.app"), 200),
    "no space after the colon": (head(b"X:y"), 200),
    "spaces around the value": (head(b"X: \t y \t "), 200),
    "empty value": (head(b"X:"), 200),
    "latin-1 in a value": (head(b"X: caf\xe9"), 200),
    "odd but legal name": (head(b"!#$%&'*+-.^_`|~9: a"), 200),
    "repeated list": (head(b"Accept: a/b", b"Accept: c/d"), 200),
    "a hundred fields": (head(*(b"X-%d: a" % number for number in range(99))), 200),
    "length of zero": (head(b"Content-Length: 0"), 200),
    "length with leading zeros": (sized(b"000%d" % len(BODY)), 200),
    "length in other case": (post(b"cOnTeNt-LeNgTh: %d" % len(BODY), body=BODY), 200),
    "chunked in other case": (
        chunked(b"%X\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)).replace(b": chunked", b": CHUNKED"),
        200,
    ),
    "chunks with extensions and trailers": (
        chunked(b'%x;a="b";c\r\n%b\r\n000;last\r\nX-Checksum: 1\r\n\r\n' % (len(BODY), BODY)),
        200,
    ),
    "expectation with its body": (post(b"Expect: 100-Continue", b"Content-Length: %d" % len(BODY), body=BODY), 200),
    "unknown path": (head(line=b"GET /nowhere HTTP/1.1"), 404),
    "percent-encoded junk": (head(line=b"GET /%00%0d%0aX:%20y/%2e%2e/%ff%zz HTTP/1.1"), 404),
    "dots": (head(line=b"GET /../../etc/passwd HTTP/1.1"), 404),
    "encoded path": (head(line=b"GET /%68ealthz HTTP/1.1"), 404),
    "delete": (head(line=b"DELETE /healthz HTTP/1.1"), 405),
    "trace": (head(line=b"TRACE /healthz HTTP/1.1"), 405),
    "get in lower case": (head(line=b"get /healthz HTTP/1.1"), 405),
    "bad json": (sized(b"5", b"hello"), 400),
    "empty body": (sized(b"0", b""), 400),
}
