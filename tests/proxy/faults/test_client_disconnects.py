"""A client that disconnects ends the call to DeepSeek in every phase and on every API, and nothing stays open.

A user who presses Stop pays for what is generated until the call is closed. The fake records when its client was gone;
where only that would end an answer it stalls for ever, so a call that is not closed fails the test.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.fake_deepseek import Answer, Failure, Raw, Step
from tests.support.harness import PATIENCE, SocketTestCase, read_to_the_end, read_until
from tests.support.histories import TOOLS
from tests.support.polling import eventually
from tests.support.resources import ResourceBaseline, descriptors
from tests.support.width import some

BODY: dict[str, Any] = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
NOTHING = Raw(b"", then_stall=True)
HALF_A_HEAD = Raw(b"HTTP/1.1 200 OK\r\nContent-Ty", then_stall=True)
HALF_A_BODY = Answer(reasoning="A thought.", content="Half of it.", stall_after=100)
SILENT = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)
# Longer than any test takes.
ACTIVE = Answer(reasoning="A thought.", content="Four" * 50_000, piece=4, pause=0.002)
# As fast as it can be written, and more than all buffers hold.
FLOOD = Answer(reasoning="A thought.", content="Four" * 10_000_000, piece=400_000)


# Ways to leave …


def by_closing(sock: socket.socket) -> None:
    """FIN, as from a client that aborts its request; what it had not read yet makes it a reset."""
    sock.close()


def by_resetting(sock: socket.socket) -> None:
    """RST, as from a process that was killed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def by_half_closing(sock: socket.socket) -> None:
    """FIN from somebody who could still listen; nobody can tell him from one who does not."""
    sock.shutdown(socket.SHUT_WR)


Ways = tuple[Callable[[socket.socket], None], ...]
WAYS: Ways = (by_closing, by_resetting, by_half_closing)


# What a request looks like, and how many calls DeepSeek gets for it …
DOORS: dict[str, tuple[dict[str, Any], int]] = {
    "one answer": ({}, 1), "three answers": ({"n": 3}, 3), "passed on": ({"model": "deepseek-flash"}, 1),
}  # fmt: skip


class DisconnectTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"ROUTE_KEY": "sk-of-the-route"}))
        route = {"base_url": self.fake.url, "key_env": "ROUTE_KEY"}
        self.running = self.proxy(passthrough={"deepseek-flash": route}, retry_budget=600, access_keys=["sk-test"])
        self.start_line = ResourceBaseline(self.running.address)

    def assert_noticed(self, step: Step, *, stream: bool, until: bytes = b"", ways: Ways = WAYS) -> None:
        """Asks through every door and leaves in every way, once all calls stall or the client has read `until`."""
        for (door, (fields, calls)), leave in some(itertools.product(DOORS.items(), ways), 2):
            with self.subTest(door, leave=leave.__name__), self.open_stream({"stream": stream, **fields}, step) as sock:
                if until:
                    read_until(sock, until)
                else:
                    self.await_stalls(calls)
                self.leave(sock, leave, calls)
                self.start_line.assert_restored(self)

    def leave(self, sock: socket.socket, leave: Callable[[socket.socket], None], calls: int = 1) -> bytes:
        """Leaves and sees all calls closed; what the connection still brought to somebody who only closed his half."""
        leave(sock)
        rest = read_to_the_end(sock) if leave is by_half_closing else b""
        sock.close()
        for _ in range(calls):
            self.fake.hang_ups.get(timeout=PATIENCE)
        return rest

    @contextlib.contextmanager
    def open_stream(self, fields: dict[str, Any], step: Step) -> Iterator[socket.socket]:
        """Somebody who has asked, and gets this step for an answer, as often as it takes."""
        self.fake.forget()
        self.fake.answer(*[step] * fields.get("n", 1))
        with self.connect(self.running, {**BODY, **fields}) as sock:
            yield sock

    def await_stalls(self, calls: int = 1) -> None:
        for _ in range(calls):
            self.fake.stalls.get(timeout=PATIENCE)


class TestDisconnects(DisconnectTestCase):
    def test_a_disconnect_before_the_answer_ends_the_call(self) -> None:
        for stream in (False, True):
            self.assert_noticed(NOTHING, stream=stream)
        self.assert_noticed(HALF_A_HEAD, stream=True)

    def test_a_disconnect_from_a_silent_stream_ends_the_call(self) -> None:
        self.assert_noticed(SILENT, stream=True)

    def test_a_disconnect_from_a_running_stream_ends_the_call(self) -> None:
        self.assert_noticed(ACTIVE, stream=True, until=b'"Four"')

    def test_a_disconnect_from_a_stream_without_pauses_ends_the_call(self) -> None:
        self.assert_noticed(FLOOD, stream=True, until=b'"FourFour', ways=WAYS[:2])

    def test_a_disconnect_from_a_plain_request_ends_the_call(self) -> None:
        self.assert_noticed(HALF_A_BODY, stream=False)

    def test_a_disconnect_while_a_retry_waits_ends_the_request(self) -> None:
        """The call is over by then; what has to end is the waiting, and no other call may follow it."""
        busy = Failure(503, headers=(("Retry-After", "300"), ("Connection", "close")))
        for fields, calls in list(DOORS.values())[:2]:
            for leave in WAYS:
                with self.subTest(calls=calls, leave=leave.__name__), self.open_stream(fields, busy) as sock:
                    self.assertTrue(eventually(functools.partial(self.are_waiting, calls)))
                    self.leave(sock, leave, calls=0)
                    self.start_line.assert_restored(self)
                    self.assertEqual(calls, len(self.fake.seen))

    def are_waiting(self, calls: int) -> bool:
        """All calls were refused, and nothing is open but the client's connection."""
        is_refused = len(self.fake.seen) == calls
        # Several choices have a socket pair in place of the client.
        own = 2 if calls == 1 else 4
        return is_refused and descriptors() in (0, self.start_line.descriptors + own)


class TestReasoningSoFar(DisconnectTestCase):
    def test_the_reasoning_before_a_disconnect_is_restored_in_the_next_request(self) -> None:
        for display in (False, True):
            for leave in WAYS:
                with self.subTest(display=display, leave=leave.__name__):
                    self.running = self.proxy(display_reasoning=display)
                    with self.open_stream({"stream": True}, SILENT) as sock:
                        self.await_stalls()
                        seen = read_until(sock, b"Half of it")
                        self.leave(sock, leave)
                    self.go_on(seen)
                    self.assert_upstream_saw("A thought.")

    def test_the_reasoning_of_a_stream_is_stored_up_to_the_last_chunk_that_was_sent(self) -> None:
        self.running = self.proxy(display_reasoning=False)
        with self.open_stream({"stream": True}, ACTIVE) as sock:
            seen = read_until(sock, b'"Four"')
            seen += self.leave(sock, by_half_closing)
        self.go_on(seen)
        self.assert_upstream_saw(ACTIVE.reasoning)

    def go_on(self, seen: bytes) -> None:
        """The next request of a client that was shown this much of an answer."""
        client = self.client(self.running)
        text = "".join(delta.get("content") or "" for delta in deltas(seen))
        client.messages = [*BODY["messages"], {"role": "assistant", "content": text}]
        self.assertTrue(client.ask("Go on.").final.is_whole)
        self.assertEqual([], self.fake.refused)


def deltas(seen: bytes) -> Iterator[dict[str, Any]]:
    for line in re.findall(rb"^data: (\{.*\})\r?$", seen, re.MULTILINE):
        for choice in json.loads(line)["choices"]:
            yield choice["delta"]
