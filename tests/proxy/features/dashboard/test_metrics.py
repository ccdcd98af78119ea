"""GET /metrics over real sockets: every name that is documented, the key of its own, and a store that fails."""

import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

from deepseek_cursor_proxy.features.dashboard import metrics, stats
from deepseek_cursor_proxy.features.redis import feature as redis
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import FakeDeepSeek
from tests.support.admin_client import AdminCase
from tests.support.harness import chat_body
from tests.support.polling import wait_until
from tests.support.systems import ROOT

DOCS = ROOT / ".github" / "docs"
NAME = re.compile(r"\b(?:dcp|process)_[a-z_]+\b")
METRICS_KEY = "sk-metrics-key-of-the-tests"


class MetricsTest(AdminCase):
    def test_the_documentation_names_the_metrics_that_there_are(self) -> None:
        source = "".join(Path(each.__file__).read_text(encoding="utf-8") for each in (metrics, stats, redis))
        exported = set(re.findall(r'"((?:dcp|process)_[a-z_]+)"', source))
        page = (DOCS / "observing.md").read_text(encoding="utf-8")
        table = page.partition("| metric |")[2].partition("\n\n")[0]
        self.assertEqual(exported, set(NAME.findall(table)))
        grafana = (DOCS / "grafana-dashboard.json").read_text(encoding="utf-8")
        used = {re.sub("_(?:bucket|sum|count)$", "", name) for name in NAME.findall(grafana + page)}
        self.assertLessEqual(used, exported)

    def test_counts_and_states_of_a_proxy_that_has_worked(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        for _ in range(2):
            self.round_trip(proxy, chat_body())
        self.round_trip(proxy, {"messages": 1})
        proxy.store.flush()
        reply = self.get(admin, "/metrics")
        self.assertEqual("text/plain; version=0.0.4; charset=utf-8", reply.headers["content-type"])
        lines = reply.body.decode().splitlines()
        for line in (
            'dcp_requests_total{api="chat",model="deepseek-v4-pro",outcome="completed"} 2',
            'dcp_requests_total{api="chat",model="none",outcome="refused"} 1',
            'dcp_request_seconds_count{model="deepseek-v4-pro"} 2', "dcp_upstream_queue_seconds_count 2",
            "dcp_streams_in_flight 0", "dcp_upstream_calls 0", 'dcp_upstream_waiting{model="deepseek-v4-pro"} 0',
            'dcp_store_rows{table="reasonings"} 1', "dcp_store_faults_total 0", "dcp_recoveries_total 0",
        ):  # fmt: skip
            with self.subTest(line):
                self.assertIn(line, lines)

    def test_a_reload_of_the_settings_keeps_the_counts(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.round_trip(proxy, chat_body())
        proxy.server.reconfigure(replace(proxy.server.config, cors=True))
        self.round_trip(proxy, chat_body())
        self.assertIn(b'outcome="completed"} 2\n', self.get(admin, "/metrics").body)

    def test_upstreams_that_fail_are_counted_and_shown(self) -> None:
        with FakeDeepSeek() as dead:
            pass
        tables = {"dead": {"base_url": dead.url}, "spare": {"base_url": self.fake.url, "priority": 2}}
        proxy = self.admin_proxy(upstreams=tables)
        admin = self.admin(proxy)
        with self.assertLogs("deepseek_cursor_proxy.observers.console", "WARNING"):
            for text in ("one chat", "another"):
                self.assertEqual(200, self.round_trip(proxy, chat_body(text)).status)
        lines = self.get(admin, "/metrics").body.decode().splitlines()
        self.assertIn('dcp_reroutes_total{upstream="dead"} 1', lines)
        self.assertIn('dcp_upstream_up{upstream="dead"} 0', lines)
        self.assertIn('dcp_upstream_up{upstream="spare"} 1', lines)
        stats = json.loads(self.get(admin, "/api/stats").body)["upstreams"]
        self.assertEqual([("dead", "open"), ("spare", "closed")], [(each["name"], each["state"]) for each in stats])

    def test_models_that_wait_have_a_label_if_a_known_caller_asked_for_them(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.get(admin, "/metrics")
        self.round_trip(proxy, chat_body())
        limits = proxy.server.services().upstream_client.call_limits
        for number in range(60):
            limits.of(f'odd "\ud800 {number}')
        text = self.get(admin, "/metrics").body.decode()
        lines = re.findall("^dcp_upstream_waiting{(.*)} 0$", text, re.MULTILINE)
        self.assertEqual(['model="deepseek-v4-pro"', 'model="other"'], lines)

    def test_its_own_key_opens_the_metrics_and_nothing_else(self) -> None:
        admin = self.admin(self.admin_proxy(metrics_key=METRICS_KEY))
        self.assertEqual(200, self.get(admin, "/metrics", key=METRICS_KEY).status)
        self.assertEqual(200, self.get(admin, "/metrics").status)
        for path in ("/healthz", "/readyz", "/api/stats", "/api/requests", "/api/config", "/api/events"):
            with self.subTest(path):
                self.assertEqual(401, self.get(admin, path, key=METRICS_KEY).status)

    def test_a_store_that_fails_is_counted_and_named(self) -> None:
        path = self.folder / "store.sqlite3"
        proxy = self.proxy(ReasoningStore(path), admin_port=0, admin_key="sk-admin-key-of-the-tests")
        admin = self.admin(proxy)
        self.round_trip(proxy, chat_body("first"))
        locked = sqlite3.connect(path)
        self.addCleanup(locked.close)
        locked.execute("BEGIN EXCLUSIVE")
        with self.assertLogs("deepseek_cursor_proxy.storage", "WARNING") as logged:
            self.round_trip(proxy, chat_body("second"))
            # The reopener's thread warns after its first try.
            wait_until(lambda: logged.records)
        self.assertNotIn(b"\ndcp_store_faults_total 0\n", self.get(admin, "/metrics").body)
        store = self.get(admin, "/api/stats").value["store"]
        self.assertIn("another process holds it locked", store["state"])
        self.assertGreater(store["faults"], 0)
        reply = self.get(admin, "/readyz")
        self.assertEqual(503, reply.status)
        self.assertIn("the store cannot be used: another process holds it locked", reply.value["reasons"][0])
        with self.assertLogs("deepseek_cursor_proxy.storage", "WARNING") as logged:
            locked.rollback()
            wait_until(lambda: proxy.store.database.fault is None and logged.records)
