from collections import Counter
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Delta, OtherReasoning, Reply
from deepseek_cursor_proxy.deepseek.api import CHAT
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm
from deepseek_cursor_proxy.errors import Forbidden, NotFound
from deepseek_cursor_proxy.exchange.upstreams import ChatRoute, RoutedChat, Upstream, Upstreams
from deepseek_cursor_proxy.features.web_search.responses_api import RESPONSES
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.storage.learned import ReasoningForms
from deepseek_cursor_proxy.upstream.call_limit import CallLimits
from tests.support.databases import DatabaseTestCase

PRO = "deepseek-v4-pro"
CHATS = [bytes([at % 256, at // 256]) for at in range(600)]


class TestUpstreams(DatabaseTestCase):
    def upstreams(self, former: Upstreams | None = None, **tables: dict[str, Any]) -> Upstreams:
        given = {name: {"base_url": f"https://{name}.example", **table} for name, table in tables.items()}
        config = ProxyConfig(upstreams=given)  # type: ignore[arg-type]
        self.limits = CallLimits(config.most_calls, 0)
        keys = {"A": "sk-a", "NONE": "", "ANTHROPIC": "sk-ant-x, sk-b"}
        forms = ReasoningForms(self.database)
        return Upstreams(config, forms, self.limits, former, environment=keys)

    def names(self, upstreams: Upstreams, chat: bytes = b"chat", model: str = PRO) -> list[str]:
        return [each.upstream.name for each in upstreams.candidates(model, RoutedChat(chat))]

    def open_breaker(self, upstreams: Upstreams, name: str) -> None:
        breaker = upstreams._all[name].breaker
        assert breaker is not None
        breaker.record_failure(b"", is_sure=True)

    def test_the_lowest_priority_is_asked_first(self) -> None:
        upstreams = self.upstreams(c={"priority": 3}, a={"priority": 1}, b={"priority": 2})
        self.assertEqual({("a", "b", "c")}, {tuple(self.names(upstreams, chat)) for chat in CHATS})

    def test_new_chats_are_spread_by_weight(self) -> None:
        upstreams = self.upstreams(a={"weight": 3}, b={}, c={"priority": 2, "weight": 100})
        first = Counter(self.names(upstreams, chat)[0] for chat in CHATS)
        self.assertEqual({"a", "b"}, {*first})
        self.assertAlmostEqual(0.75, first["a"] / len(CHATS), delta=0.06)

    def test_a_chat_stays_where_it_was_answered_as_long_as_that_is_ready(self) -> None:
        upstreams = self.upstreams(a={}, b={"priority": 2}, c={"priority": 3})
        upstreams.record_route(b"chat", ChatRoute("c", None))
        self.assertEqual(["c", "a", "b"], self.names(upstreams))
        self.assertEqual(["a", "b", "c"], self.names(upstreams, b"other"))
        self.open_breaker(upstreams, "c")
        self.assertEqual(["a", "b", "c"], self.names(upstreams))

    def test_routes_are_bounded_and_survive_a_new_configuration(self) -> None:
        upstreams = self.upstreams(a={}, b={"priority": 2})
        for number in range(5000):
            upstreams.record_route(b"%d" % number, ChatRoute("b", None))
        self.assertEqual(4096, len(upstreams._routes))
        self.assertIsNone(upstreams.route(b"0"))
        again = self.upstreams(upstreams, a={}, b={"priority": 2})
        self.assertEqual(["b", "a"], self.names(again, b"4999"))
        without = self.upstreams(upstreams, a={}, c={"priority": 2})
        self.assertEqual(["a", "c"], self.names(without, b"4999"))

    def test_a_key_of_anthropic_is_no_key_of_an_upstream(self) -> None:
        with self.assertLogs("deepseek_cursor_proxy.exchange.upstreams", "WARNING") as logged:
            (upstream,) = self.upstreams(a={"key_env": "ANTHROPIC"}).all
        self.assertIn("does not get the key of Anthropic (sk-ant-…) in ANTHROPIC", logged.output[0])
        assert upstream.keys is not None
        self.assertEqual(["sk-b"], [key.credential for key in upstream.keys._keys])

    def test_an_upstream_that_is_not_ready_comes_last(self) -> None:
        with self.assertLogs("deepseek_cursor_proxy.exchange.upstreams", "WARNING"):
            upstreams = self.upstreams(a={"key_env": "NONE"}, b={"priority": 2}, c={"priority": 3})
        self.assertEqual(["b", "c", "a"], self.names(upstreams))
        self.open_breaker(upstreams, "b")
        self.assertEqual(["c", "a", "b"], self.names(upstreams))

    def test_a_full_one_comes_after_those_with_a_free_slot_unless_the_chat_is_there(self) -> None:
        upstreams = self.upstreams(a={"max_calls": 1}, b={"priority": 2})
        self.limits.of("a").acquire()
        self.assertEqual(["b", "a"], self.names(upstreams))
        upstreams.record_route(b"chat", ChatRoute("a", None))
        self.assertEqual(["a", "b"], self.names(upstreams))

    def test_calls_are_limited_by_upstream_or_by_its_models(self) -> None:
        upstreams = self.upstreams(a={"max_calls": 3}, b={})
        a, b = (upstreams._all[name] for name in "ab")
        found = [self.limits.of(each.limit_name(model))._limit for each in (a, b) for model in (PRO, "x/flash")]
        self.assertEqual([3, 3, 480, 2400], found)
        self.assertEqual(1, len({a.limit_name(model) for model in (PRO, "deepseek-flash")}))
        self.assertEqual(2, len({b.limit_name(model) for model in (PRO, "deepseek-flash")}))

    def test_a_model_must_be_served_by_an_upstream_that_the_caller_may_use(self) -> None:
        refusal = Forbidden("no")
        upstreams = self.upstreams(a={"key_env": "A", "models": [PRO]}, b={"models": ["deepseek-flash", PRO]})
        upstreams.check(PRO, refusal)
        upstreams.check(f"a/{PRO}", None)
        with self.assertRaises(Forbidden):
            upstreams.check(f"a/{PRO}", refusal)
        with self.assertRaises(NotFound):
            upstreams.check("kimi", None)

    def test_only_deepseek_has_other_apis_than_chat_completions(self) -> None:
        upstreams = self.upstreams(a={"host": "deepseek"}, b={"host": "vllm"}, c={})
        request = parse({"messages": [{"role": "user", "content": "x"}]}, ProxyConfig())
        a, b, c = (each.api(RESPONSES, request) for each in upstreams.all)
        self.assertEqual((RESPONSES, CHAT.path, RESPONSES), (a, b.path, c))
        self.assertEqual(["deepseek", "vllm", "auto"], [each.host.name for each in upstreams.all])

    def test_without_tables_there_is_one(self) -> None:
        upstreams = self.upstreams()
        assert upstreams.only is not None
        self.assertEqual("DeepSeek", upstreams.only.name)
        self.assertEqual(PRO, upstreams.only.limit_name(PRO))


DETAIL = ({"type": "reasoning.text", "text": "r"},)
ANSWERS = {
    ReasoningForm.CONTENT: Delta(reasoning="r", text="a"),
    ReasoningForm.REASONING: Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("reasoning")),
    ReasoningForm.DETAILS: Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("reasoning_details", DETAIL)),
    ReasoningForm.THINK: Delta(text="<think>r</think>a"),
}


def reply(delta: Delta) -> Reply:
    whole = Reply()
    whole.add(delta)
    return whole


class TestReasoningForms(DatabaseTestCase):
    def upstream(self, **settings: Any) -> Upstream:
        config = ProxyConfig(**{"upstream_base_url": "http://127.0.0.1:1", **settings})
        return Upstream.from_settings(config, ReasoningForms(self.database))

    def test_deepseek_is_called_with_the_plain_api_and_teaches_nothing(self) -> None:
        upstream = self.upstream(upstream_base_url="https://api.deepseek.com")
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertIs(CHAT, upstream.chat_api())

    def test_options_do_not_change_what_the_host_is(self) -> None:
        upstream = self.upstream(upstream_base_url="https://api.deepseek.com", host_options={"x": 1})
        host = upstream.chat_api().host
        self.assertEqual(("deepseek", {"x": 1}, True), (host.name, dict(host.options), host.requires_reasoning))

    def test_an_unknown_host_has_the_form_of_its_answers(self) -> None:
        for name in ("auto", "plain"):
            for form, answer in ANSWERS.items():
                with self.subTest(name, form=form):
                    self.execute("DELETE FROM reasoning_forms")
                    upstream = self.upstream(upstream_host=name)
                    default = upstream.chat_api().host.form
                    upstream.learn(reply(answer))
                    # A field is used at once; what may be the model's text has to come twice.
                    is_doubtful = form is ReasoningForm.THINK and name == "auto"
                    self.assertIs(default if is_doubtful else form, upstream.chat_api().host.form)
                    upstream.learn(reply(answer))
                    self.assertIs(form, upstream.chat_api().host.form)
                    self.assertIs(form, self.upstream(upstream_host=name).chat_api().host.form)

    def test_only_reasoning_fields_unlearn_a_form(self) -> None:
        upstream = self.upstream()
        read = Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("think"))
        for answer, form in (
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.CONTENT), (Delta(text="a"), ReasoningForm.CONTENT),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.CONTENT),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.THINK), (Delta(text="a"), ReasoningForm.THINK),
            (read, ReasoningForm.THINK), (ANSWERS[ReasoningForm.REASONING], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.CONTENT], ReasoningForm.CONTENT),
        ):  # fmt: skip
            upstream.learn(reply(answer))
            self.assertIs(form, upstream.chat_api().host.form)

    def test_tags_in_an_answer_that_has_no_thoughts_teach_nothing(self) -> None:
        upstream = self.upstream()
        for _ in range(3):
            upstream.learn(reply(ANSWERS[ReasoningForm.THINK]._replace(reasoning="")))
            upstream.learn(reply(ANSWERS[ReasoningForm.THINK]), has_thinking=False)
        self.assertIs(ReasoningForm.CONTENT, upstream.chat_api().host.form)

    def test_a_refusal_for_missing_reasoning_corrects_what_was_learned(self) -> None:
        for answer in (ANSWERS[ReasoningForm.THINK], Delta(text="a")):
            self.execute("DELETE FROM reasoning_forms")
            upstream = self.upstream()
            for _ in range(2):
                upstream.learn(reply(answer))
            self.assertFalse(upstream.chat_api().host.requires_reasoning)
            upstream.learn(reply(Delta(text="a")), was_transcript=True)
            self.assertTrue(upstream.chat_api().host.requires_reasoning)

    def test_a_host_with_a_name_keeps_its_form(self) -> None:
        upstream = self.upstream(upstream_host="vllm")
        upstream.learn(reply(ANSWERS[ReasoningForm.DETAILS]))
        self.assertIs(ReasoningForm.REASONING, upstream.chat_api().host.form)

    def test_an_unknown_host_is_as_strict_as_deepseek_until_it_shows_another_form(self) -> None:
        upstream = self.upstream()
        self.assertTrue(upstream.chat_api().host.requires_reasoning)
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(upstream.chat_api().host.requires_reasoning)

    def test_who_gets_tools_that_deepseek_runs_itself(self) -> None:
        for host, is_sent in (("deepseek", True), ("auto", True), ("plain", False), ("vllm", False), ("ark", False)):
            self.assertIs(is_sent, self.upstream(upstream_host=host).runs_server_tools, host)
        upstream = self.upstream()
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(upstream.runs_server_tools)

    def test_an_unknown_host_without_reasoning_gets_no_fillers_until_it_sends_some(self) -> None:
        upstream = self.upstream()
        before = upstream.chat_api().host
        self.assertEqual((True, False), (before.requires_reasoning, before.silence_means_no_thinking))
        silent = Delta(text="a")
        for answer, has_thinking in ((silent, False), (Delta(text="a", reasoning=""), True)):
            upstream.learn(reply(answer), has_thinking=has_thinking)
            self.assertEqual(before, upstream.chat_api().host, "it was not asked to think, or said that it did not")
        upstream.learn(reply(silent))
        learned = upstream.chat_api().host
        self.assertEqual((False, False), (learned.requires_reasoning, learned.silence_means_no_thinking))
        upstream.learn(reply(ANSWERS[ReasoningForm.CONTENT]))
        after = upstream.chat_api().host
        self.assertEqual((True, True), (after.requires_reasoning, after.silence_means_no_thinking))
        upstream.learn(reply(silent))
        self.assertEqual(after, upstream.chat_api().host)
