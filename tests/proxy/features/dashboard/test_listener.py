"""The admin listener from outside: who is let in, slow and hostile clients, reload and stop."""

import contextlib
import errno
import os
import re
import socket
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.dashboard import service
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.admin_client import ADMIN_KEY, AdminCase
from tests.support.harness import PATIENCE, chat_body, read_reply
from tests.support.polling import wait_until
from tests.support.ports import closed_port

WITH_KEY = ("/healthz", "/readyz", "/metrics", "/api/stats", "/api/requests", "/api/requests/1", "/api/usage")
WITH_KEY += ("/api/config", "/absent", "/admin.key", "//", "/../admin.key")


class AccessTest(AdminCase):
    def test_nothing_is_served_without_the_key(self) -> None:
        admin = self.admin(self.admin_proxy())
        self.enterContext(self.assertLogs("deepseek_cursor_proxy.access", "WARNING"))
        for path in WITH_KEY:
            for key in (None, "sk-another-key-than-the-one", ADMIN_KEY[:-1], ADMIN_KEY + "x", ADMIN_KEY.upper()):
                with self.subTest(path, key=key):
                    reply = self.get(admin, path, key=key, Cookie=f"key={ADMIN_KEY}")
                    self.assertIn(reply.status, (401, 429))
                    self.assertEqual({"error"}, set(reply.value))
                    self.assertEqual({"message", "code"}, set(reply.value["error"]))
                    self.assertNotIn("set-cookie", reply.headers)
        # A long key is never kept waiting by the failures of others.
        self.assertEqual({"status": "alive"}, self.get(admin, "/healthz").value)

    def test_a_short_key_cannot_be_guessed_by_trying(self) -> None:
        admin = self.admin(self.admin_proxy(admin_key="swordfish"))
        with self.assertLogs("deepseek_cursor_proxy.access", "WARNING"):
            statuses = [self.get(admin, "/healthz", key=f"guess-{number}").status for number in range(25)]
        self.assertEqual([401] * 20 + [429] * 5, statuses)
        reply = self.get(admin, "/healthz", key="swordfish")
        self.assertEqual(429, reply.status)
        self.assertGreater(int(reply.headers["retry-after"]), 0)

    def test_a_foreign_host_or_origin_is_forbidden_even_with_the_key(self) -> None:
        admin = self.admin(self.admin_proxy())
        own = admin.url.removeprefix("http://")
        port = own.rpartition(":")[2]
        for headers, status in (
            ({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{port}"}, 403),
            ({"Host": "127.0.0.1.evil.example"}, 403), ({"Host": f"localhost:{port}"}, 200),
            ({"Host": "localhost:8080"}, 200), ({"Host": f"[::1]:{port}"}, 200),
            ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
            ({"Origin": "http://127.0.0.1:3000"}, 403), ({"Origin": "vscode-webview://x"}, 403),
            ({"Origin": f"http://{own}"}, 200),
        ):  # fmt: skip
            for path in ("/healthz", "/"):
                with self.subTest(path, **headers):
                    reply = self.get(admin, path, **headers)
                    self.assertEqual(status == 403, reply.status == 403, reply.body)
                    self.assertNotIn("access-control-allow-origin", reply.headers)

    def test_the_absolute_form_of_a_foreign_host_is_forbidden(self) -> None:
        admin = self.admin(self.admin_proxy())
        reply = self.get(admin, "http://evil.example/healthz")
        self.assertEqual(403, reply.status)

    def test_only_reading_is_allowed(self) -> None:
        admin = self.admin(self.admin_proxy())
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            reply = self.get(admin, "/healthz", method=method)
            self.assertEqual((405, "GET, HEAD"), (reply.status, reply.headers["allow"]))
        reply = self.get(admin, "/healthz", method="HEAD")
        self.assertEqual((200, b""), (reply.status, reply.body))

    def test_every_reply_forbids_what_the_page_does_not_need(self) -> None:
        admin = self.admin(self.admin_proxy())
        for path in ("/", "/healthz", "/absent"):
            headers = self.get(admin, path).headers
            with self.subTest(path):
                self.assertIn("default-src 'none'; script-src 'self'", headers["content-security-policy"])
                self.assertEqual("nosniff", headers["x-content-type-options"])
                self.assertEqual("no-referrer", headers["referrer-policy"])
                self.assertEqual("DENY", headers["x-frame-options"])
                self.assertEqual("no-store", headers["cache-control"])

    def test_the_page_is_served_without_a_key(self) -> None:
        admin = self.admin(self.admin_proxy())
        page = self.get(admin, "/", key=None)
        self.assertEqual(200, page.status)
        self.assertEqual("text/html; charset=utf-8", page.headers["content-type"])
        for path in re.findall(r'(?:src|href)="/?([^":#]+)"', page.body.decode()):
            with self.subTest(path):
                self.assertEqual(200, self.get(admin, f"/{path}", key=None).status)

    def test_without_admin_key_the_one_beside_the_store_opens_it(self) -> None:
        store = ReasoningStore(self.folder / "store.sqlite3")
        proxy = self.proxy(store, admin_port=0, reasoning_content_path=self.folder / "store.sqlite3")
        admin = self.admin(proxy)
        key = (self.folder / "admin.key").read_text().strip()
        self.assertEqual(f"{admin.url}/#key={key}", admin.link)
        self.assertEqual(200, self.get(admin, "/healthz", key=key).status)
        self.assertEqual(401, self.get(admin, "/healthz").status)
        self.assertEqual([admin.url], [path.read_text() for path in self.folder.glob("admin-*.url")])
        second = self.admin(self.proxy(admin_port=0, reasoning_content_path=self.folder / "store.sqlite3"))
        self.assertEqual(200, self.get(second, "/healthz", key=key).status)
        second.close()
        self.assertEqual([admin.url], [path.read_text() for path in self.folder.glob("admin-*.url")])

    def test_new_keys_count_after_a_reload(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.assertEqual(200, self.get(admin, "/healthz").status)
        config = replace(proxy.server.config, admin_key=AccessKey.of("sk-a-new-key-of-the-admin"))
        admin.reload(admin.context.loaded._replace(config=config))
        self.assertEqual(401, self.get(admin, "/healthz").status)
        self.assertEqual(200, self.get(admin, "/healthz", key="sk-a-new-key-of-the-admin").status)


class ConnectionsTest(AdminCase):
    def test_clients_beyond_the_limit_cost_the_proxy_nothing(self) -> None:
        self.enterContext(mock.patch.object(service, "MOST_CONNECTIONS", 3))
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        address = ("127.0.0.1", int(admin.url.rpartition(":")[2]))
        idle = [self.enterContext(socket.create_connection(address, PATIENCE)) for _ in range(3)]
        wait_until(lambda: len(admin._connections) == 3)
        with socket.create_connection(address, PATIENCE) as further:
            self.assertEqual(503, read_reply(further).status)
        self.assertEqual(200, self.round_trip(proxy, chat_body()).status)
        idle.pop().close()
        wait_until(lambda: len(admin._connections) == 2)
        self.assertEqual(200, self.get(admin, "/healthz").status)

    def test_a_malformed_request_is_answered_once(self) -> None:
        admin = self.admin(self.admin_proxy())
        address = ("127.0.0.1", int(admin.url.rpartition(":")[2]))
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00 not http\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            with self.subTest(data), socket.create_connection(address, PATIENCE) as sock:
                sock.sendall(data)
                self.assertIn(read_reply(sock).status, (400, 505))

    def test_a_body_is_neither_read_nor_kept(self) -> None:
        admin = self.admin(self.admin_proxy())
        address = ("127.0.0.1", int(admin.url.rpartition(":")[2]))
        head = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\n"
        with socket.create_connection(address, PATIENCE) as sock:
            sock.sendall(f"{head}Content-Length: 100000000\r\n\r\n".encode() + b"x" * 1000)
            reply = read_reply(sock)
            self.assertEqual((200, "close"), (reply.status, reply.headers["connection"]))

    def test_an_idle_connection_does_not_delay_the_stop(self) -> None:
        admin = self.admin(self.admin_proxy())
        address = ("127.0.0.1", int(admin.url.rpartition(":")[2]))
        sock = self.enterContext(socket.create_connection(address, PATIENCE))
        wait_until(lambda: len(admin._connections) == 1)
        admin.close()
        self.assertEqual(b"", sock.recv(1))
        with contextlib.suppress(ConnectionError):
            socket.create_connection(address, PATIENCE).close()
            self.fail("somebody still listens")


class HealthTest(AdminCase):
    def test_the_proxy_is_ready_once_the_upstream_can_be_connected_to(self) -> None:
        admin = self.admin(self.admin_proxy())
        reply = self.get(admin, "/readyz")
        self.assertEqual((200, {"status": "ready"}), (reply.status, reply.value))
        # The connection was opened and closed; nothing was asked.
        self.assertEqual([], self.fake.seen)

    def test_an_upstream_out_of_reach_is_named(self) -> None:
        port = self.enterContext(closed_port())
        admin = self.admin(self.admin_proxy(upstream_base_url=f"http://127.0.0.1:{port}"))
        reply = self.get(admin, "/readyz")
        self.assertEqual((503, "not ready"), (reply.status, reply.value["status"]))
        self.assertIn(f"127.0.0.1:{port} cannot be reached", reply.value["reasons"][0])
        admin.context.is_stopping = True
        self.assertIn("the proxy is stopping", self.get(admin, "/readyz").value["reasons"])

    def test_a_chat_answers_for_the_upstream(self) -> None:
        proxy = self.admin_proxy()
        admin = self.admin(proxy)
        self.assertEqual(200, self.round_trip(proxy, chat_body()).status)
        with mock.patch.object(type(proxy.server.services().upstream_client), "probe", side_effect=AssertionError):
            self.assertEqual(200, self.get(admin, "/readyz").status)


class SettingsTest(AdminCase):
    def test_the_settings_are_listed_with_their_origin_and_without_secrets(self) -> None:
        keys = ("sk-first-of-the-access-keys", "sk-metrics-key-of-the-tests")
        option = "token-of-a-host-in-no-known-form"
        proxy = self.admin_proxy(access_keys=[keys[0]], metrics_key=keys[1], host_options={"x": {"y": [option, 7]}})
        reply = self.get(self.admin(proxy, Path("/somewhere/config.toml")), "/api/config")
        found = {each["name"]: each for each in reply.value["settings"]}
        self.assertEqual({"name", "value", "origin", "help", "is_secret"}, set(found["port"]))
        self.assertEqual(("9000", "default"), (found["port"]["value"], found["port"]["origin"]))
        self.assertFalse(found["port"]["is_secret"])
        for name in ("access_keys", "admin_key", "metrics_key"):
            self.assertTrue(found[name]["is_secret"])
            self.assertRegex(found[name]["value"], r'^\[?"sha256:[0-9a-f]{12}…"\]?$')
        self.assertEqual('{x = {y = ["…", 7]}}', found["host_options"]["value"])
        for secret in (*keys, option, ADMIN_KEY):
            self.assertNotIn(secret, reply.body.decode())
        self.assertEqual("/somewhere/config.toml", Path(reply.value["config_path"]).as_posix())


class ListenTest(unittest.TestCase):
    def listen(self, host: str, port: int) -> socket.socket:
        return self.enterContext(service.listen(host, port))

    @unittest.skipIf(os.name == "nt", "there a port that is bound cannot be bound again")
    def test_a_port_that_another_program_has_bound_at_the_same_moment_is_busy(self) -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            port, real_bind = other.getsockname()[1], socket.socket.bind

            def bind(sock: socket.socket, address: tuple[str, int]) -> None:
                real_bind(sock, address)
                if address[1] == port:
                    other.listen()

            with mock.patch.object(socket.socket, "bind", bind):
                self.assertNotEqual(port, self.listen("localhost", port).getsockname()[1])

    def test_after_twenty_busy_ports_any_will_do(self) -> None:
        tried = []

        def listen_at(address: tuple[str, int], **_: object) -> socket.socket:
            tried.append(address[1])
            if address[1]:
                raise OSError(errno.EADDRINUSE, "Address already in use")
            return socket.socket()

        with mock.patch("socket.create_server", listen_at):
            self.listen("localhost", 65530)
        self.assertEqual([65530, 65531, 65532, 65533, 65534, 65535, 0], tried)

    def test_a_machine_without_ipv4_has_it_on_ipv6(self) -> None:
        def listen_at(address: tuple[str, int], **_: object) -> socket.socket:
            if address[0] == "127.0.0.1":
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            self.assertEqual("::1", address[0])
            return socket.socket()

        with mock.patch("socket.create_server", listen_at):
            self.listen("localhost", 9001)

    def test_a_host_of_another_machine_is_refused_with_the_remedy(self) -> None:
        for host in ("192.0.2.1", "no.such.host.invalid", "x" * 300):
            with self.subTest(host[:30]), self.assertRaisesRegex(StartupError, "choose another --admin-host, or turn"):
                service.listen(host, 0)

    def test_without_a_thread_the_port_is_given_back(self) -> None:
        sock = service.listen("localhost", 0)
        with (
            mock.patch.object(service, "start_thread", return_value=None),
            mock.patch.object(service, "listen", return_value=sock),
            self.assertRaisesRegex(StartupError, "no more threads"),
        ):
            loaded = LoadedConfig(ProxyConfig(reasoning_content_path=Path(":memory:")), {})
            service.AdminService(mock.Mock(), loaded, Path())
        self.assertEqual(-1, sock.fileno())
