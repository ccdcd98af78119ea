"""When the head of a streamed answer goes out: with the first piece if that is there, never later than a wait."""

import unittest
from collections.abc import Iterator

from deepseek_cursor_proxy.pump import Pump
from deepseek_cursor_proxy.relaying import Relay
from deepseek_cursor_proxy.wire import Awaited, ProxyError


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
    parting: ProxyError | None = None

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
    def __init__(self, *pieces: bytes, awaited: Awaited | None = None) -> None:
        self.pieces = pieces
        self.awaited = awaited

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)

    def close(self) -> None: ...


class TestHead(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client()
        self.silence = Silence(self.client)

    def sent(self, body: Body) -> list[bytes]:
        Relay(self.client, body, b"head|", is_chunked=False).run(Pump())
        return self.client.sent

    def test_a_piece_that_is_there_goes_out_with_the_head(self) -> None:
        self.assertEqual(self.sent(Body(b"one", b"two", awaited=self.silence)), [b"head|one", b"two"])

    def test_the_head_is_sent_before_anything_is_waited_for(self) -> None:
        self.sent(Body(b"", b"one", awaited=self.silence))
        self.assertEqual(self.client.sent, [b"head|", b"one"])

    def test_a_lull_finds_the_head_sent(self) -> None:
        self.sent(Body(b"", awaited=self.silence))
        self.assertEqual(self.silence.sent_before, [b"head|"])

    def test_a_body_that_may_take_its_time_follows_the_head(self) -> None:
        self.assertEqual(self.sent(Body(b"one")), [b"head|", b"one"])

    def test_a_body_without_a_piece_has_a_head(self) -> None:
        self.assertEqual(self.sent(Body(awaited=self.silence)), [b"head|"])
