"""UpstreamResponse over a scripted connection: lulls, heartbeats, deadlines, and what becomes of the connection."""

import math
import unittest
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.errors import ClientGone, UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull, Steps
from deepseek_cursor_proxy.net import deadline
from deepseek_cursor_proxy.net.wait import finish
from deepseek_cursor_proxy.upstream import response
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """Plays a script: bytes that arrived, b"" for an end, None for nothing. A wait for nothing moves the clock."""

    is_reused = True
    has_unsent_bytes = has_buffered_input = tls_wants_write = has_input = False

    def __init__(self, clock: "Clock", *script: bytes | None) -> None:
        self._clock = clock
        self.script = deque(script)
        self.is_open = True

    def receive_now(self) -> bytes | None:
        return self.script.popleft() if self.script else None

    def receive(self, until: float, peer: object) -> bytes | None:
        received = self.receive_now()
        if received is None:
            assert until < math.inf
            self._clock.now = max(self._clock.now, until)
        return received

    def receive_steps(self, until: float, peer: object) -> Steps[bytes | None]:
        yield from ()
        return self.receive(until, peer)

    def pause(self, until: float, peer: object) -> Steps[None]:
        yield from ()
        if not self.script:
            self._clock.now = max(self._clock.now, until)

    def fileno(self) -> int:
        return 7

    def close(self) -> None:
        self.is_open = False


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class TestUpstreamResponse(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        for module in (response, deadline):
            self.enterContext(mock.patch.object(module, "time", self.clock))
        self.pool = mock.Mock()

    def respond(self, *script: bytes | None, head: bytes = CHUNKED, **settings: Any) -> UpstreamResponse:
        self.connection = Connection(self.clock, head, *script)
        config = ProxyConfig(**{"heartbeat_interval": 10, "request_timeout": 60, **settings})
        destination = Destination("http://x/chat/completions", "DeepSeek", "--base-url")
        found = UpstreamResponse(self.connection, self.pool, config, None, destination)  # type: ignore[arg-type]
        finish(found.read_head())
        return found

    def read(self, found: UpstreamResponse) -> Iterator[bytes | Heartbeat]:
        """The items of the stream; a lull moves the clock if nothing has arrived."""
        for item in found.stream():
            if not isinstance(item, Lull):
                yield item
            elif not self.connection.script or self.connection.script[0] is None:
                self.clock.now = found.until

    def test_a_stream_with_lulls_never_waits(self) -> None:
        found = self.respond(chunk(b"one"), None, chunk(b"two"), END)
        lull = Lull(found, then_blocks=False)
        self.assertEqual([b"one", lull, lull, b"two", lull], list(found.stream()))
        self.assertEqual(1000.0, self.clock.now)

    def test_a_compressed_stream_has_a_lull_behind_all_that_has_arrived(self) -> None:
        packer = zlib.compressobj(wbits=31)
        packed = packer.compress(b"one") + packer.flush(zlib.Z_SYNC_FLUSH)
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        found = self.respond(chunk(packed), head=head)
        with closing(found.stream()) as stream:
            self.assertEqual([b"one", Lull(found, then_blocks=False)], [next(stream), next(stream)])

    def test_a_silent_stream_has_heartbeats(self) -> None:
        found = self.respond(chunk(b"one"), None, chunk(b"two"), END)
        self.assertEqual([b"one", Heartbeat(), b"two"], list(self.read(found)))

    def test_the_handle_of_a_lull_says_when_a_heartbeat_is_due(self) -> None:
        found = self.respond(None)
        with closing(found.stream()) as stream:
            next(stream)
            self.assertEqual((self.connection, 1010.0), (found.source, found.until))
            self.clock.now = 1010.0
            self.assertEqual([Heartbeat(), Lull(found, then_blocks=False)], [next(stream), next(stream)])

    def test_a_connection_that_has_to_write_first_is_left_to_a_thread_that_may_block(self) -> None:
        found = self.respond(None, chunk(b"one"), END)
        with closing(found.stream()) as stream:
            self.connection.tls_wants_write = True
            self.assertEqual([Heartbeat(), b"one", BLOCKING], [next(stream) for _ in range(3)])

    def test_an_interruption_is_raised_when_the_stream_goes_on(self) -> None:
        found = self.respond(chunk(b"one"))
        with closing(found.stream()) as stream:
            self.assertEqual([b"one", Lull(found, then_blocks=False)], [next(stream), next(stream)])
            found.interrupt(ClientGone())
            with self.assertRaises(ClientGone):
                next(stream)

    def test_a_silent_stream_ends_after_the_request_timeout(self) -> None:
        found: list[object] = []
        with self.assertRaises(UpstreamTimeout):
            found.extend(self.read(self.respond(chunk(b"one"))))
        self.assertEqual((6, 1060.0), (len(found), self.clock.now))

    def test_progress_postpones_the_end_and_a_keep_alive_does_within_the_queue_patience(self) -> None:
        for note, ends_at in (("note_progress", 1110.0), ("note_keep_alive", 1080.0)):
            self.clock.now = 1000.0
            found = self.respond(*[None] * 10, chunk(b"x"), queue_patience=80)
            with self.subTest(note), self.assertRaises(UpstreamTimeout):
                for piece in self.read(found):
                    if piece == b"x":
                        getattr(found, note)()
            self.assertEqual(ends_at, self.clock.now)

    def test_behind_a_complete_answer_it_waits_itself_and_not_for_long(self) -> None:
        found = self.respond(chunk(b"all"))
        with closing(found.stream()) as stream:
            next(stream)
            found.end_soon()
            with self.assertRaises(UpstreamTimeout):
                next(stream)
        self.assertEqual(1005.0, self.clock.now)

    def test_a_stream_that_is_cut_is_dropped(self) -> None:
        for script in ((chunk(b"one"), b""), (b"5\r\nab", b"")):
            with self.subTest(script), self.assertRaises(UpstreamDropped):
                list(self.read(self.respond(*script)))

    def test_a_body_that_is_no_stream_is_refused_before_it_is_read(self) -> None:
        page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
        with self.assertRaisesRegex(UpstreamFailed, "text/html, which is not an event stream"):
            finish(self.respond(head=page).raise_unless_stream())

    def close(self, found: UpstreamResponse, *, was_complete: bool = False) -> tuple[bool, bool]:
        """Whether its connection went back to the pool, and whether it is open."""
        found.slot = mock.Mock()
        found.close(was_complete=was_complete)
        found.close()
        found.slot.release.assert_called_once()
        return self.pool.give_back.called, self.connection.is_open

    def test_the_connection_of_a_body_that_ended_goes_back_to_the_pool(self) -> None:
        found = self.respond(chunk(b"one"), END)
        self.assertEqual(b"one", finish(found.read()))
        self.assertEqual((True, True), self.close(found))

    def test_the_connection_of_a_body_that_did_not_end_is_closed(self) -> None:
        self.assertEqual((False, False), self.close(self.respond(chunk(b"one"))))

    def test_the_end_behind_a_complete_answer_is_waited_for_a_moment(self) -> None:
        self.assertEqual((True, True), self.close(self.respond(chunk(b"one"), END), was_complete=True))
        self.pool.reset_mock()
        self.assertEqual((False, False), self.close(self.respond(chunk(b"one"), None), was_complete=True))
