"""The services of a proxy over its life: stored responses and background jobs, from start to stop."""

import logging
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.errors import ClientGone, ProxyStopping
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.features.responses import feature
from deepseek_cursor_proxy.features.responses.feature import Job, Responses
from deepseek_cursor_proxy.features.responses.store import StoredResponse
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Raw, Step
from tests.support.client_requests import client_request
from tests.support.harness import PATIENCE, SocketTestCase

ME = b"m" * 32
BODY: dict[str, Any] = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
NOTHING = Raw(b"", then_stall=True)
SILENT = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)


def unfinished(name: str) -> StoredResponse:
    return StoredResponse({"id": name, "status": "in_progress"}, [])


class TestStart(SocketTestCase):
    def store(self) -> ReasoningStore:
        return self.enterContext(closing(ReasoningStore(self.folder / "store.sqlite3")))

    def test_unfinished_responses_of_the_last_run_are_failed_and_logged_once(self) -> None:
        services = proxy.build(self.config(), self.store())
        for name in ("a", "b"):
            services.get(Responses).store.put(ME, unfinished(name))
        services.close()
        with self.assertLogs(feature.__name__, logging.WARNING) as logged:
            services = self.enterContext(closing(proxy.build(self.config(), self.store())))
        self.assertEqual(1, len(logged.output))
        self.assertIn("2 stored responses were not finished", logged.output[0])
        found = services.get(Responses).store.get(ME, "a")
        self.assertEqual("failed", found.body["status"])

    def test_a_change_of_settings_keeps_jobs_and_responses(self) -> None:
        running = self.proxy()
        before = running.server.services()
        before.get(Responses).store.put(ME, unfinished("a"))
        with self.assertNoLogs("deepseek_cursor_proxy", logging.WARNING):
            running.server.reconfigure(replace(running.server.config, background_workers=9, upstream_model="other"))
        after = running.server.services()
        self.assertIsNot(before, after)
        self.assertEqual("other", after.config.upstream_model)
        self.assertIs(before.get(Responses).jobs, after.get(Responses).jobs)
        self.assertIs(before.memory, after.memory)
        self.assertIs(before.get(Responses).store, after.get(Responses).store)
        found = after.get(Responses).store.get(ME, "a")
        self.assertEqual("in_progress", found.body["status"])

    def config(self) -> Any:
        return self.proxy().server.config


class TestJobs(SocketTestCase):
    """A real exchange as the work of a job, in front of a DeepSeek that says nothing more."""

    def setUp(self) -> None:
        super().setUp()
        self.running = self.proxy(retry_budget=600)
        self.services = self.running.server.services()
        self.ended: list[str] = []

    def work(self, job: Job) -> None:
        services = self.services
        try:
            client = client_request(services.open_report("chat"), BODY, services.config, peer=job.peer)
            exchange = Exchange.open(client, services)
            for _ in exchange.deltas():
                job.append(b"said")
            self.ended.append("completed")
        except ClientGone:
            self.ended.append("cancelled")
        except ProxyStopping:
            self.ended.append("stopped")
        self.services.get(Responses).store.put(ME, StoredResponse({"id": job.id, "status": self.ended[-1]}, []))
        job.append(b"end")

    def start(self, step: Step) -> Job:
        """A job that has come as far as DeepSeek lets it."""
        self.fake.answer(step)
        job = Job("job", ME)
        self.services.get(Responses).jobs.submit(job, self.work)
        self.fake.stalls.get(timeout=PATIENCE)
        return job

    def test_cancelling_a_job_ends_its_silent_call(self) -> None:
        for step in (NOTHING, SILENT):
            with self.subTest(type(step).__name__):
                job = self.start(step)
                self.assertTrue(self.services.get(Responses).jobs.cancel(job))
                self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
                self.assertTrue(job.wait(PATIENCE))
                self.assertEqual("cancelled", self.ended[-1])

    def test_a_proxy_that_stops_lets_jobs_finish_and_then_ends_them(self) -> None:
        job = self.start(SILENT)
        followed: list[bytes] = []
        follower = threading.Thread(target=lambda: followed.extend(job.follow()))
        follower.start()
        self.running.server.shutdown()
        self.running.server.drain(0.05)
        follower.join(PATIENCE)
        self.assertEqual(["stopped"], self.ended)
        self.assertTrue(followed[-1].endswith(b"end"), followed)
        self.assertIsNotNone(self.services.get(Responses).store.get(ME, "job"))

    def test_a_job_that_finishes_in_time_is_not_ended(self) -> None:
        self.fake.answer(Answer(content="All of it.", piece=2, pause=0.01))
        job = Job("job", ME)
        self.services.get(Responses).jobs.submit(job, self.work)
        self.assertTrue(job.read_after(0, PATIENCE))
        self.running.server.shutdown()
        self.running.server.drain(PATIENCE)
        self.assertEqual(["completed"], self.ended)

    def test_closing_services_without_draining_ends_jobs(self) -> None:
        job = self.start(NOTHING)
        self.running.server.shutdown()
        self.running.server.server_close()
        self.assertTrue(job.wait(0))
        self.assertEqual(["stopped"], self.ended)
