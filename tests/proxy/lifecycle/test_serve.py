"""The proxy as a process of its own: how it starts, how it refuses to start, how it stops."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.cli.serve import Addresses, welcome_text
from deepseek_cursor_proxy.cli.service import Launch, find_launch
from deepseek_cursor_proxy.cli.store import open_store
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import template
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.archive import build_archive
from tests.support.harness import read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.program import PATIENCE, WINDOWS, ServeTest, address
from tests.support.systems import ROOT

# What a process finds that runs as a user without an entry in /etc/passwd, and without HOME.
HOMELESS = """
import os, pwd
def unknown(number):
    raise KeyError(number)
pwd.getpwuid = unknown
os.environ.pop("HOME", None)
"""


class StartTest(ServeTest):
    may_fork = True

    def test_the_first_lines_have_all_that_a_client_asks_for(self) -> None:
        _, welcome = self.serve("--model", "deepseek-flash")
        lines = welcome.splitlines()
        self.assertIn(f"deepseek-cursor-proxy {__version__} is running", lines[0])
        host, port = address(welcome)
        self.assertRegex(lines[1], r"Start an agent .+ run claude$")
        self.assertRegex(lines[2], r"Configure it for good .+ setup$")
        self.assertRegex(lines[3], rf"OpenAI base URL +http://127\.0\.0\.1:{port}/v1 ")
        self.assertRegex(lines[4], rf"Anthropic base URL +http://127\.0\.0\.1:{port} ")
        self.assertRegex(lines[5], r"API key +your DeepSeek key \(sk-…\)$")
        self.assertRegex(lines[6], r"Model .+ deepseek-flash$")
        self.assertIn(str(Path("~/.deepseek-cursor-proxy/config.toml")), lines[7])
        self.assertIn(str(Path("~/.deepseek-cursor-proxy/reasoning_content.sqlite3")), lines[8])
        self.assertRegex(lines[9], "restart with --tunnel")
        self.assertEqual("127.0.0.1", host)
        self.expect_health(port)

    def test_the_first_run_leaves_a_private_configuration_to_edit(self) -> None:
        if not WINDOWS:
            self.addCleanup(os.umask, os.umask(0))
        self.serve()
        self.assertEqual((self.directory / "config.toml").read_text(encoding="utf-8"), template())
        self.expect_mode(self.directory, 0o700)
        self.expect_mode(self.directory / "config.toml", 0o600)
        self.expect_mode(self.store, 0o600)

    def test_a_configuration_that_exists_is_read_and_left_as_it_is(self) -> None:
        self.directory.mkdir()
        (self.directory / "config.toml").write_text('model = "mine"\n')
        _, welcome = self.serve()
        self.assertRegex(welcome, "Model .+ mine\n")
        self.assertEqual((self.directory / "config.toml").read_text(), 'model = "mine"\n')

    def test_a_configuration_named_by_a_flag_creates_no_other(self) -> None:
        (self.home / "mine.toml").write_text('reasoning_content_path = "~/mine.sqlite3"\n')
        _, welcome = self.serve("--config", str(self.home / "mine.toml"))
        self.assertIn(str(self.home / "mine.toml"), welcome)
        self.assertIn(str(self.home / "mine.sqlite3"), welcome)
        self.assertFalse(self.directory.exists())

    def test_an_invalid_key_of_the_environment_is_one_line_without_the_key(self) -> None:
        line = self.refusal("--port", "0", "--access-keys", "sk-x", DEEPSEEK_API_KEY="sk-two words")
        self.assertRegex(line, "^DEEPSEEK_API_KEY: that is not a key: .*; set it to a DeepSeek key, or unset it$")
        self.assertNotIn("words", line)

    def test_the_start_names_the_https_proxy(self) -> None:
        for settings, is_named in (
            ({}, True),
            ({"upstream_base_url": "http://127.0.0.1:1"}, False),
            ({"upstream_base_url": "https://exempt.test"}, False),
        ):
            environment = {"HTTPS_PROXY": "http://me:secret@proxy.test:3128", "NO_PROXY": "exempt.test"}
            with self.subTest(settings), mock.patch.dict(os.environ, environment, clear=True):
                config = ProxyConfig(**settings)
                welcome = welcome_text(config, Path("x"), Addresses(1, None), Access(config))
                self.assertEqual(is_named, "through the proxy proxy.test:3128" in welcome)
                self.assertNotIn("secret", welcome)

    def test_a_terminal_without_unicode_still_shows_the_start(self) -> None:
        _, welcome = self.serve(PYTHONIOENCODING="ascii")
        self.assertIn("(sk-?)", welcome)

    def test_the_cache_is_cleared_on_request(self) -> None:
        with contextlib.closing(ReasoningStore(self.store)) as store:
            store.record([([b"1" * 32], "one"), ([b"2" * 32], "two")])
        _, welcome = self.serve("--clear-reasoning-cache")
        self.assertTrue(welcome.startswith("Cleared 2 stored reasonings.\n"), welcome)
        with contextlib.closing(ReasoningStore(self.store)) as store:
            self.assertEqual(store.stats().reasonings, 0)

    def test_durability_reaches_the_file(self) -> None:
        for durability, level in (("normal", 1), ("full", 2)):
            config = ProxyConfig(reasoning_content_path=self.home / "store.sqlite3", durability=durability)
            with open_store(config) as store, store.database.reader() as connection:
                self.assertEqual((level,), connection.execute("PRAGMA synchronous").fetchone())

    def test_a_read_only_home_does_not_keep_the_proxy_from_serving(self) -> None:
        self.directory.write_text("a file in its place stops even root")
        process, _ = self.serve()
        process.send(signal.SIGTERM)
        if WINDOWS:
            # SIGTERM is no signal there: the process is gone.
            process.wait()
        else:
            self.expect_stopped(process)
        told = process.errors.splitlines()
        self.assertEqual(2, len(told), told)
        self.assertIn(f"cannot write a configuration to edit at {self.directory / 'config.toml'}", told[0])
        self.assertRegex(told[1], "reasoning is kept in memory until .+; .+ --reasoning-content-path$")

    @unittest.skipIf(WINDOWS, "Windows invents a home for everybody")
    def test_a_user_unknown_to_the_system_is_served_without_a_home(self) -> None:
        """A container with `--user 12345` exited with 2 and was started again for ever."""
        (self.bin / "sitecustomize.py").write_text(HOMELESS)
        environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{self.bin}"}
        process, welcome = self.serve(**environment)
        self.assertIn(
            "Settings                   at their defaults\n  Reasoning                  in memory, until the proxy",
            welcome,
        )
        process.send(signal.SIGHUP)
        process.read_until("again: nothing changed.")
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        first, second, *_ = process.errors.splitlines()
        self.assertRegex(first, "no home directory, so all settings are at their defaults; set HOME, or .+ --config$")
        self.assertRegex(second, "no home directory, so reasoning is kept in memory only; .+--reasoning-content-path$")
        _, welcome = self.serve("--reasoning-content-path", str(self.store), **environment)
        self.assertIn(f"Reasoning                  {self.store}\n", welcome)

    def test_a_store_that_cannot_be_cleared_is_logged_and_the_proxy_serves(self) -> None:
        self.store.mkdir(parents=True)
        _, welcome = self.serve("--clear-reasoning-cache")
        self.assertRegex(welcome, "^Nothing was cleared: .+ cannot be used: it is a folder; .+\n")


ROUTE = {"gpt-*": {"base_url": "https://x", "key_env": "K"}}
ONLY, PINNED = "Only the keys named in", "The first key that DeepSeek"
SPENT = "[passthrough] is for the first key that DeepSeek accepts"
NAMES, SHORT = "add other names to public_hosts", "short enough to guess"
HELD, UNUSED = "DeepSeek is called with the key in DEEPSEEK_API_KEY", "DEEPSEEK_API_KEY is not used here, because"
OURS = "sk-a-key-that-nobody-guesses"


class ServedCallersTest(unittest.TestCase):
    """The start says what keeps strangers out, or that nothing does."""

    def said(self, held_key: str = "", **settings: Any) -> str:
        with mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": held_key}):
            config = ProxyConfig(**settings)
            public_url = "https://x.ngrok.app" if config.tunnel_program else None
            return welcome_text(config, Path("x"), Addresses(1, public_url), Access(config))

    def test_the_start_names_exactly_who_is_served(self) -> None:
        sentences = (ONLY, PINNED, SPENT, NAMES, SHORT, HELD, UNUSED)
        for settings, held_key, expected in (
            ({}, "", ()), ({"passthrough": ROUTE}, "", (SPENT, NAMES)),
            ({"public_hosts": ["a.example"]}, "", (PINNED,)), ({"host": "::1"}, "", ()),
            ({"ngrok": True}, "", (PINNED,)), *(({"tunnel": name}, "", (PINNED,)) for name in ("on", "cloudflared")),
            ({"tunnel": "off", "ngrok": True}, "", ()),
            ({"host": "0.0.0.0", "passthrough": ROUTE}, "", (PINNED, SPENT, NAMES)),
            ({"ngrok": True, "passthrough": ROUTE, "access_keys": [OURS]}, "", (ONLY, NAMES)),
            ({"access_keys": [OURS, "short"]}, "", (ONLY, SHORT)),
            ({"access_keys": [OURS]}, "sk-held", (ONLY, NAMES, HELD)), ({}, "sk-held", (UNUSED,)),
            ({"ngrok": True}, "sk-held", (PINNED, UNUSED)),
        ):  # fmt: skip
            with self.subTest(settings, held_key=held_key):
                welcome = self.said(held_key, **settings)
                self.assertEqual(expected, tuple(each for each in sentences if each in welcome))
                self.assertNotIn("sk-held", welcome)
                self.assertNotIn(OURS, welcome)

    def test_the_start_lists_the_upstreams_in_their_order_and_who_may_spend_their_keys(self) -> None:
        own, other = {"base_url": "https://a"}, {"base_url": "https://b", "key_env": "K", "priority": 2}
        tables = {"last": {**other, "priority": 3}, "main": own, "spare": other, "twin": own}
        said = self.said(upstreams=tables)
        self.assertIn("Upstreams: main and twin, then spare, then last.", said)
        self.assertIn("[upstreams.last] and [upstreams.spare] are for the first key that DeepSeek accepts", said)
        self.assertIn(NAMES, said)
        self.assertNotIn("Upstreams", self.said())

    def test_the_start_lists_the_host_names_that_may_use_keys(self) -> None:
        for settings, names in (
            ({}, "an IP address or localhost;"),
            ({"ngrok": True}, "an IP address, localhost or the tunnel;"),
            ({"tunnel": "on"}, "an IP address, localhost or the tunnel;"),
            ({"public_hosts": ["a.example", "*.b.example"]}, "an IP address, localhost, a.example or *.b.example;"),
        ):
            self.assertIn(f"only for requests to {names} add other", self.said(passthrough=ROUTE, **settings))

    def test_a_proxy_with_a_public_host_is_not_asked_to_open_a_tunnel(self) -> None:
        self.assertIn("with --tunnel", self.said())
        with_host = self.said(public_hosts=["*.example", "a.example"])
        self.assertNotIn("with --tunnel", with_host)
        self.assertIn("Override OpenAI Base URL   https://a.example/v1\n", with_host)

    def test_the_key_to_paste_is_the_one_that_works(self) -> None:
        for settings, held_key, words in (
            ({}, "sk-held", "your DeepSeek key (sk-…)"),
            ({"access_keys": [OURS]}, "", "a DeepSeek key that is in access_keys"),
            ({"access_keys": [OURS]}, "sk-held", "one of your access keys"),
        ):
            self.assertIn(f"  API key                    {words}\n", self.said(held_key, **settings))


class RefusalTest(ServeTest):
    may_fork = True

    def test_a_port_in_use_is_one_line_with_the_remedy(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            line = self.refusal("--port", str(port), "--admin-port", str(port + 1))
        self.assertIn(f"127.0.0.1:{port} is in use", line)
        [suggested] = re.findall(r"another port with --port (\d+)$", line)
        self.assertNotIn(int(suggested), (port, port + 1), "the second is that of the dashboard")
        with socket.create_server(("127.0.0.1", int(suggested))):
            pass

    def test_a_setting_that_cannot_be_used_is_one_line_with_its_name(self) -> None:
        traces, tokenizer = self.home / "traces", self.home / "tokenizer.json"
        traces.touch()
        for flags, words in (
            (("--host", "x" * 70), "is not an address of this machine"),
            (("--config", str(self.home)), "^config: cannot read .+; fix it or pass another file with --config$"),
            (("--trace-dir", str(traces)), f"cannot write into {re.escape(str(traces))}.*--trace-dir"),
            (("--tokenizer", str(tokenizer)), f"cannot read {re.escape(str(tokenizer))}.*--tokenizer"),
            (("--ngrok",), "https://ngrok.com/download"),
        ):
            with self.subTest(flags[0]):
                self.assertRegex(self.refusal("--port", "0", *flags, PATH=str(self.bin)), words)


FLAGS = ("--port=0", "--admin-port=0")


@unittest.skipIf(WINDOWS, "a process without a console cannot be asked to stop")
class ServiceStartTest(ServeTest):
    def launches(self) -> dict[str, Launch]:
        archive = build_archive(self.bin)
        return {
            "checkout": find_launch(FLAGS),
            "archive": find_launch(FLAGS, package=archive / "deepseek_cursor_proxy"),
        }

    def run_logged(self, launch: Launch) -> str:
        """What the proxy prints from its start to its end, in the environment that a service has."""
        log = self.bin / "log"
        environment = {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *launch.arguments], cwd=launch.folder or self.home, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(lambda: process.poll() is not None or "Stop with Ctrl-C." in log.read_text(encoding="utf-8"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE), log.read_text(encoding="utf-8"))
        return log.read_text(encoding="utf-8")

    def test_every_installation_is_started_by_its_command(self) -> None:
        for name, launch in self.launches().items():
            with self.subTest(name):
                self.assertEqual(sys.executable, launch.python)
                self.assertIn("is running.", self.run_logged(launch))


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestSmallStacks(ServeTest):
    prefix = ("/bin/sh", "-c", 'ulimit -s 256; exec "$@"', "sh")

    def test_deep_json_does_not_kill_a_process_with_small_stacks(self) -> None:
        """Python 3.13.0 dies of it on a thread with half a megabyte."""
        _, welcome = self.serve()
        for depth in (5_000, 400_000):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                with socket.create_connection(address(welcome), PATIENCE) as sock:
                    sock.sendall(request_bytes((opening * depth + "1" + closing * depth).encode()))
                    status, _, body = read_reply(sock)
                self.assertEqual(400, status)
                self.assertIn("nested too deeply", json.loads(body)["error"]["message"])
