"""Callers whose key no upstream has accepted: they are answered, and leave nothing that lasts."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.response_cache.feature import ResponseCache
from deepseek_cursor_proxy.features.responses import feature as background_jobs
from deepseek_cursor_proxy.features.responses.feature import Responses
from deepseek_cursor_proxy.features.usage.feature import Usage
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek
from tests.support.admin_client import AdminCase
from tests.support.features import needs
from tests.support.harness import RawReply, RunningProxy
from tests.support.pictures import part
from tests.support.polling import wait_until

OWNER, MADE_UP = "sk-the-key-of-the-owner", "sk-made-up"
QUESTION = {"role": "user", "content": "hi"}
CHAT = {"model": "deepseek-v4-pro", "messages": [QUESTION]}
FOREIGN = ("Host: evil.example", "Origin: https://evil.example")


class UnacceptedKeysCase(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek(keys=[OWNER]))
        self.running = self.start()

    def start(self, **settings: Any) -> RunningProxy:
        store = ReasoningStore(self.folder / "store.sqlite3")
        return self.proxy(store, admin_port=0, admin_key="sk-admin-key-of-the-tests", **settings)

    def restart(self, **settings: Any) -> None:
        self.running.close()
        self.running = self.start(**settings)

    def reply(self, method: str, path: str, body: Any = b"", *, key: str = MADE_UP, headers: Any = ()) -> RawReply:
        return self.call(self.running, method, path, body, key=key, headers=headers)

    def value(self, *request: Any, **details: Any) -> Any:
        reply = self.reply(*request, **details)
        self.assertEqual(200, reply.status, reply.body[:300])
        return reply.value

    def accept_owner(self) -> None:
        self.value("POST", "/v1/chat/completions", CHAT, key=OWNER)

    def create(self, key: str = MADE_UP, **details: Any) -> str:
        uuid: str = self.value("POST", "/sessions/create", {"name": "mine"}, key=key, **details)["uuid"]
        return uuid

    def tables(self) -> dict[str, list[Any]]:
        services = self.running.server.services()
        services.reasoning_store.flush()
        services.get(Usage).ledger.flush()
        services.get(ResponseCache).answers._totals.flush()
        found = {}
        for path in sorted(self.folder.glob("*.sqlite3")):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for (name,) in names:
                    found[f"{path.stem}.{name}"] = connection.execute(f"SELECT * FROM {name}").fetchall()
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        self.running.server.services().get(Usage).ledger.flush()
        with contextlib.closing(sqlite3.connect(self.folder / "store.sqlite3")) as connection:
            return connection.execute("SELECT api, status, session FROM usage ORDER BY id").fetchall()

    @contextlib.contextmanager
    def nothing_is_written(self) -> Iterator[None]:
        tables, files = self.tables(), self.files()
        yield
        self.assertEqual(tables, self.tables())
        self.assertEqual(files, self.files())

    def files(self) -> set[Path]:
        # The files of an open database beside its own come and go.
        return {each for each in self.folder.rglob("*") if not each.name.endswith(("-wal", "-shm"))}

    def all_requests(self, key: str) -> None:
        """A request to every kind of route, good and bad, none of which the upstream accepts for this key."""
        unknown = "00000000-0000-0000-0000-000000000000"
        responses = {"model": "deepseek-v4-pro", "input": "hi"}
        picture = {"role": "user", "content": [part("a")]}
        messages = {"model": "deepseek-v4-pro", "max_tokens": 2000, "messages": [QUESTION]}
        for method, path, body in (
            ("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/chat/completions", {**CHAT, "n": 2, "cache": True}),
            ("POST", "/v1/chat/completions", {**CHAT, "messages": [picture]}),
            ("POST", "/v1/chat/completions", {"model": f"model-of-{key}"}), ("POST", "/v1/chat/completions", b"{"),
            ("POST", "/v1/responses", responses), ("POST", "/v1/responses", {**responses, "background": True}),
            ("POST", "/v1/responses", {**responses, "previous_response_id": "resp_1"}),
            ("POST", "/v1/responses/input_tokens", responses), ("GET", "/v1/responses/resp_1", b""),
            ("DELETE", "/v1/responses/resp_1", b""), ("POST", "/v1/messages", messages),
            ("POST", "/v1/messages/count_tokens", messages), ("POST", "/sessions/create", {"name": key}),
            ("GET", "/sessions", b""), ("GET", f"/s/{unknown}", b""), ("DELETE", f"/s/{unknown}", b""),
            ("POST", f"/s/{unknown}/v1/chat/completions", CHAT),
            ("POST", f"/s/{'x' * 16_000}/v1/chat/completions", CHAT), ("GET", "/nothing/here", b""),
        ):  # fmt: skip
            self.reply(method, path, body, key=key)


class TestRows(UnacceptedKeysCase):
    def test_requests_of_invented_keys_write_nothing_anywhere(self) -> None:
        for settings in ({}, {"record": "all", "pictures": "flash", "response_cache": "on"}):
            with self.subTest(settings):
                self.restart(trace_dir=self.folder / "traces", **settings)
                self.accept_owner()
                # Makes the secret, which belongs to no caller.
                self.value("POST", "/v1/responses", {"model": "deepseek-v4-pro", "input": "hi"}, key=OWNER)
                with self.nothing_is_written():
                    for number in range(3):
                        self.all_requests(f"{MADE_UP}-{number}")
                    jobs = self.running.server.services().get(Responses).jobs
                    wait_until(lambda jobs=jobs: not jobs._jobs)

    def test_the_first_accepted_request_of_a_key_has_its_row_and_a_refused_one_before_has_none(self) -> None:
        self.reply("POST", "/v1/chat/completions", b"{", key=OWNER)
        self.assertEqual([], self.rows())
        self.accept_owner()
        self.reply("POST", "/v1/chat/completions", b"{", key=OWNER)
        self.assertEqual([200, 400], [row[1] for row in self.rows()])

    @needs("sessions")
    def test_a_listed_key_is_known_at_once(self) -> None:
        self.restart(access_keys=[OWNER, MADE_UP])
        self.reply("POST", "/v1/chat/completions", b"{")
        self.create()
        self.assertEqual([("chat", 400, "")], self.rows())
        self.assertEqual(1, len(self.tables()["sessions.sessions"]))

    @needs("sessions")
    def test_a_key_that_got_an_answer_is_known_after_a_restart(self) -> None:
        self.accept_owner()
        self.restart()
        self.fake.answer(Failure(500, "down"))
        self.assertEqual(500, self.reply("POST", "/v1/chat/completions", CHAT, key=OWNER).status)
        self.create(OWNER)
        self.assertEqual([200, 500], [row[1] for row in self.rows()])
        self.assertEqual(1, len(self.tables()["sessions.sessions"]))


class TestBackground(UnacceptedKeysCase):
    def background(self, key: str = MADE_UP, text: str = "hi") -> RawReply:
        body = {"model": "deepseek-v4-pro", "input": text, "background": True}
        return self.reply("POST", "/v1/responses", body, key=key)

    def ended(self, response_id: str, key: str = MADE_UP) -> dict[str, Any]:
        def status() -> bool:
            return self.value("GET", f"/v1/responses/{response_id}", key=key)["status"] not in ("queued", "in_progress")

        wait_until(status)
        found: dict[str, Any] = self.value("GET", f"/v1/responses/{response_id}", key=key)
        return found

    def test_a_refused_background_response_is_shown_from_memory_and_never_written(self) -> None:
        created = self.background().value
        self.assertEqual("queued", created["status"])
        self.assertEqual("failed", self.ended(created["id"])["status"])
        items = self.value("GET", f"/v1/responses/{created['id']}/input_items")["data"]
        self.assertEqual("hi", items[0]["content"][0]["text"])
        self.assertIn(b"response.failed", self.reply("GET", f"/v1/responses/{created['id']}?stream=true").body)
        self.assertEqual(404, self.reply("GET", f"/v1/responses/{created['id']}", key=OWNER).status)
        self.assertEqual([], self.tables()["store.responses"])
        self.assertEqual(200, self.reply("DELETE", f"/v1/responses/{created['id']}").status)
        self.assertEqual(404, self.reply("GET", f"/v1/responses/{created['id']}").status)

    def test_a_response_of_a_new_key_is_written_when_its_key_is_accepted(self) -> None:
        first = self.background(OWNER).value["id"]
        self.assertEqual("completed", self.ended(first, OWNER)["status"])
        self.restart()
        self.assertEqual("completed", self.value("GET", f"/v1/responses/{first}", key=OWNER)["status"])

    def test_background_responses_of_made_up_keys_are_few_and_small(self) -> None:
        with mock.patch.object(background_jobs, "_MOST_BYTES_OF_UNKNOWN_CALLERS", 10_000):
            reply = self.background(text="x" * 20_000)
            self.assertEqual(429, reply.status)
            self.assertIn(b"not accepted this key yet", reply.body)
            self.accept_owner()
            self.assertEqual(200, self.background(OWNER, "x" * 20_000).status)


class TestObservers(UnacceptedKeysCase):
    def test_made_up_keys_push_no_request_of_the_owner_out_and_make_no_label(self) -> None:
        admin = self.admin(self.running)
        # The admin listener counts from here on.
        self.get(admin, "/metrics")
        self.accept_owner()
        for number in range(60):
            body = {"model": f"made-up-model-{number}", "messages": 7}
            self.assertEqual(400, self.reply("POST", "/v1/chat/completions", body, key=f"{MADE_UP}-{number}").status)
        self.fake.answer(Answer("", "Hi."))
        self.accept_owner()
        metrics = self.get(admin, "/metrics").body.decode()
        self.assertNotIn("made-up-model", metrics)
        self.assertIn('dcp_requests_total{api="chat",model="deepseek-v4-pro",outcome="completed"} 2', metrics)
        listed = self.get(admin, "/api/requests").value["requests"]
        self.assertEqual(2, sum(each["outcome"] == "completed" for each in listed))
        self.assertEqual(2, len(self.rows()))
