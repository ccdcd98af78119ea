"""ssh: `ssh -R` to localhost.run, which needs no account, or to a host of the user's own.

localhost.run prints the URL, and a new one every few hours. On a host of one's own a web server with a certificate
hands the reserved URL on to the port that ssh opens there, on its loopback address; ssh prints nothing then.
Written for OpenSSH 9 and localhost.run as of 2026.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from deepseek_cursor_proxy.cli.tunnel.program import Log, Program
from deepseek_cursor_proxy.errors import StartupError

_SERVICE = "localhost.run"
# A whole line: a banner or a request of a stranger may have any text in it.
_URL = re.compile(r"([A-Za-z0-9.-]+(?::[0-9]+)?) tunneled with tls termination, (https://\1)")
# A dead connection ends after a minute and a half.
_OPTIONS = ("-T", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=3")


class Ssh(Program):
    name = "ssh"
    install = "install OpenSSH (`sudo apt install openssh-client`; Windows: Settings > Optional features)"
    error_lines = re.compile(
        r"ssh: |kex_|client_loop|banner exchange|Connection |Timeout|Host key|Error: |Warning: remote"
        r"|.*Permission denied|.*REMOTE HOST IDENTIFICATION|.*connect_to|Bad |usage: ssh"
    )

    def __init__(self, port: int, url: str = "", binary: str = "", host: str = "") -> None:
        super().__init__(port, url, binary)
        self._host = host
        to = host or _SERVICE
        self.remedies = (
            (
                r"Permission denied",
                f"{to} does not let you in: run `ssh-copy-id {to}`, or load your key with `ssh-add`"
                if host
                else f"{to} does not know your key: add it at https://admin.localhost.run, or leave --tunnel-url out",
            ),
            (
                r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED",
                f"the host key of {to} is unknown or new: run `ssh {to}` once",
            ),
            (
                r"remote port forwarding failed",
                f"{to} does not open port {{port}}: something else has it there, or its sshd_config does not say "
                "`AllowTcpForwarding yes`",
            ),
            (
                r"Could not resolve hostname|Connection refused|[Tt]imed out|No route to host|Network is unreachable",
                f"{to} cannot be reached ({{0}}): try `ssh -v {to}`",
            ),
        )

    def arguments(self) -> Sequence[str]:
        local = f"127.0.0.1:{self.port}"
        if self._host:
            if not self.url:
                raise StartupError(
                    f"ssh: {self._host} needs --tunnel-url, the https address at which its web server hands requests "
                    f"on to its port {self.port}; `--tunnel ssh` alone uses {_SERVICE}"
                )
            return ("-N", *_OPTIONS, "-R", f"{self.port}:{local}", self._host)
        service = (*_OPTIONS, "-o", "StrictHostKeyChecking=accept-new", "-R")
        if self.url:
            return (*service, f"{urlsplit(self.url).hostname}:80:{local}", f"plan@{_SERVICE}")
        return (*service, f"80:{local}", f"nokey@{_SERVICE}")

    def read(self, log: Log, line: str) -> Log:
        if found := _URL.fullmatch(line.strip()):
            return replace(log, url=found[2], error="")
        return self.note_error(log, line)

    def child_urls(self, log: Log) -> list[str]:
        return [self.url] if self._host else super().child_urls(log)
