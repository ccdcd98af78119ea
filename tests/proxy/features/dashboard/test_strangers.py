"""Commands beside the port of a proxy that is gone: whatever listens there now gets no key and is not believed."""

import contextlib
import http.server
import io
import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import cli
from deepseek_cursor_proxy.cli import running_proxy
from tests.support.admin_client import ADMIN_KEY, AdminCase, fetch

EVIL = "http://127.0.0.1:6666/v1"
STATS = {"version": "0", "base_url": EVIL, "public_url": "https://evil.example", "store": {"state": "usable"}}


class Stranger:
    """A listener that answers everything with the same statistics, or passes a question on to a proxy."""

    def __init__(self, relay: str = "", status: int = 200) -> None:
        self.received: list[str] = []
        stranger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stranger.received.append(f"{self.path} {self.headers}")
                body = fetch(relay, self.path, {}).body if relay else json.dumps(STATS).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class StrangerTest(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.home = self.folder / "home"
        self.directory = self.home / ".deepseek-cursor-proxy"
        self.directory.mkdir(parents=True, mode=0o700)
        self.store = self.directory / "reasoning_content.sqlite3"
        ours = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP", "TMP", "TMPDIR") if name in os.environ}
        ours |= {"HOME": str(self.home), "USERPROFILE": str(self.home), "PATH": ""}
        ours["DEEPSEEK_CURSOR_PROXY_BASE_URL"] = self.fake.url
        self.enterContext(mock.patch.dict(os.environ, ours, clear=True))
        self.browser = self.enterContext(mock.patch("webbrowser.open", return_value=True))

    def leave(self, url: str) -> Path:
        """What a killed proxy leaves."""
        path = self.directory / f"admin-{url.rpartition(':')[2]}.url"
        path.write_text(url)
        path.chmod(0o600)
        return path

    def leave_keys(self) -> None:
        (self.directory / "admin.key").write_text(f"{ADMIN_KEY}\n")
        (self.directory / "admin.key").chmod(0o600)
        (self.directory / "secret.key").write_bytes(bytes(range(32)))

    def run_command(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(list(words))
        return code, out.getvalue(), err.getvalue()

    def stranger(self, **options: Any) -> Stranger:
        stranger = self.enterContext(contextlib.closing(Stranger(**options)))
        self.leave(stranger.url)
        return stranger

    def expect_nothing_given(self, stranger: Stranger) -> None:
        """No command gives a stranger a key, opens it or takes over what it says."""
        code, _, err = self.run_command("dashboard")
        self.assertEqual(2, code)
        self.assertRegex(
            err, r"\Adeepseek-cursor-proxy: what listens at \S+ does not prove .+, so no key was sent; .+\n\Z"
        )
        self.browser.assert_not_called()
        code, out, err = self.run_command("setup", "codex", "--yes")
        self.assertEqual(0, code)
        self.assertNotIn("6666", (self.home / ".codex" / "config.toml").read_text())
        self.assertIn("no key was sent", err)
        _, out, err = self.run_command("doctor")
        self.assertRegex(out, r"(?m)^✗ dashboard .+\n +→ .*if it is one of an older version, restart it")
        self.assertNotIn("evil.example", out)
        asked = [each.partition("?")[0] for each in stranger.received]
        self.assertEqual([running_proxy.PROOF_PATH] * 3, asked)
        self.assertNotIn(ADMIN_KEY, "".join(stranger.received))
        self.assertNotIn("uthorization", "".join(stranger.received))

    def test_a_stranger_at_the_port_of_a_killed_proxy_gets_no_key(self) -> None:
        self.leave_keys()
        self.expect_nothing_given(self.stranger())

    def test_a_listener_without_a_proof_may_be_an_older_proxy_and_is_named_so(self) -> None:
        self.leave_keys()
        self.expect_nothing_given(self.stranger(status=401))

    def test_a_stranger_cannot_pass_the_proof_of_a_proxy_at_another_port_on(self) -> None:
        admin = self.admin(self.admin_proxy(reasoning_content_path=self.store, admin_key=None))
        stranger = self.stranger(relay=admin.url)
        (self.directory / f"admin-{admin.url.rpartition(':')[2]}.url").unlink()
        answers = list(running_proxy.ask_all(self.store, "/api/stats", admin.context.own_key))
        self.assertEqual([(stranger.url, False)], [each[:2] for each in answers])
        self.assertEqual(1, len(stranger.received))
        self.assertNotIn(str(admin.context.own_key), "".join(stranger.received))

    def test_a_proxy_of_ours_is_found_behind_a_stranger(self) -> None:
        proxy = self.admin_proxy(reasoning_content_path=self.store, admin_key=None)
        admin = self.admin(proxy)
        stranger = self.stranger()
        code, out, err = self.run_command("setup", "codex", "--print")
        self.assertEqual((0, ""), (code, err))
        self.assertIn(f'base_url = "{proxy.url}"', out)
        self.assertEqual(0, self.run_command("dashboard")[0])
        page = (self.directory / "dashboard.html").read_text()
        self.assertIn(f"{admin.url}/#key={admin.context.own_key}", page)
        self.assertNotIn(str(admin.context.own_key), "".join(stranger.received))

    def test_a_proxy_with_a_key_of_the_settings_proves_itself_too(self) -> None:
        admin = self.admin(self.admin_proxy(reasoning_content_path=self.store))
        [answer] = running_proxy.ask_all(self.store, "/api/stats", None)
        self.assertEqual((admin.url, True, 401), answer[:3])
        self.assertEqual(0, self.run_command("dashboard")[0])
        self.browser.assert_called_once_with(f"{admin.url}/")

    def test_the_proof_wants_a_nonce_and_no_key(self) -> None:
        admin = self.admin(self.admin_proxy(reasoning_content_path=self.store))
        for query in ("", "?nonce=", "?nonce=xyz", "?nonce=" + "0" * 31, "?nonce=" + "0" * 33):
            self.assertEqual(400, self.get(admin, running_proxy.PROOF_PATH + query, key=None).status)
        first, again, other = (
            self.get(admin, f"{running_proxy.PROOF_PATH}?nonce={digit * 32}", key=None) for digit in "001"
        )
        self.assertEqual((200, first.body), (first.status, again.body))
        self.assertNotEqual(first.body, other.body)
        foreign = self.get(admin, f"{running_proxy.PROOF_PATH}?nonce={'0' * 32}", key=None, Host="evil.example")
        self.assertEqual(403, foreign.status)

    def test_a_stranger_that_answers_byte_by_byte_does_not_hold_a_command_up(self) -> None:
        is_over = threading.Event()

        def drip(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not is_over.wait(0.02):
                    connection.sendall(b"x")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.leave(f"http://127.0.0.1:{listener.getsockname()[1]}")
            thread = threading.Thread(target=drip, args=(listener,))
            thread.start()
            with mock.patch.object(running_proxy, "_ASK_SECONDS", 0.2):
                answers = list(running_proxy.ask_all(self.store, "/healthz", ADMIN_KEY))
            is_over.set()
            thread.join()
        self.assertEqual([], [each for each in answers if each.is_proven])

    def test_the_file_of_a_proxy_that_is_gone_is_removed(self) -> None:
        with contextlib.closing(Stranger()) as stranger:
            path = self.leave(stranger.url)
        self.assertEqual([], list(running_proxy.ask_all(self.store, "/healthz", None)))
        self.assertFalse(path.exists())
