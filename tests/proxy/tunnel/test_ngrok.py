"""The tunnel against a stand-in for ngrok: a real process with a real log and a real API, but no network."""

import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import threading
import unittest
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli.tunnel import child, programs
from deepseek_cursor_proxy.cli.tunnel.programs import Ngrok
from deepseek_cursor_proxy.cli.tunnel.supervisor import OURS, Reach
from deepseek_cursor_proxy.errors import StartupError
from tests.proxy.tunnel.tunnel_case import TunnelCase, back, lost, moved
from tests.support.ngrok_stand_in import (
    DIES,
    NEVER,
    NEW,
    OK,
    OK_ELSEWHERE,
    PORT,
    STAND_IN,
    URL,
    Agent,
    endpoints,
    fails,
    install,
    logs,
    tunnels,
)

ELSEWHERE = Reach(is_ours=False, is_answered=True, problem="something else answers there, with 404")
LOST, BACK, MOVED = lost("ngrok"), back("ngrok"), moved("ngrok", NEW)


class NgrokCase(TunnelCase):
    name, stand_in = "ngrok", STAND_IN

    def program(self, api_urls: Sequence[str] = (), **options: Any) -> Ngrok:
        program = Ngrok(PORT, **{"binary": str(self.binary), **options})
        program.api_urls = api_urls
        return program

    def agent(self, pages: dict[str, bytes]) -> Agent:
        return self.enterContext(closing(Agent(pages)))

    def listed(self, page: bytes) -> list[str] | None:
        """What an agent with this answer, in either API, is understood to forward to us."""
        return Ngrok(PORT).forwarded_urls(self.agent({"/api/endpoints": page, "/api/tunnels": page}).api)


class StartTest(NgrokCase):
    def test_a_started_agent_gives_its_public_url(self) -> None:
        self.assertEqual(self.tunnel(OK).start(), URL)
        [[_, _, arguments]] = self.launched()
        self.assertEqual(arguments, ["http", str(PORT), "--log=stdout", "--log-format=json"])

    def test_an_agent_gives_its_public_url_in_an_older_api_or_between_any_lines_of_its_log(self) -> None:
        odd = ["", "[" * 100_000, "[]", "3", '{"msg": 3}', '{"msg": "starting web service", "addr": "no:port"}']
        unfit = [{"msg": "started tunnel", "url": url} for url in (None, "http://plain.example", "https://a\x1b[2J")]
        for name, part in {
            "the older API": {"urls": [URL], "path": "/api/tunnels"},
            "no API": logs(),
            "a long log, which never blocks": logs(*[{"lvl": "info", "msg": "x" * 1000}] * 300),
            "odd lines": logs(*odd, *unfit),
        }.items():
            with self.subTest(name):
                tunnel = self.tunnel(part)
                self.assertEqual(tunnel.start(), URL)
                tunnel.stop()
                self.launches.write_text("")

    def test_a_program_at_the_usual_address_of_the_api_does_not_speak_for_our_agent(self) -> None:
        self.reach = ELSEWHERE
        agent = self.agent({"/api/tunnels": tunnels(url=NEW)})
        part = {"log": ["hello"], "stays": True}
        self.assertIn("ngrok: hello", self.failure(part, api_urls=[agent.api], start=0.3))
        self.assertEqual([NEW], self.checked)
        self.assertEqual(len(self.children), 1)

    def test_a_url_that_a_program_at_the_usual_address_names_is_used_only_if_it_leads_here(self) -> None:
        used: list[str] = []
        agent = self.agent({"/api/tunnels": tunnels(url=NEW)})
        with mock.patch.object(self, "ask", lambda url: OURS if url == URL else ELSEWHERE):
            self.assertEqual(URL, self.tunnel(OK, api_urls=[agent.api], on_url=used.append).start())
        self.assertEqual([URL], used)
        self.assertTrue(self.announced.empty())

    def test_an_agent_that_forwards_to_another_port_has_no_url_for_us(self) -> None:
        line = {"lvl": "info", "msg": "started tunnel", "url": NEW, "addr": "http://localhost:9001"}
        self.assertEqual(URL, self.tunnel(logs(line)).start())

    def test_an_agent_without_an_api_is_not_confused_with_another_agent(self) -> None:
        agent = self.agent({"/api/tunnels": tunnels("http://localhost:1")})
        tunnel = self.tunnel(logs(), api_urls=[agent.api])
        self.assertEqual([tunnel.start(), tunnel._current_url()], [URL, URL])

    def test_an_agent_that_already_forwards_to_us_is_reused_and_left_running(self) -> None:
        for pages in ({"/api/endpoints": endpoints()}, {"/api/tunnels": tunnels()}):
            with self.subTest(pages):
                agent = self.agent(pages)
                tunnel = self.tunnel(api_urls=["http://127.0.0.1:bad", agent.api])
                self.assertEqual(tunnel.start(), URL)
                tunnel.stop()
                self.assertEqual(Ngrok(PORT).forwarded_urls(agent.api), [URL])
        self.assertEqual(self.children, [])

    def test_an_agent_with_an_empty_list_of_endpoints_is_asked_for_tunnels(self) -> None:
        agent = self.agent({"/api/endpoints": b'{"endpoints": []}', "/api/tunnels": tunnels()})
        self.assertEqual(self.tunnel(api_urls=[agent.api]).start(), URL)

    def test_an_endpoint_to_our_port_is_recognised_in_every_spelling(self) -> None:
        hosts = ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", "LOCALHOST:9000")
        for target in ("9000", 9000, *hosts, *(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts)):
            with self.subTest(target):
                self.assertEqual(self.listed(endpoints(target)), [URL])
                self.assertEqual(self.listed(tunnels(target)), [URL])

    def test_an_endpoint_to_elsewhere_or_without_a_public_url_is_ignored(self) -> None:
        ports = ["http://localhost:90", "http://localhost", "19000", "²", "localhost:9000x", "localhost:99999999"]
        odd: list[object] = ["example.com:9000", "file:///9000", "[::1:9000", "", None, [], {"url": 9000}, True]
        urls = ("http://x.ngrok.app", "tcp://x.ngrok.io:1", "https://x.internal", "https://x\x1b.app", "", None)
        for page in (*map(tunnels, ports + odd), *(endpoints(url=url) for url in urls)):
            with self.subTest(page):
                self.assertEqual(self.listed(page), [])

    def test_another_program_at_the_api_address_is_no_agent(self) -> None:
        for page in (b"", b"<html>", b"null", b"[]", b'{"tunnels": 3}', b'{"endpoints": {}}', b"[" * 100_000, b"\xff"):
            with self.subTest(page):
                self.assertIsNone(self.listed(page))

    def test_odd_entries_in_an_agents_list_are_skipped(self) -> None:
        odd: list[object] = [1, None, {}, [], {"public_url": 1, "config": []}, {"url": URL, "upstream": None}]
        page = json.dumps({"tunnels": odd + json.loads(tunnels())["tunnels"]}).encode()
        self.assertEqual(self.listed(page), [URL])

    def test_the_agents_api_is_called_without_the_environments_proxy(self) -> None:
        """urllib reads the environment when an opener is built, so the module is loaded a second time here."""
        agent = self.agent({"/api/tunnels": tunnels()})
        spec = importlib.util.spec_from_file_location("api_behind_a_proxy", programs.__file__)
        fresh = importlib.util.module_from_spec(spec)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            proxy = f"http://127.0.0.1:{unused.getsockname()[1]}"
            with mock.patch.dict(os.environ, {"http_proxy": proxy, "HTTP_PROXY": proxy, "no_proxy": ""}):
                spec.loader.exec_module(fresh)
                self.assertEqual(json.loads(tunnels()), fresh.get_json(f"{agent.api}/api/tunnels"))


class FailureTest(NgrokCase):
    def test_a_missing_ngrok_binary_is_refused_with_how_to_install_it(self) -> None:
        message = self.failure(binary=str(self.home / "absent"))
        for remedy in ("https://ngrok.com/download", "`brew install ngrok`", "`--tunnel cloudflared`", "is not found"):
            self.assertIn(remedy, message)

    @unittest.skipIf(sys.platform == "win32", "there the name tells what a program is")
    def test_an_ngrok_binary_that_is_no_program_is_refused_with_how_to_install_it(self) -> None:
        self.binary.chmod(0o644)
        self.assertIn("https://ngrok.com/download", self.failure())

    def test_a_wrong_ngrok_token_is_refused_with_the_command_and_without_the_token(self) -> None:
        for code in (4018, 105, 107):
            with self.subTest(code):
                message = self.failure(fails(f"failed:\nYour authtoken: s3cret\r\n\r\nERR_NGROK_{code}\r\n"))
                self.assertIn("`ngrok config add-authtoken <YOUR_TOKEN>`", message)
                self.assertIn("https://dashboard.ngrok.com/get-started/your-authtoken", message)
                self.assertNotIn("s3cret", message)

    def test_another_agent_in_the_way_is_refused_with_the_command_to_stop_it(self) -> None:
        online = self.failure(fails("failed to start tunnel: already online ERR_NGROK_334"))
        for remedy in ("`pkill ngrok`", "`taskkill /IM ngrok.exe /F`", "`--pooling-enabled`"):
            self.assertIn(remedy, online)
        second = self.failure(fails("limited to 1 simultaneous session ERR_NGROK_108"))
        self.assertIn("`pkill ngrok`", second)
        self.assertNotIn("--pooling-enabled", second)

    def test_an_ngrok_error_with_a_code_wins_over_later_lines(self) -> None:
        part = fails("ERR_NGROK_334")
        noise = [{"lvl": "crit", "msg": "command failed", "err": "session closed"}, "ERROR:  bye", "ERROR:"]
        self.assertIn("ERR_NGROK_334", self.failure({"log": [*part["log"], *noise]}))

    def test_an_unknown_ngrok_error_is_quoted_short_and_printable(self) -> None:
        message = self.failure(fails("\x1b[31mboom\x07\n\u202eERR_NGROK_1080 your authtoken: s3cret " + "x" * 1000))
        self.assertTrue(message.startswith("ngrok: [31mboom ERR_NGROK_1080 your authtoken: … xxx"), message)
        self.assertTrue(message.endswith(f"x; run `ngrok http {PORT}` to see more"), message)
        self.assertLess(len(message), 300)

    def test_an_agent_that_ends_with_plain_text_or_without_is_refused_with_a_command(self) -> None:
        for log, words in (
            (["USAGE", "ERROR:  unknown flag: --log", "ERROR:  "], "unknown flag: --log"),
            ([], "it gave no public URL"),
        ):
            self.assertEqual(self.failure({"log": log}), f"ngrok: {words}; run `ngrok http 9000` to see more")

    def test_an_agent_that_never_gets_a_url_is_ended(self) -> None:
        self.assertIn("no public URL", self.failure(NEVER, start=0.5))
        self.assertEqual(len(self.children), 1)

    def test_ctrl_c_or_stop_during_the_start_ends_the_agent(self) -> None:
        """A signal handler may call stop() on the very thread that waits in start()."""
        tunnel = self.tunnel(NEVER, api_urls=["http://unused"])
        for effect, raised in (
            ([None, KeyboardInterrupt], KeyboardInterrupt),
            (lambda *_: tunnel.stop() if len(self.children) == 2 else None, StartupError),
        ):
            with mock.patch.object(Ngrok, "forwarded_urls", side_effect=effect):
                self.assertRaises(raised, tunnel.start)
            self.expect_children_gone()
        self.assertEqual(len(self.children), 2)

    def test_stop_before_the_agents_log_is_read_raises_nothing(self) -> None:
        """The handler's close() may be faster than the thread that was just being started."""
        tunnel = self.tunnel(NEVER)
        starting = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if thread.name == "tunnel-log":
                tunnel.stop()
            starting(thread)

        raised: list[object] = []
        with mock.patch.object(threading.Thread, "start", start), mock.patch("threading.excepthook", raised.append):
            self.assertRaises(StartupError, tunnel.start)
            tunnel._child._reader.join()
        self.assertEqual([], raised)
        self.expect_children_gone()


class WatchTest(NgrokCase):
    def test_a_new_url_is_neither_printed_nor_used_before_it_has_led_here(self) -> None:
        used: list[str] = []
        is_proven = threading.Event()

        def ask(url: str) -> Reach:
            return OURS if url == URL or is_proven.is_set() else ELSEWHERE

        self.tunnel({"urls": [URL, NEW]}, ask=ask, on_url=used.append).start()
        text = self.announced.get(timeout=20)
        self.assertIn("a new URL, which is not used yet, does not lead to this proxy", text)
        self.assertNotIn(NEW, text)
        self.assertEqual([URL], used)
        is_proven.set()
        self.expect_announced(MOVED)
        self.assertEqual([URL, NEW], used)

    def test_a_new_url_of_a_restarted_agent_waits_for_its_proof_too(self) -> None:
        used: list[str] = []
        is_proven = threading.Event()

        def ask(url: str) -> Reach:
            return OURS if url == URL or is_proven.is_set() else ELSEWHERE

        self.tunnel(DIES, OK_ELSEWHERE, ask=ask, on_url=used.append).start()
        self.expect_announced(LOST)
        self.assertIn("a new URL", self.announced.get(timeout=20))
        self.expect_announced(BACK)
        self.assertEqual([URL], used)
        is_proven.set()
        self.expect_announced(MOVED)
        self.assertEqual([URL, NEW], used)

    def test_an_agent_that_died_or_lost_our_tunnel_is_replaced_and_its_new_url_announced(self) -> None:
        for part in (DIES, {"urls": [URL, ""]}):
            self.launches.write_text("")
            urls: queue.SimpleQueue[str] = queue.SimpleQueue()
            tunnel = self.tunnel(part, OK_ELSEWHERE, on_url=urls.put)
            self.assertEqual(tunnel.start(), URL)
            self.expect_announced(LOST, BACK, MOVED)
            self.assertEqual([URL, NEW], [urls.get(timeout=10) for _ in range(2)])
            tunnel.stop()

    def test_a_replaced_agent_at_the_same_url_announces_no_new_url(self) -> None:
        tunnel = self.tunnel(DIES, {"urls": [URL, URL, NEW]})
        tunnel.start()
        self.expect_announced(LOST, BACK, MOVED)  # the one change announced is the third reply, not the restart
        tunnel.stop()
        self.assertTrue(self.announced.empty())

    def test_the_last_error_of_a_dead_agent_is_announced(self) -> None:
        last = {"lvl": "crit", "err": "session closed\nYour authtoken: s3cret"}
        part = {**DIES, "log": [*logs()["log"], last], "stays": True}
        self.tunnel(part, OK).start()
        self.expect_announced("ngrok: the tunnel is lost (session closed Your authtoken: …); restarting it", BACK)

    def test_a_repeated_failure_to_restart_the_agent_is_announced_once(self) -> None:
        refused = fails("ERR_NGROK_334")
        self.tunnel(DIES, refused, refused, refused, OK_ELSEWHERE, backoff=(0.001, 0.002)).start()
        self.expect_announced(LOST)
        self.assertRegex(self.announced.get(timeout=20), r"^ngrok: .*`pkill ngrok`.*; trying again$")
        self.expect_announced(BACK, MOVED)
        self.assertEqual(len(self.children), 5)

    def test_a_binary_removed_while_running_does_not_end_the_watcher(self) -> None:
        away = self.home / "away"

        def announce(text: str) -> None:
            if text == LOST:
                self.binary.rename(away)
            self.announce(text)

        self.tunnel(DIES, OK_ELSEWHERE, announce=announce).start()
        self.expect_announced(LOST)
        self.assertIn("https://ngrok.com/download", self.announced.get(timeout=20))
        away.rename(self.binary)
        self.expect_announced(BACK, MOVED)

    def test_the_pauses_between_restarts_grow_and_the_last_one_repeats(self) -> None:
        tunnel = self.tunnel(backoff=(1, 2, 5))
        with mock.patch.object(tunnel, "_open", side_effect=StartupError("no")):
            with mock.patch.object(tunnel, "_wait", side_effect=[True, True, True, True, False]) as wait:
                tunnel._reopen()
        self.assertEqual([call.args for call in wait.call_args_list], [(1,), (2,), (5,), (5,), (5,)])

    def test_an_agent_that_dies_after_each_start_is_restarted_with_growing_pauses(self) -> None:
        tunnel = self.tunnel(OK, backoff=(0.001, 3600), watch=3600)
        tunnel.start()
        self.kill(self.children[0])
        self.expect_announced(LOST, BACK)
        self.kill(self.children[1])
        self.expect_announced(LOST)
        tunnel.stop()
        self.assertEqual(len(self.children), 2)

    def test_a_short_gap_is_left_to_the_agent_to_repair(self) -> None:
        self.tunnel({"urls": [URL, "", "", NEW]}).start()
        self.expect_announced(MOVED)
        self.assertEqual(len(self.children), 1)

    def test_a_reused_agent_that_goes_away_is_replaced_by_our_own(self) -> None:
        pages = {"/api/tunnels": tunnels()}
        self.tunnel(OK_ELSEWHERE, api_urls=[self.agent(pages).api]).start()
        pages.clear()
        self.expect_announced(LOST, BACK, MOVED)

    def test_the_announced_url_stays_when_an_agent_lists_several(self) -> None:
        both = [json.loads(tunnels(url=url))["tunnels"][0] for url in (NEW, URL)]
        pages = {"/api/tunnels": tunnels()}
        tunnel = self.tunnel(api_urls=[self.agent(pages).api])
        self.assertEqual(tunnel.start(), URL)
        pages["/api/tunnels"] = json.dumps({"tunnels": both}).encode()
        self.assertEqual(tunnel._current_url(), URL)

    def test_an_announce_that_raises_does_not_end_the_watcher(self) -> None:
        def announce(text: str) -> None:
            self.announce(text)
            raise BrokenPipeError

        self.tunnel(DIES, OK_ELSEWHERE, announce=announce).start()
        self.expect_announced(LOST, BACK, MOVED)


class StopTest(NgrokCase):
    @unittest.skipIf(sys.platform == "win32", "its process group is set by a flag and cannot be asked for")
    def test_ctrl_c_in_our_terminal_does_not_reach_the_agent(self) -> None:
        self.tunnel(OK).start()
        self.assertNotEqual(os.getpgid(self.children[0].pid), os.getpgrp())

    def test_stop_is_idempotent_and_needs_no_start(self) -> None:
        tunnel = self.tunnel(OK)
        tunnel.stop()
        self.assertEqual(self.children, [])
        tunnel = self.tunnel(OK)
        tunnel.start()
        for _ in range(2):
            tunnel.stop()
            self.expect_children_gone()
        self.assertTrue(self.announced.empty())

    def test_stop_does_not_wait_for_a_restart_pause(self) -> None:
        tunnel = self.tunnel(DIES, backoff=(3600,))
        tunnel.start()
        self.expect_announced(LOST)
        tunnel.stop()
        self.assertEqual(len(self.children), 1)

    @unittest.skipIf(sys.platform == "win32", "there is no way to ask")
    def test_an_agent_that_ignores_sigterm_is_killed(self) -> None:
        tunnel = self.tunnel({**OK, "deaf": True})
        tunnel.start()
        with mock.patch.object(child, "_GRACE_SECONDS", 0.1):
            tunnel.stop()
        self.assertEqual(self.children[0].returncode, -signal.SIGKILL)

    def test_stop_ends_the_real_agent_behind_a_wrapper_script(self) -> None:
        install(self.binary, suffix="; exit $?")
        tunnel = self.tunnel(OK)
        tunnel.start()
        tunnel.stop()
        [[parent, port, _]] = self.launched()
        self.assertEqual(parent, self.children[0].pid)
        with socket.socket() as probe, self.assertRaises(ConnectionRefusedError):
            probe.connect(("127.0.0.1", port))
