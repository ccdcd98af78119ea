"""Sessions as the dashboard sees them: those of all keys, with prompts and thinking, because they were recorded."""

from tests.fake_deepseek import Answer
from tests.support.admin_client import AdminCase
from tests.support.harness import RunningProxy

QUESTION = {"role": "user", "content": "What is\nin a?"}


class SessionsTest(AdminCase):
    def create(self, proxy: RunningProxy, key: str = "sk-test") -> str:
        return str(self.call(proxy, "POST", "/sessions/create", {"name": "Try"}, key=key).value["uuid"])

    def test_nothing_is_recorded_at_first(self) -> None:
        admin = self.admin(self.admin_proxy())
        self.assertEqual({"sessions": []}, self.get(admin, "/api/sessions").value)

    def test_a_session_has_a_tree_and_trajectories_with_their_thinking(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        session, other = self.create(proxy), self.create(proxy, "sk-other")
        self.fake.answer(Answer("Thought.", "One."), Answer("Again.", "Two."))
        for each, key in ((session, "sk-test"), (session, "sk-test"), (other, "sk-other")):
            self.chat(proxy, QUESTION, path=f"/s/{each}/v1/chat/completions", key=key)
        found = self.get(admin, "/api/sessions").value["sessions"]
        self.assertEqual({session, other}, {each["uuid"] for each in found})
        shape = {"uuid", "name", "tags", "model", "created_at", "used_at", "requests", "nodes", "tokens", "cost"}
        self.assertEqual(shape, set(found[0]))
        tree = self.get(admin, f"/api/sessions/{session}").value
        first, second = tree["nodes"]
        self.assertEqual((None, first["id"]), (first["parent"], second["parent"]))
        names = ("title", "message_count", "turns", "finish_reason")
        self.assertEqual(["What is in a?", 2, 1, "stop"], [first[name] for name in names])
        node = self.get(admin, f"/api/sessions/{session}/nodes/{second['id']}").value
        self.assertEqual(("Two.", "Again."), (node["messages"][1]["content"], node["messages"][1]["reasoning_content"]))
        self.assertEqual([1], node["own"])

    def test_what_is_not_there_is_not_found_and_needs_a_key_as_well(self) -> None:
        proxy = self.admin_proxy()
        admin, session = self.admin(proxy), self.create(proxy)
        unknown = "00000000-0000-0000-0000-000000000000"
        for path in (f"/api/sessions/{unknown}", f"/api/sessions/{session}/nodes/7", "/api/sessions/x"):
            with self.subTest(path):
                self.assertEqual(404, self.get(admin, path).status)
                self.assertEqual(401, self.get(admin, path, key=None).status)
