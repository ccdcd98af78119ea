"""A public https address for the proxy, because Cursor's servers need one to call us; by a program that the user has.

The tunnel leads to the port of the proxy, never to that of the dashboard. The program runs as our child, and its public
URL is what that child announces, nothing else. A tunnel whose program ends is opened again, with growing pauses, until
stop(); its program reconnects by itself after a loss of the network. Whether the URL can be reached from outside is for
`doctor` to check: this machine may be unable to.

    Tunnel        starts, watches and restarts the program, says when the URL changed, stops
    Child         the running program, and the thread that reads what it prints
    Program       ngrok or cloudflared: what it is started with, prints and needs; the choice of one

All that start() began is gone when stop() returns or start() raises, and on POSIX when this process is killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO
from urllib.parse import urlsplit

from deepseek_cursor_proxy.errors import StartupError


class Tunnel:
    """Call start() once and stop() once, from one thread; a watcher thread runs in between.

    A signal handler on that thread may call stop() during start(). The watcher calls `announce` and, with every new
    URL, `on_url`; neither may call stop().
    """

    # Seconds: for a URL to come, before each restart, and after which a program counts as one that works.
    start_seconds = 20.0
    pauses: Sequence[float] = (1, 2, 5, 10, 30, 60)
    steady_seconds = 60.0

    def __init__(self, program: "Program", announce: Callable[[str], object], on_url: Callable[[str], object]) -> None:
        self._program = program
        self._announce = announce
        self._on_url = on_url
        # Protects `_stopping` and `_log`; all else belongs to start(), then the watcher, then stop().
        self._changed = threading.Condition()
        self._stopping = False
        self._log = Log()
        self._child: Child | None = None
        self._watcher = threading.Thread(target=self._watch, name="tunnel-watcher", daemon=True)
        self._url = self._last_message = ""

    def start(self) -> str:
        """Open the tunnel; its public https URL. Raises StartupError with the remedy, and leaves nothing running."""
        try:
            self._url = url = self._open()
            self._on_url(url)
            self._watcher.start()
        except BaseException:  # also Ctrl-C: the port must not stay online
            self.stop()
            raise
        return url

    def stop(self) -> None:
        """End the watcher and the child. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        self._close_child()

    def _open(self) -> str:
        """Start the program; the URL that it announces."""
        command = (self._program.find(), *self._program.arguments())
        if not self._url:
            self._report(f"Opening a tunnel with {self._program.name}; this may take {self.start_seconds:g} s …")
        try:
            self._child = Child(command, self._read)
        except OSError as error:
            name, install = self._program.name, self._program.install
            raise StartupError(f"{name}: `{command[0]}` cannot be run ({error.strerror}): {install}") from None
        if self._wait(lambda: self._log.url, self.start_seconds) and self._log.url:
            return self._log.url
        raise StartupError(self._program.explain(self._log.error or "it gave no public URL"))

    def _read(self, line: str) -> None:
        with self._changed:
            self._log = self._program.read(self._log, line) if line else replace(self._log, has_ended=True)
            self._changed.notify_all()

    def _wait(self, is_due: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait until it is due, the program ends or the time is over; False once stop() was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._log.has_ended or is_due(), seconds)
            return not self._stopping

    def _close_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    # The watcher …

    def _watch(self) -> None:
        attempts, opened_at = 0, time.monotonic()
        while self._wait(lambda: self._log.url != self._url):
            if not self._log.has_ended:
                self._change_url(self._log.url)
                continue
            reason = one_line(self._log.error)
            self._report(f"{self._program.name}: the tunnel is lost{reason and f' ({reason})'}; restarting it")
            # A program that dies soon after every start must not spin.
            attempts = 0 if time.monotonic() - opened_at >= self.steady_seconds else attempts
            attempts = self._reopen(attempts)
            opened_at = time.monotonic()

    def _reopen(self, attempts: int) -> int:
        """Open the tunnel again; how often that has been tried. Returns early once stop() was called."""
        while True:
            self._close_child()
            self._log = Log()
            if not self._wait(lambda: False, self.pauses[min(attempts, len(self.pauses) - 1)]):
                return attempts
            attempts += 1
            try:
                url = self._open()
            except StartupError as failure:
                self._report(f"{failure}; trying again")
                continue
            self._report(f"{self._program.name}: the tunnel is back")
            if url != self._url:
                self._change_url(url)
            return attempts

    def _change_url(self, url: str) -> None:
        self._url = url
        self._on_url(url)
        self._report(f"{self._program.name}: the public URL has changed; paste this Base URL into Cursor: {url}/v1")

    def _report(self, text: str) -> None:
        if text != self._last_message and not self._stopping:  # a repeated failure is reported once
            self._last_message = text
            self._announce(text)


# The running program …

_MAX_LINE = 1_000_000  # bytes; all programs stay far below
_GRACE_SECONDS = 3.0  # between asking the program to end and killing it
# Reads the process group, then waits for the end of the pipe. SIGTERM first: ngrok then releases its URL.
_GUARD = """
read -r group || exit
read -r _
kill -s TERM -- "-$group" && sleep 3 && kill -s KILL -- "-$group"
"""


class Child:
    """Made and closed by one thread at a time.

    All that __init__ began (process, thread, pipe) is gone when close() returns, and on POSIX when this process ends,
    even by SIGKILL: the child leads its own session, and a guard, a shell, reads from a pipe that only we can write to.
    When we end, the system closes the pipe, and the guard ends the child's process group. PR_SET_PDEATHSIG is no help:
    it exists on Linux only, fires when the thread that started the child ends, and spares the children of a wrapper
    script.
    """

    def __init__(self, command: Sequence[str], read: Callable[[str], None]) -> None:
        """Run the command; raises OSError. A thread calls `read` with every line that it prints, at its end with ""."""
        self._guard: Popen[bytes] | None = None
        self._process = self._start(command)
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=_read_lines, args=(self._process.stdout, read), name="tunnel-log", daemon=True
        )
        self._reader.start()

    def _start(self, command: Sequence[str]) -> "Popen[bytes]":
        if sys.platform == "win32":
            # No console window opens, and Ctrl-C in our console reaches only us.
            flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
            return Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, creationflags=flags)
        guard = ("/bin/sh", "-c", _GUARD)
        self._guard = Popen(guard, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True, bufsize=0)
        assert self._guard.stdin is not None
        try:
            # Its own session: Ctrl-C in the terminal reaches only us, and we end the child when we choose.
            process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
        except BaseException:
            self._dismiss_guard()
            raise
        self._guard.stdin.write(b"%d\n" % process.pid)
        return process

    def close(self) -> None:
        """End the process, with SIGTERM first; returns when process, thread and pipe are gone."""
        for number in (signal.SIGTERM, None):
            self._end(number)
            self._reader.join(_GRACE_SECONDS)  # the output ends with the last process that can write to it
        self._dismiss_guard()
        self._process.wait()

    def _end(self, number: signal.Signals | None) -> None:
        """Send a signal, None for SIGKILL, to the process and its children."""
        if sys.platform == "win32":
            # With its children: some packages install a script that starts the real program.
            command = ("taskkill", "/T", "/F", "/PID", str(self._process.pid))
            subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, check=False)
        else:
            # The group, because some packages install ngrok as a script that starts the real program. Until wait() its
            # id cannot be reused. macOS answers EPERM for a group that has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number or signal.SIGKILL)

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()


def _read_lines(output: IO[bytes], read: Callable[[str], None]) -> None:
    with output:
        while line := output.readline(_MAX_LINE):
            read(line.decode(errors="replace"))
    read("")


# The programs: command line, how each says its URL, and the remedy for a missing binary, login or token. Written for
# ngrok 3 (a reserved URL needs 3.16) and cloudflared 2026.8.

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
    """One tunnel program for one port, perhaps with a reserved URL. It starts no process, and nothing in it changes."""

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
_ADD_TOKEN = "`ngrok config add-authtoken <YOUR_TOKEN>` (see https://dashboard.ngrok.com/get-started/your-authtoken)"
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
        entry: object = None
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
        match entry:
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
        with contextlib.suppress(OSError):
            if _NGROK_TOKEN_LINE.search(path.read_text(encoding="utf-8", errors="replace")):
                return True
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
