"""The shortcut says what the long way says, byte for byte, and remembers the same."""

import json
import random
import socket
import struct
import unittest
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Batches, ChatRequest, Message, Reply
from deepseek_cursor_proxy.deepseek.chat_stream import StreamReader
from deepseek_cursor_proxy.deepseek.shortcut import Shortcut
from deepseek_cursor_proxy.protocols.chat import ChatCompletions
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.upstream.response import Answer
from tests.support.harness import SocketTestCase, request_bytes

REQUEST = ChatRequest("asked", "deepseek-v4-pro", (Message("user", "x"),), stream=True)
ODD = ("<", "</details>", "<details", "\\", '"quoted"', "\n\n", "é", "😀", "\u2028", "=the text=", "a<b", "{}")


def event(delta: dict[str, Any], finish_reason: str | None = None, *, is_ascii: bool = False) -> bytes:
    chunk = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "model": "deepseek-v4-pro",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }
    return b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=is_ascii, separators=(",", ":")).encode()


def thought(text: str, **details: bool) -> bytes:
    return event({"content": None, "reasoning_content": text}, **details)


def word(text: str, **details: bool) -> bytes:
    return event({"content": text, "reasoning_content": None}, **details)


class Way:
    """What an exchange does with a stream, without any socket; with or without the shortcut."""

    def __init__(self, form: thinking_blocks.Form | None, *, with_shortcut: bool) -> None:
        self._with_shortcut = with_shortcut
        self._pieces: deque[bytes] = deque()
        self._shortcut: Shortcut | None = None
        self.reply = Reply()
        self.taken = 0
        self._written = ChatCompletions(lambda: 0.0).stream(REQUEST, thinking_blocks.mirror(self._batches(), form))

    def _batches(self) -> Batches:
        reader = StreamReader()
        while True:
            said = reader.read(self._pieces.popleft())
            for item in said.batch:
                self.reply.add(item)  # type: ignore[arg-type]
            self._shortcut = Shortcut(said.stencil, self.reply) if said.stencil is not None else None
            yield said.batch

    def told(self, piece: bytes) -> bytes:
        if self._with_shortcut and self._shortcut is not None and self._shortcut.is_open:
            passed = self._shortcut.take(piece)
            if passed is not None:
                self.taken += 1
                return passed
        self._pieces.append(piece)
        return next(self._written)

    def close(self) -> None:
        self._written.close()  # type: ignore[attr-defined]


def generated(rng: random.Random) -> list[bytes]:
    """The pieces of a stream: mostly single chunks of one kind after another, now and then anything else."""
    pieces = [event({"role": "assistant", "content": ""})]
    say = thought
    for _ in range(40):
        say = rng.choice((thought, word)) if rng.random() < 0.1 else say
        text = rng.choice(ODD) if rng.random() < 0.4 else f" w{rng.randrange(1000)}"
        match rng.randrange(20):
            case 0:
                pieces.append(b"".join(say(f" {number}") for number in range(rng.randrange(2, 5))))
            case 1:
                whole = say(text)
                cut = rng.randrange(1, len(whole))
                pieces += whole[:cut], whole[cut:]
            case 2:
                call = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": '{"at": 1}'}}
                pieces.append(event({"tool_calls": [call]}))
            case 3:
                pieces.append(say(text, is_ascii=True))
            case 4:
                pieces.append(event({"content": text, "reasoning_content": text}))
            case 5:
                pieces.append(say(""))
            case _:
                pieces.append(say(text))
    return pieces


class TestBothWays(unittest.TestCase):
    def way(self, form: thinking_blocks.Form | None, *, with_shortcut: bool = True) -> Way:
        way = Way(form, with_shortcut=with_shortcut)
        self.addCleanup(way.close)
        return way

    def test_both_say_and_remember_the_same(self) -> None:
        taken = 0
        for seed in range(300):
            rng = random.Random(seed)
            form = rng.choice((thinking_blocks.COLLAPSIBLE, thinking_blocks.PLAIN, None))
            long, short = (self.way(form, with_shortcut=each) for each in (False, True))
            with self.subTest(seed=seed):
                for piece in generated(rng):
                    self.assertEqual(long.told(piece), short.told(piece))
                self.assertEqual(long.reply.message(), short.reply.message())
                self.assertEqual(long.reply.size, short.reply.size)
            taken += short.taken
        self.assertGreater(taken, 3000)

    def test_what_does_not_fit_goes_the_long_way(self) -> None:
        for name, piece in {
            "another kind of chunk": word("x"),
            "the end": event({"content": ""}, "stop"),
            "an empty text": thought(""),
            "half a chunk": thought("x")[:-1],
            "more than chunks": thought("x") + b": comment\n\n",
            "a tag": thought("<b>"),
            "damage": thought("x").replace(b'"x"', b'"\xff"'),
        }.items():
            way = self.way(thinking_blocks.COLLAPSIBLE)
            for begun in (thought("a"), thought("b"), thought("c")):
                way.told(begun)
            with self.subTest(name):
                self.assertEqual(1, way.taken)
                assert way._shortcut is not None
                self.assertIsNone(way._shortcut.take(piece))
                self.assertEqual("abc", way.reply.message().reasoning)

    def test_what_would_make_an_answer_too_long_goes_the_long_way(self) -> None:
        way = self.way(None)
        with mock.patch.object(Reply, "LONGEST", 18):
            for _ in range(6):
                way.told(word("four"))
        # The first two are no run yet.
        self.assertEqual(2, way.taken)


class TestOnTheWire(SocketTestCase):
    """Chunk by chunk, as a model speaks: each is sent when the one before has arrived."""

    def setUp(self) -> None:
        super().setUp()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        self.running = self.proxy(upstream_base_url=f"http://127.0.0.1:{self.listener.getsockname()[1]}")
        self.took = 0
        take = Shortcut.take

        def counted(shortcut: Shortcut, piece: bytes) -> bytes | None:
            passed = take(shortcut, piece)
            self.took += passed is not None
            return passed

        patch = mock.patch.object(Shortcut, "take", counted)
        patch.start()
        self.addCleanup(patch.stop)

    def streaming(self, packed: Callable[[bytes], bytes] | None = None) -> tuple[socket.socket, socket.socket]:
        """A client, and its DeepSeek after the first chunks of an answer, both of them thoughts."""
        client = self.connect(self.running)
        client.sendall(request_bytes({"messages": [{"role": "user", "content": "x"}], "stream": True}))
        upstream, _ = self.listener.accept()
        self.addCleanup(upstream.close)
        upstream.recv(65536)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        upstream.sendall(head + (b"Content-Encoding: gzip\r\n\r\n" if packed else b"\r\n"))
        for text in ("first", "second"):
            self.say(upstream, packed(thought(text)) if packed else thought(text))
            self.hear(client, text.encode())
        return client, upstream

    def say(self, upstream: socket.socket, data: bytes) -> None:
        upstream.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def hear(self, client: socket.socket, text: bytes) -> bytes:
        seen = b""
        while text not in seen:
            more = client.recv(65536)
            self.assertTrue(more, seen[-300:])
            seen += more
        return seen

    def test_nothing_that_took_it_is_lost(self) -> None:
        client, upstream = self.streaming()
        for number in range(30):
            self.say(upstream, thought(f" thought{number},"))
            heard = self.hear(client, b" thought%d," % number)
            self.assertEqual(1, heard.count(b" thought%d," % number))
        for number in range(30):
            self.say(upstream, word(f" word{number},"))
            self.hear(client, b" word%d," % number)
        self.assertGreater(self.took, 50)
        self.say(upstream, event({"content": ""}, "stop") + b"data: [DONE]\n\n")
        upstream.sendall(b"0\r\n\r\n")
        self.hear(client, b"[DONE]")
        with self.running.store.database.reading() as connection:
            (text,) = connection.execute("SELECT text FROM reasonings").fetchone()
        self.assertEqual("firstsecond" + "".join(f" thought{number}," for number in range(30)), text.decode())

    def test_what_cannot_take_it_is_not_forgotten_when_a_sign_of_life_is_due(self) -> None:
        passed_on = Answer.passed_on

        def just_then(answer: Answer) -> bytes | None:
            passed = passed_on(answer)
            if passed is None:
                answer._until = 0.0
            return passed

        client, upstream = self.streaming()
        with mock.patch.object(Answer, "passed_on", just_then):
            for number in range(10):
                say = (thought, word)[number % 2]
                self.say(upstream, say(f" word{number},"))
                self.hear(client, b" word%d," % number)

    def test_what_is_packed_does_not_take_it_even_if_it_looks_plain(self) -> None:
        packer = zlib.compressobj(0, wbits=31)

        def packed(data: bytes) -> bytes:
            return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)

        client, upstream = self.streaming(packed)
        third, fourth = thought("third"), thought("fourth")
        # All but the very words of the fourth comes with the third.
        begun = packed(third)
        before, _, after = packed(fourth).partition(fourth)
        self.say(upstream, begun + before)
        self.hear(client, b"third")
        self.say(upstream, fourth)
        self.hear(client, b"fourth")
        self.say(upstream, after + packed(event({"content": ""}, "stop") + b"data: [DONE]\n\n"))
        self.assertNotIn(b"error", self.hear(client, b"[DONE]"))
        self.assertEqual(0, self.took)

    def test_a_stream_is_not_longer_than_it_may_be(self) -> None:
        with mock.patch("deepseek_cursor_proxy.upstream.response._MAX_STREAM_BYTES", 5 * len(thought("second"))):
            client, upstream = self.streaming()
            for _ in range(3):
                self.say(upstream, thought("second"))
                self.hear(client, b"second")
            self.say(upstream, thought("second"))
            self.assertIn(b"too large", self.hear(client, b"[DONE]"))

    def test_nothing_is_read_behind_the_end(self) -> None:
        passed_on = Answer.passed_on

        def watched(answer: Answer) -> bytes | None:
            if answer._is_ended:
                answer._connection.receive_now = mock.Mock(side_effect=AssertionError)  # type: ignore[method-assign]
            return passed_on(answer)

        client, upstream = self.streaming()
        with mock.patch.object(Answer, "passed_on", watched):
            last = thought("last")
            upstream.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            self.assertIn(b"without finishing", self.hear(client, b"[DONE]"))

    def test_an_upstream_that_dies_is_told(self) -> None:
        client, upstream = self.streaming()
        self.say(upstream, thought("last"))
        self.hear(client, b"last")
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        upstream.close()
        self.assertIn(b"was cut off", self.hear(client, b"[DONE]"))

    def test_a_client_that_leaves_is_noticed_and_what_was_thought_is_kept(self) -> None:
        client, upstream = self.streaming()
        self.say(upstream, thought("last"))
        self.hear(client, b"last")
        client.close()
        # Hanging up is all that it sees of that.
        self.assertEqual(b"", upstream.recv(1))
        with self.running.store.database.reading() as connection:
            (text,) = connection.execute("SELECT text FROM reasonings").fetchone()
        self.assertEqual("firstsecondlast", text.decode())
