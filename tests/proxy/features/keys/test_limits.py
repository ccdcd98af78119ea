"""The limits of named keys over real sockets, on every API: refused before any call, settled before the last byte."""

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from deepseek_cursor_proxy.features.keys import store
from deepseek_cursor_proxy.features.keys.feature import Keys
from deepseek_cursor_proxy.features.keys.limits import BILLION, counters
from deepseek_cursor_proxy.features.keys.store import Used
from deepseek_cursor_proxy.features.usage.feature import Usage
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Failure, Raw
from tests.support.apis import APIS, CHAT, MESSAGES, RESPONSES, Api, ApiReply, ApiTestCase
from tests.support.features import needs
from tests.support.harness import PATIENCE, RunningProxy, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.threads import in_background, run_at_once

ANN, BEN = "sk-the-key-of-ann", "sk-the-key-of-ben"
# 2026-11-18 06:40:20 UTC
NOW = 1_794_984_020.0
# A thousand tokens of an answer cost a tenth of a cent, and prompts nothing.
PRICES: Any = {"deepseek-*": {"miss": 0, "hit": 0, "output": 1}}
# The model that another upstream serves.
PASSED = "deepseek-flash"


class Way(NamedTuple):
    name: str
    api: Api
    fields: Mapping[str, Any] = MappingProxyType({})


WAYS = (
    *(Way(f"{api}", api) for api in APIS), *(Way(f"{api}, streamed", api, {"stream": True}) for api in APIS),
    Way("several choices", CHAT, {"n": 2}), Way("several choices, streamed", CHAT, {"n": 2, "stream": True}),
    Way("background", RESPONSES, {"background": True}), Way("passthrough", CHAT, {"model": PASSED}),
    Way("passthrough, streamed", CHAT, {"model": PASSED, "stream": True}),
)  # fmt: skip


class LimitsTestCase(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": "sk-held-by-the-proxy"}))
        self.other, self.to_other = self.route()

    def limited(self, store: ReasoningStore | None = None, /, **settings: Any) -> RunningProxy:
        known = {"prices": PRICES, "passthrough": {PASSED: self.to_other}}
        proxy = self.proxy(store, **{**known, **settings})
        limiter = proxy.server.services().get(Keys).limiter
        assert limiter is not None
        limiter._now = lambda: NOW
        return proxy

    def ann(self, **fields: Any) -> RunningProxy:
        return self.limited(keys={"ann": {"key": ANN, **fields}})

    def go(self, proxy: RunningProxy, way: Way = WAYS[0], key: str = ANN, **fields: Any) -> ApiReply:
        return self.post(proxy, way.api, key=key, **{**way.fields, **fields})

    def used(self, proxy: RunningProxy, limit: str, name: str = "ann") -> Used:
        services = proxy.server.services()
        assert services.get(Keys).limiter is not None
        [counter] = [each for each, _ in counters(services.config.keys[name], NOW) if each.limit == limit]
        return services.get(Keys).limiter.usage([counter])[0]

    def assert_fifty_spend_a_budget_for_ten_once(self, proxies: Sequence[RunningProxy]) -> None:
        """Fifty requests at once to proxies that share a budget of ten thousand tokens."""
        go_on = threading.Event()

        def respond(_: Any) -> Answer:
            go_on.wait(PATIENCE)
            return Answer(content="x" * 2000)

        self.fake._responder = respond
        replies: list[ApiReply] = []

        def ask(number: int) -> None:
            replies.append(self.go(proxies[number % len(proxies)], max_tokens=1000))
            if sum(reply.status == 429 for reply in replies) == 40:
                go_on.set()

        run_at_once(ask, range(50))
        self.assertEqual([10, 40], [sum(reply.status == status for reply in replies) for status in (200, 429)])
        self.assertEqual(10, len(self.fake.seen))
        tokens = sum(reply.value["usage"]["completion_tokens"] for reply in replies if reply.status == 200)
        self.assertEqual(Used(tokens * BILLION // 10**6), self.used(proxies[0], "usd_per_day"))

    def calls(self) -> int:
        return len(self.fake.seen) + len(self.other.seen)


@needs("choices", "messages", "passthrough", "responses")
class TestRates(LimitsTestCase):
    def test_each_way_to_ask_is_one_request_and_is_refused_before_any_call(self) -> None:
        for way in WAYS:
            with self.subTest(way.name):
                proxy = self.ann(requests_per_minute=1, tokens_per_minute=10**6)
                self.assertEqual(200, self.go(proxy, way).status)
                # A background response goes on.
                wait_until(lambda proxy=proxy: self.used(proxy, "requests_per_minute") == Used(1))  # type: ignore[misc]
                self.assertLess(0, self.used(proxy, "tokens_per_minute").spent)
                before = self.calls()
                reply = self.go(proxy, way)
                self.assertEqual((429, "40"), (reply.status, reply.headers["retry-after"]))
                error = reply.value["error"]
                self.assertEqual("rate_limit_error", error["type"])
                words = "The limit requests_per_minute of the key ann is reached: 1 of 1 used. It resets at 2026-11-18"
                self.assertTrue(error["message"].startswith(words), error)
                self.assertEqual(before, self.calls())

    def test_routes_without_a_call_do_not_count(self) -> None:
        proxy = self.ann(requests_per_minute=1)
        for path in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
            api = MESSAGES if "messages" in path else RESPONSES
            self.assertEqual(200, self.round_trip(proxy, request_bytes(api.body(), path=path, key=ANN)).status)
        self.assertEqual(Used(), self.used(proxy, "requests_per_minute"))

    def test_a_request_that_deepseek_refuses_costs_nothing_but_the_request(self) -> None:
        proxy = self.ann(requests_per_minute=9, usd_per_day=1)
        self.fake.answer(Failure(500))
        self.other.answer(Failure(500))
        self.assertEqual([500, 500], [self.go(proxy, model=model).status for model in ("deepseek-v4-pro", PASSED)])
        self.assertEqual(
            [Used(2), Used(0)], [self.used(proxy, each) for each in ("requests_per_minute", "usd_per_day")]
        )

    def test_other_keys_are_not_affected(self) -> None:
        keys: Any = {"ann": {"key": ANN, "requests_per_minute": 1}, "ben": {"key": BEN}}
        proxy = self.limited(keys=keys, access_keys=["sk-unnamed-key-0001"])
        self.assertEqual([200, 429], [self.go(proxy).status for _ in range(2)])
        for key in (BEN, "sk-unnamed-key-0001"):
            self.assertEqual([200, 200], [self.go(proxy, key=key).status for _ in range(2)])


# The fields of an error that say that a budget is used up.
QUOTA = {"type": "insufficient_quota", "code": "insufficient_quota"}


@needs("choices", "messages", "passthrough", "responses")
class TestBudgets(LimitsTestCase):
    def test_a_budget_that_is_used_up_has_the_error_of_each_api(self) -> None:
        for way in WAYS:
            with self.subTest(way.name):
                proxy = self.ann(usd_per_day=0.000001)
                self.assertEqual(200, self.go(proxy, way).status)
                wait_until(lambda proxy=proxy: self.used(proxy, "usd_per_day").spent > 0)  # type: ignore[misc]
                before = self.calls()
                reply = self.go(proxy, way)
                error = reply.value["error"]
                self.assertEqual(
                    (429, "false", None),
                    (reply.status, reply.headers["x-should-retry"], reply.headers.get("retry-after")),
                )
                expected = {"type": "rate_limit_error"} if way.api is MESSAGES else QUOTA
                self.assertEqual(expected, {name: error[name] for name in expected})
                self.assertIn("It resets at 2026-11-19 00:00 UTC", error["message"])
                self.assertEqual(before, self.calls())

    def test_fifty_requests_at_once_spend_a_budget_for_ten_once(self) -> None:
        store = ReasoningStore(self.folder / "store.sqlite3")
        keys: Any = {"ann": {"key": ANN, "usd_per_day": 0.01}}
        proxies = [
            self.limited(store, keys=keys),
            self.limited(ReasoningStore(self.folder / "store.sqlite3"), keys=keys),
        ]
        self.assert_fifty_spend_a_budget_for_ten_once(proxies)

    def test_a_model_without_a_price_is_refused_to_a_key_with_a_budget(self) -> None:
        proxy = self.limited(keys={"ann": {"key": ANN, "usd_per_day": 5}}, prices={})
        reply = self.go(proxy, model=PASSED)
        self.assertEqual((403, "price_unknown"), (reply.status, reply.value["error"]["code"]))
        proxy = self.limited(keys={"ann": {"key": ANN, "usd_per_day": 5}}, upstream_host="plain", prices={})
        # Claude Code would call a 403 a failed authentication.
        reply = self.go(proxy, WAYS[2], model="some/model")
        self.assertEqual((400, "invalid_request_error"), (reply.status, reply.value["error"]["type"]))

    def test_a_length_beyond_any_model_is_no_fault_of_the_proxy(self) -> None:
        proxy = self.ann(usd_per_day=0.5, tokens_per_minute=10)
        for model in (PASSED, "deepseek-v4-pro"):
            self.assertNotEqual(500, self.go(proxy, model=model, max_tokens=10**30).status)
        self.assertEqual(1, len(self.other.seen))

    def test_several_choices_reserve_and_spend_as_many_answers(self) -> None:
        proxy = self.ann(usd_per_day=0.0015)
        self.assertEqual(200, self.go(proxy, max_tokens=1000).status)
        self.assertEqual(429, self.go(proxy, max_tokens=1000, n=2).status)

    def test_without_max_tokens_the_usual_answer_of_the_model_is_reserved(self) -> None:
        proxy = self.ann(usd_per_day=1)
        ledger = proxy.server.services().get(Usage).ledger
        seen: list[Used] = []

        def respond(_: Any) -> Answer:
            seen.append(self.used(proxy, "usd_per_day"))
            return Answer(content="hi")

        self.fake._responder = respond
        self.assertEqual(200, self.go(proxy).status)
        wait_until(lambda: ledger._read_mean("deepseek-v4-pro", 0) > 0)
        ledger._mean_output.cache_clear()
        usual = ledger.mean_output_tokens("deepseek-v4-pro")
        self.assertLess(usual, 100)
        self.assertEqual(200, self.go(proxy).status)
        self.assertEqual([4096 * 1000, usual * 1000], [each.reserved for each in seen])

    def test_another_upstream_may_use_the_greatest_length_and_every_choice_that_a_body_names(self) -> None:
        for fields, tokens in (
            ({}, 4096), ({"max_tokens": 700}, 700), ({"max_tokens": 1, "max_completion_tokens": 700}, 700),
            ({"max_tokens": 700, "max_completion_tokens": 1}, 700), ({"max_output_tokens": "700"}, 700),
            ({"max_completion_tokens": " 7e2 "}, 700), ({"max_tokens": 699.5}, 700), ({"max_tokens": "1e999"}, 10**6),
            ({"max_tokens": "many"}, 4096), ({"max_tokens": 350, "n": 2}, 700),
            ({"max_tokens": "350", "n": "2"}, 700), ({"max_tokens": 700, "n": 0}, 700),
        ):  # fmt: skip
            with self.subTest(fields):
                proxy = self.ann(usd_per_day=9)
                self.other.answer(Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
                self.assertEqual(200, self.go(proxy, model=PASSED, **fields).status)
                self.assertEqual(Used(tokens * 1000), self.used(proxy, "usd_per_day"))

    def test_another_upstream_gets_no_name_that_it_may_read_as_another_model_or_length(self) -> None:
        proxy = self.ann(models=[PASSED], usd_per_day=9)
        whole = f'{{"model": "{PASSED}", "messages": [], "max_tokens": 5}}'
        for pair in (
            '"model": "gpt-9"', '"Model": "gpt-9"', '"mod\\u0065l": "gpt-9"', '"MODEL": "gpt-9"', '"max_tokens": 9000',
            '"Max_Completion_Tokens": 9000', '"max_to\u212aen\u017f": 9000', '"N": 9',
        ):  # fmt: skip
            for data in (whole.replace("{", "{" + pair + ", "), whole.replace("}", ", " + pair + "}")):
                with self.subTest(data):
                    # A body whose model comes last and is another one does not get as far.
                    reply = self.round_trip(proxy, request_bytes(data.encode(), key=ANN))
                    self.assertIn(reply.status, (400, 403))
        self.assertEqual(0, self.calls())

    def test_a_prompt_counts_by_its_length_once_for_each_call(self) -> None:
        proxy = self.ann(tokens_per_minute=10**6)
        seen: list[int] = []

        def respond(_: Any) -> Answer:
            seen.append(self.used(proxy, "tokens_per_minute").reserved)
            return Answer(content="hi")

        self.fake._responder = self.other._responder = respond
        for fields in ({}, {"n": 2}, {"model": PASSED}):
            self.assertEqual(200, self.go(proxy, history="word " * 800, max_tokens=100, **fields).status)
        once, twice, _, passed = seen
        self.assertEqual(2 * once, twice)
        for reserved in (once, passed):
            self.assertTrue(900 < reserved < 2000, reserved)

    def test_a_cached_answer_costs_nothing(self) -> None:
        proxy = self.ann(usd_per_day=1, requests_per_minute=9)
        self.assertEqual(200, self.go(proxy, cache=True).status)
        spent = self.used(proxy, "usd_per_day")
        self.assertEqual("hit", self.go(proxy, cache=True).headers["x-cache"])
        self.assertEqual((spent, Used(2)), (self.used(proxy, "usd_per_day"), self.used(proxy, "requests_per_minute")))


@needs("choices", "messages", "passthrough", "responses")
class TestGroups(LimitsTestCase):
    def test_the_highest_price_of_the_upstreams_is_reserved(self) -> None:
        usd = {"deepseek-flash": 1, "deepseek-v4-pro": 9}
        for models in (list(usd), list(usd)[::-1]):
            with self.subTest(models):
                tables: Any = {f"u{at}": {"base_url": self.fake.url, "models": {"m": m}} for at, m in enumerate(models)}
                prices: Any = {model: {"miss": 0, "hit": 0, "output": price} for model, price in usd.items()}
                proxy = self.limited(
                    keys={"ann": {"key": ANN, "usd_per_day": 1}}, upstreams=tables, prices=prices, upstream_model="m"
                )
                self.fake.answer(Answer(content="x" * 9, piece=1, stall_after=3))
                with self.connect(proxy, CHAT.request(key=ANN, model="m", max_tokens=100, stream=True)) as sock:
                    read_until(sock, b"data: ")
                    self.assertEqual(900 * 1000, self.used(proxy, "usd_per_day").reserved)


@needs("choices", "messages", "passthrough", "responses")
class TestClientsThatLeave(LimitsTestCase):
    def test_a_client_that_leaves_before_the_first_byte_pays_what_was_reserved(self) -> None:
        for way in WAYS:
            if way.name == "background":
                continue
            with self.subTest(way.name):
                proxy = self.ann(usd_per_day=1)
                for upstream in (self.fake, self.other):
                    upstream.forget()
                    upstream.answer(*[Raw(b"", then_stall=True)] * 2)
                choices = way.fields.get("n", 1)
                with self.connect(proxy, way.api.request(key=ANN, **way.fields, max_tokens=700)):
                    wait_until(lambda choices=choices: self.calls() == choices)  # type: ignore[misc]
                wait_until(lambda proxy=proxy: self.used(proxy, "usd_per_day").spent > 0)  # type: ignore[misc]
                self.assertEqual(Used(choices * 700 * 1000), self.used(proxy, "usd_per_day"))
                self.fake.forget()
                self.other.forget()

    def test_a_client_that_leaves_the_queue_pays_nothing(self) -> None:
        proxy = self.limited(keys={"ann": {"key": ANN, "usd_per_day": 1}}, max_upstream_calls=1)
        limits = proxy.server.services().upstream_client.call_limits
        for model, name in (("deepseek-v4-pro", "deepseek-v4-pro"), (PASSED, f'[passthrough."{PASSED}"]')):
            with self.subTest(model):
                limit = limits.of(name)
                while limit.has_room(b"%d" % limit.running_calls):
                    limit.acquire(caller=b"%d" % limit.running_calls)
                with self.connect(proxy, CHAT.request(key=ANN, model=model)):
                    wait_until(lambda limit=limit: limit.queued_calls == 1)  # type: ignore[misc]
                    self.assertLess(0, self.used(proxy, "usd_per_day").reserved)
                wait_until(lambda: self.used(proxy, "usd_per_day") == Used())

    def test_a_client_that_leaves_one_of_several_choices_pays_for_all(self) -> None:
        proxy = self.ann(usd_per_day=1)
        self.fake.answer(Answer(content="x"), Answer(content="y" * 900, piece=100, stall_after=9))
        with self.connect(proxy, CHAT.request(key=ANN, n=2, stream=True)) as sock:
            read_until(sock, b"yyy")
            limit = proxy.server.services().upstream_client.call_limits.of("deepseek-v4-pro")
            wait_until(lambda: (len(self.fake.seen), limit.running_calls) == (2, 1))
        wait_until(lambda: self.used(proxy, "usd_per_day").spent > 0)
        self.assertLess(200 * 1000, self.used(proxy, "usd_per_day").spent)

    def test_a_stream_of_another_upstream_that_breaks_is_paid_for(self) -> None:
        proxy = self.ann(usd_per_day=1)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.other.answer(Raw(head + b"a\r\ndata: {}\n\n\r\n"))
        self.go(proxy, model=PASSED, stream=True, max_tokens=700)
        self.assertEqual(Used(700 * 1000), self.used(proxy, "usd_per_day"))


@needs("choices", "messages", "passthrough", "responses")
class TestConcurrency(LimitsTestCase):
    def test_the_next_turn_may_follow_the_last_event_of_another_upstream(self) -> None:
        proxy = self.ann(concurrent=1)
        # Its connection stays open.
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.other.answer(Raw(head + b"e\r\ndata: [DONE]\n\n\r\n", then_stall=True))
        with self.connect(proxy, CHAT.request(key=ANN, model=PASSED, stream=True)) as sock:
            read_until(sock, b"[DONE]")
            self.assertEqual(200, self.go(proxy).status)

    def test_a_second_request_at_once_is_refused_until_the_client_leaves_the_first(self) -> None:
        for way in self.streamed():
            with self.subTest(way.name):
                proxy = self.ann(concurrent=1, usd_per_day=1)
                self.fake.answer(Answer(content="x" * 400, piece=100, stall_after=3))
                with self.connect(proxy, way.api.request(key=ANN, **way.fields)) as sock:
                    read_until(sock, b"xxx")
                    reply = self.go(proxy, way)
                    self.assertEqual((429, "1"), (reply.status, reply.headers["retry-after"]))
                wait_until(lambda proxy=proxy: self.used(proxy, "concurrent") == Used())  # type: ignore[misc]
                self.fake.release.set()
                spent = self.used(proxy, "usd_per_day")
                self.assertEqual(0, spent.reserved)
                self.assertLess(0, spent.spent)
                self.fake.release.clear()

    def streamed(self) -> Iterator[Way]:
        return (way for way in WAYS if way.fields == {"stream": True})

    def test_a_request_that_runs_during_a_reload_is_settled(self) -> None:
        proxy = self.ann(concurrent=1)
        self.fake.answer(Answer(content="x" * 400, piece=100, stall_after=3))
        with self.connect(proxy, CHAT.request(key=ANN, stream=True)) as sock:
            read_until(sock, b"xxx")
            proxy.server.reconfigure(proxy.server.config)
            self.assertEqual(429, self.go(proxy).status)
        wait_until(lambda: self.used(proxy, "concurrent") == Used())
        self.assertEqual(200, self.go(proxy).status)


@needs("choices", "messages", "passthrough", "responses")
class TestFairShares(LimitsTestCase):
    def test_a_key_whose_streams_hang_does_not_take_every_slot(self) -> None:
        keys: Any = {"ann": {"key": ANN}, "ben": {"key": BEN}}
        for model, upstream, calls in (("deepseek-v4-pro", self.fake, 10), (PASSED, self.other, 2)):
            with self.subTest(model):
                # Flash has five times as many slots.
                proxy = self.limited(keys=keys, max_upstream_calls=calls)
                upstream.answer(*[Answer(content="xxx", stall_after=2)] * 9)
                for _ in range(10):
                    self.connect(proxy, CHAT.request(key=ANN, model=model, stream=True))
                limits = proxy.server.services().upstream_client.call_limits
                wait_until(lambda limits=limits: [each.queued_calls for each in limits.snapshot().values()] == [1])  # type: ignore[misc]
                for _ in range(9):
                    upstream.stalls.get(timeout=PATIENCE)
                self.assertEqual(200, self.go(proxy, key=BEN, model=model).status)


@needs("choices", "messages", "passthrough", "responses")
class TestLockedFile(LimitsTestCase):
    def setUp(self) -> None:
        super().setUp()
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "store.sqlite3"
        keys: Any = {"ann": {"key": ANN, "usd_per_day": 5}, "ben": {"key": BEN}}
        self.locked = self.limited(ReasoningStore(path), keys=keys)
        self.locker = self.enterContext(closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)))
        self.locker.execute("BEGIN IMMEDIATE")
        self.ends: list[str] = []

    def go_with(self, key: str) -> None:
        self.assertEqual(200, self.go(self.locked, key=key).status)
        self.ends.append(key)

    def test_a_locked_file_delays_requests_with_limits_once(self) -> None:
        started = time.monotonic()
        run_at_once(self.go_with, [ANN] * 20)
        self.assertEqual(20, len(self.ends))
        # One after the other they took 42 seconds.
        self.assertLess(time.monotonic() - started, 30)

    def test_a_locked_file_delays_no_request_without_limits(self) -> None:
        with mock.patch.object(store, "_LOCK_SECONDS", PATIENCE):
            delayed = [in_background(self, self.go_with, ANN) for _ in range(3)]
            for _ in range(5):
                self.go_with(BEN)
            self.assertEqual([BEN] * 5, self.ends)
            self.locker.execute("ROLLBACK")
            for each in delayed:
                each.join()
        self.assertEqual([ANN] * 3, self.ends[5:])


@needs("choices", "messages", "passthrough", "responses")
class TestModels(LimitsTestCase):
    def test_a_model_is_allowed_after_aliases(self) -> None:
        keys: Any = {"ann": {"key": ANN, "models": ["deepseek-fl*"]}}
        proxy = self.limited(keys=keys, models={"fast": "deepseek-flash", "best": "deepseek-v4-pro"}, passthrough={})
        for way in WAYS[:3]:
            for model, is_allowed in (
                ("fast", True), ("deepseek-flash", True), ("best", False), ("deepseek-v4-pro", False),
            ):  # fmt: skip
                with self.subTest(way.name, model=model):
                    reply = self.go(proxy, way, model=model)
                    self.assertEqual(200 if is_allowed else 400 if way.api is MESSAGES else 403, reply.status)
                    if not is_allowed:
                        error = reply.value["error"]
                        words = "The key ann may not use deepseek-v4-pro; it may use deepseek-fl*."
                        self.assertIn(words, error["message"])
                        kind = "invalid_request_error" if way.api is MESSAGES else "permission_error"
                        self.assertEqual(kind, error["type"])

    def test_a_model_of_another_upstream_is_allowed_by_the_name_of_the_request(self) -> None:
        proxy = self.limited(keys={"ann": {"key": ANN, "models": ["deepseek-v4-pro"]}})
        self.assertEqual(403, self.go(proxy, model=PASSED).status)
        self.assertEqual(0, self.calls())
