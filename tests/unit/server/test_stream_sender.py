"""When the head and the end of a streamed answer go out: with a piece if one is there, never later than a wait."""

import unittest
from collections.abc import Iterator

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.http1.messages import WaitHandle
from deepseek_cursor_proxy.server.stream_loop import StreamLoop
from deepseek_cursor_proxy.server.stream_sender import StreamSender


class Silence:
    """Something that is awaited, and tells what the client had been sent when it was."""

    until = 0.0
    is_drained = True

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.sent_before: list[bytes] = []

    def fileno(self) -> int:
        return -1

    def wait(self) -> None:
        self.sent_before = list(self._client.sent)

    def interrupt(self, error: Exception) -> None: ...


class Client:
    close_reason: ProxyError | None = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return -1

    def has_left(self) -> bool:
        return False

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_now(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)


class Body:
    def __init__(self, *pieces: bytes, wait_handle: WaitHandle | None = None, over: bytes | None = None) -> None:
        self.pieces = pieces
        self.over = over
        self.wait_handle = wait_handle
        self.is_over = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            self.is_over = piece == self.over
            yield piece

    def close(self) -> None: ...


class TestHead(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client()
        self.silence = Silence(self.client)

    def sent(self, body: Body) -> list[bytes]:
        StreamSender(self.client, body, b"head|", is_chunked=False).run(StreamLoop())
        return self.client.sent

    def test_a_piece_that_is_there_goes_out_with_the_head(self) -> None:
        self.assertEqual(self.sent(Body(b"one", b"two", wait_handle=self.silence)), [b"head|one", b"two"])

    def test_the_head_is_sent_before_anything_is_waited_for(self) -> None:
        self.sent(Body(b"", b"one", wait_handle=self.silence))
        self.assertEqual(self.client.sent, [b"head|", b"one"])

    def test_a_lull_finds_the_head_sent(self) -> None:
        self.sent(Body(b"", wait_handle=self.silence))
        self.assertEqual(self.silence.sent_before, [b"head|"])

    def test_a_body_that_may_take_its_time_follows_the_head(self) -> None:
        self.assertEqual(self.sent(Body(b"one")), [b"head|", b"one"])

    def test_a_body_without_a_piece_has_a_head(self) -> None:
        self.assertEqual(self.sent(Body(wait_handle=self.silence)), [b"head|"])


class TestEnd(unittest.TestCase):
    def sent(self, body: Body) -> list[bytes]:
        client = Client()
        StreamSender(client, body, b"head|", is_chunked=True).run(StreamLoop())
        return client.sent

    def test_what_comes_without_waiting_goes_out_with_the_end(self) -> None:
        sent = self.sent(Body(b"one", b"two", b"three", over=b"two"))
        self.assertEqual(sent, [b"head|", b"3\r\none\r\n", b"8\r\ntwothree\r\n0\r\n\r\n"])

    def test_an_answer_whose_end_nobody_foresaw_ends_all_the_same(self) -> None:
        self.assertEqual(self.sent(Body(b"one")), [b"head|", b"3\r\none\r\n", b"0\r\n\r\n"])
