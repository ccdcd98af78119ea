"""Which upstreams are asked for a chat, and in which order."""

from collections import Counter
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.errors import Forbidden, NotFound
from deepseek_cursor_proxy.exchange.upstreams import ChatRoute, RoutedChat, Upstreams
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
        return Upstreams(config, forms, self.limits, None, former, environment=keys)

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
