import logging
import socket
import threading
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone, Overloaded, ProxyStopping, QueueFull
from deepseek_cursor_proxy.features.responses import feature as background_jobs
from deepseek_cursor_proxy.features.responses.feature import Job, Jobs
from deepseek_cursor_proxy.net import wait as waiting
from tests.support.polling import wait_until
from tests.support.resources import descriptors
from tests.support.threads import in_background, leave_no_thread
from tests.unit.net.test_wait import Client, socket_pair

ME, YOU = b"m" * 32, b"y" * 32
PATIENCE = 20.0


class JobsTestCase(unittest.TestCase):
    def setUp(self) -> None:
        files = descriptors()
        self.addCleanup(lambda: self.assertLessEqual(descriptors(), files))
        leave_no_thread(self)
        # After those who work on them have ended.
        self.created: list[Job] = []
        self.addCleanup(lambda: [job.close() for job in self.created])
        self.ended: list[str] = []
        self.go_on = threading.Event()
        self.addCleanup(self.go_on.set)

    def jobs(self, workers: int = 1, queue: int = 8) -> Jobs:
        created = Jobs(workers, queue)
        self.addCleanup(created.stop, 0)
        self.addCleanup(self.go_on.set)
        return created

    def job(self, name: str = "job", caller: bytes = ME) -> Job:
        self.created.append(job := Job(name, caller))
        return job

    def of_unknown_caller(self, name: str, size: int = 1) -> Job:
        self.created.append(job := Job(name, YOU, size))
        return job

    def work(self, job: Job) -> None:
        """What a background response does, in small: it waits for something, and for its peer meanwhile."""
        if job.is_cancelled or job.is_stopping:
            self.ended.append(f"{job.id} {'cancelled' if job.is_cancelled else 'stopped'} in the queue")
            return
        job.append(b"begun")
        try:
            while not self.go_on.is_set():
                waiting.pause(0.02, job.peer)
            self.ended.append(f"{job.id} completed")
        except ClientGone:
            self.ended.append(f"{job.id} cancelled")
        except ProxyStopping:
            self.ended.append(f"{job.id} stopped")
        job.append(b"ended")

    def submitted(self, pool: Jobs, name: str = "job", *, is_begun: bool = True) -> Job:
        job = self.job(name)
        pool.submit(job, self.work)
        if is_begun:
            self.assertEqual(b"begun", job.read_after(0, PATIENCE))
        return job

    def assert_ends(self, *jobs: Job) -> None:
        for job in jobs:
            self.assertTrue(job.wait(PATIENCE), job.id)


class TestJob(JobsTestCase):
    def test_a_job_is_cancelled_or_stopped_once_and_not_both(self) -> None:
        left, parted, over = self.job(), self.job(), self.job()
        self.assertEqual([True, False], [left.peer.set() for _ in range(2)])
        left.peer.set(ProxyStopping)
        self.assertEqual((True, False), (left.is_cancelled, left.is_stopping))
        parted.peer.set(ProxyStopping)
        self.assertFalse(parted.peer.set())
        self.assertEqual((False, True), (parted.is_cancelled, parted.is_stopping))
        for _ in range(2):
            over.close()
        over.peer.set(ProxyStopping)
        self.assertEqual((False, False, False), (over.peer.set(), over.is_cancelled, over.is_stopping))

    def test_a_job_without_descriptors_is_refused(self) -> None:
        with mock.patch.object(socket, "socketpair", side_effect=OSError), self.assertRaises(Overloaded) as caught:
            Job("job", ME)
        self.assertEqual(1, caught.exception.retry_after)

    def test_a_follower_whose_client_leaves_ends_while_the_job_is_silent(self) -> None:
        job = self.job()
        ours, theirs = socket_pair(self)
        ours.setblocking(False)
        events = iter(job.follow(Client(ours)))
        job.append(b"one")
        self.assertEqual(b"one", next(events))
        theirs.close()
        with self.assertRaises(ClientGone):
            next(events)

    def test_a_follower_gets_the_last_events_when_the_proxy_stops(self) -> None:
        job = self.job()
        events = iter(job.follow(mock.Mock(close_reason=ProxyStopping())))
        followed: list[bytes] = []
        thread = in_background(self, followed.extend, events)
        job.append(b"failed")
        job.end()
        thread.join(PATIENCE)
        self.assertEqual([b"failed"], followed)


class TestJobs(JobsTestCase):
    def test_a_bug_in_a_job_is_logged_and_ends_the_job_alone(self) -> None:
        pool = self.jobs()

        def fail(job: Job) -> None:
            job.append(b"half")
            raise KeyError("a secret")

        job = self.job()
        with self.assertLogs(background_jobs.__name__, logging.ERROR) as logged:
            pool.submit(job, fail)
            self.assertEqual([b"half"], list(job.follow()))
            self.assert_ends(job)
        self.assertEqual(
            ["unexpected KeyError in a background response"], [each.getMessage() for each in logged.records]
        )
        self.submitted(pool, "next")

    def test_a_job_without_a_thread_is_refused(self) -> None:
        pool = self.jobs(workers=2)
        no_threads = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError)
        with no_threads, self.assertRaises(Overloaded):
            self.submitted(pool, "a", is_begun=False)
        self.assertIsNone(pool.find(ME, "a"))
        self.submitted(pool, "b")

    def test_a_job_is_cancelled_once(self) -> None:
        pool = self.jobs()
        running, queued = self.submitted(pool, "a"), self.submitted(pool, "b", is_begun=False)
        for job in (queued, running):
            for _ in range(2):
                pool.cancel(job)
            self.assert_ends(job)
            pool.cancel(job)
        self.assertEqual(["b cancelled in the queue", "a cancelled"], self.ended)

    def test_stopping_lets_running_jobs_finish_ends_waiting_ones_at_once_and_accepts_no_other(self) -> None:
        pool = self.jobs()
        running, queued = self.submitted(pool, "a"), self.submitted(pool, "b", is_begun=False)
        thread = in_background(self, pool.stop, PATIENCE)
        self.assert_ends(queued)
        self.go_on.set()
        thread.join(PATIENCE)
        self.assertTrue(running.wait(0))
        self.assertEqual(["b stopped in the queue", "a completed"], self.ended)
        pool.stop(0)
        late = self.job()
        with self.assertRaises(ProxyStopping):
            pool.submit(late, self.work)
        self.assertTrue(late.wait(0))

    def test_stopping_ends_a_job_that_takes_too_long(self) -> None:
        pool = self.jobs(workers=2)
        running = [self.submitted(pool, name) for name in ("a", "b")]
        pool.stop(0)
        self.assertEqual({"a stopped", "b stopped"}, set(self.ended))
        self.assertEqual([[b"begunended"]] * 2, [list(job.follow()) for job in running])
        self.assertNotIn("job", [each.name for each in threading.enumerate()])

    def test_stopping_does_not_wait_for_a_job_that_does_not_end(self) -> None:
        pool = self.jobs()
        released, has_begun = threading.Event(), threading.Event()
        self.addCleanup(lambda: wait_until(lambda: not any(each.name == "job" for each in threading.enumerate())))
        self.addCleanup(released.set)

        def hang(job: Job) -> None:
            has_begun.set()
            released.wait(PATIENCE)

        pool.submit(self.job(), hang)
        self.assertTrue(has_begun.wait(PATIENCE))
        before = time.monotonic()
        with mock.patch.object(background_jobs, "_END_SECONDS", 0.01):
            pool.stop(0.01)
        self.assertLess(time.monotonic() - before, PATIENCE)


class TestCallersThatAreNotKnown(JobsTestCase):
    """Their jobs leave a place in the queue to others."""

    def test_half_of_all_jobs_at_most_are_theirs(self) -> None:
        jobs = self.jobs(workers=1, queue=5)
        for number in range(3):
            jobs.submit(self.of_unknown_caller(f"theirs {number}"), self.work)
        with self.assertRaises(QueueFull):
            jobs.submit(self.of_unknown_caller("one more"), self.work)
        for number in range(3):
            jobs.submit(self.job(f"mine {number}"), self.work)

    def test_their_bytes_are_bounded_together(self) -> None:
        jobs = self.jobs(queue=100)
        most = background_jobs._MOST_BYTES_OF_UNKNOWN_CALLERS
        with self.assertRaises(QueueFull):
            jobs.check(most + 1)
        jobs.submit(first := self.of_unknown_caller("theirs", most), self.work)
        with self.assertRaises(QueueFull):
            jobs.submit(self.of_unknown_caller("one more"), self.work)
        # An upstream has accepted its key.
        first.unknown_caller_bytes = 0
        jobs.submit(self.of_unknown_caller("another", most), self.work)
