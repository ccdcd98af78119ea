"""A stream that arrives chunk by chunk, as a model speaks: each chunk is sent when the client has the one before."""

import json
import socket
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.support.harness import SocketTestCase, chat_body, read_until


def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "model": "deepseek-v4-pro", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def thought(text: str) -> bytes:
    return event({"content": None, "reasoning_content": text})


def word(text: str) -> bytes:
    return event({"content": text, "reasoning_content": None})


class TestChunkByChunk(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.running = self.proxy(upstream_base_url=f"http://127.0.0.1:{self.listener.getsockname()[1]}")

    def open_stream(self, pack: Callable[[bytes], bytes] | None = None) -> tuple[socket.socket, socket.socket]:
        """A client, and its DeepSeek after the first chunks of an answer, both of them thoughts."""
        client = self.connect(self.running, chat_body(stream=True))
        upstream, _ = self.listener.accept()
        self.addCleanup(upstream.close)
        upstream.recv(65536)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        upstream.sendall(head + (b"Content-Encoding: gzip\r\n\r\n" if pack else b"\r\n"))
        for text in ("first", "second"):
            self.send(upstream, pack(thought(text)) if pack else thought(text))
            read_until(client, text.encode())
        return client, upstream

    def send(self, upstream: socket.socket, data: bytes) -> None:
        upstream.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def test_every_chunk_arrives_once_and_all_thoughts_are_stored(self) -> None:
        client, upstream = self.open_stream()
        for number in range(30):
            self.send(upstream, thought(f" thought{number},"))
            received = read_until(client, b" thought%d," % number)
            self.assertEqual(1, received.count(b" thought%d," % number))
        for number in range(30):
            self.send(upstream, word(f" word{number},"))
            read_until(client, b" word%d," % number)
        self.send(upstream, event({"content": ""}, "stop") + b"data: [DONE]\n\n")
        upstream.sendall(b"0\r\n\r\n")
        read_until(client, b"[DONE]")
        self.running.store.flush()
        with self.running.store.database.reader() as connection:
            (text,) = connection.execute("SELECT text FROM reasonings").fetchone()
        self.assertEqual("firstsecond" + "".join(f" thought{number}," for number in range(30)), text.decode())

    def test_a_compressed_stream_is_unpacked_even_where_its_bytes_look_plain(self) -> None:
        packer = zlib.compressobj(0, wbits=31)

        def pack(data: bytes) -> bytes:
            return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)

        client, upstream = self.open_stream(pack)
        third, fourth = thought("third"), thought("fourth")
        # All but the very words of the fourth comes with the third.
        begin = pack(third)
        before, _, after = pack(fourth).partition(fourth)
        self.send(upstream, begin + before)
        read_until(client, b"third")
        self.send(upstream, fourth)
        read_until(client, b"fourth")
        self.send(upstream, after + pack(event({"content": ""}, "stop") + b"data: [DONE]\n\n"))
        self.assertNotIn(b"error", read_until(client, b"[DONE]"))

    def test_a_stream_is_not_longer_than_it_may_be(self) -> None:
        with mock.patch("deepseek_cursor_proxy.upstream.response._MAX_STREAM_BYTES", 5 * len(thought("second"))):
            client, upstream = self.open_stream()
            for _ in range(3):
                self.send(upstream, thought("second"))
                read_until(client, b"second")
            self.send(upstream, thought("second"))
            self.assertIn(b"too large", read_until(client, b"[DONE]"))
