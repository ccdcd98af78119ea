"""Background responses: they outlive their client, every client of the key can read their events, and they end once."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.responses.feature import Responses
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Failure
from tests.support.harness import PATIENCE, RunningProxy, read_to_the_end, read_until, request_bytes
from tests.support.polling import eventually
from tests.support.responses_client import PATH, Json, ResponsesTestCase, check_stream, events, kinds, question
from tests.support.width import width

SHORT = Answer(reasoning="Hm.", content="Hello.")
STALLED = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)


class BackgroundTestCase(ResponsesTestCase):
    def queued(self, proxy: RunningProxy, input: Any = "q", **body: Any) -> Json:
        reply = self.create(proxy, input, background=True, **body)
        self.assertEqual((200, "queued"), (reply.status, reply.value["status"]), reply.body)
        return reply.value

    def stalled(self, proxy: RunningProxy) -> Json:
        self.fake.answer(STALLED)
        queued = self.queued(proxy)
        self.fake.stalls.get(timeout=PATIENCE)
        # Until all that DeepSeek has said by now can be followed.
        with self.following(proxy, queued) as seen:
            seen(b"A thought.")
        return queued

    def finished(self, proxy: RunningProxy, response: Json) -> Json:
        found: Json = {}

        def is_so() -> bool:
            found.update(self.get(proxy, response).value)
            return found["status"] in ("completed", "failed", "incomplete", "cancelled")

        self.assertTrue(eventually(is_so), found)
        return found

    def cancel(self, proxy: RunningProxy, response: Json) -> Json:
        reply = self.send(proxy, "POST", f"{PATH}/{response['id']}/cancel")
        self.assertEqual(200, reply.status, reply.body)
        return reply.value

    @contextlib.contextmanager
    def following(self, proxy: RunningProxy, response: Json, rest: str = "") -> Iterator[Callable[..., bytes]]:
        """Somebody who follows; what is yielded reads until a mark, or with none to the end, and tells all so far."""
        sock = self.connect(proxy)
        path = f"{PATH}/{response['id']}?stream=true{rest}"
        sock.sendall(request_bytes(method="GET", path=path, headers=["Connection: close"]))
        seen = bytearray()

        def read(mark: bytes = b"") -> bytes:
            if mark not in seen or not mark:
                seen.extend(read_until(sock, mark) if mark else read_to_the_end(sock))
            return bytes(seen)

        with sock:
            yield read

    def replayed(self, proxy: RunningProxy, response: Json, after: int) -> list[Json]:
        reply = self.get(proxy, response, f"?stream=true&starting_after={after}")
        self.assertEqual(200, reply.status, reply.body)
        return reply.events


class TestBackground(BackgroundTestCase):
    def test_a_background_response_is_queued_then_in_progress_then_completed(self) -> None:
        queued = self.stalled(self.running)
        self.assertTrue(queued["background"])
        self.assertEqual([], queued["output"])
        self.assertEqual("in_progress", self.get(self.running, queued).value["status"])
        self.fake.release.set()
        found = self.finished(self.running, queued)
        self.assertEqual(("completed", "Half of it."), (found["status"], found["output_text"]))
        self.assertEqual(queued["id"], found["id"])
        items = self.get(self.running, queued, "/input_items").value["data"]
        self.assertEqual([question("q")["content"]], [item["content"] for item in items])

    def test_a_background_response_can_be_continued_once_it_is_finished(self) -> None:
        queued = self.stalled(self.running)
        reply = self.create(self.running, "and?", previous_response_id=queued["id"])
        self.assertEqual((400, "previous_response_id"), (reply.status, reply.error["param"]))
        self.fake.release.set()
        self.finished(self.running, queued)
        self.complete(self.running, "and?", previous_response_id=queued["id"])
        self.assert_upstream_saw("A thought.")

    def test_a_disconnect_does_not_stop_a_background_response(self) -> None:
        self.fake.answer(STALLED)
        with self.open_stream(self.running, "q", background=True) as sock:
            head = read_until(sock, b"A thought.")
        response = first_response(head)
        self.fake.release.set()
        self.assertEqual("completed", self.finished(self.running, response)["status"])
        self.assertFalse(self.fake.hung_up.is_set())

    def test_a_background_failure_is_an_error_in_the_response(self) -> None:
        cut = Answer(reasoning="Hm.", content="Some text.", piece=4, cut_after=3)
        limit = Answer(reasoning="Hm.", content="Half", finish_reason="length")
        for step, status, code in (
            (Failure(429, "slow"), "failed", "rate_limit_exceeded"), (Failure(503, "busy"), "failed", "server_error"),
            (Failure(400, "no"), "failed", "invalid_prompt"), (cut, "failed", "server_error"),
            (limit, "incomplete", None),
        ):  # fmt: skip
            with self.subTest(str(step)[:20]):
                proxy = self.proxy()
                self.fake.answer(step)
                found = self.finished(proxy, self.queued(proxy))
                self.assertEqual((status, code), (found["status"], (found["error"] or {}).get("code")))
                self.assertEqual(found, check_stream(self.replayed(proxy, found, -1)))

    def test_a_background_response_is_stored_before_its_last_event(self) -> None:
        responses = self.running.server.services().get(Responses).store
        is_asked, may_store, update = threading.Event(), threading.Event(), responses.update

        def slow(caller: bytes, response: Any) -> bool:
            if response.body["status"] == "completed":
                is_asked.set()
                may_store.wait(PATIENCE)
            return update(caller, response)

        with mock.patch.object(responses, "update", slow):
            queued = self.queued(self.running)
            self.assertTrue(is_asked.wait(PATIENCE))
            with self.following(self.running, queued) as read:
                self.assertNotIn(b"event: response.completed", read(b"event: response.output_item.done"))
                self.assertEqual("in_progress", self.get(self.running, queued).value["status"])
                may_store.set()
                read(b"event: response.completed")
                self.assertEqual("completed", self.get(self.running, queued).value["status"])

    def test_background_without_store_is_refused(self) -> None:
        reply = self.create(self.proxy(), "q", background=True, store=False)
        self.assertEqual((400, "background"), (reply.status, reply.error["param"]))
        self.assertEqual([], self.fake.seen)


class TestEvents(BackgroundTestCase):
    def test_background_events_are_replayed_from_any_number(self) -> None:
        queued = self.stalled(self.running)
        with (
            self.following(self.running, queued) as first,
            self.following(self.running, queued, "&starting_after=3") as second,
        ):
            early = events(dechunked(first(b"A thought.")))
            self.assertEqual(["response.created", "response.queued", "response.in_progress"], kinds(early)[:3])
            self.assertEqual(["queued", "queued", "in_progress"], [each["response"]["status"] for each in early[:3]])
            self.fake.release.set()
            whole = events(dechunked(first()))
            response = check_stream(whole)
            self.assertEqual(whole[4:], events(dechunked(second())))
        self.assertEqual(response, self.finished(self.running, queued))
        for after in range(-1, len(whole) + 1):
            self.assertEqual(whole[after + 1 :], self.replayed(self.running, queued, after))
        self.assertEqual(whole, self.get(self.running, queued, "?stream=true").events)

    def test_a_long_background_answer_is_replayed_as_it_was_sent(self) -> None:
        text = "".join(f"w{number % 997} " for number in range(width(2000, 8000)))
        self.fake.answer(Answer(reasoning="Hm.", content=text, piece=4))
        reply = self.create(self.running, "q", background=True, stream=True)
        self.assertGreater(len(reply.body), width(250_000, 1_000_000))
        for after in (-1, 0, 300, width(1200, 5000), len(reply.events) - 2, len(reply.events)):
            replayed = self.get(self.running, reply.response, f"?stream=true&starting_after={after}")
            self.assertEqual(reply.events[after + 1 :], replayed.events)
        _, size = self.running.server.services().get(Responses).store.totals()
        self.assertLess(size, 6 * len(text))

    def test_a_client_gets_heartbeats_while_its_response_waits_for_a_worker(self) -> None:
        proxy = self.proxy(background_workers=1, heartbeat_interval=0.05)
        self.stalled(proxy)
        waiting = self.queued(proxy)
        with self.following(proxy, waiting) as first, self.following(proxy, waiting, "&starting_after=0") as second:
            for read in (first, second):
                self.assertNotIn(b"response.in_progress", read(b": keep-alive\n\n"))
            self.fake.release.set()
            whole, rest = (events(dechunked(read()).replace(b": keep-alive\n\n", b"")) for read in (first, second))
        self.assertEqual("completed", check_stream(whole)["status"])
        self.assertEqual(whole[1:], rest)


class TestCancel(BackgroundTestCase):
    def test_cancelling_a_background_response_closes_its_call(self) -> None:
        queued = self.stalled(self.running)
        with self.following(self.running, queued) as read:
            cancelled = self.cancel(self.running, queued)
            self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
            self.assertEqual(cancelled, check_stream(events(dechunked(read()))))
        self.assertEqual("cancelled", cancelled["status"])
        self.assertEqual("A thought.", cancelled["output"][0]["content"][0]["text"])
        self.assertEqual(cancelled, self.get(self.running, queued).value)
        self.assertEqual(cancelled, self.cancel(self.running, queued))

    def test_cancelling_a_finished_response_changes_nothing(self) -> None:
        for step in (SHORT, Failure(503, "busy")):
            self.fake.answer(step)
            found = self.finished(self.running, self.queued(self.running))
            self.assertEqual(found, self.cancel(self.running, found))
            self.assertEqual(found, self.get(self.running, found).value)

    def test_a_queued_response_is_cancelled_without_a_call(self) -> None:
        proxy = self.proxy(background_workers=1)
        running = self.stalled(proxy)
        waiting = self.queued(proxy)
        self.assertEqual("queued", self.get(proxy, waiting).value["status"])
        self.assertEqual("cancelled", self.cancel(proxy, waiting)["status"])
        self.fake.release.set()
        self.assertEqual("completed", self.finished(proxy, running)["status"])
        self.assertEqual(1, len(self.fake.seen))

    def test_a_response_deleted_while_it_runs_stays_deleted(self) -> None:
        queued = self.stalled(self.running)
        services = self.running.server.services()
        may_end, update = threading.Event(), services.get(Responses).store.update

        def slow(*details: Any) -> bool:
            may_end.wait(PATIENCE)
            return update(*details)

        with mock.patch.object(services.get(Responses).store, "update", slow):
            self.assertTrue(self.send(self.running, "DELETE", f"{PATH}/{queued['id']}").value["deleted"])
            # Also while its last words are still being written.
            self.assert_gone(self.running, queued)
            self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
            may_end.set()
            self.assertTrue(eventually(lambda: not services.get(Responses).jobs._jobs))
        self.assert_gone(self.running, queued)

    def assert_gone(self, proxy: RunningProxy, response: Json) -> None:
        for rest in ("", "?stream=true", "/input_items"):
            self.assertEqual(404, self.get(proxy, response, rest).status)
        self.assertEqual(404, self.send(proxy, "POST", f"{PATH}/{response['id']}/cancel").status)
        self.assertEqual(404, self.send(proxy, "DELETE", f"{PATH}/{response['id']}").status)


class TestBounds(BackgroundTestCase):
    def test_a_full_background_queue_is_a_429_and_stores_nothing(self) -> None:
        proxy = self.proxy(background_workers=1, background_queue=1)
        running = self.stalled(proxy)
        waiting = self.queued(proxy)
        refused = self.create(proxy, "q", background=True)
        self.assertEqual((429, "rate_limit_exceeded"), (refused.status, refused.error["code"]))
        self.assertTrue(refused.headers["retry-after"].isdigit())
        self.assertEqual(2, proxy.server.services().get(Responses).store.totals()[0])
        self.fake.release.set()
        for each in (running, waiting):
            self.assertEqual("completed", self.finished(proxy, each)["status"])
        self.assertEqual("completed", self.finished(proxy, self.queued(proxy))["status"])


class TestStop(BackgroundTestCase):
    @property
    def path(self) -> Path:
        return self.folder / "store.sqlite3"

    def stop(self, proxy: RunningProxy) -> None:
        proxy.server.shutdown()
        proxy.server.server_close()

    def test_responses_that_a_stop_ends_are_failed(self) -> None:
        proxy = self.proxy(ReasoningStore(self.path), background_workers=1)
        running, waiting = self.stalled(proxy), self.queued(proxy)
        self.stop(proxy)
        again = self.proxy(ReasoningStore(self.path))
        for response in (running, waiting):
            found = self.get(again, response).value
            self.assertEqual(("failed", "server_error"), (found["status"], found["error"]["code"]))
            self.assertEqual(found, check_stream(self.replayed(again, response, -1)))
        self.assertEqual("A thought.", self.get(again, running).value["output"][0]["content"][0]["text"])


def first_response(data: bytes) -> Json:
    return dict(events(dechunked(data))[0]["response"])


def dechunked(data: bytes) -> bytes:
    """The body in the bytes of a reply that may not be there as a whole yet."""
    _, _, rest = data.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, mark, rest = rest.partition(b"\r\n")
        length = int(size, 16) if mark else 0
        body, rest = body + rest[:length], rest[length + 2 :]
    return body
