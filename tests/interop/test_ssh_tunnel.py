"""`--tunnel ssh:HOST` with the real ssh and a real sshd on this machine: chats through it, its loss, its refusals.

sshd opens the port of the proxy on the loopback addresses. The proxy has it on 127.0.0.1, so the tunnel begins at ::1.
"""

import contextlib
import getpass
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.fake_deepseek import FakeDeepSeek
from tests.interop import debian
from tests.support.polling import wait_until
from tests.support.program import PATIENCE, ServeTest

_sshd: list[str] = []
_environment: dict[str, str] = {}


def setUpModule() -> None:
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None or not _has_ipv6():
        raise unittest.SkipTest("there is no ssh, or no IPv6 loopback address")
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if found is None:
        root = debian.unpacked("sshd", "openssh-server", "libwrap0")
        found = str(root / "usr" / "sbin" / "sshd")
        # A user without rights runs it.
        root.chmod(0o755)
        _environment["LD_LIBRARY_PATH"] = os.pathsep.join(str(path) for path in root.glob("usr/lib/*-linux-*"))
    _sshd[:] = [found]


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def free_port() -> int:
    """A port that is free on both loopback addresses."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", one.getsockname()[1]))
        return int(one.getsockname()[1])


class SshTunnelTest(ServeTest):
    def setUp(self) -> None:
        super().setUp()
        # root does without the directory and the user that an installation makes for it.
        self.user = "nobody" if os.getuid() == 0 else getpass.getuser()
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="sshd-")))
        for name in ("host", "key", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.place / name], check=True)
        shutil.copy(self.place / "key.pub", self.place / "authorized")
        self.sshd_port, self.port = free_port(), free_port()
        self.run_sshd()
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.place}/config "$@"\n')
        (self.bin / "ssh").chmod(0o755)
        self.use_key("key")
        self.fake = self.enterContext(FakeDeepSeek())

    def run_sshd(self) -> None:
        settings = {
            "ListenAddress": f"127.0.0.1:{self.sshd_port}",
            "HostKey": self.place / "host",
            "AuthorizedKeysFile": self.place / "authorized",
            "PidFile": "none",
            "StrictModes": "no",
            # Without it a user whose password cannot be read counts as locked.
            "UsePAM": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
        }
        (self.place / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        identity: dict[str, Any] = {}
        if os.getuid() == 0:
            # Not on Windows, where this module is skipped.
            import pwd

            owner = pwd.getpwnam(self.user)
            for path in (self.place, *self.place.iterdir()):
                if path.name != "key":
                    os.chown(path, owner.pw_uid, owner.pw_gid)
            identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        log = (self.place / "sshd.log").open("wb")
        self.addCleanup(log.close)
        command = [*_sshd, "-D", "-e", "-f", str(self.place / "sshd_config")]
        environment = {**os.environ, **_environment}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environment, **identity)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        try:
            wait_until(lambda: process.poll() is not None or is_open("127.0.0.1", self.sshd_port))
        finally:
            if process.poll() is not None:
                self.skipTest(f"sshd does not run here: {(self.place / 'sshd.log').read_text()[-200:]}")

    def use_key(self, name: str) -> None:
        settings = {
            "HostName": "127.0.0.1",
            "Port": self.sshd_port,
            "User": self.user,
            "IdentityFile": self.place / name,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.place / "known",
            "HostKeyAlias": "home",
        }
        lines = "".join(f"  {key} {value}\n" for key, value in settings.items())
        (self.place / "config").write_text(f"Host home\n{lines}")
        (self.place / "known").write_text("home " + (self.place / "host.pub").read_text())

    @property
    def flags(self) -> tuple[str, ...]:
        address = f"http://[::1]:{self.port}"
        return ("--port", str(self.port), "--tunnel", "ssh:home", "--tunnel-url", address, "--base-url", self.fake.url)

    @property
    def tools(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def chat(self) -> str:
        """The answer to a streamed chat that comes in through the tunnel."""
        with contextlib.closing(http.client.HTTPConnection("::1", self.port, timeout=PATIENCE)) as connection:
            body = {"model": "deepseek-v4-pro", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"Authorization": "Bearer sk-test", "Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            reply = connection.getresponse()
            self.assertEqual(200, reply.status)
            return reply.read().decode()

    def refused(self) -> str:
        return self.refusal(
            "--admin-port", "0", *self.flags, progress="Opening a tunnel with ssh to home", **self.tools
        )

    def ssh_processes(self) -> list[int]:
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [int(line.split()[0]) for line in listed.splitlines() if f"-R {self.port}:127.0.0.1" in line]

    def test_chats_come_through_the_tunnel_which_is_restored_and_ends_with_the_proxy(self) -> None:
        process, welcome = self.serve(*self.flags, **self.tools)
        self.assertIn(f"Override OpenAI Base URL   http://[::1]:{self.port}/v1\n", welcome)
        self.assertNotIn("does not lead", welcome)
        self.assertTrue(self.chat().endswith("data: [DONE]\n\n"))
        [ssh] = self.ssh_processes()
        os.kill(ssh, signal.SIGKILL)
        process.read_until("ssh: the tunnel is lost; restarting it\n")
        process.read_until("ssh: the tunnel is back\n")
        self.assertTrue(self.chat().endswith("data: [DONE]\n\n"))
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual([], self.ssh_processes())
        self.assertFalse(is_open("::1", self.port))

    def test_a_wrong_key_is_one_line_with_the_remedy(self) -> None:
        self.use_key("other")
        line = self.refused()
        self.assertEqual("ssh: home does not let you in: run `ssh-copy-id home`, or load your key with `ssh-add`", line)

    def test_an_unknown_host_key_is_one_line_with_the_remedy(self) -> None:
        (self.place / "known").write_text("")
        line = self.refused()
        self.assertEqual("ssh: the host key of home is unknown or new: run `ssh home` once", line)

    def test_a_port_that_is_taken_on_the_host_is_one_line_with_the_remedy(self) -> None:
        with socket.create_server(("::1", self.port), family=socket.AF_INET6):
            line = self.refused()
        self.assertIn(f"home does not open port {self.port}", line)

    def test_a_host_that_cannot_be_reached_is_one_line_with_the_remedy(self) -> None:
        self.sshd_port = free_port()
        self.use_key("key")
        line = self.refused()
        self.assertEqual("ssh: home cannot be reached (Connection refused): try `ssh -v home`", line)


def is_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1).close()
        return True
    return False
