"""The tunnel programs: command line, how each says its URL, and the remedy for a missing binary, login or token.

A Program starts no process that goes on running and holds nothing that changes. Written for ngrok 3 (a reserved URL
needs 3.16), cloudflared 2026.8, tailscale 1.52 to 1.103, OpenSSH 9 and localhost.run as of 2026.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from deepseek_cursor_proxy.errors import StartupError

_MAX_QUOTE = 200  # characters of a program's message in a line of ours
# For a question to a program, which it answers without the network.
_QUESTION_SECONDS = 5.0
_API_SECONDS = 1.0
_MAX_ANSWER = 1_000_000  # bytes; these programs stay far below
# No proxy, whatever the environment says: it must neither see nor answer calls to this machine.
_OPENER = build_opener(ProxyHandler({}))
# ngrok's errors 105 and 107 quote the token, and our lines end in logs and bug reports.
_QUOTED_TOKEN = re.compile(r"(authtoken: *|token[ =]+)\S+", re.IGNORECASE)
# Where installers put programs that the PATH of a service does not name.
_PLACES = (
    *("/opt/homebrew/bin/{0}", "/usr/local/bin/{0}", "/snap/bin/{0}"),
    "/Applications/Tailscale.app/Contents/MacOS/{1}",
    *(r"C:\Program Files\{1}\{0}.exe", r"C:\Program Files (x86)\{0}\{0}.exe", r"C:\Windows\System32\OpenSSH\{0}.exe"),
)


@dataclass(frozen=True)
class Log:
    """What a program has printed so far."""

    url: str = ""
    # A URL that was assigned and does not work yet.
    pending_url: str = ""
    # The address of the program's own API.
    api: str = ""
    error: str = ""
    # Whether the program waits for something that the user has to do elsewhere.
    needs_user: bool = False
    has_ended: bool = False


class RunningTunnel(NamedTuple):
    """A tunnel that we did not start. `is_certain`: its program says that it leads to our port."""

    url: str
    is_certain: bool


class Program:
    """One tunnel program for one port, perhaps with a reserved URL."""

    name = ""
    # The remedy for a missing binary.
    install = ""
    # Patterns in the program's output, each with the remedy. {port} and {0} are the port and what matched.
    remedies: Mapping[str, str] = {}
    # Lines that say what went wrong.
    error_lines = re.compile("")

    def __init__(self, port: int, url: str = "", binary: str = "") -> None:
        self.port = port
        # The reserved one; empty if the program assigns one.
        self.url = url
        self.binary = binary or self.name

    @property
    def title(self) -> str:
        """The program, with the service that it uses if that is another's."""
        return self.name

    def arguments(self) -> Sequence[str]:
        """The command line without the binary; StartupError when there is none."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Raise StartupError for a problem that is better explained before the program starts."""

    def read(self, log: Log, line: str) -> Log:
        """The log after one more line."""
        raise NotImplementedError

    def child_urls(self, log: Log) -> list[str]:
        """The URLs that lead to our port now, by a child with this log."""
        return [log.url] if log.url else []

    def running(self) -> list[RunningTunnel]:
        """Tunnels, perhaps to our port, of a program that already runs."""
        return [RunningTunnel(self.url, is_certain=False)] if self.url else []

    def find(self) -> str:
        """The path of the binary; StartupError with the way to install it."""
        path = find_binary(self.binary)
        if path is None:
            raise StartupError(f"{self.name}: `{self.binary}` is not found, or is not a program: {self.install}")
        return path

    def explain(self, error: str) -> str:
        """What went wrong, in one line with its remedy."""
        for pattern, remedy in self.remedies.items():
            if found := re.search(pattern, error):
                return f"{self.name}: {remedy.format(one_line(found[0]), port=self.port)}"
        return f"{self.name}: {one_line(error)}; run `{self.manual()}` to see more"

    def manual(self) -> str:
        """The command for people, to run by hand."""
        return " ".join((self.name, *self.arguments()))

    def note_error(self, log: Log, line: str) -> Log:
        """The log with this line as its error, unless it has one that we know a remedy for."""
        text = line.strip()
        if not text or not self.error_lines.match(text) or self.has_remedy(log.error):
            return log
        return replace(log, error=text)

    def has_remedy(self, error: str) -> bool:
        return any(re.search(pattern, error) for pattern in self.remedies)


# ngrok: the URL comes from its JSON log or from the API that the log names, whichever is first. The usual address of
# the API also lists what agents forward that the user started. Any program can listen there, so such a URL has to lead
# to us before it is used.

# Without `.internal`: only ngrok's other endpoints can reach those.
_NGROK_URL = re.compile(r"https://[A-Za-z0-9.-]+(?<!\.internal)(:[0-9]+)?")
_NGROK_CODE = re.compile(r"ERR_NGROK_([0-9]+)")
_NGROK_TOKEN_LINE = re.compile(r"^\s*authtoken:\s*[^\s#]", re.MULTILINE)
_ADD_TOKEN = (
    "`ngrok config add-authtoken <YOUR_TOKEN>` (get one at https://dashboard.ngrok.com/get-started/your-authtoken)"
)
_STOP_OTHER = "stop the other agent with `pkill ngrok` (on Windows `taskkill /IM ngrok.exe /F`)"


class Ngrok(Program):
    name = "ngrok"
    install = (
        "install it from https://ngrok.com/download (macOS: `brew install ngrok`), or use another tunnel: "
        "`--tunnel cloudflared` needs no account"
    )
    remedies: Mapping[str, str] = {
        r"ERR_NGROK_(105|107|4018)\b": f"the auth token is missing or wrong: run {_ADD_TOKEN} ({{0}})",
        r"ERR_NGROK_108\b": f"this account allows one agent at a time: {_STOP_OTHER} ({{0}})",
        r"ERR_NGROK_334\b": (
            f"the URL is already online elsewhere: {_STOP_OTHER} or start it with `--pooling-enabled` ({{0}})"
        ),
    }

    # Where agents serve their API, unless they are configured otherwise.
    api_urls: Sequence[str] = ("http://127.0.0.1:4040",)

    def arguments(self) -> Sequence[str]:
        reserved = (f"--url={self.url}",) if self.url else ()
        return ("http", str(self.port), *reserved, "--log=stdout", "--log-format=json")

    def manual(self) -> str:
        return f"ngrok http {self.port}"

    def read(self, log: Log, line: str) -> Log:
        has_code = _NGROK_CODE.search(log.error)
        match _decode(line):
            case {"msg": "starting web service", "addr": str(address)}:
                return replace(log, api=f"http://{address}")
            case {"msg": "started tunnel", "url": str(url), "addr": str(target)} if self._is_ours(url, target):
                return replace(log, url=url, error="")
            case {"lvl": "eror" | "error" | "crit", "err": str(error)} if _NGROK_CODE.search(error) or not has_code:
                return replace(log, error=error)
            # Plain text: a wrapper's message, or ngrok's last lines, `ERROR:  …`.
            case None if not has_code and (text := line.removeprefix("ERROR:").strip()):
                return replace(log, error=text)
        return log

    def _is_ours(self, url: str, target: object) -> bool:
        return _NGROK_URL.fullmatch(url) is not None and leads_here(str(target), self.port)

    def child_urls(self, log: Log) -> list[str]:
        # A child without an API was configured so; the usual addresses are then those of other programs.
        forwarded = self.forwarded_urls(log.api) if log.api else None
        return super().child_urls(log) if forwarded is None else forwarded

    def running(self) -> list[RunningTunnel]:
        urls = [url for api in self.api_urls for url in self.forwarded_urls(api) or ()]
        return [RunningTunnel(url, is_certain=False) for url in urls] or super().running()

    def forwarded_urls(self, api: str) -> list[str] | None:
        """The public URLs that the agent at `api` forwards to our port; None when none answers."""
        urls = None
        for path in ("/api/endpoints", "/api/tunnels"):
            match get_json(api + path):
                case {"endpoints": list(items)} | {"tunnels": list(items)}:
                    urls = [url for url in map(self._forwarded_url, items) if url and url == (self.url or url)]
            if urls:
                break
        return urls

    def _forwarded_url(self, item: object) -> str:
        match item:
            case {"url": str(url), "upstream": {"url": target}} | {"public_url": str(url), "config": {"addr": target}}:
                return url if self._is_ours(url, target) else ""
        return ""


def has_ngrok_token(environment: Mapping[str, str]) -> bool:
    """Whether ngrok has an account: a token in the environment or in its configuration."""
    if environment.get("NGROK_AUTHTOKEN"):
        return True
    for path in ngrok_configurations(environment):
        try:
            if _NGROK_TOKEN_LINE.search(path.read_text(encoding="utf-8", errors="replace")):
                return True
        except OSError:
            continue
    return False


def ngrok_configurations(environment: Mapping[str, str]) -> list[Path]:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        first = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        first = home / "Library" / "Application Support"
    else:
        first = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return [first / "ngrok" / "ngrok.yml", home / ".ngrok2" / "ngrok.yml"]


# cloudflared: a quick tunnel without an account, or a named one with a reserved URL. A quick tunnel prints its URL
# before it works; it works when a connection is registered. A named tunnel runs with the token in TUNNEL_TOKEN, or else
# as a tunnel of our own name, which needs `cloudflared tunnel login` once and gets its DNS record with the first start.

_QUICK_URL = re.compile(r"https://(?!api\.)[a-z0-9-]+\.trycloudflare\.com")
# Whole lines: other lines have the paths of requests, which strangers choose.
_ANNOUNCEMENT = re.compile(rf"\S+Z INF \|\s+({_QUICK_URL.pattern})\s+\|\s*")
_REGISTERED = re.compile(r"\S+Z INF Registered tunnel connection\b")


class Cloudflared(Program):
    name = "cloudflared"
    install = (
        "install it from https://github.com/cloudflare/cloudflared/releases (macOS: `brew install cloudflared`, "
        "Windows: `winget install Cloudflare.cloudflared`); it needs no account"
    )
    remedies: Mapping[str, str] = {
        r"error code: 1015|429 Too Many": "Cloudflare limits quick tunnels per address: wait a few minutes",
        r"origincert|origin certificate": (
            "a tunnel of your own needs an account: run `cloudflared tunnel login`, or set TUNNEL_TOKEN"
        ),
        r"token is not valid": (
            "TUNNEL_TOKEN is wrong: copy it again from the tunnel's page at https://one.dash.cloudflare.com"
        ),
        r"(?i)failed to dial.* quic|quic.*(timeout|no recent network)": (
            "the network blocks outgoing UDP: set TUNNEL_TRANSPORT_PROTOCOL=http2 and start again"
        ),
        r"no such host|network is unreachable|i/o timeout": "Cloudflare cannot be reached: is the network up?",
    }
    # A line without a time in front is its last word. Lines about a request have what a stranger wrote.
    error_lines = re.compile(r"(?!\S+Z (?:INF|WRN|DBG) )(?!.* was empty$)(?!.*\b(?:dest|originService|cfRay)=)")

    # cloudflared takes the first free one of these ports for its metrics, which have the name of a quick tunnel.
    metrics_urls: Sequence[str] = tuple(f"http://127.0.0.1:{port}" for port in range(20241, 20246))

    def arguments(self) -> Sequence[str]:
        target = ("--no-autoupdate", "--url", f"http://127.0.0.1:{self.port}")
        if self.url and os.environ.get("TUNNEL_TOKEN"):
            return ("tunnel", *target, "run")
        named = ("--name", "deepseek-cursor-proxy", "--hostname", urlsplit(self.url).hostname or "")
        # The rules of a configuration file would win over --url.
        return ("tunnel", "--config", os.devnull, *target, *(named if self.url else ()))

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
        for url in self.metrics_urls:
            match get_json(f"{url}/quicktunnel"):
                case {"hostname": str(host)} if _QUICK_URL.fullmatch(f"https://{host}"):
                    found.append(RunningTunnel(f"https://{host}", is_certain=False))
        return found


# tailscale: Funnel, which makes a port of this machine public under its name in the tailnet. The public port is 443, or
# that of a reserved URL: 8443 or 10000. `tailscale status` is asked first, because it says best what is missing. In the
# foreground the funnel ends with its process.

_FUNNEL_URL = re.compile(r"https://[a-z0-9.-]+\.ts\.net(?::[0-9]+)?(?=/?\s*$)")
_AVAILABLE = "Available on the internet"
_ENABLE_PAGE = r"https://login\.tailscale\.com/\S+"
_LOG_IN = "run `tailscale up`" if sys.platform == "win32" else "run `sudo tailscale up` (macOS: open Tailscale)"
_STATES = {
    "NeedsLogin": f"this machine is logged out: {_LOG_IN}",
    "Stopped": f"Tailscale is switched off: {_LOG_IN}",
    "NeedsMachineAuth": "an admin of the tailnet has to approve this machine: https://login.tailscale.com/admin/machines",
}


class Tailscale(Program):
    name = "tailscale"
    install = "install it from https://tailscale.com/download, then run `tailscale up`"
    remedies: Mapping[str, str] = {
        r"failed to connect to local|doesn't appear to be running": (
            "its service is not running: run `sudo systemctl start tailscaled` (macOS, Windows: open Tailscale)"
        ),
        _ENABLE_PAGE: "Funnel is not enabled for your tailnet: open {0} once",
        r"HTTPS must be enabled": "HTTPS is not enabled for your tailnet: see https://tailscale.com/s/https",
        r"node attribute not set|no-funnel": (
            "Funnel is not allowed for this machine: see https://tailscale.com/s/no-funnel"
        ),
        r"listener already exists for port (\d+)": (
            "the port is taken ({0}): run `tailscale funnel reset`, or choose --tunnel-url https://NAME.ts.net:8443"
        ),
        r"[Aa]ccess denied|config denied": (
            "your user may not change Tailscale: run `sudo tailscale set --operator=$USER` once"
        ),
        r"shields-up": "incoming connections are switched off: run `tailscale set --shields-up=false`",
    }
    error_lines = re.compile(r"(?!Available |\|--|Press |Success)")

    def arguments(self) -> Sequence[str]:
        return ("funnel", f"--https={urlsplit(self.url).port or 443}", str(self.port))

    def prepare(self) -> None:
        answer = _ask_program((self.find(), "status", "--json", "--peers=false"))
        if answer is None:
            return
        match _decode(answer.stdout):
            case {"BackendState": str(state)} if state in _STATES:
                raise StartupError(f"tailscale: {_STATES[state]}")
        if answer.returncode and self.has_remedy(answer.stderr):
            raise StartupError(self.explain(answer.stderr))

    def read(self, log: Log, line: str) -> Log:
        if line.startswith(_AVAILABLE):
            return replace(log, pending_url=_AVAILABLE)
        if log.pending_url and (found := _FUNNEL_URL.match(line.strip())):
            return replace(log, url=found[0], error="")
        log = self.note_error(log, line)
        # The program waits until the user has opened that page.
        return replace(log, needs_user=True) if re.search(_ENABLE_PAGE, line) else log

    def running(self) -> list[RunningTunnel]:
        answer = _ask_program((find_binary(self.binary) or self.binary, "funnel", "status", "--json"))
        urls = _funnels(_decode(answer.stdout if answer else ""), self.port)
        return [RunningTunnel(url, is_certain=True) for url in urls if url == (self.url or url)]


def _funnels(status: object, port: int) -> Iterator[str]:
    """The public URLs in a configuration of `tailscale serve` that lead to our port."""
    match status:
        case {"AllowFunnel": dict(allowed), "Web": dict(sites)}:
            for name, site in sites.items():
                url = f"https://{name.removesuffix(':443')}"
                match site:
                    case {"Handlers": {"/": {"Proxy": str(target)}}} if allowed.get(name) and leads_here(target, port):
                        yield from [url] if _FUNNEL_URL.fullmatch(url) else []
    match status:
        case {"Foreground": dict(sessions)}:
            for session in sessions.values():
                yield from _funnels(session, port)


# ssh: `ssh -R` to localhost.run, which needs no account, or to a host of the user's own. localhost.run prints the URL,
# and a new one every few hours. On a host of one's own a web server with a certificate hands the reserved URL on to the
# port that ssh opens there, on its loopback address; ssh prints nothing then.

_SERVICE = "localhost.run"
# A whole line: a banner or a request of a stranger may have any text in it.
_SERVICE_URL = re.compile(r"([A-Za-z0-9.-]+(?::[0-9]+)?) tunneled with tls termination, (https://\1)")
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
        denied = f"{to} does not know your key: add it at https://admin.localhost.run, or leave --tunnel-url out"
        if host:
            denied = f"{to} does not let you in: run `ssh-copy-id {to}`, or load your key with `ssh-add`"
        self.remedies = {
            r"Permission denied": denied,
            r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED": (
                f"the host key of {to} is unknown or new: run `ssh {to}` once"
            ),
            r"remote port forwarding failed": (
                f"{to} does not open port {{port}}: something else has it there, or its sshd_config does not say "
                "`AllowTcpForwarding yes`"
            ),
            r"Could not resolve hostname|Connection refused|[Tt]imed out|No route to host|Network is unreachable": (
                f"{to} cannot be reached ({{0}}): try `ssh -v {to}`"
            ),
        }

    @property
    def title(self) -> str:
        return f"ssh to {self._host}" if self._host else f"ssh through {_SERVICE}"

    def explain(self, error: str) -> str:
        other = "" if self._host else f". Or use another tunnel, `--tunnel cloudflared`: {Cloudflared.install}"
        return super().explain(error) + other

    def arguments(self) -> Sequence[str]:
        local = f"127.0.0.1:{self.port}"
        if self._host:
            if not self.url:
                raise StartupError(
                    f"ssh: {self._host} needs --tunnel-url, the https address at which its web server forwards "
                    f"requests to its port {self.port}; `--tunnel ssh` alone uses {_SERVICE}"
                )
            return ("-N", *_OPTIONS, "-R", f"{self.port}:{local}", self._host)
        service = (*_OPTIONS, "-o", "StrictHostKeyChecking=accept-new", "-R")
        if self.url:
            return (*service, f"{urlsplit(self.url).hostname}:80:{local}", f"plan@{_SERVICE}")
        return (*service, f"80:{local}", f"nokey@{_SERVICE}")

    def read(self, log: Log, line: str) -> Log:
        if found := _SERVICE_URL.fullmatch(line.strip()):
            return replace(log, url=found[2], error="")
        return self.note_error(log, line)

    def child_urls(self, log: Log) -> list[str]:
        return [self.url] if self._host else super().child_urls(log)


# The choice of a program …

# In the order in which `on` tries them.
_PROGRAMS: dict[str, type[Program]] = {program.name: program for program in (Ngrok, Cloudflared, Tailscale, Ssh)}


def choose(wanted: str, port: int, url: str, environment: Mapping[str, str]) -> Program:
    """The program for a value of `tunnel`; `on` stands for the first that is installed."""
    if wanted.startswith("ssh:"):
        return Ssh(port, url, host=wanted.removeprefix("ssh:"))
    if wanted != "on":
        return _PROGRAMS[wanted](port, url)
    for name, program in _PROGRAMS.items():
        # ngrok does nothing without an account; cloudflared and ssh need none.
        if find_binary(name) and (name != "ngrok" or has_ngrok_token(environment)):
            return program(port, url)
    raise StartupError(f"no tunnel program is installed; cloudflared is the simplest: {Cloudflared.install}")


# What the programs share …


def find_binary(name: str) -> str | None:
    """The path of a program: on the PATH, or where its installer puts it."""
    # Windows does not find a `.cmd`, as npm and scoop install it, without `which`.
    places = () if os.path.dirname(name) else (place.format(name, name.capitalize()) for place in _PLACES)
    return shutil.which(name) or next((place for place in places if os.access(place, os.X_OK)), None)


def _ask_program(command: Sequence[str]) -> "subprocess.CompletedProcess[str] | None":
    """The answer of a program that ends by itself; None when it cannot be run."""
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_QUESTION_SECONDS,
            check=False,
            encoding="utf-8",
            errors="replace",
            creationflags=flags,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def one_line(text: str) -> str:
    """Foreign text, safe to print: no control characters, no token, not long."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _QUOTED_TOKEN.sub(r"\1…", " ".join(printable.split()))[:_MAX_QUOTE]


def leads_here(target: str, port: int) -> bool:
    """Whether the target of a tunnel, in any spelling that these programs have, is our port on this machine."""
    try:
        parts = urlsplit(target if "://" in target else f"//{target}" if ":" in target else f"//localhost:{target}")
        return parts.port == port and parts.hostname in {"localhost", "127.0.0.1", "::1"}
    except ValueError:
        return False


def get_json(url: str) -> object:
    """The JSON at a URL on this machine; None when there is none."""
    try:
        with _OPENER.open(url, timeout=_API_SECONDS) as answer:
            return _decode(answer.read(_MAX_ANSWER))
    except HTTPError as refusal:
        refusal.close()
    except (OSError, HTTPException, ValueError):
        pass  # nothing of that kind runs there
    return None


def _decode(text: str | bytes) -> object:
    """The value of a JSON text; None if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
