"""Program: what the supervisor has to know of a tunnel program.

A subclass has the command line, how the URL is read from what the program prints, and the command that repairs a
missing binary, login or token. It starts no process that goes on running and holds nothing that changes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from deepseek_cursor_proxy.errors import StartupError

_MAX_QUOTE = 200  # characters of a program's message in a line of ours
# Of a question to a program, which it answers without the network.
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
    # Patterns of what the program prints, each with the remedy. {port} and {0} are the port and what matched.
    remedies: tuple[tuple[str, str], ...] = ()
    # Lines that say what went wrong.
    error_lines = re.compile("")

    def __init__(self, port: int, url: str = "", binary: str = "") -> None:
        self.port = port
        # The reserved one; empty if the program assigns one.
        self.url = url
        self.binary = binary or self.name

    def arguments(self) -> Sequence[str]:
        """The command line without the binary; StartupError when there is none."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Raise StartupError for what is known better before the program is started."""

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
            raise StartupError(f"{self.name}: `{self.binary}` is not found, or is no program: {self.install}")
        return path

    def explain(self, error: str) -> str:
        """What went wrong, in one line with its remedy."""
        for pattern, remedy in self.remedies:
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
        return any(re.search(pattern, error) for pattern, _ in self.remedies)


def find_binary(name: str) -> str | None:
    """The path of a program: on the PATH, or where its installer puts it."""
    # Windows does not find a `.cmd`, as npm and scoop install it, without `which`.
    places = () if os.path.dirname(name) else (place.format(name, name.capitalize()) for place in _PLACES)
    return shutil.which(name) or next((place for place in places if os.access(place, os.X_OK)), None)


def ask_program(command: Sequence[str]) -> "subprocess.CompletedProcess[str] | None":
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
            return json.loads(answer.read(_MAX_ANSWER))
    except HTTPError as refusal:
        refusal.close()
    except (OSError, HTTPException, ValueError, RecursionError):
        pass  # nothing of that kind runs there
    return None
