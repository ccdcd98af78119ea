"""Ends that race each other: a response has one end, the same for every client."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.fake_deepseek import Answer
from tests.proxy.features.responses.test_background import BackgroundTestCase, dechunked
from tests.support.harness import PATIENCE
from tests.support.polling import eventually
from tests.support.responses_client import PATH, Json, check_stream, events
from tests.support.threads import run_at_once

ENDS = ("completed", "cancelled")


def at_once(*deeds: Callable[[], Any]) -> None:
    """All of them from the same moment on, and until the last one is done."""
    start = threading.Barrier(len(deeds))

    def run(deed: Callable[[], Any]) -> None:
        start.wait(PATIENCE)
        deed()

    run_at_once(run, deeds)


class TestRaces(BackgroundTestCase):
    def stalled_after(self, count: int) -> Json:
        """A response whose answer stalls after so many events, until it is released."""
        self.addCleanup(self.fake.release.set)
        self.fake.release.clear()
        self.fake.answer(Answer("A thought.", "Some text.", piece=4, stall_after=count))
        queued = self.queued(self.running)
        self.fake.stalls.get(timeout=PATIENCE)
        return queued

    def test_an_end_that_races_a_cancel_gives_one_final_status(self) -> None:
        for count in range(9):
            response = self.stalled_after(count)
            told: list[Json] = []
            with self.following(self.running, response) as read:
                read(b"response.in_progress")
                at_once(
                    self.fake.release.set,
                    lambda response=response, told=told: told.append(self.cancel(self.running, response)),
                    lambda response=response, told=told: told.append(self.cancel(self.running, response)),
                )
                last = check_stream(events(dechunked(read())))
            with self.subTest(count):
                found = self.get(self.running, response).value
                self.assertEqual([last, found, found], [found, *told])
                self.assertIn(found["status"], ENDS)

    def test_an_end_that_races_a_delete_leaves_nothing(self) -> None:
        tasks = self.running.server.services().get(Responses).jobs._jobs
        for count in range(9):
            response = self.stalled_after(count)
            path = f"{PATH}/{response['id']}"
            at_once(self.fake.release.set, lambda path=path: self.send(self.running, "DELETE", path))
            self.assertTrue(eventually(lambda: not tasks))
            with self.subTest(count):
                self.assertEqual(404, self.get(self.running, response).status)

    def test_two_deletes_at_once_are_one_success(self) -> None:
        for background in (False, True):
            response = self.create(self.running, "q", background=background).value
            told: list[int] = []
            delete = functools.partial(self.send, self.running, "DELETE", f"{PATH}/{response['id']}")
            at_once(*[lambda told=told, delete=delete: told.append(delete().status)] * 2)
            self.assertEqual([200, 404], sorted(told))

    def test_many_responses_continue_the_same_one_at_once(self) -> None:
        first = self.complete(self.running, "q")
        found: list[Json] = []
        at_once(*[lambda: found.append(self.complete(self.running, "and?", previous_response_id=first["id"]))] * 6)
        self.assertEqual(6, len({each["id"] for each in found}))
        for each in found:
            self.assertEqual(each, self.get(self.running, each).value)
