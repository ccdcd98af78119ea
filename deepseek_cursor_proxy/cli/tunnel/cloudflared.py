"""cloudflared: a quick tunnel without an account, or a named one with a reserved URL.

A quick tunnel prints its URL before it works; it works when a connection is registered. A named tunnel runs with the
token in TUNNEL_TOKEN, or else as a tunnel of our own name, which needs `cloudflared tunnel login` once and gets its DNS
record with the first start. Written for cloudflared 2026.8.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from deepseek_cursor_proxy.cli.tunnel.program import Log, Program, RunningTunnel, get_json

_QUICK_URL = re.compile(r"https://(?!api\.)[a-z0-9-]+\.trycloudflare\.com")
# Whole lines: other lines have the paths of requests, which strangers choose.
_ANNOUNCEMENT = re.compile(rf"\S+Z INF \|\s+({_QUICK_URL.pattern})\s+\|\s*")
_REGISTERED = re.compile(r"\S+Z INF Registered tunnel connection\b")
# cloudflared takes the first free one of these ports for its metrics, which have the name of a quick tunnel.
_METRICS = tuple(f"http://127.0.0.1:{port}" for port in range(20241, 20246))
_NAME = "deepseek-cursor-proxy"


class Cloudflared(Program):
    name = "cloudflared"
    install = (
        "install it from https://github.com/cloudflare/cloudflared/releases (macOS: `brew install cloudflared`, "
        "Windows: `winget install Cloudflare.cloudflared`); it needs no account"
    )
    remedies = (
        (
            r"error code: 1015|429 Too Many",
            "Cloudflare gives one address only so many quick tunnels: wait some minutes",
        ),
        (
            r"origincert|origin certificate",
            "a tunnel of your own needs an account: run `cloudflared tunnel login`, or set TUNNEL_TOKEN",
        ),
        (
            r"token is not valid",
            "TUNNEL_TOKEN is wrong: copy it anew from the tunnel's page at https://one.dash.cloudflare.com",
        ),
        (
            r"(?i)failed to dial.* quic|quic.*(timeout|no recent network)",
            "the network lets no UDP out: set TUNNEL_TRANSPORT_PROTOCOL=http2 and start again",
        ),
        (r"no such host|network is unreachable|i/o timeout", "Cloudflare cannot be reached: is the network up?"),
    )
    # What has no time in front is its last word. Lines about a request have what a stranger wrote.
    error_lines = re.compile(r"(?!\S+Z (?:INF|WRN|DBG) )(?!.* was empty$)(?!.*\b(?:dest|originService|cfRay)=)")

    def __init__(
        self,
        port: int,
        url: str = "",
        binary: str = "",
        environment: Mapping[str, str] = os.environ,
        metrics: Sequence[str] = _METRICS,
    ) -> None:
        super().__init__(port, url, binary)
        self._has_token = bool(environment.get("TUNNEL_TOKEN"))
        self._metrics = metrics

    def arguments(self) -> Sequence[str]:
        target = ("--no-autoupdate", "--url", f"http://127.0.0.1:{self.port}")
        if self.url and self._has_token:
            return ("tunnel", *target, "run")
        # The rules of a configuration file would win over --url.
        own = ("tunnel", "--config", os.devnull, *target)
        return (*own, "--name", _NAME, "--hostname", urlsplit(self.url).hostname or "") if self.url else own

    def read(self, log: Log, line: str) -> Log:
        if not self.url and (found := _ANNOUNCEMENT.fullmatch(line)):
            return replace(log, pending_url=found[1])
        if _REGISTERED.match(line) and (url := self.url or log.pending_url):
            return replace(log, url=url, error="")
        return self.note_error(log, line.partition(" ERR ")[2] or line)

    def running(self) -> list[RunningTunnel]:
        """Quick tunnels, which do not say where they lead."""
        if self.url:
            return super().running()
        found = []
        for metrics in self._metrics:
            match get_json(f"{metrics}/quicktunnel"):
                case {"hostname": str(host)} if _QUICK_URL.fullmatch(f"https://{host}"):
                    found.append(RunningTunnel(f"https://{host}", is_certain=False))
        return found
