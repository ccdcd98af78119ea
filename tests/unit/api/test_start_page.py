import base64
import hashlib
import re
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES

DASHBOARD = "http://127.0.0.1:9001/"


class StartPageTest(unittest.TestCase):
    def get(self, dashboard_url: str | None = DASHBOARD, method: str = "GET", **headers: str) -> HttpReply:
        services: Any = mock.Mock()
        given = {"host": "127.0.0.1:9000", "accept": "text/html,*/*;q=0.8"}
        request = HttpRequest(
            method, "/", headers={**given, **{name.replace("_", "-"): headers[name] for name in headers}}
        )
        return App(ProxyConfig(), services, ROUTES, dashboard_url)(request)

    def text(self, reply: HttpReply) -> str:
        assert isinstance(reply.body, bytes)
        return reply.body.decode()

    def test_a_browser_reads_the_base_urls_and_where_the_dashboard_is(self) -> None:
        reply = self.get()
        page = self.text(reply)
        self.assertEqual((200, "text/html; charset=utf-8"), (reply.status, dict(reply.headers)["Content-Type"]))
        self.assertIn("<code>http://127.0.0.1:9000/v1</code>", page)
        self.assertIn(f'<a href="{DASHBOARD}">', page)

    def test_strangers_in_a_tunnel_do_not_learn_the_port_of_the_dashboard(self) -> None:
        page = self.text(self.get(host="x.ngrok.app", x_forwarded_proto="https"))
        self.assertIn("<code>https://x.ngrok.app/v1</code>", page)
        self.assertNotIn("9001", page)
        self.assertNotIn("Dashboard", self.text(self.get(None)))

    def test_a_host_is_no_markup(self) -> None:
        self.assertNotIn("<script>", self.text(self.get(host="<script>alert(1)</script>")))

    def test_the_policy_allows_this_style_and_nothing_else(self) -> None:
        reply = self.get()
        [style] = re.findall("<style>(.*?)</style>", self.text(reply), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = dict(reply.headers)["Content-Security-Policy"]
        self.assertTrue(policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';"), policy)

    def test_clients_of_the_api_still_get_json(self) -> None:
        for headers in ({"accept": "*/*"}, {"accept": "application/json"}, {"accept": ""}):
            reply = self.get(**headers)
            self.assertEqual((404, "application/json"), (reply.status, dict(reply.headers)["Content-Type"]))
        self.assertEqual(404, self.get(method="POST").status)
        self.assertEqual(200, self.get(method="HEAD").status)
