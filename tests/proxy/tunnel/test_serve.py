"""`--tunnel` as a process: the program that is found, its URL in the start-up text, its end."""

import re
import signal
import unittest

from tests.proxy.tunnel.test_cloudflared import URL as QUICK_URL
from tests.proxy.tunnel.test_cloudflared import quick
from tests.support.polling import wait_until
from tests.support.program import COMMAND, WINDOWS, Process
from tests.support.tunnel_stand_in import OK, URL, TunnelProgramTest, launches, ngrok_error, prints

# A tunnel gets longer to start than any test waits.
COMMAND_WITH_A_SLOW_TUNNEL = (
    *COMMAND[:3],
    "-c",
    "import sys; from deepseek_cursor_proxy.cli.tunnel import Tunnel; Tunnel.start_seconds = 3600.0\n"
    "from deepseek_cursor_proxy.__main__ import main; sys.exit(main())",
)


@unittest.skipIf(WINDOWS, "the stand-in is a script with a shebang")
class TunnelServeTest(TunnelProgramTest):
    may_fork = True

    def expect_stopped_with_its_tunnel(self, process: Process, number: int = signal.SIGTERM) -> None:
        process.send(number)
        self.expect_stopped(process)
        self.assertTrue(self.is_tunnel_gone())

    def test_the_public_address_is_the_one_to_paste_and_ends_with_the_proxy(self) -> None:
        process, welcome = self.serve("--ngrok", **self.install("ngrok", OK))
        self.assertRegex(welcome, r"\AOpening a tunnel with ngrok; this may take 20 s …\ndeepseek")
        self.assertIn(f"Override OpenAI Base URL   {URL}/v1\n", welcome)
        self.assertNotIn("restart with --tunnel", welcome)
        self.assertIn("The first key that DeepSeek accepts will be the only one served", welcome)
        self.expect_health(self.forwarded_port())
        self.expect_stopped_with_its_tunnel(process)

    def test_a_tunnel_without_a_name_is_cloudflared_where_ngrok_has_no_token(self) -> None:
        self.install("ngrok", OK)
        process, welcome = self.serve("--tunnel", **self.install("cloudflared", quick("one-two-three")))
        self.assertIn("Opening a tunnel with cloudflared", welcome)
        self.assertIn(f"Override OpenAI Base URL   {QUICK_URL}/v1\n", welcome)
        self.expect_stopped_with_its_tunnel(process)

    def test_a_tunnel_without_a_name_is_ngrok_with_a_token(self) -> None:
        tools = self.install("cloudflared", OK) | self.install("ngrok", OK)
        process, welcome = self.serve("--tunnel", **tools, NGROK_AUTHTOKEN="4nq9")
        self.assertIn("Opening a tunnel with ngrok", welcome)
        self.expect_stopped_with_its_tunnel(process)

    def test_the_dashboard_is_not_behind_the_tunnel(self) -> None:
        process = self.launch("--port", "0", "--admin-port", "9801", "--ngrok", **self.install("ngrok", OK))
        welcome = process.read_until("Stop with Ctrl-C.\n")
        admin = int(
            re.search(r"http://localhost:(\d+)|http://127\.0\.0\.1:(\d+)/", welcome)[0].rstrip("/").split(":")[-1]
        )
        self.assertNotEqual(admin, self.forwarded_port())
        self.expect_stopped_with_its_tunnel(process)

    def test_a_refusing_ngrok_is_one_line_with_the_command_that_helps(self) -> None:
        failing = self.install("ngrok", ngrok_error("ERR_NGROK_4018"))
        line = self.refusal("--port", "0", "--ngrok", progress="Opening a tunnel with ngrok", **failing)
        self.assertIn("`ngrok config add-authtoken <YOUR_TOKEN>`", line)

    def test_a_slow_program_does_not_delay_the_stop(self) -> None:
        self.command = COMMAND_WITH_A_SLOW_TUNNEL
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process = self.launch("--port", "0", "--ngrok", **self.install("ngrok", prints()))
                wait_until(lambda: launches(self.bin))
                self.expect_stopped_with_its_tunnel(process, number)

    def test_without_a_tunnel_program_the_start_is_one_line(self) -> None:
        line = self.refusal("--port", "0", "--tunnel", PATH=str(self.bin))
        self.assertRegex(line, "^no tunnel program is installed; cloudflared is the simplest: install it from https://")

    def test_no_tunnel_wins_over_the_file(self) -> None:
        self.directory.mkdir()
        (self.directory / "config.toml").write_text("ngrok = true\n")
        _, welcome = self.serve("--no-tunnel", **self.install("ngrok", OK))
        self.assertIn("restart with --tunnel", welcome)

    def test_a_killed_proxy_takes_its_tunnel_program_along(self) -> None:
        process, _ = self.serve("--ngrok", **self.install("ngrok", OK))
        process.send(signal.SIGKILL)
        wait_until(self.is_tunnel_gone)
