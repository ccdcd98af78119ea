"""cloudflared, tailscale and ssh as stand-ins that print what the real programs print: start, failure, loss, reuse.

Printed by cloudflared 2026.8.2, tailscale 1.103.0 and OpenSSH 9.2 with localhost.run in 2026.
"""

import json
import os
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli.tunnel import child
from deepseek_cursor_proxy.cli.tunnel.programs import Cloudflared, Log, Program, Ssh, Tailscale
from deepseek_cursor_proxy.cli.tunnel.supervisor import OURS, Reach, Tunnel
from deepseek_cursor_proxy.errors import StartupError
from tests.proxy.tunnel.tunnel_case import PORT, TunnelCase, back, lost, moved
from tests.support.ngrok_stand_in import Agent
from tests.support.polling import wait_until

# Each launch prints the next part of plan.json and stays, unless the part says how it ends; the last part repeats.
# Questions, which end at once, have their own answers.
STAND_IN = """
import json, os, sys, threading

home = os.path.dirname(__file__)
with open(os.path.join(home, "plan.json")) as file:
    plan = json.load(file)
launches = os.path.join(home, "launches")
with open(launches) as file:
    part = plan[min(len(file.readlines()), len(plan) - 1)]
words = sys.argv[1:]
answer = part.get("answers", {}).get(" ".join(words))
if answer is not None or "status" in words:
    text, code = answer or ("{}", 0)
    print(text, file=sys.stderr if code else sys.stdout)
    sys.exit(code)
with open(launches, "a") as file:
    print(json.dumps(words), file=file)
for line in part["lines"]:
    print(line, flush=True)
if "code" in part:
    sys.exit(part["code"])
threading.Event().wait(60)
"""

Part = dict[str, Any]
ELSEWHERE = Reach(is_ours=False, is_answered=True, problem="something else answers there, with 404")
SILENT = Reach(is_ours=False, is_answered=False, problem="no answer: timed out")


def prints(*lines: str, **more: Any) -> Part:
    return {"lines": lines, **more}


def fails(*lines: str) -> Part:
    return prints(*lines, code=1)


class ProgramCase(TunnelCase):
    """What holds for every program; `first` and `second` are two starts that work, with different URLs."""

    stand_in = STAND_IN
    first: Part
    second: Part
    urls: tuple[str, str]
    command: tuple[str, ...]
    # What the program prints when it fails, and what the message says then.
    failures: tuple[tuple[Part, str], ...]

    def test_a_started_program_gives_its_public_url(self) -> None:
        urls: list[str] = []
        self.assertEqual(self.urls[0], self.tunnel(self.first, on_url=urls.append).start())
        self.assertEqual([list(self.command)], self.launched())
        self.assertEqual([self.urls[0]], urls)
        self.assertEqual(self.urls[0], self.checked[0])

    def test_every_failure_has_the_command_that_helps(self) -> None:
        (part, words), *others = self.failures
        self.assertIn(words, self.failure(part))
        for part, words in others:
            with self.subTest(words):
                self.assertIn(words, self.explain(*part["lines"]))

    def explain(self, *lines: str) -> str:
        """What is said of a program that has printed these lines; no process is needed for that."""
        program, log = self.program(), Log()
        for line in lines:
            log = program.read(log, f"{line}\n")
        return program.explain(log.error)

    def test_an_unknown_failure_is_quoted_with_the_command_to_try(self) -> None:
        manual = " ".join((self.name, *self.command))
        message = self.failure(fails("ssh: ERR \x1b[31mboom\x07 " + "x" * 1000))
        self.assertIn("[31mboom", message)
        self.assertIn(f"x; run `{manual}` to see more", message)

    def test_the_start_says_what_it_waits_for_and_for_how_long(self) -> None:
        self.tunnel(self.first).start()
        texts = [self.progress.get(timeout=20) for _ in range(2)]
        self.assertRegex(texts[0], rf"^Opening a tunnel with {self.name}.*; this may take \d+ s …$")
        self.assertRegex(texts[1], r"^https://\S+ is assigned; it should lead here within [\d.]+ s …$")

    def test_a_missing_program_is_refused_with_the_way_to_install_it(self) -> None:
        message = self.failure(self.first, binary=str(self.home / "absent"))
        self.assertIn("is not found", message)
        self.assertIn(self.program().install, message)

    def test_a_program_that_dies_is_started_again_and_its_new_url_announced(self) -> None:
        urls: list[str] = []
        self.tunnel(self.first, self.second, on_url=urls.append).start()
        self.kill(self.children[0])
        self.expect_announced(lost(self.name), back(self.name), moved(self.name, self.urls[1]))
        self.assertEqual(list(self.urls), urls)


class SupervisorCase(ProgramCase):
    """What does not depend on the program, so one of them shows it."""

    def test_a_program_without_a_url_is_ended(self) -> None:
        self.assertIn("it gave no public URL", self.failure(prints(), start=0.3))
        self.assertEqual(1, len(self.children))

    def test_a_program_that_cannot_be_started_again_is_tried_with_growing_pauses(self) -> None:
        part, _ = self.failures[0]
        tunnel = self.tunnel(self.first, part, part, self.second, backoff=(0.001, 0.002))
        tunnel.start()
        self.kill(self.children[0])
        self.expect_announced(lost(self.name))
        self.assertRegex(self.announced.get(timeout=20), f"^{self.name}: .+; trying again$")
        self.expect_announced(back(self.name), moved(self.name, self.urls[1]))

    def test_a_url_that_does_not_lead_here_is_announced_and_so_is_its_recovery(self) -> None:
        for reach in (ELSEWHERE, SILENT):
            with self.subTest(reach):
                self.reach = reach
                tunnel = self.tunnel(self.first)
                self.assertEqual(self.urls[0], tunnel.start())
                where = f"{self.name}: {self.urls[0]}"
                self.expect_announced(f"{where} does not lead to this proxy, as seen from here: {reach.problem}")
                self.reach = OURS
                self.expect_announced(f"{where} leads to this proxy now")
                tunnel.stop()
                self.launches.write_text("")

    def test_a_url_that_leads_elsewhere_for_long_is_opened_anew(self) -> None:
        self.tunnel(self.first, self.second).start()
        self.reach = ELSEWHERE
        yet = f"{self.name}: {self.urls[0]} does not lead to this proxy, as seen from here: {ELSEWHERE.problem}"
        self.expect_announced(yet, lost(self.name))
        self.reach = OURS
        self.expect_announced(back(self.name), moved(self.name, self.urls[1]))

    def test_a_network_that_is_down_costs_no_restart(self) -> None:
        self.tunnel(self.first).start()
        self.reach = SILENT
        count = len(self.checked)
        wait_until(lambda: len(self.checked) > count + 10)
        self.assertEqual(1, len(self.children))

    def test_a_program_that_ends_at_the_first_check_is_a_failure(self) -> None:
        def ask(url: str) -> Reach:
            self.kill(self.children[0])
            self.children[0].wait()
            return SILENT

        self.failure(self.first, ask=ask, first_check=20)

    def test_a_check_that_fails_is_a_check_without_an_answer(self) -> None:
        with mock.patch.object(self, "ask", side_effect=RecursionError("deep")):
            self.assertEqual(self.urls[0], self.tunnel(self.first).start())
        self.assertIn("the check failed: RecursionError('deep')", self.announced.get(timeout=20))

    def test_stop_waits_for_no_check(self) -> None:
        release, is_asked = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def ask(url: str) -> Reach:
            is_asked.set()
            release.wait(20)
            return OURS

        tunnel = self.tunnel(self.first, ask=ask)
        stopper = threading.Timer(0, lambda: is_asked.wait(20) and tunnel.stop())
        stopper.start()
        started = time.monotonic()
        self.assertRaises(StartupError, tunnel.start)
        self.assertLess(time.monotonic() - started, 15)
        stopper.join()

    def test_stop_ends_the_program(self) -> None:
        tunnel = self.tunnel(self.first)
        tunnel.start()
        tunnel.stop()
        self.expect_children_gone()

    @unittest.skipIf(sys.platform == "win32", "there is no way to ask")
    def test_a_program_that_does_not_end_is_killed(self) -> None:
        (self.home / "stand_in.py").write_text("import signal\nsignal.signal(15, signal.SIG_IGN)\n" + STAND_IN)
        tunnel = self.tunnel(self.first)
        tunnel.start()
        with mock.patch.object(child, "_GRACE_SECONDS", 0.1):
            tunnel.stop()
        self.assertEqual(-9, self.children[0].returncode)


class ReservedCase(TunnelCase):
    """With a reserved URL."""

    stand_in = STAND_IN
    reserved = "https://proxy.example.com"

    def test_a_reserved_url_that_leads_here_already_is_used_and_nothing_started(self) -> None:
        self.assertEqual(self.reserved, self.tunnel(prints(), url=self.reserved).start())
        self.assertEqual([], self.children)

    def start_own(self, part: Part) -> Tunnel:
        """A tunnel of which the reserved URL leads here only once the program runs."""

        def ask(url: str) -> Reach:
            self.assertEqual(self.reserved, url)
            return OURS if self.children else SILENT

        tunnel = self.tunnel(part, url=self.reserved, ask=ask)
        self.assertEqual(self.reserved, tunnel.start())
        return tunnel

    def test_a_reused_url_that_stops_leading_here_is_replaced_by_a_program_of_ours(self) -> None:
        tunnel = self.tunnel(self.own, url=self.reserved)
        tunnel.start()
        self.reach = SILENT
        self.announced.get(timeout=20)
        self.expect_announced(lost(self.name))
        self.reach = OURS
        self.expect_announced(back(self.name))

    own = prints()


QUICK_LINES = (
    "2026-08-20T10:00:00Z ERR Configuration file /dev/null was empty",
    "2026-08-20T10:00:00Z INF Thank you for trying Cloudflare Tunnel. Doing so, without a Cloudflare account, is a "
    "quick way to experiment (https://www.cloudflare.com/website-terms/)",
    "2026-08-20T10:00:00Z INF Requesting new quick Tunnel on trycloudflare.com...",
    "2026-08-20T10:00:02Z INF +------------------------------------------------------------+",
    "2026-08-20T10:00:02Z INF |  Your quick Tunnel has been created! Visit it at (it may take some time to be "
    "reachable):  |",
    "2026-08-20T10:00:02Z INF |  https://{}.trycloudflare.com                   |",
    "2026-08-20T10:00:02Z INF +------------------------------------------------------------+",
    "2026-08-20T10:00:02Z INF Starting metrics server on 127.0.0.1:20241/metrics",
)
REGISTERED = (
    "2026-08-20T10:00:03Z INF Registered tunnel connection connIndex=0 connection=4c8b event=0 ip=198.41.192.7 "
    "location=fra08 protocol=quic"
)


def quick(name: str) -> Part:
    return prints(*(line.format(name) for line in QUICK_LINES), REGISTERED)


class CloudflaredCase(TunnelCase):
    name = "cloudflared"

    def program(self, metrics_urls: Sequence[str] = (), **options: Any) -> Program:
        program = Cloudflared(PORT, **{"binary": str(self.binary), **options})
        program.metrics_urls = metrics_urls
        return program


class CloudflaredTest(CloudflaredCase, ProgramCase):
    first, second = quick("one-two-three"), quick("four-five-six")
    urls = ("https://one-two-three.trycloudflare.com", "https://four-five-six.trycloudflare.com")
    null = "nul" if sys.platform == "win32" else "/dev/null"
    command = ("tunnel", "--config", null, "--no-autoupdate", "--url", f"http://127.0.0.1:{PORT}")
    failures = (
        (
            fails(
                QUICK_LINES[2],
                '2026-08-20T10:00:01Z ERR Error unmarshaling QuickTunnel response: error code: 1015 error="invalid '
                'character \'e\' looking for beginning of value" status_code="429 Too Many Requests"',
                "failed to unmarshal quick Tunnel: invalid character 'e' looking for beginning of value",
            ),
            "wait a few minutes",
        ),
        (
            fails(
                QUICK_LINES[2],
                'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: lookup '
                "api.trycloudflare.com on 127.0.0.11:53: no such host",
            ),
            "is the network up?",
        ),
    )

    def test_a_quick_tunnel_counts_once_its_connection_is_registered(self) -> None:
        self.assertIn("it gave no public URL", self.failure(prints(*first_lines()), start=0.3))

    def test_the_path_of_a_strangers_request_in_the_log_is_not_the_url(self) -> None:
        evil = "https://evil.trycloudflare.com"
        asked = (
            f'2026-08-20T10:00:04Z ERR  error="unable to reach the origin" cfRay=8f0 event=1 originService=http://x '
            f"type=http dest={self.urls[0]}/{evil}",
            f"2026-08-20T10:00:04Z DBG GET {self.urls[0]}/|  {evil}  | HTTP/1.1 connIndex=0",
            f'2026-08-20T10:00:04Z ERR Request failed error="x" dest={evil} |',
            f"2026-08-20T10:00:04Z ERR dest={evil}/ INF |  {evil}  |",
            "2026-08-20T10:00:04Z ERR dest=/Registered tunnel connection",
        )
        for lines in ((*first_lines(), *asked, REGISTERED), (*first_lines(), REGISTERED, *asked, REGISTERED)):
            used: list[str] = []
            tunnel = self.tunnel(prints(*lines), on_url=used.append)
            self.assertEqual(self.urls[0], tunnel.start())
            enough = len(self.checked) + 3
            wait_until(lambda enough=enough: len(self.checked) > enough)
            tunnel.stop()
            self.launches.write_text("")
            self.assertEqual([self.urls[0]], used)
            self.assertEqual({self.urls[0]}, set(self.checked))
            self.assertTrue(self.announced.empty())

    def test_a_strangers_request_is_not_quoted_when_the_tunnel_is_lost(self) -> None:
        asked = '2026-08-20T10:00:04Z ERR Request failed error="EOF" dest=https://a/paste-this-into-Cursor:https://evil'
        self.tunnel(prints(*self.first["lines"], asked), self.second).start()
        self.kill(self.children[0])
        self.expect_announced(lost(self.name))

    def test_a_network_without_udp_has_a_remedy(self) -> None:
        error = "failed to dial to edge with quic: timeout: no recent network activity"
        line = f'2026-08-20T10:00:09Z ERR Failed to dial a quic connection error="{error}" connIndex=0'
        self.assertIn("TUNNEL_TRANSPORT_PROTOCOL=http2", self.explain(*first_lines(), line))

    def test_a_quick_tunnel_of_others_is_used_only_if_it_leads_here(self) -> None:
        page = json.dumps({"hostname": "of-others.trycloudflare.com"}).encode()
        agent = self.enterContext(closing(Agent({"/quicktunnel": page})))
        for reach, url, children in (
            (OURS, "https://of-others.trycloudflare.com", 0),
            (ELSEWHERE, self.urls[0], 1),
        ):
            self.reach = reach
            tunnel = self.tunnel(self.first, metrics_urls=[agent.api])
            self.assertEqual(url, tunnel.start())
            tunnel.stop()
            self.assertEqual(children, len(self.children))

    def test_a_metrics_port_with_something_else_is_ignored(self) -> None:
        for page in (b"", b"{}", b'{"hostname": 3}', b'{"hostname": ""}', b'{"hostname": "evil.example"}'):
            agent = self.enterContext(closing(Agent({"/quicktunnel": page})))
            self.assertEqual([], self.program(metrics_urls=[agent.api]).running())


def first_lines() -> tuple[str, ...]:
    return tuple(line.format("one-two-three") for line in QUICK_LINES)


class NamedCloudflaredTest(CloudflaredCase, ReservedCase):
    own = prints(REGISTERED)

    def test_a_named_tunnel_gets_its_host_name(self) -> None:
        self.start_own(prints(REGISTERED))
        words = ["--name", "deepseek-cursor-proxy", "--hostname", "proxy.example.com"]
        self.assertEqual([*CloudflaredTest.command, *words], self.launched()[0])

    def test_a_tunnel_with_a_token_runs_as_its_account_says(self) -> None:
        with mock.patch.dict(os.environ, {"TUNNEL_TOKEN": "eyJh"}):
            self.start_own(prints(REGISTERED))
        target = ["--no-autoupdate", "--url", f"http://127.0.0.1:{PORT}"]
        self.assertEqual(["tunnel", *target, "run"], self.launched()[0])

    def test_a_missing_login_and_a_wrong_token_have_their_remedies(self) -> None:
        self.reach = SILENT
        missing = (
            "2026-08-20T10:00:00Z ERR Cannot determine default origin certificate path. No file cert.pem in "
            "[~/.cloudflared ~/.cloudflare-warp]. You need to specify the origin certificate path by specifying the "
            "origincert option in the configuration file, or set TUNNEL_ORIGIN_CERT environment variable "
            "originCertPath="
        )
        last = "failed to create tunnel: couldn't create client: client didn't specify origincert path"
        for lines, words in (
            ((missing, last), "run `cloudflared tunnel login`"),
            (("Provided Tunnel token is not valid.", "See 'cloudflared tunnel run --help'."), "TUNNEL_TOKEN is wrong"),
        ):
            self.assertIn(words, self.failure(fails(*lines), url=self.reserved))


def funnel(name: str, port: int = PORT) -> Part:
    return prints(
        "Available on the internet:",
        "",
        f"https://{name}/",
        f"|-- proxy http://127.0.0.1:{port}",
        "",
        "Press Ctrl+C to exit.",
    )


def serve_status(name: str, target: str, **more: Any) -> dict[str, Any]:
    site = {"Handlers": {"/": {"Proxy": target}}}
    return {"TCP": {"443": {"HTTPS": True}}, "Web": {name: site}, "AllowFunnel": {name: True}, **more}


STATUS, FUNNEL_STATUS = "status --json --peers=false", "funnel status --json"


class TailscaleTest(ProgramCase):
    name = "tailscale"
    first, second = funnel("box.tail1234.ts.net"), funnel("box-1.tail1234.ts.net")
    urls = ("https://box.tail1234.ts.net", "https://box-1.tail1234.ts.net")
    command = ("funnel", "--https=443", str(PORT))
    failures = (
        (
            prints(
                "",
                "Funnel is not enabled on your tailnet.",
                "To enable, visit:",
                "",
                "         https://login.tailscale.com/f/funnel?node=nABC11CNTRL",
                "",
            ),
            "open https://login.tailscale.com/f/funnel?node=nABC11CNTRL once",
        ),
        (
            fails('Funnel not available; "funnel" node attribute not set. See https://tailscale.com/s/no-funnel.'),
            "no-funnel",
        ),
        (
            fails("Funnel not available; HTTPS must be enabled. See https://tailscale.com/s/https."),
            "tailscale.com/s/https",
        ),
        (
            fails("sending serve config: updating config: listener already exists for port 443"),
            "`tailscale funnel reset`",
        ),
        (
            fails("sending serve config: Access denied: serve config denied", "", "Use 'sudo tailscale funnel 9000'."),
            "`sudo tailscale set --operator=$USER`",
        ),
        (
            fails("sending serve config: updating config: Unable to turn on Funnel while shields-up is enabled"),
            "`tailscale set --shields-up=false`",
        ),
    )

    def program(self, **options: Any) -> Program:
        return Tailscale(PORT, **{"binary": str(self.binary), **options})

    def test_a_machine_that_is_not_connected_has_a_remedy_before_anything_is_started(self) -> None:
        for answer, words in (
            ((json.dumps({"BackendState": "NeedsLogin", "Self": None}), 0), "is logged out: run `"),
            ((json.dumps({"BackendState": "Stopped"}), 0), "is switched off: run `"),
            ((json.dumps({"BackendState": "NeedsMachineAuth"}), 0), "has to approve this machine"),
            (
                ("failed to connect to local tailscaled; it doesn't appear to be running", 1),
                "systemctl start tailscaled",
            ),
        ):
            self.assertIn(words, self.failure({**self.first, "answers": {STATUS: answer}}))
        self.assertEqual([], self.children)

    def test_odd_answers_to_the_questions_do_not_matter(self) -> None:
        for text in ("", "[]", "null", "{", "[" * 100_000, json.dumps({"BackendState": "Running"})):
            tunnel = self.tunnel({**self.first, "answers": {STATUS: (text, 0), FUNNEL_STATUS: (text, 0)}})
            self.assertEqual(self.urls[0], tunnel.start())
            tunnel.stop()

    def test_a_funnel_that_leads_to_our_port_is_used_and_left_alone(self) -> None:
        host, here = "box.tail1234.ts.net", f"http://127.0.0.1:{PORT}"
        foreground = {"Foreground": {"session": serve_status(f"{host}:8443", here)}}
        for status, url in (
            (serve_status(f"{host}:443", here), f"https://{host}"),
            (serve_status(f"{host}:443", "http://127.0.0.1:1", **foreground), f"https://{host}:8443"),
        ):
            part = {**self.first, "answers": {FUNNEL_STATUS: (json.dumps(status), 0)}}
            tunnel = self.tunnel(part)
            self.assertEqual(url, tunnel.start())
            tunnel.stop()
        self.assertEqual([], self.children)

    def test_a_funnel_that_leads_elsewhere_or_nowhere_is_not_used(self) -> None:
        name, here = "box.tail1234.ts.net:443", f"http://127.0.0.1:{PORT}"
        for status in (
            serve_status(name, "http://127.0.0.1:1"),
            {**serve_status(name, here), "AllowFunnel": {name: False}},
            serve_status("evil.example:443", here),
            {"AllowFunnel": {name: True}, "Web": {name: {"Handlers": {"/x": {"Proxy": here}}}}},
            {"AllowFunnel": [], "Web": 3, "Foreground": {"a": 3}},
        ):
            part = {**self.first, "answers": {FUNNEL_STATUS: (json.dumps(status), 0)}}
            (self.home / "plan.json").write_text(json.dumps([part]))
            self.assertEqual([], self.program().running())

    def test_a_reserved_url_chooses_the_public_port(self) -> None:
        url = "https://box.tail1234.ts.net:8443"
        self.assertEqual(url, self.tunnel(funnel("box.tail1234.ts.net:8443"), url=url).start())
        self.assertEqual([["funnel", "--https=8443", str(PORT)]], self.launched())

    def test_a_program_that_does_not_answer_questions_is_started_all_the_same(self) -> None:
        with mock.patch.object(subprocess, "run", side_effect=subprocess.TimeoutExpired("x", 5)):
            self.assertEqual(self.urls[0], self.tunnel(self.first).start())


OPTIONS = ["-T", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=3"]


def localhost_run(name: str) -> Part:
    return prints(
        "Warning: Permanently added 'localhost.run' (RSA) to the list of known hosts.",
        "===============================================================================",
        "Welcome to localhost.run!",
        "Follow your favourite reverse tunnel at [https://twitter.com/localhost_run].",
        "To set up and manage custom domains go to https://admin.localhost.run/",
        "===============================================================================",
        "** your connection id is 61516456, please mention it if you send me a message about an issue. **",
        "authenticated as anonymous user",
        f"{name} tunneled with tls termination, https://{name}",
        "create an account and add your key for a longer lasting domain name. see https://localhost.run/docs/forever-free/"
        " for more information.",
    )


class SshTest(SupervisorCase):
    name = "ssh"
    first, second = localhost_run("47970a65005227.lhr.life"), localhost_run("5a32d8b4c1.lhr.life")
    urls = ("https://47970a65005227.lhr.life", "https://5a32d8b4c1.lhr.life")
    accepts = ("-o", "StrictHostKeyChecking=accept-new")
    command = (*OPTIONS, *accepts, "-R", f"80:127.0.0.1:{PORT}", "nokey@localhost.run")
    failures = (
        (
            fails("ssh: Could not resolve hostname localhost.run: Temporary failure in name resolution"),
            "`ssh -v localhost.run`",
        ),
        (
            fails("ssh: connect to host localhost.run port 22: Connection refused"),
            "cannot be reached (Connection refused)",
        ),
        (fails("nokey@localhost.run: Permission denied (publickey)."), "https://admin.localhost.run"),
        (fails("Host key verification failed."), "run `ssh localhost.run` once"),
        (fails("ssh: connect to host localhost.run port 22: Connection refused"), "Or use another tunnel, `--tunnel"),
    )

    def program(self, **options: Any) -> Program:
        return Ssh(PORT, **{"binary": str(self.binary), **options})

    def test_a_service_that_changes_the_url_is_followed(self) -> None:
        """localhost.run gives free tunnels a new name every few hours, in the same session."""
        both = prints(*self.first["lines"], *self.second["lines"][-2:-1])
        tunnel = self.tunnel(both)
        if tunnel.start() == self.urls[0]:
            self.expect_announced(moved("ssh", self.urls[1]))

    def test_a_domain_of_ones_own_at_the_service_needs_a_key(self) -> None:
        self.reach = SILENT
        url = "https://proxy.example.com"
        self.assertEqual(url, self.tunnel(localhost_run("proxy.example.com"), url=url).start())
        target = f"proxy.example.com:80:127.0.0.1:{PORT}"
        self.assertEqual([[*OPTIONS, *self.accepts, "-R", target, "plan@localhost.run"]], self.launched())


class OwnHostTest(ReservedCase):
    """`ssh -R` to a host of one's own prints nothing, unless it fails."""

    name = "ssh"

    def program(self, **options: Any) -> Program:
        return Ssh(PORT, **{"binary": str(self.binary), "host": "me@home.example", **options})

    def test_the_port_is_opened_on_the_host(self) -> None:
        self.start_own(prints())
        wait_until(self.launched)
        self.assertEqual([["-N", *OPTIONS, "-R", f"{PORT}:127.0.0.1:{PORT}", "me@home.example"]], self.launched())

    def test_a_host_without_an_address_is_refused(self) -> None:
        self.assertRegex(self.failure(prints()), "me@home.example needs --tunnel-url, the https address")

    def test_every_failure_has_the_command_that_helps(self) -> None:
        self.reach = SILENT
        for line, words in (
            ("me@home.example: Permission denied (publickey,password).", "run `ssh-copy-id me@home.example`"),
            ("Error: remote port forwarding failed for listen port 9000", "AllowTcpForwarding yes"),
            ("Host key verification failed.", "run `ssh me@home.example` once"),
            ("ssh: connect to host home.example port 22: Connection timed out", "`ssh -v me@home.example`"),
        ):
            self.assertIn(words, self.failure(fails(line), url=self.reserved, first_check=20))


# They have no program of their own.
del ProgramCase, SupervisorCase, ReservedCase, CloudflaredCase
