"""tailscale: Funnel, which makes a port of this machine public under its name in the tailnet.

The public port is 443, or that of a reserved URL: 8443 or 10000. `tailscale status` is asked first, because it says
best what is missing. In the foreground the funnel ends with its process. Written for tailscale 1.52 to 1.103.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy.cli.tunnel.program import Log, Program, RunningTunnel, ask_program, find_binary, leads_here
from deepseek_cursor_proxy.errors import StartupError

_URL = re.compile(r"https://[a-z0-9.-]+\.ts\.net(?::[0-9]+)?(?=/?\s*$)")
_AVAILABLE = "Available on the internet"
_ENABLE = re.compile(r"https://login\.tailscale\.com/\S+")
_LOG_IN = "run `tailscale up`" if sys.platform == "win32" else "run `sudo tailscale up` (macOS: open Tailscale)"
_STATES = {
    "NeedsLogin": f"this machine is logged out: {_LOG_IN}",
    "Stopped": f"Tailscale is switched off: {_LOG_IN}",
    "NeedsMachineAuth": "an admin of the tailnet has to approve this machine: https://login.tailscale.com/admin/machines",
}


class Tailscale(Program):
    name = "tailscale"
    install = "install it from https://tailscale.com/download, then run `tailscale up`"
    remedies = (
        (
            r"failed to connect to local|doesn't appear to be running",
            "its service does not run: run `sudo systemctl start tailscaled` (macOS, Windows: open Tailscale)",
        ),
        (r"https://login\.tailscale\.com/\S+", "Funnel is not enabled for your tailnet: open {0} once"),
        (r"HTTPS must be enabled", "HTTPS is not enabled for your tailnet: see https://tailscale.com/s/https"),
        (
            r"node attribute not set|no-funnel",
            "Funnel is not allowed for this machine: see https://tailscale.com/s/no-funnel",
        ),
        (
            r"listener already exists for port (\d+)",
            "the port is taken ({0}): run `tailscale funnel reset`, or choose --tunnel-url https://NAME.ts.net:8443",
        ),
        (
            r"[Aa]ccess denied|config denied",
            "your user may not change Tailscale: run `sudo tailscale set --operator=$USER` once",
        ),
        (r"shields-up", "incoming connections are switched off: run `tailscale set --shields-up=false`"),
    )
    error_lines = re.compile(r"(?!Available |\|--|Press |Success)")

    def arguments(self) -> Sequence[str]:
        return ("funnel", f"--https={urlsplit(self.url).port or 443}", str(self.port))

    def prepare(self) -> None:
        answer = ask_program((self.find(), "status", "--json", "--peers=false"))
        if answer is None:
            return
        state = _json(answer.stdout).get("BackendState")
        if isinstance(state, str) and state in _STATES:
            raise StartupError(f"tailscale: {_STATES[state]}")
        if answer.returncode and self.has_remedy(answer.stderr):
            raise StartupError(self.explain(answer.stderr))

    def read(self, log: Log, line: str) -> Log:
        if line.startswith(_AVAILABLE):
            return replace(log, pending_url=_AVAILABLE)
        if log.pending_url and (found := _URL.match(line.strip())):
            return replace(log, url=found[0], error="")
        log = self.note_error(log, line)
        # The program waits until the user has opened that page.
        return replace(log, needs_user=True) if _ENABLE.search(line) else log

    def running(self) -> list[RunningTunnel]:
        answer = ask_program((find_binary(self.binary) or self.binary, "funnel", "status", "--json"))
        urls = list(_funnels(_json(answer.stdout if answer else ""), self.port))
        return [RunningTunnel(url, is_certain=True) for url in urls if url == (self.url or url)]


def _json(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _funnels(status: Mapping[str, Any], port: int) -> Iterator[str]:
    """The public URLs in a configuration of `tailscale serve` that lead to our port."""
    match status:
        case {"AllowFunnel": dict(allowed), "Web": dict(sites)}:
            for name in sites:
                match sites[name]:
                    case {"Handlers": {"/": {"Proxy": str(target)}}} if allowed.get(name) and leads_here(target, port):
                        url = f"https://{name.removesuffix(':443')}"
                        if _URL.fullmatch(url):
                            yield url
    match status:
        case {"Foreground": dict(sessions)}:
            for session in sessions.values():
                if isinstance(session, dict):
                    yield from _funnels(session, port)
