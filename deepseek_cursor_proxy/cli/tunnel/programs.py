"""The tunnel programs: command line, how each says its URL, and the remedy for a missing binary, login or token.

A Program starts no process and holds nothing that changes. Written for ngrok 3 (a reserved URL needs 3.16) and
cloudflared 2026.8.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from deepseek_cursor_proxy.errors import StartupError

_MAX_QUOTE = 200  # characters of a program's message in a line of ours
# ngrok's errors 105 and 107 quote the token, and our lines end in logs and bug reports.
_QUOTED_TOKEN = re.compile(r"(authtoken: *|token[ =]+)\S+", re.IGNORECASE)
# Where installers put programs that the PATH of a service does not name.
_PLACES = ("/opt/homebrew/bin/{}", "/usr/local/bin/{}", "/snap/bin/{}", r"C:\Program Files (x86)\{0}\{0}.exe")


@dataclass(frozen=True)
class Log:
    """What a program has printed so far."""

    url: str = ""
    # A URL that was assigned and does not work yet.
    pending_url: str = ""
    error: str = ""
    has_ended: bool = False


class Program:
    """One tunnel program for one port, perhaps with a reserved URL."""

    name = ""
    # The remedy for a missing binary.
    install = ""
    # Patterns in the program's output, each with the remedy; {0} is what matched.
    remedies: Mapping[str, str] = {}

    def __init__(self, port: int, url: str = "", binary: str = "") -> None:
        self.port = port
        # The reserved one; empty if the program assigns one.
        self.url = url
        self._binary = binary or self.name

    def arguments(self) -> Sequence[str]:
        """The command line without the binary."""
        raise NotImplementedError

    def read(self, log: Log, line: str) -> Log:
        """The log after one more line."""
        raise NotImplementedError

    def find(self) -> str:
        """The path of the binary; StartupError with the way to install it."""
        path = find_binary(self._binary)
        if path is None:
            raise StartupError(f"{self.name}: `{self._binary}` is not found, or is not a program: {self.install}")
        return path

    def explain(self, error: str) -> str:
        """What went wrong, in one line with its remedy."""
        for pattern, remedy in self.remedies.items():
            if found := re.search(pattern, error):
                return f"{self.name}: {remedy.format(found[0])}"
        manual = " ".join((self.name, *self.arguments()))
        return f"{self.name}: {one_line(error)}; run `{manual}` to see more"

    def note_error(self, log: Log, error: str) -> Log:
        """The log with this error, unless it has one that we know a remedy for."""
        has_remedy = any(re.search(pattern, log.error) for pattern in self.remedies)
        return log if has_remedy or not error.strip() else replace(log, error=error.strip())


# ngrok: the URL is in its JSON log. Errors have a code, ERR_NGROK_…; later lines may repeat them without.

_NGROK_URL = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]+)?")
_NGROK_CODE = re.compile(r"ERR_NGROK_[0-9]+")
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

    def arguments(self) -> Sequence[str]:
        reserved = (f"--url={self.url}",) if self.url else ()
        return ("http", str(self.port), *reserved, "--log=stdout", "--log-format=json")

    def read(self, log: Log, line: str) -> Log:
        match _decode(line):
            case {"msg": "started tunnel", "url": str(url)} if _NGROK_URL.fullmatch(url):
                return replace(log, url=url, error="")
            case {"lvl": "eror" | "error" | "crit", "err": str(error)}:
                pass
            # Plain text: a wrapper's message, or ngrok's last lines, `ERROR:  …`.
            case None:
                error = line.removeprefix("ERROR:")
            case _:
                return log
        has_code = _NGROK_CODE.search(log.error) and not _NGROK_CODE.search(error)
        return log if has_code else self.note_error(log, error)


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

# Whole lines: other lines have the paths of requests, which strangers choose.
_ANNOUNCEMENT = re.compile(r"\S+Z INF \|\s+(https://(?!api\.)[a-z0-9-]+\.trycloudflare\.com)\s+\|\s*")
_REGISTERED = re.compile(r"\S+Z INF Registered tunnel connection\b")
# A line without a time in front is its last word. Lines about a request have what a stranger wrote.
_ERROR_LINE = re.compile(r"(?!\S+Z (?:INF|WRN|DBG) )(?!.* was empty$)(?!.*\b(?:dest|originService|cfRay)=)")


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
        error = (line.partition(" ERR ")[2] or line).strip()
        return self.note_error(log, error) if _ERROR_LINE.match(error) else log


# The choice of a program …

_PROGRAMS: dict[str, type[Program]] = {program.name: program for program in (Ngrok, Cloudflared)}


def choose(wanted: str, port: int, url: str, environment: Mapping[str, str]) -> Program:
    """The program for a value of `tunnel`; `on` stands for ngrok with an account, else cloudflared."""
    if wanted != "on":
        return _PROGRAMS[wanted](port, url)
    if find_binary("ngrok") and has_ngrok_token(environment):
        return Ngrok(port, url)
    if find_binary("cloudflared"):
        return Cloudflared(port, url)
    raise StartupError(f"no tunnel program is installed; cloudflared is the simplest: {Cloudflared.install}")


def find_binary(name: str) -> str | None:
    """The path of a program: on the PATH, or where its installer puts it."""
    # Windows does not find a `.cmd`, as npm and scoop install it, without `which`.
    places = () if os.path.dirname(name) else (place.format(name) for place in _PLACES)
    return shutil.which(name) or next((place for place in places if os.access(place, os.X_OK)), None)


def one_line(text: str) -> str:
    """A line that a program printed, safe to print: no control characters, no token, not long."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _QUOTED_TOKEN.sub(r"\1…", " ".join(printable.split()))[:_MAX_QUOTE]


def _decode(text: str) -> object:
    """The value of a JSON text; None if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
