"""The tunnel against a stand-in for ngrok: what does not depend on the program is shown with it, too."""

import os
import queue
import signal
import sys
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.cli import tunnel as tunnel_module
from deepseek_cursor_proxy.cli.tunnel import Ngrok
from deepseek_cursor_proxy.errors import StartupError
from tests.proxy.tunnel.tunnel_case import TunnelCase
from tests.support.polling import wait_until
from tests.support.tunnel_stand_in import (
    NEW,
    OK,
    OK_ELSEWHERE,
    PORT,
    URL,
    fails,
    ngrok_error,
    prints,
    started,
)


class NgrokCase(TunnelCase):
    kind = Ngrok


class StartTest(NgrokCase):
    def test_a_started_agent_gives_its_public_url(self) -> None:
        urls: list[str] = []
        self.assertEqual(URL, self.tunnel(OK, on_url=urls.append).start())
        self.assertEqual([["http", str(PORT), "--log=stdout", "--log-format=json"]], self.launched())
        self.assertEqual([URL], urls)
        self.assertEqual("Opening a tunnel with ngrok; this may take 20 s …", self.progress.get(timeout=20))

    def test_the_url_is_found_between_any_lines_of_the_log(self) -> None:
        odd = ["", "[" * 100_000, "[]", "3", '{"msg": 3}', '{"msg": "starting web service", "addr": "no:port"}']
        unfit = [started(url) for url in (None, "http://plain.example", "https://a\x1b[2J")]
        for name, lines in {
            "a long log, which never blocks": [{"lvl": "info", "msg": "x" * 1000}] * 300,
            "odd lines": [*odd, *unfit],
        }.items():
            with self.subTest(name):
                tunnel = self.tunnel(prints(*lines, started(URL)))
                self.assertEqual(URL, tunnel.start())
                tunnel.stop()


class FailureTest(NgrokCase):
    def test_a_missing_ngrok_binary_is_refused_with_how_to_install_it(self) -> None:
        message = self.failure(binary=str(self.home / "absent"))
        for remedy in ("https://ngrok.com/download", "`brew install ngrok`", "`--tunnel cloudflared`", "is not found"):
            self.assertIn(remedy, message)

    @unittest.skipIf(sys.platform == "win32", "there the name tells what a program is")
    def test_a_binary_that_cannot_be_run_is_refused_with_how_to_install_it(self) -> None:
        broken = self.home / "broken"
        broken.write_bytes(b"\x7fELF")
        broken.chmod(0o755)
        message = self.failure(binary=str(broken))
        self.assertIn("cannot be run", message)
        self.assertIn("https://ngrok.com/download", message)

    def test_a_wrong_ngrok_token_is_refused_with_the_command_and_without_the_token(self) -> None:
        for code in (4018, 105, 107):
            with self.subTest(code):
                message = self.failure(ngrok_error(f"failed:\nYour authtoken: s3cret\r\n\r\nERR_NGROK_{code}\r\n"))
                self.assertIn("`ngrok config add-authtoken <YOUR_TOKEN>`", message)
                self.assertIn("https://dashboard.ngrok.com/get-started/your-authtoken", message)
                self.assertNotIn("s3cret", message)

    def test_another_agent_in_the_way_is_refused_with_the_command_to_stop_it(self) -> None:
        online = self.failure(ngrok_error("failed to start tunnel: already online ERR_NGROK_334"))
        for remedy in ("`pkill ngrok`", "`taskkill /IM ngrok.exe /F`", "`--pooling-enabled`"):
            self.assertIn(remedy, online)
        second = self.failure(ngrok_error("limited to 1 simultaneous session ERR_NGROK_108"))
        self.assertIn("`pkill ngrok`", second)
        self.assertNotIn("--pooling-enabled", second)

    def test_an_ngrok_error_with_a_code_wins_over_later_lines(self) -> None:
        noise = [{"lvl": "crit", "msg": "command failed", "err": "session closed"}, "ERROR:  bye", "ERROR:"]
        for code in ("ERR_NGROK_334", "ERR_NGROK_9"):
            self.assertIn(code, self.failure(fails(*ngrok_error(code)["lines"], *noise)))

    def test_an_unknown_ngrok_error_is_quoted_short_and_printable(self) -> None:
        text = "\x1b[31mboom\x07\n\u202eERR_NGROK_1080 your authtoken: s3cret " + "x" * 1000
        message = self.failure(ngrok_error(text))
        self.assertTrue(message.startswith("ngrok: [31mboom ERR_NGROK_1080 your authtoken: … xxx"), message)
        self.assertTrue(message.endswith(f"x; run `ngrok http {PORT} --log=stdout --log-format=json` to see more"))
        self.assertLess(len(message), 330)

    def test_an_agent_that_ends_with_plain_text_or_without_is_refused_with_a_command(self) -> None:
        for lines, words in (
            (["USAGE", "ERROR:  unknown flag: --log", "ERROR:  "], "unknown flag: --log"),
            ([], "it gave no public URL"),
        ):
            self.assertRegex(self.failure(fails(*lines)), f"^ngrok: {words}; run `ngrok http {PORT} .+` to see more$")

    def test_an_agent_that_never_gets_a_url_is_ended(self) -> None:
        self.assertIn("no public URL", self.failure(prints(), start_seconds=0.3))
        self.assertEqual(1, len(self.children))

    def test_stop_during_the_start_ends_the_agent(self) -> None:
        tunnel = self.tunnel(prints(), start_seconds=3600.0)
        stopper = threading.Timer(0, lambda: (wait_until(lambda: self.launched()), tunnel.stop()))
        stopper.start()
        self.assertRaises(StartupError, tunnel.start)
        stopper.join()
        self.expect_children_gone()
        self.assertNotEqual([0], [child.returncode for child in self.children], "it ended by itself")

    def test_a_stop_by_a_signal_while_the_agent_is_started_leaves_none(self) -> None:
        """The handler runs on the thread that is in start(), which has no child to close yet."""
        tunnel = self.tunnel(OK)
        launch = self.launch

        def interrupted(*arguments: object, **options: object) -> object:
            launched = launch(*arguments, **options)
            tunnel.stop()
            return launched

        with mock.patch.object(tunnel_module, "Popen", interrupted):
            self.assertRaises(StartupError, tunnel.start)
        self.expect_children_gone()

    def test_an_error_of_the_caller_ends_the_agent(self) -> None:
        for error in (KeyboardInterrupt, OSError):
            self.assertRaises(error, self.tunnel(OK, on_url=mock.Mock(side_effect=error)).start)
            self.expect_children_gone()


class WatchTest(NgrokCase):
    def test_an_agent_that_died_is_replaced_and_its_new_url_announced(self) -> None:
        urls: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.assertEqual(URL, self.tunnel(OK, OK_ELSEWHERE, on_url=urls.put).start())
        self.kill(self.children[0])
        self.expect_announced(self.lost(), self.back, self.moved(NEW))
        self.assertEqual([URL, NEW], [urls.get(timeout=10) for _ in range(2)])

    def test_a_url_that_the_agent_changes_is_announced_and_costs_no_restart(self) -> None:
        urls: list[str] = []
        self.tunnel(prints(started(URL), started(NEW)), on_url=urls.append).start()
        wait_until(lambda: urls and urls[-1] == NEW)
        self.assertEqual(1, len(self.children))

    def test_a_replaced_agent_at_the_same_url_announces_no_new_url(self) -> None:
        tunnel = self.tunnel(OK)
        tunnel.start()
        self.kill(self.children[0])
        self.expect_announced(self.lost(), self.back)
        tunnel.stop()
        self.assertTrue(self.announced.empty())

    def test_the_last_error_of_a_dead_agent_is_announced(self) -> None:
        last = {"lvl": "crit", "err": "session closed\nYour authtoken: s3cret"}
        self.tunnel(fails(started(URL), last), OK).start()
        self.expect_announced(self.lost("session closed Your authtoken: …"), self.back)

    def test_a_repeated_failure_to_restart_the_agent_is_announced_once(self) -> None:
        refused = ngrok_error("ERR_NGROK_334")
        self.tunnel(fails(started(URL)), refused, refused, refused, OK_ELSEWHERE, pauses=(0.001, 0.002)).start()
        self.expect_announced(self.lost())
        self.assertRegex(self.announced.get(timeout=20), r"^ngrok: .*`pkill ngrok`.*; trying again$")
        self.expect_announced(self.back, self.moved(NEW))
        self.assertEqual(5, len(self.children))

    def test_a_binary_removed_while_running_does_not_end_the_watcher(self) -> None:
        away = self.home / "away"

        def announce(text: str) -> None:
            if text == self.lost():
                self.binary.rename(away)
            self.announce(text)

        self.tunnel(fails(started(URL)), OK_ELSEWHERE, announce=announce).start()
        self.expect_announced(self.lost())
        self.assertIn("https://ngrok.com/download", self.announced.get(timeout=20))
        away.rename(self.binary)
        self.expect_announced(self.back, self.moved(NEW))

    def test_an_agent_that_dies_after_each_start_is_restarted_with_growing_pauses(self) -> None:
        tunnel = self.tunnel(OK, pauses=(0.001, 3600))
        tunnel.start()
        self.kill(self.children[0])
        self.expect_announced(self.lost(), self.back)
        self.kill(self.children[1])
        self.expect_announced(self.lost())
        with self.assertRaises(queue.Empty):
            self.announced.get(timeout=0.3)
        tunnel.stop()
        self.assertEqual(2, len(self.children))

    def test_an_agent_that_ran_for_long_is_restarted_after_the_first_pause(self) -> None:
        self.tunnel(OK, pauses=(0.001, 3600), steady_seconds=0).start()
        for number in range(3):
            self.kill(self.children[number])
            self.expect_announced(self.lost(), self.back)


class StopTest(NgrokCase):
    @unittest.skipIf(sys.platform == "win32", "its process group is set by a flag and cannot be asked for")
    def test_ctrl_c_in_our_terminal_does_not_reach_the_agent(self) -> None:
        self.tunnel(OK).start()
        self.assertNotEqual(os.getpgid(self.children[0].pid), os.getpgrp())

    def test_stop_is_idempotent_and_needs_no_start(self) -> None:
        tunnel = self.tunnel(OK)
        tunnel.stop()
        self.assertEqual([], self.children)
        tunnel = self.tunnel(OK)
        tunnel.start()
        for _ in range(2):
            tunnel.stop()
            self.expect_children_gone()
        self.assertTrue(self.announced.empty())

    def test_stop_does_not_wait_for_a_restart_pause(self) -> None:
        tunnel = self.tunnel(fails(started(URL)), pauses=(3600,))
        tunnel.start()
        self.expect_announced(self.lost())
        tunnel.stop()
        self.assertEqual(1, len(self.children))

    @unittest.skipIf(sys.platform == "win32", "there is no way to ask")
    def test_an_agent_that_ignores_sigterm_is_killed(self) -> None:
        tunnel = self.tunnel(prints(started(URL), deaf=True))
        tunnel.start()
        with mock.patch.object(tunnel_module, "_GRACE_SECONDS", 0.1):
            tunnel.stop()
        self.assertEqual(-signal.SIGKILL, self.children[0].returncode)
