"""Prometheus' own checker reads /metrics and finds nothing to complain about."""

import os
import subprocess
from unittest import mock

from tests.interop import debian
from tests.support.admin_client import AdminCase
from tests.support.harness import chat_body, request_bytes

_promtool = ""


def setUpModule() -> None:
    global _promtool
    _promtool = debian.program("promtool", "prometheus")


class PromtoolTest(AdminCase):
    def check(self, text: bytes) -> None:
        done = subprocess.run([_promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        self.assertEqual((0, b"", b""), (done.returncode, done.stdout, done.stderr))

    def test_every_metric_of_a_proxy_that_has_worked_is_well_formed(self) -> None:
        self.enterContext(mock.patch.dict(os.environ, {"PLANTED_KEY": "sk-of-the-route"}))
        proxy = self.admin_proxy(passthrough={"gpt-*": {"base_url": f"{self.fake.url}/v1", "key_env": "PLANTED_KEY"}})
        admin = self.admin(proxy)
        self.check(self.get(admin, "/metrics").body)
        client = self.client(proxy)
        client.ask("What is six times seven?")
        client.ask("And now?")
        for body in (chat_body(stream=True), chat_body(model='odd "\\\n name'), {"messages": 1}):
            self.round_trip(proxy, request_bytes(body))
        self.round_trip(proxy, b"GET /absent HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.check(self.get(admin, "/metrics").body)
