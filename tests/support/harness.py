"""The harness of tests over real sockets: a proxy in front of the strict fake, raw requests and replies."""

import contextlib
import functools
import json
import os
import secrets
import socket
import tempfile
import threading
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.exchange import failover
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import FakeDeepSeek
from tests.support.cursor import CursorClient
from tests.support.histories import TOOLS

PATIENCE = 60.0


class RunningProxy:
    """The proxy, built as outside code builds it, on a thread."""

    def __init__(
        self, upstream_url: str, store: ReasoningStore | None = None, /, *, port: int = 0, **settings: Any
    ) -> None:
        self.store = store or ReasoningStore(":memory:")
        self.server = DeepSeekProxyServer(("127.0.0.1", port), DeepSeekProxyHandler)
        self.server.config = _config(upstream_url, settings)
        self.server.reasoning_store = self.store
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()
        self.address = ("127.0.0.1", self.server.server_port)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.store.close()
        self._thread.join()


def _config(upstream_url: str, settings: dict[str, Any]) -> ProxyConfig:
    # No retries, so that scripted failures reach the client; tests of retries set a budget. No heartbeats, by which the
    # proxy would notice anyway that a client has left.
    return ProxyConfig(upstream_base_url=upstream_url, **{"retry_budget": 0, "heartbeat_interval": 3600.0, **settings})


@contextlib.contextmanager
def running_proxy(upstream_url: str, store: ReasoningStore | None = None, /, **settings: Any) -> Iterator[str]:
    """The root URL of a proxy with an empty store unless one is given, running as long as the block does."""
    with contextlib.closing(RunningProxy(upstream_url, store, **settings)) as proxy:
        yield proxy.url.removesuffix("/v1")


class SocketTestCase(unittest.TestCase):
    """A fake DeepSeek, proxies and clients on demand; a thread left behind fails the test."""

    def setUp(self) -> None:
        threads = threading.enumerate()
        self.enterContext(mock.patch.object(failover, "_FIRST_PAUSE_SECONDS", 0.02))
        # Its thread is gone soon after a request, for tests that count threads.
        # Cleanups run last to first: this counts after everything has been closed.
        self.addCleanup(self._assert_threads_are_gone, threads)
        self.fake = self.enterContext(FakeDeepSeek())

    @functools.cached_property
    def running(self) -> RunningProxy:
        return self.proxy()

    @functools.cached_property
    def folder(self) -> Path:
        return Path(self.enterContext(tempfile.TemporaryDirectory()))

    def proxy(self, store: ReasoningStore | None = None, /, **settings: Any) -> RunningProxy:
        running = RunningProxy(settings.pop("upstream_base_url", self.fake.url), store, **settings)
        self.addCleanup(running.close)
        return running

    def proxy_with_new_store(self, **settings: Any) -> RunningProxy:
        """A proxy that has nothing but the secret of the others in this folder."""
        return self.proxy(ReasoningStore(self.folder / f"{secrets.token_hex(4)}.sqlite3"), **settings)

    def build_services(self, **settings: Any) -> Services:
        """What a proxy is made of, without its server."""
        store = self.enterContext(contextlib.closing(ReasoningStore(":memory:")))
        return self.enterContext(contextlib.closing(proxy.build(_config(self.fake.url, settings), store)))

    def route(self) -> tuple[FakeDeepSeek, dict[str, str]]:
        """A server besides DeepSeek, and the route to it, whose key is sk-of-the-route."""
        self.enterContext(mock.patch.dict(os.environ, {"ROUTE_KEY": "sk-of-the-route"}))
        other = self.enterContext(FakeDeepSeek())
        return other, {"base_url": f"{other.url}/v1", "key_env": "ROUTE_KEY"}

    def client(self, proxy: RunningProxy, **details: Any) -> CursorClient:
        client = CursorClient(proxy.url, **{"tools": TOOLS, "run_tool": lambda name, arguments: "42", **details})
        self.addCleanup(client.close)
        return client

    def connect(self, proxy: RunningProxy, data: bytes | dict[str, Any] = b"") -> socket.socket:
        """A connection on which these bytes, or a chat request with this body, have been sent."""
        sock = self.enterContext(socket.create_connection(proxy.address, timeout=PATIENCE))
        sock.sendall(data if isinstance(data, bytes) else request_bytes(data))
        return sock

    def round_trip(self, proxy: RunningProxy, data: bytes | dict[str, Any]) -> "RawReply":
        with self.connect(proxy, data) as sock:
            return read_reply(sock)

    def call(self, proxy: RunningProxy, method: str, path: str, body: Any = b"", **details: Any) -> "RawReply":
        """The reply to a request with this method; `details` as of `request_bytes`."""
        return self.round_trip(proxy, request_bytes(body, method=method, path=path, **details))

    def chat(
        self,
        proxy: RunningProxy,
        *history: dict[str, Any],
        path: str = "/v1/chat/completions",
        key: str = "sk-test",
        headers: Sequence[str] = (),
        **fields: Any,
    ) -> "RawReply":
        body = {"model": "deepseek-v4-pro", "messages": history, **fields}
        reply = self.round_trip(proxy, request_bytes(body, path=path, key=key, headers=headers))
        self.assertEqual(200, reply.status, reply.body)
        return reply

    def sent(self, request: int = -1) -> list[dict[str, Any]]:
        return list(self.fake.accepted[request]["messages"])

    def sent_body(self, request: int = -1) -> dict[str, Any]:
        """A request in the words of the host that got it."""
        return dict(json.loads(self.fake.seen[request].body))

    def assert_upstream_saw(self, *reasonings: str | None, request: int = -1) -> None:
        """Compare the reasoning of every assistant message in a request that DeepSeek accepted."""
        sent = [each.get("reasoning_content") for each in self.sent(request) if each["role"] == "assistant"]
        self.assertEqual(list(reasonings), sent)

    def _assert_threads_are_gone(self, before: list[threading.Thread]) -> None:
        for thread in threading.enumerate():
            if thread.daemon and thread not in before:
                thread.join(PATIENCE)
        # Of those before some may have ended since: what an earlier test of another kind had left.
        self.assertEqual([], [thread for thread in threading.enumerate() if thread not in before])


def chat_body(text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def request_bytes(
    body: Any = b"",
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Sequence[str] = (),
    key: str = "sk-test",
) -> bytes:
    """The bytes of a chat request; a `body` of bytes is sent as it is, and a blank key not at all."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", *headers]
    lines += [] if any(each.startswith("Host:") for each in headers) else ["Host: localhost"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def chat_chunks(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]


def chat_text(body: bytes) -> str:
    if not body.startswith(b"data: ") and not body.startswith(b": "):
        return json.loads(body)["choices"][0]["message"]["content"] or ""
    deltas = [choice.get("delta", {}) for chunk in chat_chunks(body) for choice in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def events(stream: bytes) -> list[Any]:
    """The complete events in the bytes of a stream, each under the name that it has inside."""
    found = []
    for block in stream.split(b"\n\n")[:-1]:
        kind, _, data = block.partition(b"\ndata: ")
        event = json.loads(data)
        assert kind == b"event: " + event["type"].encode(), block
        found.append(event)
    return found


def error(value: dict[str, Any]) -> dict[str, Any]:
    """The error in a refusal or an event, in the shape of the Messages API or of OpenAI's."""
    if value.get("type") == "error":
        assert (value.keys(), value["error"].keys()) == ({"type", "error", "request_id"}, {"type", "message"}), value
        assert value["request_id"].startswith("req_"), value
    else:
        assert {"message", "type", "param", "code"} <= value["error"].keys(), value
    return dict(value["error"])


class RawReply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def chunks(self) -> list[Any]:
        return chat_chunks(self.body)

    @property
    def text(self) -> str:
        return chat_text(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream in which they have names."""
        return events(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return error(self.value)


def read_reply(sock: socket.socket) -> RawReply:
    with contextlib.closing(sock.makefile("rb")) as file:
        return read_next_reply(file)


def read_next_reply(file: Any) -> RawReply:
    """One of several replies on a connection."""
    status = int(file.readline().split()[1])
    headers = dict(_header_lines(file))
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(file))
    elif "content-length" in headers:
        body = file.read(int(headers["content-length"]))
    else:
        body = b"" if status in (100, 204) else file.read()
    return RawReply(status, headers, body)


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = sock.recv(65536)
        assert piece, data[-300:]
        data += piece
    return data


def read_to_the_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def _header_lines(file: Any) -> Iterator[tuple[str, str]]:
    while line := file.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        yield name.lower(), value.strip()


def _chunks(file: Any) -> Iterator[bytes]:
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()
    file.readline()
