"""Tools that DeepSeek runs itself, on every API: which upstream gets them, and what happens where none runs them."""

import json
from typing import Any, NamedTuple

from tests.fake_deepseek import Answer, Failure, FakeDeepSeek
from tests.support import messages_client, responses_client
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes

Json = dict[str, Any]
CONSOLE = "deepseek_cursor_proxy.observers.console"
# Of OpenAI and Anthropic; no endpoint of DeepSeek runs them.
UNSUPPORTED = ("file_search", "code_interpreter", "computer_use_preview", "image_generation", "mcp", "web_fetch_2025")


class Api(NamedTuple):
    """How the clients of an API ask, and which path of DeepSeek runs their search."""

    name: str
    path: str
    upstream_path: str
    search: Json
    forced: Json

    def body(self, *texts: str, **fields: Any) -> Json:
        """A request with questions and answers in turn."""
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts or ("q",))]
        common = {"model": "deepseek-flash", **fields}
        if self.name == "responses":
            return {"input": messages, **common}
        return {"messages": messages, **({"max_tokens": 1000} if self.name == "messages" else {}), **common}


APIS = (
    Api(
        "chat",
        "/v1/chat/completions",
        "/chat/completions",
        {"type": "deepseek_web_search"},
        {"type": "deepseek_web_search"},
    ),
    Api("responses", responses_client.PATH, "/responses", {"type": "web_search"}, {"type": "web_search"}),
    Api(
        "messages",
        messages_client.PATH,
        "/anthropic/v1/messages",
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "tool", "name": "web_search"},
    ),
)


class EveryApiTestCase(SocketTestCase):
    def ask(self, proxy: RunningProxy, api: Api, *texts: str, **fields: Any) -> Any:
        return self.round_trip(proxy, request_bytes(api.body(*texts, **fields), path=api.path))

    def assert_answered(self, reply: Any, words: str = "Hello.") -> None:
        self.assertEqual(200, reply.status, reply.body)
        self.assertIn(words.encode(), reply.body)


class TestUpstreams(EveryApiTestCase):
    def test_deepseek_gets_them_at_its_own_endpoint_of_the_api(self) -> None:
        for api in APIS:
            for stream in (False, True):
                with self.subTest(api.name, stream=stream):
                    self.fake.forget()
                    proxy = self.proxy(upstream_host="deepseek")
                    self.assert_answered(self.ask(proxy, api, tools=[api.search], stream=stream))
                    self.assertEqual([api.upstream_path], [each.path for each in self.fake.seen])
                    self.assertEqual(1, len(self.fake.accepted[0]["server_tools"]))

    def test_a_server_of_your_own_answers_without(self) -> None:
        """As Codex sends `web_search` with every request, and a self-hosted server has no such path."""
        for api in APIS:
            for stream in (False, True):
                with self.subTest(api.name, stream=stream):
                    self.fake = self.enterContext(FakeDeepSeek(has_chat_alone=True))
                    proxy = self.proxy()
                    with self.assertLogs(CONSOLE) as log:
                        self.assert_answered(self.ask(proxy, api, tools=[api.search], stream=stream))
                    statuses = [each.status for each in self.fake.seen]
                    self.assertEqual([400 if api.name == "chat" else 404, 200], statuses)
                    self.assertEqual("/chat/completions", self.fake.seen[-1].path)
                    self.assertNotIn("tools", self.fake.accepted[-1])
                    self.assertIn(f"without {api.search['type']}, which the upstream refused", "\n".join(log.output))

    def test_bad_settings_of_one_caller_take_the_tool_from_no_other(self) -> None:
        for host in ("deepseek", "auto"):
            for api in APIS:
                with self.subTest(api.name, host=host):
                    self.fake = self.enterContext(FakeDeepSeek())
                    proxy = self.proxy(upstream_host=host)
                    self.fake.answer(Failure(400, "tools[0].max_uses: must be positive"))
                    bad = {**api.search, "max_uses": -1}
                    self.assert_answered(self.ask(proxy, api, tools=[bad]))
                    self.assertEqual([400, 200], [each.status for each in self.fake.seen])
                    body = request_bytes(api.body(tools=[api.search]), path=api.path)
                    for request in (body, body.replace(b"Bearer sk-test", b"Bearer sk-other")):
                        self.assert_answered(self.round_trip(proxy, request))
                        self.assertEqual(1, len(self.fake.accepted[-1]["server_tools"]))

    def test_a_host_of_the_table_is_never_asked_for_them(self) -> None:
        for api in APIS:
            with self.subTest(api.name):
                self.fake = self.enterContext(FakeDeepSeek(host="openrouter", has_chat_alone=True))
                proxy = self.proxy(upstream_host="openrouter", models={"deepseek-flash": "deepseek/deepseek-flash"})
                self.assert_answered(self.ask(proxy, api, tools=[api.search], stream=True))
                self.assertEqual([200], [each.status for each in self.fake.seen])

    def test_a_host_that_was_learned_to_be_another_gets_none(self) -> None:
        for api in APIS:
            with self.subTest(api.name):
                self.fake = self.enterContext(FakeDeepSeek(host="plain", has_chat_alone=True))
                proxy = self.proxy(upstream_host="plain")
                for _ in range(2):
                    self.assert_answered(self.ask(proxy, api, tools=[api.search], stream=True))
                self.assertEqual([200, 200], [each.status for each in self.fake.seen])

    def test_a_forced_search_says_that_the_upstream_has_none(self) -> None:
        for api in APIS[1:]:
            with self.subTest(api.name):
                self.fake = self.enterContext(FakeDeepSeek(has_chat_alone=True))
                reply = self.ask(self.proxy(), api, tools=[api.search], tool_choice=api.forced)
                self.assertEqual(400, reply.status, reply.body)
                self.assertIn("this upstream does not run it", json.dumps(reply.value))


class TestSeveralUpstreams(EveryApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.spare = self.enterContext(FakeDeepSeek(host="openrouter", has_chat_alone=True))
        models = {"deepseek-flash": "deepseek/deepseek-flash"}
        self.main_table = {"base_url": self.fake.url, "host": "deepseek", "priority": 1}
        self.spare_table = {"base_url": self.spare.url, "host": "openrouter", "models": models, "priority": 2}

    def test_the_next_upstream_answers_without_them(self) -> None:
        for api in APIS:
            with self.subTest(api.name):
                proxy = self.proxy(upstreams={"main": self.main_table, "spare": self.spare_table})
                self.fake.answer(Failure(402, "Insufficient Balance"))
                self.assert_answered(self.ask(proxy, api, api.name, "Found.", "More?", tools=[api.search]))
                self.assertEqual(200, self.spare.seen[-1].status)
                self.assertNotIn("tools", json.loads(self.spare.seen[-1].body))

    def test_an_upstream_that_runs_them_is_asked_before_others(self) -> None:
        tables = {"main": {**self.main_table, "priority": 3}, "spare": self.spare_table}
        proxy = self.proxy(upstreams=tables)
        for api in APIS:
            with self.subTest(api.name):
                self.assert_answered(self.ask(proxy, api, f"search by {api.name}", tools=[api.search]))
                self.assertEqual(api.upstream_path, self.fake.seen[-1].path)
        self.assertEqual([], self.spare.seen)
        self.assert_answered(self.ask(proxy, APIS[0], "no search"))
        self.assertEqual(1, len(self.spare.seen))

    def test_a_forced_search_waits_for_an_upstream_that_runs_it(self) -> None:
        swapped = {"main": {**self.main_table, "priority": 3}, "spare": self.spare_table}
        for api in APIS:
            with self.subTest(api.name):
                self.fake.forget()
                proxy = self.proxy(upstreams=swapped, retry_budget=0.0)
                forced = {"tools": [api.search], "tool_choice": api.forced, "thinking": {"type": "disabled"}}
                self.assert_answered(self.ask(proxy, api, **forced))
                self.assertEqual([api.upstream_path], [each.path for each in self.fake.seen])
                self.fake.answer(Failure(402, "Insufficient Balance"))
                self.assertEqual(402, self.ask(proxy, api, **forced).status)
        self.assertEqual([], self.spare.seen)


class TestWhatNoEndpointRuns(EveryApiTestCase):
    def test_it_is_left_out(self) -> None:
        for api in APIS:
            with self.subTest(api.name):
                tools = [{"type": kind, "name": "x"} for kind in UNSUPPORTED]
                self.assert_answered(self.ask(self.running, api, tools=tools))
                self.assertNotIn("tools", self.fake.accepted[-1])
                self.assertNotIn("server_tools", self.fake.accepted[-1])

    def test_forced_it_is_a_400_in_the_words_of_the_api(self) -> None:
        for api in APIS:
            for kind in UNSUPPORTED:
                with self.subTest(api.name, kind=kind):
                    forced = {"type": "tool", "name": "x"} if api.name == "messages" else {"type": kind}
                    reply = self.ask(self.running, api, tools=[{"type": kind, "name": "x"}], tool_choice=forced)
                    self.assertEqual(400, reply.status)
                    self.assertEqual("invalid_request_error", reply.value["error"]["type"])
                    self.assertIn("which DeepSeek cannot run here", reply.value["error"]["message"])
                    self.assertEqual(api.name == "messages", reply.value.get("type") == "error")
        self.assertEqual([], self.fake.seen)

    def test_a_tool_of_another_api_is_left_out(self) -> None:
        for api in APIS:
            for other in APIS[1:]:
                if other is not api:
                    with self.subTest(api.name, of=other.name):
                        self.assert_answered(self.ask(self.running, api, tools=[other.search]))
                        self.assertEqual("/chat/completions", self.fake.seen[-1].path)


class TestMoves(EveryApiTestCase):
    def test_a_turn_with_a_search_is_restored_whatever_api_continues(self) -> None:
        for first in APIS:
            for second in APIS:
                with self.subTest(first.name, then=second.name):
                    self.fake.forget()
                    proxy = self.proxy(upstream_host="deepseek")
                    question, thought = f"From {first.name} to {second.name}?", f"I think of {first.name}."
                    self.fake.answer(Answer(reasoning=thought, content="Found.", fields=(("citations", "[1]"),)))
                    self.assert_answered(self.ask(proxy, first, question, tools=[first.search]), "Found.")
                    self.assert_answered(self.ask(proxy, second, question, "Found.", "More?", tools=[second.search]))
                    self.assertEqual([], self.fake.refused)
                    self.assert_upstream_saw(thought)
