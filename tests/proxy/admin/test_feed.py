"""The feed of an open dashboard, over real sockets: what it says, and what it must never hold up."""

import itertools
import socket
import threading
import time
from dataclasses import replace
from unittest import mock

from deepseek_cursor_proxy.admin import feed
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.observers.events import End, Refused, RequestFacts, Result
from tests.fake_deepseek import Answer
from tests.support.admin_client import ADMIN_KEY, AdminCase, FeedReader
from tests.support.harness import PATIENCE, RunningProxy, chat_body, read_until
from tests.support.polling import wait_until


class FeedTest(AdminCase):
    def test_a_request_appears_runs_and_ends(self) -> None:
        proxy = self.admin_proxy()
        reader = self.feed(self.admin(proxy))
        self.assertEqual({"version", "now"}, set(reader.next("hello")[1]))
        self.fake.answer(Answer(content="word " * 40, stall_after=6))
        sock = self.connect(proxy, chat_body(stream=True))
        first = reader.next("running")[1]
        while first["phase"] != "streaming":
            first = reader.next("running")[1]
        self.assertEqual((1, True), (first["number"], first["stream"]))
        self.fake.release.set()
        read_until(sock, b"[DONE]")
        self.assertEqual({"number": 1}, reader.next("ended")[1])
        row = reader.next("request")[1]
        self.assertEqual((1, "completed"), (row["number"], row["outcome"]))

    def test_a_feed_begins_with_what_is_running(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.fake.answer(Answer(content="word " * 40, stall_after=6))
        self.connect(proxy, chat_body(stream=True))
        self.fake.stalls.get(timeout=PATIENCE)
        reader = self.feed(admin)
        self.assertEqual("hello", reader.next()[0])
        name, running = reader.next()
        self.assertEqual(("running", 1), (name, running["number"]))

    def test_stats_come_at_once_and_again(self) -> None:
        self.enterContext(mock.patch.dict(feed._INTERVALS, stats=0.05))
        reader = self.feed(self.admin(self.admin_proxy()))
        for _ in range(3):
            stats = reader.next("stats")[1]
            self.assertNotIn("in_flight", stats)
            self.assertEqual(60, len(stats["last_minutes"]))

    def test_silence_is_broken_by_a_comment(self) -> None:
        self.enterContext(mock.patch.dict(feed._INTERVALS, stats=3600.0, heartbeat=0.05))
        admin = self.admin(self.admin_proxy())
        host, port = "127.0.0.1", int(admin.url.rpartition(":")[2])
        sock = self.enterContext(socket.create_connection((host, port), PATIENCE))
        sock.sendall(
            f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\n\r\n".encode()
        )
        read_until(sock, feed._HEARTBEAT + b"\r\n")

    def test_a_reader_that_does_not_read_holds_up_no_request(self) -> None:
        self.enterContext(mock.patch.multiple(feed, _MOST_BYTES=4096, _GATHER_SECONDS=0.001))
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        stuck, other = self.feed(admin), self.feed(admin)
        for _ in range(30):
            self.assertEqual(200, self.round_trip(proxy, chat_body()).status)
        numbers = []
        while 30 not in numbers:
            numbers.append(other.next("request")[1]["number"])
        self.assertEqual(sorted(numbers), numbers)
        stuck.close()

    def test_a_thousand_events_a_second_to_three_dashboards_slow_no_stream(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        readers = [self.feed(admin) for _ in range(3)]
        log = proxy.server.services().request_log
        self.fake.answer(*[Answer(content="x" * 60, piece=1, pause=0.01)] * 2)
        alone = self.stream_seconds(proxy)
        is_over = threading.Event()

        def emit() -> None:
            for number in itertools.count(1000):
                facts = RequestFacts(number, time.time(), "other")
                log.end(Refused(facts, "route", End(Result.REFUSED, 404, "absent"), 0.0))
                if number % 10 == 0 and is_over.wait(0.01):
                    last.append(number)
                    return

        last: list[int] = []
        thread = threading.Thread(target=emit)
        thread.start()
        watched = self.stream_seconds(proxy)
        is_over.set()
        thread.join()
        # Generous, because the machine may be busy: what is proved is that nobody waits for the dashboards.
        self.assertLess(watched, 2 * alone + 0.5)
        for reader in readers:
            while reader.next("request")[1]["number"] != last[0]:
                pass

    def stream_seconds(self, proxy: RunningProxy) -> float:
        began = time.monotonic()
        self.assertTrue(self.round_trip(proxy, chat_body(stream=True)).body.endswith(b"[DONE]\n\n"))
        return time.monotonic() - began

    def test_head_opens_no_feed(self) -> None:
        admin = self.admin(self.admin_proxy())
        reply = self.get(admin, "/api/events", method="HEAD")
        self.assertEqual((200, b""), (reply.status, reply.body))
        wait_until(lambda: not admin.load_app()._feeds._open)

    def test_too_many_feeds_are_a_503(self) -> None:
        self.enterContext(mock.patch.object(feed, "_MOST_FEEDS", 1))
        admin = self.admin(self.admin_proxy())
        reader = self.feed(admin)
        self.assertEqual(503, self.get(admin, "/api/events").status)
        reader.close()
        wait_until(lambda: not admin.load_app()._feeds._open)
        self.assertEqual(200, self.feed(admin).status)

    def test_no_descriptors_left_is_a_503(self) -> None:
        admin = self.admin(self.admin_proxy())
        with mock.patch.object(feed, "Wakeup", side_effect=OSError(24, "Too many open files")):
            self.assertEqual(503, self.get(admin, "/api/events").status)

    def test_a_new_key_ends_feeds_that_were_opened_with_the_old_one(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        reader = self.feed(admin)
        reader.next("hello")
        # The same key again ends nothing.
        admin.reload(admin.context.loaded)
        reader.next("stats")
        config = replace(proxy.server.config, admin_key=AccessKey.of("sk-another-key-of-the-admin"))
        admin.reload(admin.context.loaded._replace(config=config))
        with self.assertRaises(EOFError):
            while True:
                reader.next()

    def test_the_stop_ends_open_feeds_at_once_and_properly(self) -> None:
        admin = self.admin(self.admin_proxy())
        readers = [self.feed(admin) for _ in range(12)]
        for each in readers:
            each.next("hello")
        began = time.monotonic()
        admin.close()
        self.assertLess(time.monotonic() - began, 3)
        for each in readers:
            with self.assertRaises(EOFError):
                while True:
                    each.next()

    def test_a_reload_of_the_settings_keeps_the_feed_and_the_counts(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        reader = self.feed(admin)
        self.round_trip(proxy, chat_body())
        reader.next("request")
        proxy.server.reconfigure(replace(proxy.server.config, cors=True))
        self.round_trip(proxy, chat_body())
        self.assertEqual(2, reader.next("request")[1]["number"])
        self.assertIn(b'outcome="completed"} 2\n', self.get(admin, "/metrics").body)

    def test_a_bug_in_the_feed_ends_it_and_is_logged(self) -> None:
        admin = self.admin(self.admin_proxy())
        with (
            mock.patch.object(feed.stats, "summary", side_effect=RuntimeError("bug")),
            self.assertLogs(feed.__name__, "ERROR"),
            self.assertRaises(EOFError),
        ):
            reader = FeedReader(admin.url)
            self.addCleanup(reader.close)
            while True:
                reader.next()
