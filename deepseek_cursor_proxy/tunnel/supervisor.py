"""Tunnel: ngrok in front of a local port, because Cursor's servers need a public https URL to call us.

An agent that already forwards to our port is reused and never ended: the user started it. Otherwise `ngrok http` runs
as our child; the URL comes from its JSON log or its local API, whichever is first. A lost tunnel is opened again, with
growing pauses, until stop().
Rule: all that start() began (process, thread, pipe) is gone when stop() returns or start() raises, and when this
process is killed.
"""

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.tunnel.child_process import ChildProcess

_API_TIMEOUT = 1.0  # seconds; the API is on this machine
_READ_LIMIT = 1_000_000  # bytes of one reply or log line; ngrok stays far below
_POLL = 0.2  # seconds between two calls of the API while the URL is awaited; the log usually is faster
_PATIENCE = 3  # checks in a row without our URL; ngrok reconnects by itself, and a restart may cost the URL
_GRACE = 3.0  # seconds between asking the agent to end and killing it
_QUOTE_LIMIT = 200  # characters of ngrok's message in a line of ours
# Without `.internal`: only ngrok's other endpoints can reach those.
_PUBLIC_URL = re.compile(r"https://[A-Za-z0-9.-]+(?<!\.internal)(:[0-9]+)?")
_ERROR_CODE = re.compile(r"ERR_NGROK_([0-9]+)")
# ngrok's errors 105 and 107 quote the token, and our lines end in logs and bug reports.
_QUOTED_TOKEN = re.compile(r"(authtoken: *)\S+", re.IGNORECASE)

_INSTALL = "install it from https://ngrok.com/download (macOS: `brew install ngrok`) or run the proxy without `--ngrok`"
_TOKEN = "`ngrok config add-authtoken <YOUR_TOKEN>` (get one at https://dashboard.ngrok.com/get-started/your-authtoken)"
_STOP_OTHER = "stop the other agent with `pkill ngrok` (on Windows `taskkill /IM ngrok.exe /F`)"
_REMEDIES = {
    **dict.fromkeys(("105", "107", "4018"), f"the auth token is missing or wrong: run {_TOKEN}"),
    "108": f"this account allows one agent at a time: {_STOP_OTHER}",
    "334": f"the URL is already online elsewhere: {_STOP_OTHER} or start it with `--pooling-enabled`",
}
# No proxy, whatever the environment says: it must neither see nor answer calls to this machine.
_OPENER = build_opener(ProxyHandler({}))


class Tunnel:
    """Call start() once and stop() once, from one thread; a watcher thread runs in between.

    The watcher calls `announce` and, with every new URL, `on_url`; neither may call stop().
    """

    def __init__(
        self,
        port: int,
        *,
        announce: Callable[[str], None],
        on_url: Callable[[str], object] = str,
        binary: str = "ngrok",
        api_urls: Sequence[str] = ("http://127.0.0.1:4040",),
        start_timeout: float = 20.0,
        watch_interval: float = 5.0,
        backoff: Sequence[float] = (1, 2, 5, 10, 30, 60),
    ) -> None:
        self._port = port
        self._announce = announce
        self._on_url = on_url
        self._command = (binary, "http", str(port), "--log=stdout", "--log-format=json")
        self._api_urls = tuple(api_urls)
        self._start_timeout = start_timeout
        self._watch_interval = watch_interval
        self._backoff = tuple(backoff)
        # Protects `_stopping` and the child's `log`; all else belongs to start(), then the watcher, then stop().
        self._changed = threading.Condition()
        self._stopping = False
        self._child = _Child(self._changed)
        self._watcher = threading.Thread(target=self._watch, name="tunnel-watcher", daemon=True)
        self._url = self._last_message = ""
        self._attempts = 0

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
        """End the watcher and our own child; an agent that we reuse keeps running. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        self._child.close()

    def kill(self) -> None:
        """Kill our own child before this process ends at once. Safe in a signal handler: takes no lock."""
        self._child.kill()

    def _open(self) -> str:
        if url := self._public_url():
            return url
        self._child.run(self._command)
        deadline = Deadline.after(self._start_timeout)
        while True:
            with self._changed:
                pause = min(_POLL, max(0.0, deadline.left))
                self._changed.wait_for(
                    lambda: self._stopping or self._child.log.has_ended or self._child.log.url, pause
                )
                is_over, log = self._stopping or self._child.log.has_ended, self._child.log
            if not is_over and (url := log.url or self._public_url()):
                return url
            if is_over or deadline.is_over:
                raise StartupError(_explain(log.error or "it gave no public URL", self._port))

    def _public_url(self) -> str:
        """The URL that reaches our port now, from an agent's API or, if none answers, our child's log; or ""."""
        log = self._child.log
        if log.has_ended:
            return ""
        # A child with a URL but no API was configured so; the default API addresses are then other agents'.
        apis = (log.api,) if log.api else () if log.url else self._api_urls
        answers = [answer for api in apis if (answer := _forwarded_urls(api, self._port)) is not None]
        if not answers:
            return log.url
        urls = [url for answer in answers for url in answer]
        # Of several, keep the one that was announced: it was pasted into Cursor.
        return self._url if self._url in urls else next(iter(urls), "")

    def _watch(self) -> None:
        misses = 0
        while self._wait(self._watch_interval):
            if url := self._public_url():
                misses = self._attempts = 0
                self._change_url(url)
            elif self._child.log.has_ended or (misses := misses + 1) == _PATIENCE:
                misses = 0
                self._reopen()

    def _wait(self, seconds: float) -> bool:
        """Wait, less long if the child ends; False once stop() was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._child.log.has_ended, seconds)
            return not self._stopping

    def _reopen(self) -> None:
        reason = _one_line(self._child.log.error)
        self._report(f"ngrok: the tunnel is lost{reason and f' ({reason})'}; restarting it")
        self._child.close()
        while self._wait(self._backoff[min(self._attempts, len(self._backoff) - 1)]):
            # Reset by a successful check, not by a successful start: an agent that dies at once must not spin.
            self._attempts += 1
            try:
                url = self._open()
            except StartupError as failure:
                self._child.close()
                self._report(f"{failure}; trying again")
            else:
                self._report("ngrok: the tunnel is back")
                self._change_url(url)
                break

    def _change_url(self, url: str) -> None:
        if url != self._url:
            self._url = url
            self._on_url(url)
            self._report(f"ngrok: the public URL has changed; paste this Base URL into Cursor: {url}/v1")

    def _report(self, text: str) -> None:
        if text != self._last_message and not self._stopping:  # a repeated failure is reported once
            self._last_message = text
            with contextlib.suppress(Exception):  # a closed terminal must not end the watch
                self._announce(text)


@dataclass(frozen=True)
class _Log:
    """What the child's log contains so far."""

    api: str = ""
    url: str = ""
    error: str = ""
    has_ended: bool = False

    def after(self, line: str) -> "_Log":
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None  # plain text: a wrapper's message, or ngrok's last lines, `ERROR:  …`
        coded = _ERROR_CODE.search(self.error)
        match record:
            case {"msg": "starting web service", "addr": str(address)}:
                return replace(self, api=f"http://{address}")
            case {"msg": "started tunnel", "url": str(url)} if _PUBLIC_URL.fullmatch(url):
                return replace(self, url=url, error="")
            case {"lvl": "eror" | "error" | "crit", "err": str(error)} if _ERROR_CODE.search(error) or not coded:
                return replace(self, error=error)
            case None if not coded and (text := line.removeprefix("ERROR:").strip()):
                return replace(self, error=text)
        return self


class _Child:
    """At most one ngrok process of ours, and the thread that reads its pipe into `log`."""

    def __init__(self, changed: threading.Condition) -> None:
        self.log = _Log()
        self._changed = changed
        self._process: ChildProcess | None = None
        # The process to kill, until it is known to be gone.
        self._alive: ChildProcess | None = None
        self._reader = threading.Thread()

    def run(self, command: Sequence[str]) -> None:
        # Windows does not find a `.cmd`, as npm and scoop install it, without `which`.
        program = shutil.which(command[0])
        if program is None:
            raise StartupError(f"ngrok: `{command[0]}` is not found, or is no program: {_INSTALL}")
        self._alive = self._process = process = ChildProcess()
        try:
            process.start((program, *command[1:]))
        except OSError as error:
            self._alive = self._process = None
            raise StartupError(f"ngrok: `{program}` cannot be run ({error.strerror}): {_INSTALL}") from None
        self._reader = threading.Thread(target=self._read, args=(process.output,), name="tunnel-log", daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        # ValueError: close() was called by a signal while this thread was started.
        with contextlib.suppress(ValueError), output:
            while not self.log.has_ended:
                line = output.readline(_READ_LIMIT).decode(errors="replace")
                with self._changed:
                    self.log = self.log.after(line) if line else replace(self.log, has_ended=True)
                    self._changed.notify_all()

    def close(self) -> None:
        """End the process, with SIGTERM first; returns when process, thread and pipe are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        for force in (False, True):
            process.end(force=force)
            if self._reader.ident is not None:
                self._reader.join(_GRACE)  # the log ends with the last process that can write to it
        if self._reader.ident is None and process.output is not None:
            # A signal came between the start of the process and of its reader.
            process.output.close()
        process.wait()
        self._alive = None
        self.log = _Log()

    def kill(self) -> None:
        """Kill at once, without waiting for the end of the process."""
        process = self._alive
        if process is not None:
            process.end(force=True)


def _forwarded_urls(api: str, port: int) -> list[str] | None:
    """The public URLs that the agent at `api` forwards to our port; None when none answers."""
    answer = None
    for path in ("/api/endpoints", "/api/tunnels"):
        match _get(api + path):
            case {"endpoints": list(items)} | {"tunnels": list(items)}:
                answer = [url for item in items if (url := _forwarded_url(item, port))]
        if answer:
            break
    return answer


def _forwarded_url(item: object, port: int) -> str:
    match item:
        case {"url": str(url), "upstream": {"url": target}} | {"public_url": str(url), "config": {"addr": target}}:
            return url if _PUBLIC_URL.fullmatch(url) and _is_ours(str(target), port) else ""
    return ""


def _is_ours(target: str, port: int) -> bool:
    """Whether the target of an endpoint, in any of ngrok's spellings, is our port on this machine."""
    try:
        parts = urlsplit(target if "://" in target else f"//{target}" if ":" in target else f"//localhost:{target}")
        return parts.port == port and parts.hostname in {"localhost", "127.0.0.1", "::1"}
    except ValueError:
        return False


def _get(url: str) -> object:
    """The JSON at a local URL; None when there is none."""
    try:
        with _OPENER.open(url, timeout=_API_TIMEOUT) as answer:
            return json.loads(answer.read(_READ_LIMIT))
    except HTTPError as refusal:
        refusal.close()
    except (OSError, HTTPException, ValueError, RecursionError):
        pass  # no agent there
    return None


def _explain(error: str, port: int) -> str:
    code = _ERROR_CODE.search(error)
    if code and code[1] in _REMEDIES:
        return f"ngrok: {_REMEDIES[code[1]]} ({code[0]})"
    return f"ngrok: {_one_line(error)}; run `ngrok http {port}` to see more"


def _one_line(text: str) -> str:
    """Foreign text, safe to print: no control characters, no token, not long."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return _QUOTED_TOKEN.sub(r"\1…", " ".join(printable.split()))[:_QUOTE_LIMIT]
