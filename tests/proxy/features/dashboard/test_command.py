"""The dashboard of a proxy that runs as a process: the link it prints, the command that opens it, settings, stop."""

import contextlib
import http.client
import os
import re
import signal
import unittest

from tests.support.admin_client import fetch
from tests.support.harness import RawReply
from tests.support.ports import closed_port
from tests.support.program import ENDLESS_GRACE, PATIENCE, WINDOWS, Process, ServeTest, address

UPSTREAM = ("--base-url", "http://127.0.0.1:9")


class DashboardTest(ServeTest):
    may_fork = True

    def start(self, *arguments: str, **environment: str) -> tuple[Process, str, str]:
        """A proxy with an admin listener, what it said, and the address of its dashboard."""
        process, welcome = self.serve("--admin-port", "9001", *UPSTREAM, *arguments, **environment)
        found = re.search(r"Dashboard +(http://\S+?)/", welcome)
        assert found is not None, welcome
        return process, welcome, found[1]

    def key(self) -> str:
        return (self.directory / "admin.key").read_text().strip()

    def health(self, url: str, key: str) -> int:
        return fetch(url, "/healthz", {"Authorization": f"Bearer {key}"}).status

    def run_dashboard(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command with a browser that notes what it is to open: its exit code, output and errors."""
        browser = self.bin / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" > {self.bin / "opened"}\n')
        browser.chmod(0o755)
        process = self.launch("dashboard", *arguments, BROWSER=str(browser))
        code = process.wait()
        return code, process.rest(), process.errors

    def test_the_start_names_the_dashboard_but_logs_no_key(self) -> None:
        _, welcome, url = self.start()
        self.assertRegex(url, r"^http://127\.0\.0\.1:\d+$")
        self.assertNotIn(self.key(), welcome)
        self.expect_mode(self.directory / "admin.key", 0o600)
        self.assertEqual(200, self.health(url, self.key()))

    def test_setup_points_a_client_to_the_proxy_that_runs(self) -> None:
        """With its own port, though the settings name another."""
        _, welcome, _ = self.start()
        setup = self.launch("setup", "codex", "--print")
        self.assertEqual(0, setup.wait(), setup.errors)
        host, port = address(welcome)
        self.assertIn(f'base_url = "http://{host}:{port}/v1"', setup.rest())

    @unittest.skipIf(WINDOWS, "Windows has no pseudo terminals")
    def test_a_terminal_gets_the_link_with_the_key(self) -> None:
        import pty
        import subprocess

        ours, theirs = pty.openpty()
        command = [*self.command, "--port", "0", *UPSTREAM]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=self.environment())
        os.close(theirs)
        self.addCleanup(process.wait, PATIENCE)
        self.addCleanup(process.terminate)
        with open(ours, "rb", buffering=0) as terminal:
            text = b""
            while b"Stop with Ctrl-C." not in text:
                text += terminal.read(65536)
            process.terminate()
            # Linux raises EIO at the end.
            with contextlib.suppress(OSError):
                while terminal.read(65536):
                    pass
        self.assertRegex(text.decode(), rf"http://127\.0\.0\.1:\d+/#key={self.key()}\r\n")

    def test_port_0_turns_it_off(self) -> None:
        process, welcome = self.serve()
        self.assertNotIn("Dashboard", welcome)
        self.assertEqual([], list(self.directory.glob("admin*")))
        self.assertIn("text/html", self.page(welcome).headers["content-type"])
        process.send(signal.SIGTERM)

    def test_a_host_beyond_this_machine_is_warned_of(self) -> None:
        _, welcome, _ = self.start("--admin-host", "0.0.0.0")
        self.assertIn("The dashboard and its API are open to your network at http://127.0.0.1:", welcome)
        line = self.refusal("--port", "0", "--admin-host", "192.0.2.1")
        self.assertRegex(line, "^cannot serve the dashboard at 192.0.2.1: .+; choose another --admin-host, or turn it")

    def test_a_short_admin_key_is_warned_of_and_never_printed(self) -> None:
        _, welcome, url = self.start("--admin-key", "swordfish")
        self.assertIn("admin_key is short enough to guess", welcome)
        self.assertNotIn("swordfish", welcome)
        self.assertEqual(200, self.health(url, "swordfish"))
        self.assertFalse((self.directory / "admin.key").exists())

    @unittest.skipIf(WINDOWS, "the browser here is a shell script")
    def test_the_command_opens_the_page_and_shows_no_user_of_the_machine_the_key(self) -> None:
        process, _, url = self.start()
        code, output, errors = self.run_dashboard()
        self.assertEqual((0, ""), (code, errors))
        opened = (self.bin / "opened").read_text().strip()
        self.assertEqual((self.directory / "dashboard.html").as_uri(), opened)
        self.assertNotIn(self.key(), output)
        self.expect_mode(self.directory / "dashboard.html", 0o600)
        page = (self.directory / "dashboard.html").read_text()
        self.assertIn(f'content="0;url={url}/#key={self.key()}"', page)
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual([], list(self.directory.glob("admin-*.url")))

    @unittest.skipIf(WINDOWS, "the browser here is a shell script")
    def test_with_admin_key_the_command_opens_the_page_without_one(self) -> None:
        _, _, url = self.start("--admin-key", "sk-the-key-of-the-owner")
        code, output, _ = self.run_dashboard()
        self.assertEqual(0, code)
        self.assertIn(f"{url}/ with the key in admin_key", output)
        self.assertEqual(f"{url}/", (self.bin / "opened").read_text().strip())

    def test_the_command_says_when_no_proxy_runs(self) -> None:
        line = self.refusal("dashboard")
        self.assertRegex(line, "^no proxy with a dashboard runs with the store .+; start it with `.+`, or give")
        # What a killed one leaves behind.
        self.directory.mkdir()
        port = self.enterContext(closed_port())
        (self.directory / f"admin-{port}.url").write_text(f"http://127.0.0.1:{port}")
        self.assertRegex(self.refusal("dashboard"), "^no proxy with a dashboard runs")

    @unittest.skipIf(WINDOWS, "Windows has no SIGHUP")
    def test_a_reload_takes_new_keys_and_leaves_the_port(self) -> None:
        file = self.home / "mine.toml"
        file.write_text("")
        process, _, url = self.start("--config", str(file))
        key = self.key()
        file.write_text('admin_key = "sk-the-key-of-the-owner"\nadmin_host = "0.0.0.0"\n')
        process.send(signal.SIGHUP)
        said = process.read_until("again:")
        self.assertIn("admin_key changed. Restart for admin_host.", said)
        self.assertEqual((401, 200), (self.health(url, key), self.health(url, "sk-the-key-of-the-owner")))
        file.write_text("")
        process.send(signal.SIGHUP)
        process.read_until("again:")
        self.assertEqual((200, 401), (self.health(url, key), self.health(url, "sk-the-key-of-the-owner")))

    @unittest.skipIf(WINDOWS, "SIGTERM is no signal there")
    def test_an_open_dashboard_does_not_keep_the_proxy_from_stopping(self) -> None:
        process, _, url = self.start(*ENDLESS_GRACE)
        page = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        with contextlib.closing(page):
            page.request("GET", "/api/stats", headers={"Authorization": f"Bearer {self.key()}"})
            self.assertEqual(200, page.getresponse().status)
            process.send(signal.SIGTERM)
            self.expect_stopped(process)

    def test_two_proxies_on_one_store_have_a_dashboard_each(self) -> None:
        _, _, one = self.start()
        process, _, two = self.start()
        self.assertNotEqual(one, two)
        self.assertEqual((200, 200), (self.health(one, self.key()), self.health(two, self.key())))
        if WINDOWS:
            # SIGTERM is no signal there: the process is gone, and its file is left.
            return
        process.send(signal.SIGTERM)
        process.wait()
        self.assertEqual([one], [path.read_text() for path in self.directory.glob("admin-*.url")])

    def test_the_page_of_the_proxy_itself_leads_to_the_dashboard_on_this_machine_only(self) -> None:
        _, welcome, url = self.start()
        here = self.page(welcome)
        self.assertIn(f'<a href="{url}/">', here.body.decode())
        elsewhere = self.page(welcome, Host="tunnel.example").body.decode()
        self.assertNotIn(url, elsewhere)
        self.assertIn("http://tunnel.example/v1", elsewhere)
        self.assertIn("deepseek-cursor-proxy dashboard", elsewhere)

    def page(self, welcome: str, **headers: str) -> RawReply:
        host, port = address(welcome)
        return fetch(f"http://{host}:{port}", "/", {"Accept": "text/html,*/*;q=0.8", **headers})
