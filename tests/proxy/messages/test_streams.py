"""Message streams: silence, comments, disconnects, many at once."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from tests.fake_deepseek import Answer, Call, Failure
from tests.proxy.faults.test_client_disconnects import WAYS
from tests.support import responses_client
from tests.support.harness import PATIENCE, read_until
from tests.support.messages_client import TOOLS, MessagesTestCase, kinds, user
from tests.support.polling import eventually
from tests.support.raw_streams import EVENT_STREAM
from tests.support.raw_upstream import RawUpstream, ScriptedReply
from tests.support.resources import ResourceBaseline
from tests.support.width import width

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')


class TestPings(MessagesTestCase):
    def test_a_silent_message_stream_gets_pings_and_then_an_error(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02, request_timeout=1.0)
        self.fake.answer(Answer(content="y", stall_after=0))
        reply = self.create(proxy, stream=True)
        self.assertGreater(responses_client.kinds(reply.events).count("ping"), 1)
        self.assertEqual("error", reply.events[-1]["type"])

    def test_pings_may_come_inside_a_block(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer("A thought.", "y", piece=5, stall_after=2))
        with self.open_stream(proxy) as sock:
            # Others may come before the block begins.
            read_until(sock, b"event: content_block_delta")
            read_until(sock, b"event: ping")
            self.fake.release.set()
            read_until(sock, b"event: message_stop")

    def test_comments_of_upstream_are_no_pings(self) -> None:
        self.fake.answer(Answer(content="y", comments=50))
        reply = self.create(self.proxy(), stream=True)
        self.assertNotIn("ping", responses_client.kinds(reply.events))
        self.assertNotIn(b"keep-alive", reply.body)

    def test_pings_come_between_endless_comments(self) -> None:
        has_pinged = threading.Event()
        end = b'data: {"choices":[{"index":0,"delta":{"content":"Hi."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

        def pieces(request: bytes) -> Iterator[bytes]:
            yield EVENT_STREAM
            while not has_pinged.wait(0.005):
                yield b": keep-alive\n\n"
            yield end

        upstream = self.enterContext(RawUpstream(lambda request: ScriptedReply(pieces(request))))
        with self.open_stream(self.proxy(upstream_base_url=upstream.url, heartbeat_interval=0.1)) as sock:
            seen = read_until(sock, b"event: ping")
            has_pinged.set()
            seen += read_until(sock, b"event: message_stop")
        self.assertLess(seen.count(b"event: ping"), 4)

    def test_a_forced_answer_that_is_held_back_gets_pings(self) -> None:
        proxy = self.proxy(heartbeat_interval=0.02)
        self.fake.answer(Answer(content="Some words.", piece=4, stall_after=3))
        with self.open_stream(proxy, tools=TOOLS, tool_choice={"type": "any"}) as sock:
            seen = read_until(sock, b"event: ping")
            self.assertNotIn(b"Some", seen)
            self.fake.release.set()
            read_until(sock, b"event: message_stop")


class TestStreams(MessagesTestCase):
    def test_a_disconnect_from_a_message_stream_ends_the_call_and_stores_the_reasoning(self) -> None:
        start_line = ResourceBaseline(self.running.address)
        for leave in WAYS:
            with self.subTest(leave.__name__):
                self.fake.forget()
                self.fake.answer(Answer(f"A thought {leave.__name__}.", "Half of it.", piece=100, stall_after=3))
                with self.open_stream(self.running, messages=[user(leave.__name__)]) as sock:
                    self.assertIn(b"A thought by_", read_until(sock, b"Half of it."))
                    leave(sock)
                    self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
                start_line.assert_restored(self)
        answer = {"role": "assistant", "content": [{"type": "text", "text": "Half of it."}]}
        for leave in WAYS:
            self.complete(self.running, user(leave.__name__), answer, user("go on"), tools=TOOLS)
            self.assert_upstream_saw(f"A thought {leave.__name__}.")

    def test_a_bug_in_the_store_releases_the_slot(self) -> None:
        self.fake.answer(Answer("A thought.", "Half of it.", piece=100, stall_after=3))
        bug = mock.patch.object(self.running.store, "record", side_effect=RuntimeError)
        with bug, self.assertLogs(level="ERROR") as logs:
            with self.open_stream(self.running) as sock:
                read_until(sock, b"Half of it.")
            self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
            self.assertTrue(eventually(lambda: logs.output))
        limit = self.running.server.services().upstream.call_limits.of("deepseek-v4-pro")
        self.assertTrue(eventually(lambda: limit.running_calls == 0))

    def test_a_client_that_leaves_before_the_first_event_ends_the_call(self) -> None:
        for stream in (True, False):
            self.fake.forget()
            self.fake.answer(Answer(content="y", stall_after=0))
            with self.open_stream(self.proxy(), stream=stream):
                self.fake.stalls.get(timeout=PATIENCE)
            self.assertTrue(self.fake.wait_for_hangup(PATIENCE))

    def test_the_first_event_does_not_wait_for_the_answer(self) -> None:
        self.fake.answer(Answer(content="y", stall_after=0))
        with self.open_stream(self.proxy()) as sock:
            self.assertIn(b"event: message_start", read_until(sock, b"\n\n"))
            self.fake.release.set()
            read_until(sock, b"event: message_stop")

    def test_many_message_streams_at_once_are_not_mixed_up(self) -> None:
        proxy = self.proxy()
        text = " ".join(f"word{number}" for number in range(width(80, 200)))
        streams = width(8, 24)
        self.fake.answer(*[Answer(text, text, (CALL,), piece=7, pause=0.0005)] * streams)

        def ask(_: int) -> None:
            found = self.complete(proxy, stream=True, tools=TOOLS)
            self.assertEqual(["thinking", "text", "tool_use"], kinds(found))
            self.assertEqual([text, text], [found["content"][0]["thinking"], found["content"][1]["text"]])

        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(ask, range(streams)))

    def test_a_busy_deepseek_is_retried_before_the_first_event(self) -> None:
        proxy = self.proxy(retry_budget=60)
        self.fake.answer(Failure(503, headers=(("Retry-After", "0"),)), Answer(content="Hi."))
        self.assertEqual(["text"], kinds(self.complete(proxy, stream=True)))
        self.assertEqual(2, len(self.fake.seen))


class TestCrowds(MessagesTestCase):
    def test_ten_silent_message_streams_go_on_with_their_answers(self) -> None:
        proxy = self.proxy()
        self.fake.answer(*[Answer("A thought.", "Some words.", piece=5, stall_after=2)] * 10)
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(self.open_stream(proxy)) for _ in range(10)]
            seen = [read_until(sock, b"thinking_delta") for sock in socks]
            self.assertTrue(eventually(lambda: self.fake.stalls.qsize() == 10))
            self.fake.release.set()
            seen = [data + read_until(sock, b"event: message_stop") for data, sock in zip(seen, socks, strict=True)]
        for data in seen:
            self.assertIn(b'"thinking":"ught."', data)
            self.assertIn(b"words", data)
