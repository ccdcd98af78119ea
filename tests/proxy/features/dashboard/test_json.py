"""The JSON of the admin listener: its shapes, its pages, and what is never in it."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import proxy as composition
from deepseek_cursor_proxy.features.dashboard.service import AdminService
from deepseek_cursor_proxy.features.usage import dashboard as usage
from deepseek_cursor_proxy.features.usage import feature
from deepseek_cursor_proxy.features.usage.feature import Usage
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer
from tests.support.admin_client import ADMIN_KEY, AdminCase
from tests.support.harness import PATIENCE, RunningProxy, chat_body, read_until, request_bytes
from tests.support.polling import wait_until

ROW = """id number started_at api model requested_model key session stream ended_at outcome status message tokens
searches cost saved divergence_cost currency seconds retries turns repairs divergence repaired messages tools body_bytes
upstream cached client"""
RUNNING = """number started_at api model requested_model key session client stream phase age_seconds
output_tokens_estimate first_token_seconds"""
STATS = """version started_at now uptime_seconds base_url public_url upstreams in_flight waiting connections
last_minutes newest_request first_token_seconds tokens_per_second cache_hit_share store process views tracing
currency"""
OF_FEATURES = {"usage": "today", "response_cache": "cache", "keys": "named_keys", "sessions": "sessions"}
TODAY = """requests failed hit_tokens miss_tokens output_tokens thinking_tokens searches cost unknown_cost_requests
saved divergence_cost"""
GROUP = TODAY + " seconds first_token_seconds"
MINUTE = "minute requests failed busy_seconds output_tokens cost clients"
SECRETS = {
    "prompt": "planted-secret-of-the-prompt", "answer": "planted-secret-of-the-answer",
    "reasoning": "planted-secret-of-the-reasoning", "argument": "planted-secret-of-the-arguments",
    "key": "sk-planted-secret-of-the-client", "metrics": "sk-planted-secret-of-metrics",
    "access": "sk-planted-secret-of-access", "route": "sk-planted-secret-of-the-route",
}  # fmt: skip


class ShapeTest(AdminCase):
    def test_the_stats_of_a_proxy_that_was_just_started(self) -> None:
        proxy = self.admin_proxy()
        stats = self.get(self.admin(proxy), "/api/stats").value
        of_features = {name for feature, name in OF_FEATURES.items() if composition.has(feature)}
        self.assertEqual({*STATS.split(), *of_features}, set(stats))
        self.assertEqual(proxy.url, stats["base_url"])
        self.assertEqual(60, len(stats["last_minutes"]))
        self.assertEqual(set(MINUTE.split()), set(stats["last_minutes"][0]))
        for name in ("first_token_seconds", "tokens_per_second", "cache_hit_share", "public_url"):
            self.assertIsNone(stats[name])
        self.assertEqual([], stats["in_flight"])
        self.assertEqual({"name", "host", "state", "calls", "waiting"}, set(stats["upstreams"][0]))
        self.assertEqual({"path", "rows", "bytes", "state", "faults"}, set(stats["store"]))
        self.assertEqual(("usable", 0), (stats["store"]["state"], stats["store"]["faults"]))
        process = {"pid", "python", "cpu_seconds", "memory_bytes", "open_files"}
        self.assertEqual(process, set(stats["process"]))
        self.assertEqual((os.getpid(), False), (stats["process"]["pid"], stats["tracing"]))

    def test_a_request_that_ended_is_a_row_and_counts_in_the_stats(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.round_trip(proxy, chat_body(stream=True))
        [row] = self.get(admin, "/api/requests").value["requests"]
        self.assertEqual(set(ROW.split()), set(row))
        self.assertEqual(
            (1, "chat", "completed", 200, None, True, 1),
            tuple(row[each] for each in ("number", "api", "outcome", "status", "message", "stream", "messages")),
        )
        self.assertEqual({"hit", "miss", "output", "thinking"}, set(row["tokens"]))
        self.assertEqual({"queue", "connect", "first_token", "total"}, set(row["seconds"]))
        self.assertEqual({"filled", "kept", "empty", "missing", "recovered"}, set(row["turns"]))
        self.assertRegex(row["key"], "^[0-9a-f]{12}$")
        stats = self.get(admin, "/api/stats").value
        self.assertEqual(1, sum(each["requests"] for each in stats["last_minutes"]))
        self.assertEqual({"p50", "p95"}, set(stats["first_token_seconds"]))
        self.assertEqual(0, stats["cache_hit_share"])

    def test_a_stream_in_flight_is_listed_until_it_ends(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.fake.answer(Answer(content="word " * 40, stall_after=6))
        sock = self.connect(proxy, chat_body(stream=True))
        self.fake.stalls.get(timeout=PATIENCE)
        read_until(sock, b"word")
        stats = self.get(admin, "/api/stats").value
        [running] = stats["in_flight"]
        self.assertEqual(set(RUNNING.split()), set(running))
        self.assertEqual((1, "streaming", True), tuple(running[each] for each in ("number", "phase", "stream")))
        self.assertGreater(running["output_tokens_estimate"], 0)
        self.assertEqual((1, 1), (stats["connections"], stats["upstreams"][0]["calls"]))
        self.assertIn(b"\ndcp_streams_in_flight 1\n", self.get(admin, "/metrics").body)
        self.fake.release.set()
        read_until(sock, b"[DONE]")
        wait_until(lambda: not self.get(admin, "/api/stats").value["in_flight"])

    def test_pages_go_back_to_the_first_request(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        for number in range(7):
            self.round_trip(proxy, chat_body(model="deepseek-flash" if number == 3 else "deepseek-v4-pro"))
        numbers: list[int] = []
        before = ""
        while True:
            page = self.get(admin, f"/api/requests?limit=3{before}").value
            numbers += [row["number"] for row in page["requests"]]
            if page["next_before"] is None:
                break
            before = f"&before={page['next_before']}"
        self.assertEqual([7, 6, 5, 4, 3, 2, 1], numbers)
        # The rest is known to who asks for what came after one of them, unless that is forgotten.
        for query, wanted, next_before in (
            ("after=5", [7, 6], None), ("after=5&limit=1", [7], 7), ("after=9", numbers, None),
        ):  # fmt: skip
            page = self.get(admin, f"/api/requests?{query}").value
            self.assertEqual((wanted, next_before), ([row["number"] for row in page["requests"]], page["next_before"]))
        self.assertEqual(7, self.get(admin, "/api/stats").value["newest_request"])
        [flash] = self.get(admin, "/api/requests?model=deepseek-flash").value["requests"]
        self.assertEqual(4, flash["number"])
        self.assertEqual([], self.get(admin, "/api/requests?outcome=failed").value["requests"])
        self.assertEqual(7, len(self.get(admin, f"/api/requests?key={flash['key']}").value["requests"]))

    def test_the_requests_of_one_chat_are_found_with_their_client_after_a_restart_too(self) -> None:
        for runs in (1, 2):
            proxy = self.admin_proxy(ReasoningStore(self.folder / "store.sqlite3"))
            admin = self.admin(proxy)
            for text in ("one", "two", "one"):
                self.round_trip(proxy, request_bytes(chat_body(text), headers=["User-Agent: codex_cli_rs/0.142.5"]))
            proxy.server.services().get(Usage).ledger.flush()
            rows = self.get(admin, "/api/requests").value["requests"]
            self.assertEqual(["Codex"] * 3 * runs, [row["client"] for row in rows])
            session = rows[0]["session"]
            found = self.get(admin, f"/api/requests?session={session}").value["requests"]
            self.assertEqual([session] * 2 * runs, [row["session"] for row in found])
            minutes = self.get(admin, "/api/stats").value["last_minutes"]
            self.assertEqual(3, sum(each["clients"].get("Codex", 0) for each in minutes))
            admin.close()
            proxy.close()

    def test_a_query_that_makes_no_sense_is_a_400(self) -> None:
        admin = self.admin(self.admin_proxy())
        for query in ("before=x", "limit=1e3", "before=" + "9" * 16, "&".join(f"a{n}=1" for n in range(30))):
            with self.subTest(query[:20]):
                reply = self.get(admin, f"/api/requests?{query}")
                self.assertEqual((400, {"message", "code"}), (reply.status, set(reply.value["error"])))

    def test_the_details_of_a_request_have_its_turns_and_say_how_to_get_bodies(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        client = self.client(proxy)
        client.ask("What is six times seven?")
        client.ask("And now?")
        number = self.get(admin, "/api/requests").value["requests"][0]["number"]
        details = self.get(admin, f"/api/requests/{number}").value
        self.assertEqual({*ROW.split(), "strip", "finish_reason", "dropped", "bodies", "bodies_hint"}, set(details))
        self.assertEqual({"index", "source", "proof"}, set(details["strip"][0]))
        self.assertIsNone(details["bodies"])
        self.assertIn("trace_dir", details["bodies_hint"])
        for absent in ("999", "0"):
            reply = self.get(admin, f"/api/requests/{absent}")
            self.assertEqual((404, "unknown_request"), (reply.status, reply.value["error"]["code"]))

    def test_with_tracing_the_bodies_are_there(self) -> None:
        proxy = self.admin_proxy(trace_dir=self.folder / "traces")
        admin = self.admin(proxy)
        self.round_trip(proxy, chat_body("the question"))
        details = self.get(admin, "/api/requests/1").value
        self.assertEqual({"client", "upstream", "answer"}, set(details["bodies"]))
        self.assertEqual("the question", details["bodies"]["client"]["messages"][0]["content"])
        self.assertIsNone(details["bodies_hint"])
        # After a change of the settings they are those of the same run.
        proxy.server.reconfigure(proxy.server.config)
        self.round_trip(proxy, chat_body("another"))
        self.assertEqual(
            "another", self.get(admin, "/api/requests/2").value["bodies"]["client"]["messages"][0]["content"]
        )
        for path in (self.folder / "traces").iterdir():
            path.write_text("damaged")
        self.assertIn("no trace of this request", self.get(admin, "/api/requests/1").value["bodies_hint"])

    def test_two_proxies_with_one_trace_dir_show_no_prompt_of_the_other(self) -> None:
        proxies = [self.admin_proxy(trace_dir=self.folder / "traces") for _ in range(2)]
        admins = [self.admin(each) for each in proxies]
        for text, proxy in zip(("first", "second"), proxies, strict=True):
            self.round_trip(proxy, chat_body(text))
        # A request that is not traced, of which the other has one with the same number.
        self.round_trip(proxies[1], chat_body("third"))
        proxies[0].server.reconfigure(replace(proxies[0].server.config, trace_dir=None))
        self.round_trip(proxies[0], chat_body("untraced"))
        proxies[0].server.reconfigure(replace(proxies[0].server.config, trace_dir=self.folder / "traces"))
        found = [self.get(admin, f"/api/requests/{number}").value["bodies"] for admin in admins for number in (1, 2)]
        texts = [bodies and bodies["client"]["messages"][0]["content"] for bodies in found]
        self.assertEqual(["first", None, "second", "third"], texts)


class LedgerTest(AdminCase):
    """What is no longer in memory, or was before the proxy started."""

    def proxy_with(self, path: Path, **settings: Any) -> tuple[RunningProxy, AdminService]:
        proxy = self.proxy(ReasoningStore(path), admin_port=0, admin_key=ADMIN_KEY, **settings)
        return proxy, self.admin(proxy)

    def ids(self, admin: AdminService, query: str = "") -> list[int]:
        found: list[int] = []
        before = ""
        while True:
            page = self.get(admin, f"/api/requests?limit=3{query}{before}").value
            found += [row["id"] for row in page["requests"]]
            if page["next_before"] is None:
                return found
            before = f"&before={page['next_before']}"

    def test_pages_continue_in_the_ledger_of_earlier_runs(self) -> None:
        path = self.folder / "store.sqlite3"
        proxy, _ = self.proxy_with(path)
        for number in range(4):
            self.round_trip(proxy, chat_body(model="deepseek-flash" if number == 1 else "deepseek-v4-pro"))
        proxy.close()
        proxy, admin = self.proxy_with(path)
        for _ in range(5):
            self.round_trip(proxy, chat_body())
        proxy.server.services().get(Usage).ledger.flush()
        self.assertEqual([5, 4, 3, 2, 1, -4, -3, -2, -1], self.ids(admin))
        self.assertEqual([-2], self.ids(admin, "&model=deepseek-flash"))
        self.assertEqual([], self.ids(admin, "&outcome=failed"))
        old = self.get(admin, "/api/requests/-2")
        self.assertEqual({*ROW.split(), "strip", "finish_reason", "dropped", "bodies", "bodies_hint"}, set(old.value))
        self.assertEqual((-2, 2, "deepseek-flash"), tuple(old.value[each] for each in ("id", "number", "model")))
        self.assertEqual(404, self.get(admin, "/api/requests/-99").status)

    def test_usage_and_today_add_up_what_requests_cost(self) -> None:
        proxy, admin = self.proxy_with(self.folder / "store.sqlite3")
        for _ in range(3):
            self.round_trip(proxy, chat_body())
        proxy.server.services().get(Usage).ledger.flush()
        rows = self.get(admin, "/api/requests").value["requests"]
        cost = sum(row["cost"] for row in rows)
        self.assertGreater(cost, 0)
        stats = self.get(admin, "/api/stats").value
        self.assertEqual(set(TODAY.split()), set(stats["today"]))
        self.assertEqual((3, 0), (stats["today"]["requests"], stats["today"]["unknown_cost_requests"]))
        self.assertEqual("USD", stats["currency"])
        self.assertAlmostEqual(cost, stats["today"]["cost"])
        self.assertAlmostEqual(cost, sum(each["cost"] or 0 for each in stats["last_minutes"]))
        for by in ("day", "model", "key", "api", "session"):
            report = self.get(admin, f"/api/usage?by={by}").value
            names = {"since", "until", "by", "currency", "estimate", "groups", "total", "days", "switched"}
            self.assertEqual(names, set(report))
            self.assertEqual(set(GROUP.split()), set(report["total"]))
            self.assertEqual({*GROUP.split(), "name"}, set(report["groups"][0]))
            self.assertAlmostEqual(cost, report["total"]["cost"])
        text = self.get(admin, "/metrics").body.decode()
        [metric] = re.findall(r'^dcp_cost_usd_total{model="deepseek-v4-pro"} (.+)$', text, re.MULTILINE)
        self.assertAlmostEqual(cost, float(metric))

    def test_a_query_for_usage_that_makes_no_sense_is_a_400(self) -> None:
        admin = self.admin(self.admin_proxy())
        for query in (
            "days=0", "by=prompt", "since=yesterday", "until=2026-13-01", "since=2026-02-02&until=2026-02-01",
        ):  # fmt: skip
            with self.subTest(query):
                self.assertEqual(400, self.get(admin, f"/api/usage?{query}").status)

    def test_a_store_that_cannot_be_read_is_a_503_for_usage_and_null_in_the_stats(self) -> None:
        _, admin = self.proxy_with(self.folder / "store.sqlite3")
        with mock.patch.object(feature, "open_read_only", side_effect=Unusable("it is gone", "find it")):
            reply = self.get(admin, "/api/usage")
            self.assertEqual(503, reply.status)
            self.assertIn("it is gone; find it", reply.value["error"]["message"])
            self.assertIsNone(self.get(admin, "/api/stats").value["today"])
            self.assertEqual({"requests": [], "next_before": None}, self.get(admin, "/api/requests").value)
            self.assertEqual(503, self.get(admin, "/api/requests?before=-7").status)

    def test_a_report_serves_for_some_seconds(self) -> None:
        admin = self.admin(self.admin_proxy())
        with mock.patch.object(usage, "make_report", wraps=usage.make_report) as make_report:
            for _ in range(5):
                self.get(admin, "/api/usage")
            self.get(admin, "/api/usage?by=model")
        self.assertEqual(2, make_report.call_count)


class SecretsTest(AdminCase):
    def test_no_answer_contains_a_prompt_an_answer_or_a_key(self) -> None:
        self.enterContext(mock.patch.dict(os.environ, {"PLANTED_KEY": SECRETS["route"]}))
        proxy = self.admin_proxy(
            metrics_key=SECRETS["metrics"],
            access_keys=[SECRETS["access"], SECRETS["key"]],
            passthrough={"gpt-*": {"base_url": f"{self.fake.url}/v1", "key_env": "PLANTED_KEY"}},
        )
        admin = self.admin(proxy)
        self.fake.answer(*[Answer(reasoning=SECRETS["reasoning"], content=SECRETS["answer"])] * 3)
        for body in self.bodies():
            self.round_trip(proxy, request_bytes(body, key=SECRETS["key"]))
        self.round_trip(proxy, request_bytes(chat_body(SECRETS["prompt"]), key="sk-planted-wrong-key-of-a-stranger"))
        self.round_trip(proxy, request_bytes(chat_body(), path=f"/v1/{SECRETS['key']}", key=SECRETS["key"]))
        paths = ("/metrics", "/api/stats", "/api/requests", "/api/usage?by=session", "/api/config", "/readyz", "/")
        count = len(self.get(admin, "/api/requests").value["requests"])
        self.assertGreaterEqual(count, 5)
        texts = [self.get(admin, path).body.decode() for path in paths]
        texts += [self.get(admin, f"/api/requests/{number}").body.decode() for number in range(1, count + 1)]
        for name, secret in {**SECRETS, "admin": ADMIN_KEY, "wrong": "sk-planted-wrong-key-of-a-stranger"}.items():
            with self.subTest(name):
                self.assertFalse([text for text in texts if secret in text])

    def bodies(self) -> list[dict[str, Any]]:
        tool = {"type": "function", "function": {"name": "planted_tool", "parameters": {"type": "object"}}}
        call = {"id": "c1", "type": "function"}
        call["function"] = {"name": "planted_tool", "arguments": json.dumps({"x": SECRETS["argument"]})}
        history = [
            {"role": "user", "content": SECRETS["prompt"]},
            {"role": "assistant", "content": SECRETS["answer"], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": SECRETS["prompt"]},
        ]
        return [
            chat_body(SECRETS["prompt"]), chat_body(SECRETS["prompt"], stream=True, user=SECRETS["prompt"]),
            {"messages": history, "tools": [tool], "stream": True}, {"messages": SECRETS["prompt"]},
            {"messages": [{"role": SECRETS["prompt"], "content": "x"}]},
        ]  # fmt: skip
