"""The tunnel against a stand-in that prints what cloudflared 2026.8.2 prints: start, failure, loss."""

import contextlib
import os
import socket
import subprocess
import sys
import unittest
from unittest import mock

from deepseek_cursor_proxy.cli.tunnel import Child, Cloudflared, Log
from tests.proxy.tunnel.tunnel_case import TunnelCase
from tests.support.systems import ROOT
from tests.support.tunnel_stand_in import PORT, Part, fails, prints

LINES = (
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
NULL = "nul" if sys.platform == "win32" else "/dev/null"
TARGET = ["--no-autoupdate", "--url", f"http://127.0.0.1:{PORT}"]
COMMAND = ["tunnel", "--config", NULL, *TARGET]
URL, NEW = "https://one-two-three.trycloudflare.com", "https://four-five-six.trycloudflare.com"
RESERVED = "https://proxy.example.com"


def assigned(name: str = "one-two-three") -> tuple[str, ...]:
    return tuple(line.format(name) for line in LINES)


def quick(name: str) -> Part:
    return prints(*assigned(name), REGISTERED)


class CloudflaredTest(TunnelCase):
    kind = Cloudflared

    def explain(self, *lines: str) -> str:
        """What is said of a program that has printed these lines; no process is needed for that."""
        program, log = Cloudflared(PORT), Log()
        for line in lines:
            log = program.read(log, f"{line}\n")
        return program.explain(log.error)

    def test_a_quick_tunnel_gives_its_public_url(self) -> None:
        self.assertEqual(URL, self.tunnel(quick("one-two-three")).start())
        self.assertEqual([COMMAND], self.launched())

    def test_a_quick_tunnel_counts_once_its_connection_is_registered(self) -> None:
        self.assertIn("it gave no public URL", self.failure(prints(*assigned()), start_seconds=0.3))

    def test_a_program_that_dies_is_started_again_and_its_new_url_announced(self) -> None:
        self.tunnel(quick("one-two-three"), quick("four-five-six")).start()
        self.kill(self.children[0])
        self.expect_announced(self.lost(), self.back, self.moved(NEW))

    def test_every_failure_has_the_command_that_helps(self) -> None:
        limit = (
            '2026-08-20T10:00:01Z ERR Error unmarshaling QuickTunnel response: error code: 1015 error="invalid '
            'character \'e\' looking for beginning of value" status_code="429 Too Many Requests"',
            "failed to unmarshal quick Tunnel: invalid character 'e' looking for beginning of value",
        )
        offline = (
            'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: lookup '
            "api.trycloudflare.com on 127.0.0.11:53: no such host"
        )
        error = "failed to dial to edge with quic: timeout: no recent network activity"
        no_udp = f'2026-08-20T10:00:09Z ERR Failed to dial a quic connection error="{error}" connIndex=0'
        self.assertIn("wait a few minutes", self.failure(fails(LINES[2], *limit)))
        self.assertIn("is the network up?", self.explain(LINES[2], offline))
        self.assertIn("TUNNEL_TRANSPORT_PROTOCOL=http2", self.explain(*assigned(), no_udp))

    def test_an_unknown_failure_is_quoted_with_the_command_to_try(self) -> None:
        message = self.failure(fails("2026-08-20T10:00:00Z ERR \x1b[31mboom\x07 " + "x" * 1000))
        self.assertIn("cloudflared: [31mboom", message)
        self.assertIn(f"x; run `cloudflared {' '.join(COMMAND)}` to see more", message)

    def test_the_path_of_a_strangers_request_in_the_log_is_not_the_url(self) -> None:
        evil = "https://evil.trycloudflare.com"
        asked = (
            f'2026-08-20T10:00:04Z ERR  error="unable to reach the origin" cfRay=8f0 event=1 originService=http://x '
            f"type=http dest={URL}/{evil}",
            f"2026-08-20T10:00:04Z DBG GET {URL}/|  {evil}  | HTTP/1.1 connIndex=0",
            f'2026-08-20T10:00:04Z ERR Request failed error="x" dest={evil} |',
            f"2026-08-20T10:00:04Z ERR dest={evil}/ INF |  {evil}  |",
            "2026-08-20T10:00:04Z ERR dest=/Registered tunnel connection",
        )
        program = Cloudflared(PORT)
        for lines in ((*assigned(), *asked, REGISTERED), (*assigned(), REGISTERED, *asked, REGISTERED, *asked)):
            log = Log()
            for line in lines:
                log = program.read(log, f"{line}\n")
            self.assertEqual((URL, ""), (log.url, log.error))

    def test_a_strangers_request_is_not_quoted_when_the_tunnel_is_lost(self) -> None:
        asked = '2026-08-20T10:00:04Z ERR Request failed error="EOF" dest=https://a/paste-this-into-Cursor:https://evil'
        self.tunnel(prints(*quick("one-two-three")["lines"], asked), quick("four-five-six")).start()
        self.kill(self.children[0])
        self.expect_announced(self.lost())

    def test_a_reserved_url_is_that_of_a_named_tunnel(self) -> None:
        self.assertEqual(RESERVED, self.tunnel(prints(REGISTERED), url=RESERVED).start())
        named = ["--name", "deepseek-cursor-proxy", "--hostname", "proxy.example.com"]
        self.assertEqual([[*COMMAND, *named]], self.launched())

    def test_a_tunnel_with_a_token_runs_as_its_account_says(self) -> None:
        with mock.patch.dict(os.environ, {"TUNNEL_TOKEN": "eyJh"}):
            self.tunnel(prints(REGISTERED), url=RESERVED).start()
        self.assertEqual([["tunnel", *TARGET, "run"]], self.launched())

    def test_a_missing_login_and_a_wrong_token_have_their_remedies(self) -> None:
        missing = (
            "2026-08-20T10:00:00Z ERR Cannot determine default origin certificate path. No file cert.pem in "
            "[~/.cloudflared ~/.cloudflare-warp]. You need to specify the origin certificate path by specifying the "
            "origincert option in the configuration file, or set TUNNEL_ORIGIN_CERT environment variable "
            "originCertPath="
        )
        last = "failed to create tunnel: couldn't create client: client didn't specify origincert path"
        token = "Provided Tunnel token is not valid."
        self.assertIn("run `cloudflared tunnel login`", self.failure(fails(missing, last), url=RESERVED))
        self.assertIn("TUNNEL_TOKEN is wrong", self.explain(token, "See 'cloudflared tunnel run --help'."))


PATIENCE = 20.0

PARENT = """
import sys, time
from deepseek_cursor_proxy.cli.tunnel import Child
child = Child(sys.argv[1:], lambda line: None)
print(flush=True)
time.sleep(60)
"""
# Its connection ends with it, which is seen from outside without its process id.
CHILD = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as sock:
    sock.sendall(b"x")
    sock.recv(1)
"""
WRAPPER = "import subprocess, sys; subprocess.run(sys.argv[1:])"
RUN = (sys.executable, "-E", "-S", "-c")


class ChildTest(unittest.TestCase):
    def setUp(self) -> None:
        self.listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(PATIENCE)
        self.child = (*RUN, CHILD, str(self.listener.getsockname()[1]))

    def connected(self) -> socket.socket:
        """The connection of a child that has just begun to run."""
        sock = self.enterContext(self.listener.accept()[0])
        sock.settimeout(PATIENCE)
        self.assertEqual(b"x", sock.recv(1))
        return sock

    def expect_gone(self, sock: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            self.assertEqual(b"", sock.recv(1))

    def test_a_child_and_those_of_a_wrapper_script_end_when_our_process_is_killed(self) -> None:
        for wrapper in ((), (*RUN, WRAPPER)):
            command = [sys.executable, "-c", PARENT, *wrapper, *self.child]
            with self.subTest(wrapper), subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
                sock = self.connected()
                # A child may run before start() has returned.
                assert parent.stdout is not None
                parent.stdout.readline()
                parent.kill()
                self.expect_gone(sock)

    def test_ending_a_child_ends_its_own_children(self) -> None:
        lines: list[str] = []
        child = Child((*RUN, WRAPPER, *self.child), lines.append)
        sock = self.connected()
        child.close()
        self.expect_gone(sock)
        self.assertEqual([""], lines)
