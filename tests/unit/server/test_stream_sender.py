"""When the head, the pieces and the end of a streamed reply go out, and which thread waits for the next piece."""

import time
import unittest
from collections.abc import Iterator

from deepseek_cursor_proxy.errors import ClientGone, ProxyError
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull, WaitHandle
from deepseek_cursor_proxy.server.stream_loop import StreamLoop
from deepseek_cursor_proxy.server.stream_sender import StreamSender
from tests.unit.net.test_wait import socket_pair


class Input:
    """A wait handle that is ready, and tells what the client had been sent when it was waited for."""

    def __init__(self, test: unittest.TestCase, client: "Client") -> None:
        self._ours, upstream = socket_pair(test)
        upstream.close()
        self._client = client
        self.sent_before: list[bytes] = []
        self.error: Exception | None = None

    @property
    def until(self) -> float:
        self.sent_before = list(self._client.sent)
        return time.monotonic() + 10

    def fileno(self) -> int:
        return self._ours.fileno()

    def interrupt(self, error: Exception) -> None:
        self.error = error


class Client:
    close_reason: ProxyError | None = None

    def __init__(self, test: unittest.TestCase) -> None:
        self._ours, self._theirs = socket_pair(test)
        self.sent: list[bytes] = []

    def leave(self) -> None:
        self._theirs.close()

    def fileno(self) -> int:
        return self._ours.fileno()

    def has_left(self) -> bool:
        return True

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_now(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)


class Body:
    def __init__(self, *pieces: bytes | Lull, finished_by: bytes | None = None) -> None:
        self.pieces = pieces
        self.finished_by = finished_by
        self.is_finished = False

    def __iter__(self) -> Iterator[bytes | Lull]:
        for piece in self.pieces:
            self.is_finished = piece == self.finished_by
            yield piece

    def close(self) -> None: ...


class TestStreamSender(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(self)
        self.input = Input(self, self.client)

    def send(self, body: Body, *, is_chunked: bool = False) -> list[bytes]:
        StreamSender(self.client, body, b"head|", is_chunked=is_chunked).run(StreamLoop())
        return self.client.sent

    def test_a_piece_that_is_there_goes_out_with_the_head(self) -> None:
        self.assertEqual(self.send(Body(b"one", Lull(self.input), b"two")), [b"head|one", b"two"])

    def test_the_head_is_sent_before_anything_is_waited_for(self) -> None:
        self.assertEqual(self.send(Body(Lull(self.input), b"one")), [b"head|", b"one"])
        self.assertEqual(self.input.sent_before, [b"head|"])

    def test_the_head_is_sent_before_a_body_that_blocks(self) -> None:
        self.assertEqual(self.send(Body(BLOCKING, b"one")), [b"head|", b"one"])

    def test_a_body_without_a_piece_has_a_head(self) -> None:
        self.assertEqual(self.send(Body()), [b"head|"])

    def test_a_client_that_leaves_interrupts_the_body_and_not_the_sender(self) -> None:
        self.client.leave()
        self.assertEqual(self.send(Body(b"one", Lull(self.input), b"two")), [b"head|one", b"two"])
        self.assertIsInstance(self.input.error, ClientGone)

    def advance(self, *pieces: bytes | Lull) -> WaitHandle | None:
        return StreamSender(self.client, Body(*pieces), b"", is_chunked=False).advance()

    def test_it_sends_what_is_there_and_returns_what_to_wait_for(self) -> None:
        self.assertIs(self.advance(b"one", b"two", Lull(self.input), b"three"), self.input)
        self.assertEqual(self.client.sent, [b"one", b"two"])

    def test_a_step_that_blocks_is_left_to_the_thread_of_the_client(self) -> None:
        self.assertIsNone(self.advance(b"one", BLOCKING, b"two", Lull(self.input)))
        self.assertEqual(self.client.sent, [b"one"])

    def test_so_is_a_body_that_never_pauses(self) -> None:
        self.assertIsNone(self.advance(*[b"x"] * 100))
        self.assertLess(len(self.client.sent), 20)

    def test_what_comes_without_waiting_goes_out_with_the_end(self) -> None:
        sent = self.send(Body(BLOCKING, b"one", b"two", BLOCKING, b"three", finished_by=b"two"), is_chunked=True)
        self.assertEqual(sent, [b"head|", b"3\r\none\r\n", b"8\r\ntwothree\r\n0\r\n\r\n"])

    def test_an_answer_whose_end_nobody_foresaw_ends_all_the_same(self) -> None:
        self.assertEqual(self.send(Body(b"one"), is_chunked=True), [b"head|3\r\none\r\n", b"0\r\n\r\n"])
