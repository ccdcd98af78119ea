"""Tools that DeepSeek runs itself, on every API: which upstream gets them, and what happens where none runs them."""

from typing import Any

from tests.fake_deepseek import Answer, Failure, FakeDeepSeek
from tests.support.apis import APIS, CHAT, MESSAGES, RESPONSES, Api, ApiReply, ApiTestCase, Json, each_api, each_form
from tests.support.harness import RunningProxy

CONSOLE = "deepseek_cursor_proxy.observers.console"
# Of OpenAI and Anthropic; no endpoint of DeepSeek runs them.
UNSUPPORTED = ("file_search", "code_interpreter", "computer_use_preview", "image_generation", "mcp", "web_fetch_2025")
# Where DeepSeek runs the search of an API, the tool as its clients send it, and the choice that forces it.
PATHS = {CHAT: "/chat/completions", RESPONSES: "/responses", MESSAGES: "/anthropic/v1/messages"}
SEARCHES: dict[Api, Json] = {
    CHAT: {"type": "deepseek_web_search"},
    RESPONSES: {"type": "web_search"},
    MESSAGES: {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
}
FORCED: dict[Api, Json] = {**SEARCHES, MESSAGES: {"type": "tool", "name": "web_search"}}


class SearchTestCase(ApiTestCase):
    def search(self, proxy: RunningProxy, api: Api, *texts: str, **fields: Any) -> ApiReply:
        roles = (api.user, lambda text: api.turn(text)[0])
        history = [roles[at % 2](text) for at, text in enumerate(texts or ("q",))]
        return self.post(proxy, api, history, **{"model": "deepseek-flash", "tools": [SEARCHES[api]], **fields})

    def assert_answered(self, reply: ApiReply, words: str = "Hello.") -> None:
        self.assertEqual(200, reply.status, reply.body)
        self.assertIn(words, reply.said.text)

    def statuses(self) -> list[int | None]:
        return [each.status for each in self.fake.seen]


class TestUpstreams(SearchTestCase):
    @each_form()
    def test_deepseek_gets_them_at_its_own_endpoint_of_the_api(self, api: Api, stream: bool) -> None:
        self.assert_answered(self.search(self.proxy(upstream_host="deepseek"), api, stream=stream))
        self.assertEqual([PATHS[api]], [each.path for each in self.fake.seen])
        self.assertEqual(1, len(self.fake.accepted[0]["server_tools"]))

    @each_form()
    def test_a_server_of_your_own_answers_without(self, api: Api, stream: bool) -> None:
        """As Codex sends `web_search` with every request, and a self-hosted server has no such path."""
        self.fake = self.enterContext(FakeDeepSeek(has_chat_alone=True))
        with self.assertLogs(CONSOLE) as log:
            self.assert_answered(self.search(self.running, api, stream=stream))
        self.assertEqual([400 if api is CHAT else 404, 200], self.statuses())
        self.assertEqual("/chat/completions", self.fake.seen[-1].path)
        self.assertNotIn("tools", self.fake.accepted[-1])
        self.assertIn(f"without {SEARCHES[api]['type']}, which the upstream refused", "\n".join(log.output))

    @each_api()
    def test_bad_settings_of_one_caller_take_the_tool_from_no_other(self, api: Api) -> None:
        for host in ("deepseek", "auto"):
            with self.subTest(host=host):
                self.fake = self.enterContext(FakeDeepSeek())
                proxy = self.proxy(upstream_host=host)
                self.fake.answer(Failure(400, "tools[0].max_uses: must be positive"))
                self.assert_answered(self.search(proxy, api, tools=[{**SEARCHES[api], "max_uses": -1}]))
                self.assertEqual([400, 200], self.statuses())
                for key in ("sk-test", "sk-other"):
                    self.assert_answered(self.search(proxy, api, key=key))
                    self.assertEqual(1, len(self.fake.accepted[-1]["server_tools"]))

    @each_api()
    def test_a_host_of_the_table_or_one_that_was_learned_is_never_asked_for_them(self, api: Api) -> None:
        for host, models in (("openrouter", {"deepseek-flash": "deepseek/deepseek-flash"}), ("plain", {})):
            with self.subTest(host):
                self.fake = self.enterContext(FakeDeepSeek(host=host, has_chat_alone=True))
                proxy = self.proxy(upstream_host=host, models=models)
                for _ in range(2):
                    self.assert_answered(self.search(proxy, api, stream=True))
                self.assertEqual([200, 200], self.statuses())

    @each_api()
    def test_a_forced_search_says_that_the_upstream_has_none(self, api: Api) -> None:
        self.fake = self.enterContext(FakeDeepSeek(has_chat_alone=True))
        reply = self.search(self.running, api, tool_choice=FORCED[api])
        self.assertEqual((400, 1), (reply.status, len(self.fake.seen)))
        if api is not CHAT:
            self.assertIn("this upstream does not run it", reply.error["message"])


class TestSeveralUpstreams(SearchTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.spare = self.enterContext(FakeDeepSeek(host="openrouter", has_chat_alone=True))
        models = {"deepseek-flash": "deepseek/deepseek-flash"}
        self.main_table = {"base_url": self.fake.url, "host": "deepseek", "priority": 1}
        self.spare_table = {"base_url": self.spare.url, "host": "openrouter", "models": models, "priority": 2}
        self.swapped = {"main": {**self.main_table, "priority": 3}, "spare": self.spare_table}

    @each_api()
    def test_the_next_upstream_answers_without_them(self, api: Api) -> None:
        proxy = self.proxy(upstreams={"main": self.main_table, "spare": self.spare_table})
        self.fake.answer(Failure(402, "Insufficient Balance"))
        self.assert_answered(self.search(proxy, api, api.name, "Found.", "More?"))
        self.assertEqual(200, self.spare.seen[-1].status)
        self.assertNotIn(b'"tools"', self.spare.seen[-1].body)

    @each_api()
    def test_an_upstream_that_runs_them_is_asked_before_others(self, api: Api) -> None:
        proxy = self.proxy(upstreams=self.swapped)
        self.assert_answered(self.search(proxy, api, f"search by {api}"))
        self.assertEqual((PATHS[api], []), (self.fake.seen[-1].path, self.spare.seen))
        self.assert_answered(self.search(proxy, api, "no search", tools=[]))
        self.assertEqual(1, len(self.spare.seen))
        self.spare.forget()

    @each_api()
    def test_a_forced_search_waits_for_an_upstream_that_runs_it(self, api: Api) -> None:
        proxy = self.proxy(upstreams=self.swapped)
        forced = {"tool_choice": FORCED[api], "thinking": {"type": "disabled"}}
        self.assert_answered(self.search(proxy, api, **forced))
        self.assertEqual([PATHS[api]], [each.path for each in self.fake.seen])
        self.fake.answer(Failure(402, "Insufficient Balance"))
        self.assertEqual((402, []), (self.search(proxy, api, **forced).status, self.spare.seen))


class TestWhatNoEndpointRuns(SearchTestCase):
    @each_api()
    def test_it_is_left_out(self, api: Api) -> None:
        tools = [{"type": kind, "name": "x"} for kind in UNSUPPORTED]
        self.assert_answered(self.search(self.running, api, tools=tools))
        self.assertFalse({"tools", "server_tools"} & self.fake.accepted[-1].keys())

    @each_api()
    def test_forced_it_is_a_400_in_the_words_of_the_api(self, api: Api) -> None:
        for kind in UNSUPPORTED:
            forced = {"type": "tool", "name": "x"} if api is MESSAGES else {"type": kind}
            reply = self.search(self.running, api, tools=[{"type": kind, "name": "x"}], tool_choice=forced)
            self.assertEqual((400, "invalid_request_error"), (reply.status, reply.error["type"]), kind)
            self.assertIn("which DeepSeek cannot run here", reply.error["message"])
            self.assertEqual(api is MESSAGES, reply.value.get("type") == "error")
        self.assertEqual([], self.fake.seen)

    @each_api()
    def test_a_tool_of_another_api_is_left_out(self, api: Api) -> None:
        for other in {RESPONSES, MESSAGES} - {api}:
            self.assert_answered(self.search(self.running, api, tools=[SEARCHES[other]]))
            self.assertEqual("/chat/completions", self.fake.seen[-1].path)


class TestMoves(SearchTestCase):
    @each_api()
    def test_a_turn_with_a_search_is_restored_whatever_api_continues(self, first: Api) -> None:
        for second in APIS:
            with self.subTest(then=second):
                proxy = self.proxy(upstream_host="deepseek")
                question, thought = f"From {first} to {second}?", f"I think of {first}."
                self.fake.answer(Answer(reasoning=thought, content="Found.", fields=(("citations", "[1]"),)))
                self.assert_answered(self.search(proxy, first, question), "Found.")
                self.assert_answered(self.search(proxy, second, question, "Found.", "More?"))
                self.assertEqual([], self.fake.refused)
                self.assert_upstream_saw(thought)
