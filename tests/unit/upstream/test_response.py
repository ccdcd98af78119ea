import math
import unittest
import zlib
from collections import deque
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.errors import UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.net import wait
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
    has_unsent_bytes = has_input = False

    def __init__(self, clock: "Clock", *script: bytes | None) -> None:
        self._clock = clock
        self.script = deque(script)
        self.is_open = True

    def receive(self, until: float, peer: object) -> bytes | None:
        received = self.script.popleft() if self.script else None
        if received is None:
            assert until < math.inf
            self._clock.now = max(self._clock.now, until)
        return received

    def close(self) -> None:
        self.is_open = False


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class TestUpstreamResponse(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        for module in (response, wait):
            self.enterContext(mock.patch.object(module, "time", self.clock))
        self.pool = mock.Mock()

    def respond(self, *script: bytes | None, head: bytes = CHUNKED, **settings: Any) -> UpstreamResponse:
        self.connection = Connection(self.clock, head, *script)
        config = ProxyConfig(**{"heartbeat_interval": 10, "request_timeout": 60, **settings})
        destination = Destination("http://x/chat/completions", "DeepSeek", "--base-url")
        found = UpstreamResponse(self.connection, self.pool, config, None, destination)  # type: ignore[arg-type]
        found.read_head()
        return found

    def test_a_compressed_stream_is_decoded_as_it_arrives(self) -> None:
        packer = zlib.compressobj(wbits=31)
        packed = packer.compress(b"one") + packer.flush(zlib.Z_SYNC_FLUSH)
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        found = self.respond(chunk(packed), head=head)
        with closing(found.stream()) as stream:
            self.assertEqual([b"one", Heartbeat()], [next(stream), next(stream)])

    def test_the_first_event_goes_alone_and_a_keep_alive_is_none(self) -> None:
        """The first waited until everything that had arrived with it was parsed."""
        keep_alive, events = b": keep-alive\n\n", [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
        whole = b"".join([keep_alive, *events])
        plain = CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(whole))
        for head, body in (
            (CHUNKED, b"".join(map(chunk, [keep_alive, *events])) + END),
            (CHUNKED, chunk(whole) + END),
            (plain, whole),
        ):
            found = self.respond(head=head + body)
            pieces = []
            for piece in found.stream():
                pieces.append(piece)
                found.note_progress()
            with self.subTest(body):
                self.assertEqual([keep_alive + events[0], b"".join(events[1:])], pieces)
                self.assertEqual((True, True), self.close(found))

    def test_a_silent_stream_has_heartbeats(self) -> None:
        found = self.respond(chunk(b"one"), None, chunk(b"two"), END)
        self.assertEqual([b"one", Heartbeat(), b"two"], list(found.stream()))

    def test_what_has_arrived_with_the_head_or_after_it_is_input(self) -> None:
        self.assertFalse(self.respond(None).has_input)
        self.assertTrue(self.respond(head=CHUNKED + chunk(b"one")).has_input)
        found = self.respond(None)
        self.connection.has_input = True
        self.assertTrue(found.has_input)

    def test_a_silent_stream_ends_after_the_request_timeout(self) -> None:
        found: list[object] = []
        with self.assertRaises(UpstreamTimeout):
            found.extend(self.respond(chunk(b"one")).stream())
        self.assertEqual((6, 1060.0), (len(found), self.clock.now))

    def test_progress_postpones_the_end_and_a_keep_alive_does_within_the_queue_patience(self) -> None:
        for note, ends_at in (("note_progress", 1110.0), ("note_keep_alive", 1080.0)):
            self.clock.now = 1000.0
            found = self.respond(*[None] * 5, chunk(b"x"), max_queue_seconds=80)
            with self.subTest(note), self.assertRaises(UpstreamTimeout):
                for piece in found.stream():
                    if piece == b"x":
                        getattr(found, note)()
            self.assertEqual(ends_at, self.clock.now)

    def test_behind_a_complete_answer_it_does_not_wait_for_long(self) -> None:
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
                list(self.respond(*script).stream())

    def test_a_body_is_bounded_encoded_or_not(self) -> None:
        for encode, coding in ((bytes, ""), (zlib.compress, "deflate")):
            head = CHUNKED.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {coding}\r\n\r\n".encode())
            script = [chunk(encode(b"x" * 1001)), END]
            self.assertEqual(1001, len(self.respond(*script, head=head).read(1001)))
            with self.subTest(coding), self.assertRaisesRegex(UpstreamFailed, "too large"):
                self.respond(*script, head=head).read(1000)

    def test_a_body_that_is_no_stream_is_refused_before_it_is_read(self) -> None:
        page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
        with self.assertRaisesRegex(UpstreamFailed, "text/html, which is not an event stream"):
            self.respond(head=page).raise_unless_stream()

    def close(self, found: UpstreamResponse, *, was_complete: bool = False) -> tuple[bool, bool]:
        found.slot = mock.Mock()
        found.close(was_complete=was_complete)
        found.close()
        found.slot.release.assert_called_once()
        return self.pool.give_back.called, self.connection.is_open

    def test_the_connection_of_a_body_that_ended_goes_back_to_the_pool(self) -> None:
        found = self.respond(chunk(b"one"), END)
        self.assertEqual(b"one", found.read())
        self.assertEqual((True, True), self.close(found))

    def test_the_connection_of_a_body_that_did_not_end_is_closed(self) -> None:
        self.assertEqual((False, False), self.close(self.respond(chunk(b"one"))))

    def test_the_end_behind_a_complete_answer_is_waited_for_a_moment(self) -> None:
        self.assertEqual((True, True), self.close(self.respond(chunk(b"one"), END), was_complete=True))
        self.pool.reset_mock()
        self.assertEqual((False, False), self.close(self.respond(chunk(b"one"), None), was_complete=True))
