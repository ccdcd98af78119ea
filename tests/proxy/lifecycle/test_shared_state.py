"""Worker processes share their state: here two proxies on one file, and their supervisor, all in one process."""

import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.admin.state import measure
from deepseek_cursor_proxy.net.channel import Channel
from deepseek_cursor_proxy.server.shared_state import relay, share
from deepseek_cursor_proxy.server.worker_processes import WorkerProcess
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.proxy.responses.test_background import STALLED, BackgroundTestCase, dechunked
from tests.support.admin_client import ADMIN_KEY, AdminCase, FeedReader, fetch
from tests.support.harness import RawReply, RunningProxy, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.responses_client import check_stream, events

HELLO = Answer(reasoning="Hm.", content="Hello.")
QUESTION = {"role": "user", "content": "What is in a?"}


class SharedStateTest(BackgroundTestCase):
    def share(self, **settings: Any) -> tuple[RunningProxy, RunningProxy]:
        """Two proxies that are worker processes of one supervisor."""
        settings = {"workers": 2, **settings}
        self.supervisor = self.proxy(self.store(), **settings, admin_port=0, admin_key=ADMIN_KEY)
        self.workers = relay(self.supervisor.server, "")
        self.services = self.supervisor.server.services()
        one, two = (self.worker(slot, settings) for slot in (1, 2))
        return one, two

    def store(self) -> ReasoningStore:
        return ReasoningStore(self.folder / "store.sqlite3", is_shared=True)

    def worker(self, slot: int, settings: dict[str, Any]) -> RunningProxy:
        proxy = self.proxy(self.store(), **settings)
        vars(proxy.server).update(self.workers.setup(slot)[2])
        ours, theirs = socket.socketpair()
        handlers: dict[str, Callable[..., Any]] = {}
        there = Channel(theirs, handlers, lambda: None)
        handlers.update(share(proxy.server.services(), there), measure=partial(measure, proxy.server))
        worker = WorkerProcess(slot, mock.Mock(), Channel(ours, self.workers.handlers(slot), lambda: None))
        worker.is_ready = True
        self.workers._workers[slot] = worker
        self.addCleanup(there.close)
        self.addCleanup(worker.channel.close)
        return proxy

    def ask(self, proxy: RunningProxy, method: str, path: str, body: Any = None, key: str = "sk-test") -> RawReply:
        data = request_bytes(b"" if body is None else body, path=path, key=key, headers=["Connection: close"])
        return self.round_trip(proxy, data.replace(b"POST", method.encode(), 1))

    def chat(self, proxy: RunningProxy, *messages: dict[str, Any], path: str = "/v1", key: str = "sk-test") -> RawReply:
        body = {"model": "deepseek-v4-pro", "messages": messages or [QUESTION]}
        return self.ask(proxy, "POST", f"{path}/chat/completions", body, key)

    def test_a_chat_goes_on_in_another_process(self) -> None:
        one, two = self.share()
        self.fake.answer(Answer(reasoning="I must read it.", calls=(Call("call_1", "read_file", "{}"),)), HELLO, HELLO)
        said = json.loads(self.chat(one).body)["choices"][0]["message"]
        message = {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]}
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}
        answer = json.loads(self.chat(two, QUESTION, message, result).body)["choices"][0]["message"]
        self.assert_upstream_saw("I must read it.")
        more = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "And?"}]
        self.chat(one, QUESTION, message, result, *more)
        self.assert_upstream_saw("I must read it.", "Hm.")

    def test_the_first_accepted_key_is_pinned_in_all_processes(self) -> None:
        one, two = self.share(pin_key="always")
        self.fake.answer(HELLO)
        self.assertEqual(200, self.chat(one).status)
        wait_until(lambda: self.chat(two, key="sk-of-another").status == 401)
        # A process that takes the place of another knows it, too.
        self.assertIn("pinned", dict(self.services.access.changes()))
        # Both at once: the first counts, for both.
        two.server.services().access.apply("pinned", b"x" * 32)
        self.workers.handlers(2)["access"]("pinned", b"x" * 32)
        self.fake.answer(HELLO)
        wait_until(lambda: self.chat(two).status != 401)

    def test_wrong_keys_of_one_network_are_counted_together(self) -> None:
        one, two = self.share(access_keys=("sk-of-the-owner",))
        statuses = [self.chat(proxy, key="sk-guess").status for proxy in (one, two) for _ in range(9)]
        self.assertEqual({401}, {*statuses})
        wait_until(lambda: self.chat(one, key="sk-guess").status == 429)
        wait_until(lambda: self.chat(two, key="sk-guess").status == 429)

    def test_a_background_response_is_followed_and_cancelled_in_another_process(self) -> None:
        one, two = self.share()
        # No upstream has accepted the key yet: the response is in the memory of one process.
        queued = self.stalled(one)
        self.assertEqual("in_progress", self.get(two, queued).value["status"])
        with self.following(two, queued) as read:
            read(b"A thought.")
            cancelled = self.cancel(two, queued)
            self.assertEqual("cancelled", cancelled["status"])
            self.assertEqual(cancelled, check_stream(events(dechunked(read()))))
        self.assertEqual(cancelled, self.get(one, queued).value)

    def test_a_response_that_another_process_works_on_is_no_orphan(self) -> None:
        one, two = self.share()
        queued = self.stalled(one)
        self.services.responses.fail_orphans()
        self.workers.on_death(2)
        self.assertEqual("in_progress", self.get(two, queued).value["status"])
        self.workers._workers.pop(1).channel.close()
        self.workers.on_death(1)
        found = self.get(two, queued).value
        self.assertEqual(("failed", "server_restarted"), (found["status"], found["error"]["code"]))
        self.fake.release.set()
        wait_until(lambda: self.get(two, queued).value["status"] == "completed")

    def test_a_session_is_used_and_read_in_any_process(self) -> None:
        one, two = self.share()
        # Of a caller that no upstream has accepted yet.
        session = self.ask(one, "POST", "/sessions/create", {"name": "s"}).value["uuid"]
        self.fake.answer(HELLO, HELLO)
        self.assertEqual(200, self.chat(two, path=f"/s/{session}/v1").status)
        nodes = self.ask(one, "GET", f"/s/{session}/nodes").value["nodes"]
        self.assertEqual([2], [len(node["messages"]) for node in nodes])
        history = [QUESTION, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And?"}]
        self.assertEqual(200, self.chat(one, *history, path=f"/s/{session}/v1").status)
        # One trajectory: the turns were written in their order.
        nodes = self.ask(two, "GET", f"/s/{session}/nodes").value["nodes"]
        self.assertEqual([4], [len(node["messages"]) for node in nodes])
        self.assertEqual(200, self.ask(two, "DELETE", f"/s/{session}").status)
        self.assertEqual([], self.ask(one, "GET", "/sessions").value["sessions"])

    def test_the_admin_listener_shows_all_processes(self) -> None:
        one, two = self.share()
        admin = AdminCase.admin(self, self.supervisor)  # type: ignore[arg-type]
        admin.context.workers = self.workers
        # As `serve` does by opening the listener first: it counts from the start.
        admin.context.statistics()

        def get(path: str) -> RawReply:
            return fetch(admin.url, path, {"Authorization": f"Bearer {ADMIN_KEY}"})

        self.fake.answer(HELLO, STALLED, STALLED)
        self.chat(two)
        for proxy in (one, two):
            body = {"model": "deepseek-v4-pro", "messages": [QUESTION], "stream": True}
            read_until(self.connect(proxy, body), b"A thought.")
        stats = get("/api/stats").value
        self.assertEqual([2, 2, 2], [stats["process"]["workers"], stats["connections"], stats["upstreams"][0]["calls"]])
        self.assertEqual([1, 4], sorted(request["number"] for request in stats["in_flight"]))
        feed = FeedReader(admin.url)
        self.addCleanup(feed.close)
        self.assertEqual({1, 4}, {feed.next("running")[1]["number"] for _ in range(2)})
        wait_until(lambda: b'outcome="completed"} 1\n' in get("/metrics").body)
        metrics = get("/metrics").body
        for line in (b"dcp_streams_in_flight 2\n", b"dcp_upstream_calls 2\n", b"dcp_workers 2\n"):
            self.assertIn(line, metrics)
        self.assertEqual({"status": "ready", "workers": 2}, get("/readyz").value)
        self.fake.release.set()
        self.assertEqual({1, 4}, {feed.next("request")[1]["number"] for _ in range(2)})
        self.workers._workers.clear()
        self.assertEqual((503, 0), (get("/readyz").status, get("/readyz").value["workers"]))

    def test_requests_of_all_processes_have_distinct_numbers_and_are_counted_once(self) -> None:
        one, two = self.share()
        self.fake.answer(HELLO, HELLO, HELLO)
        for proxy in (one, two, two):
            self.chat(proxy)
        wait_until(lambda: len(self.services.request_log.ended()) == 3)
        self.assertEqual({1, 2, 4}, {record.number for record in self.services.request_log.ended()})
        for proxy in (one, two):
            proxy.server.services().ledger.flush()
        self.services.ledger.flush()
        with self.services.reasoning_store.database.reader() as connection:
            self.assertEqual(3, connection.execute("SELECT count(*) FROM usage").fetchone()[0])
