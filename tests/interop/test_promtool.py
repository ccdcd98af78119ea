"""Prometheus' own checker reads the metrics and the examples of the documentation, and finds nothing wrong."""

import json
import os
import re
import shutil
import subprocess
from unittest import mock

from tests.interop import packages
from tests.support.admin_client import AdminCase
from tests.support.harness import chat_body, request_bytes
from tests.support.systems import ROOT

DOCS = ROOT / ".github" / "docs"
# A rule for an expression of Grafana, whose variables Prometheus does not know.
RULE = "      - record: panel:{number}\n        expr: '{expression}'\n"
VARIABLES = {"$__rate_interval": "5m", "$model": ".*", "$job": ".*"}

_promtool = ""


def setUpModule() -> None:
    global _promtool
    _promtool = shutil.which("promtool") or f"{packages.debian('promtool', 'prometheus')}/usr/bin/promtool"


class PromtoolTest(AdminCase):
    def check(self, *arguments: str, text: bytes = b"") -> None:
        command = [_promtool, "check", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        self.assertEqual((0, b""), (done.returncode, done.stderr), done.stdout)
        if text:
            self.assertEqual(b"", done.stdout)

    def check_file(self, kind: str, text: str) -> None:
        path = self.folder / f"{kind}.yml"
        path.write_text(text, encoding="utf-8")
        self.check(kind, str(path))

    def test_every_metric_of_a_proxy_that_has_worked_is_well_formed(self) -> None:
        self.enterContext(mock.patch.dict(os.environ, {"PLANTED_KEY": "sk-of-the-route"}))
        proxy = self.admin_proxy(passthrough={"gpt-*": {"base_url": f"{self.fake.url}/v1", "key_env": "PLANTED_KEY"}})
        admin = self.admin(proxy)
        self.check("metrics", text=self.get(admin, "/metrics").body)
        client = self.client(proxy)
        client.ask("What is six times seven?")
        client.ask("And now?")
        for body in (chat_body(stream=True), chat_body(model='odd "\\\n name'), {"messages": 1}):
            self.round_trip(proxy, request_bytes(body))
        self.round_trip(proxy, b"GET /absent HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.check("metrics", text=self.get(admin, "/metrics").body)

    def test_the_scrape_and_alert_examples_are_valid(self) -> None:
        page = (DOCS / "observing.md").read_text(encoding="utf-8")
        scrape, alerts = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        key = self.folder / "admin.key"
        key.write_text("sk-x")
        self.check_file("config", re.sub("credentials_file: .*", f"credentials_file: {key.as_posix()}", scrape))
        self.check_file("rules", alerts)

    def test_every_expression_of_the_grafana_dashboard_is_valid(self) -> None:
        dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        self.assertGreater(len(expressions), 10)
        for name, value in VARIABLES.items():
            expressions = [each.replace(name, value) for each in expressions]
        rules = "".join(RULE.format(number=at, expression=each) for at, each in enumerate(expressions))
        self.check_file("rules", f"groups:\n  - name: panels\n    rules:\n{rules}")
