"""Sessions of callers whose key no upstream has accepted: used as any, written with the first accepted request."""

from unittest import mock

from deepseek_cursor_proxy.features.sessions.store import SessionStore
from tests.proxy.access.test_unaccepted_keys import CHAT, FOREIGN, MADE_UP, OWNER, UnacceptedKeysCase
from tests.support.polling import wait_until


class TestSessions(UnacceptedKeysCase):
    def test_a_fresh_proxy_makes_no_file_of_sessions_for_made_up_keys(self) -> None:
        self.all_requests(MADE_UP)
        self.create(headers=FOREIGN)
        self.assertEqual([], list(self.folder.glob("sessions*")))

    def test_a_session_of_a_new_key_is_used_listed_and_deleted_before_it_is_accepted(self) -> None:
        session, other = self.create(), self.create("sk-another")
        self.assertEqual([session], [each["uuid"] for each in self.value("GET", "/sessions")["sessions"]])
        self.assertEqual("mine", self.value("GET", f"/s/{session}")["name"])
        self.assertEqual([], self.value("GET", f"/s/{session}/nodes")["nodes"])
        self.assertEqual(b"", self.reply("GET", f"/s/{session}/export").body)
        self.assertEqual(401, self.reply("POST", f"/s/{session}/v1/chat/completions", CHAT).status)
        self.assertEqual(404, self.reply("GET", f"/s/{other}").status)
        self.assertEqual(200, self.reply("DELETE", f"/s/{session}").status)
        self.assertEqual([404, 404], [self.reply(method, f"/s/{session}").status for method in ("GET", "DELETE")])
        self.assertEqual([], list(self.folder.glob("sessions*")))

    def test_the_first_accepted_request_writes_the_sessions_of_its_key(self) -> None:
        sessions = {self.create(OWNER), self.create(OWNER)}
        stranger = self.create()
        (used, *_) = sessions
        self.value("POST", f"/s/{used}/v1/chat/completions", CHAT, key=OWNER)
        self.assertEqual(1, len(self.value("GET", f"/s/{used}/nodes", key=OWNER)["nodes"]))
        self.restart()
        found = self.value("GET", "/sessions", key=OWNER)["sessions"]
        self.assertEqual(sessions, {each["uuid"] for each in found})
        self.assertEqual(404, self.reply("GET", f"/s/{stranger}").status)

    @mock.patch.object(SessionStore, "max_sessions", 3)
    def test_made_up_keys_prune_no_session_of_the_owner(self) -> None:
        self.accept_owner()
        session = self.create(OWNER)
        for number in range(10):
            self.create(f"{MADE_UP}-{number}", headers=FOREIGN)
        self.restart()
        self.assertEqual([session], [each["uuid"] for each in self.value("GET", "/sessions", key=OWNER)["sessions"]])

    @mock.patch.object(SessionStore, "max_sessions", 3)
    def test_the_most_sessions_hold_when_one_is_created(self) -> None:
        self.restart(record="all")
        self.accept_owner()
        sessions = [self.create(OWNER) for _ in range(5)]
        found = [each["uuid"] for each in self.value("GET", "/sessions", key=OWNER)["sessions"]]
        self.assertEqual(sessions[:1:-1], found)
        for number in range(5):
            question = {"role": "user", "content": f"question {number}"}
            self.value("POST", "/v1/chat/completions", {**CHAT, "messages": [question]}, key=OWNER)
        wait_until(lambda: len(self.value("GET", "/sessions", key=OWNER)["sessions"]) == 3)

    def test_an_unknown_or_long_id_is_recorded_nowhere(self) -> None:
        self.accept_owner()
        admin = self.admin(self.running)
        for key in (OWNER, MADE_UP):
            for text in ("x" * 16_000, "sk-text-of-a-key-0123456789", "00000000-0000-0000-0000-00000000beef"):
                with self.subTest(key=key, text=text[:40]):
                    reply = self.reply("POST", f"/s/{text}/v1/chat/completions", CHAT, key=key)
                    self.assertEqual(404, reply.status)
                    shown = [self.get(admin, path).body for path in ("/api/requests", "/api/usage?by=session")]
                    for body in (reply.body, *shown):
                        self.assertNotIn(text[:30].encode(), body)
                    self.assertTrue(all(len(session) <= 36 for *_, session in self.rows()))
