"""Tunnel: one tunnel program in front of the proxy's port, from its start to its end, whichever program it is.

A tunnel that already leads to our port is reused and never ended: the user started it. Otherwise the program runs as
our child. The URL that it announces first counts once it leads to us, or after some seconds without proof: this machine
may be unable to reach it. Any later one is neither printed nor used before it has led to us. A lost tunnel is opened
again, with growing pauses, until stop().
Rule: all that start() began is gone when stop() returns or start() raises, and when this process is killed; only a
check that is under way may end some seconds later.

A check asks for a random path, and only we know the answer. It goes out and comes back as a client's request does, by
the environment's proxy if there is one. A machine may be unable to reach its own public address, so what it did not
learn is no proof that others cannot.
"""

import contextlib
import threading
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from deepseek_cursor_proxy.cli.tunnel.child import Child
from deepseek_cursor_proxy.cli.tunnel.programs import Program, RunningTunnel, one_line
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.deadline import Deadline

_POLL = 0.2  # seconds between two looks while the URL is awaited; what the program prints usually is faster
_CHECK_POLL = 1.0  # seconds between two checks of a new URL; a name that is asked for too often is not found for long
_PATIENCE = 3  # looks in a row without our URL; programs reconnect by themselves, and a restart may cost the URL
_ASK_SECONDS = 5.0
_MAX_ANSWER = 1000  # bytes; ours is shorter
# Without the second, ngrok may show a page of its own.
_HEADERS = {"User-Agent": "deepseek-cursor-proxy", "ngrok-skip-browser-warning": "1"}


class Reach(NamedTuple):
    """The result of a check: whether we answered, or something else did, and what is wrong."""

    is_ours: bool
    is_answered: bool
    problem: str = ""


OURS = Reach(is_ours=True, is_answered=True)


class TunnelTiming(NamedTuple):
    """Seconds: for a URL to come, for it to lead to us, between two looks, between two checks, before each restart."""

    start: float = 20.0
    first_check: float = 10.0
    watch: float = 5.0
    check: float = 60.0
    backoff: tuple[float, ...] = (1, 2, 5, 10, 30, 60)


class Tunnel:
    """Call start() once and stop() once, from one thread; a watcher thread runs in between.

    The watcher calls `announce` and, with every new URL, `on_url`; neither may call stop(). `ask` says whether a URL
    leads to us; a thread of its own calls it, because a look for a name cannot be interrupted.
    """

    def __init__(
        self,
        program: Program,
        ask: Callable[[str], Reach],
        announce: Callable[[str], None],
        on_url: Callable[[str], object] = str,
        timing: TunnelTiming | None = None,
    ) -> None:
        self._program = program
        self._ask = ask
        self._announce = announce
        self._on_url = on_url
        self._timing = timing or TunnelTiming()
        # Protects `_stopping`, the result of a check and the child's `log`; all else belongs to start(), then the
        # watcher, then stop().
        self._changed = threading.Condition()
        self._stopping = False
        self._child = Child(program, self._changed)
        self._reused: RunningTunnel | None = None
        self._watcher = threading.Thread(target=self._watch, name="tunnel-watcher", daemon=True)
        self._url = self._last_message = ""
        # What was wrong with the URL at the last check, and how many checks in a row ended elsewhere.
        self._problem = ""
        self._has_reached = False
        self._strays = 0
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
        """End the watcher and our own child; a tunnel that we reuse stays. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        self._child.close()

    def kill(self) -> None:
        """Kill our own child before this process ends at once. Safe in a signal handler: takes no lock."""
        self._child.kill()

    # Opening …

    def _open(self) -> str:
        self._problem, self._strays, self._has_reached, self._reused = "", 0, False, None
        # Of several, keep the one that was announced: it was pasted into Cursor.
        for found in sorted(self._program.running(), key=lambda tunnel: tunnel.url != self._url):
            if found.is_certain or ((reach := self._check(found.url)) is not None and reach.is_ours):
                self._reused, self._has_reached = found, not found.is_certain
                return found.url
        self._child.run()
        is_first = not self._url
        if is_first:
            self._report(f"Opening a tunnel with {self._program.title}; this may take {self._timing.start:g} s …")
        url = self._await_url(Deadline.after(self._timing.start))
        if is_first:
            self._report(f"{url} is assigned; it should lead here within {self._timing.first_check:g} s …")
        self._await_reach(url, Deadline.after(self._timing.first_check))
        return url

    def _await_url(self, deadline: Deadline) -> str:
        while True:
            with self._changed:
                pause = min(_POLL, max(0.0, deadline.left))
                self._changed.wait_for(lambda: self._is_over or self._child.log.url, pause)
                is_over, log = self._is_over, self._child.log
            if not is_over and (url := self._child_url()):
                return url
            if is_over or deadline.is_over:
                raise StartupError(self._program.explain(log.error or "it gave no public URL"))

    @property
    def _is_over(self) -> bool:
        return self._stopping or self._child.log.has_ended or self._child.log.needs_user

    def _child_url(self) -> str:
        if self._child.log.has_ended:
            return ""
        urls = self._program.child_urls(self._child.log)
        return self._url if self._url in urls else next(iter(urls), "")

    def _await_reach(self, url: str, deadline: Deadline) -> None:
        """Wait until the URL leads to us, but not for ever; StartupError if the program ends before."""
        while not self._is_over:
            reach = self._check(url)
            if reach is not None and reach.is_ours:
                self._has_reached = True
                return
            if reach is not None and deadline.is_over:
                self._note_problem(url, reach.problem)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, _CHECK_POLL)
        raise StartupError(self._program.explain(self._child.log.error or "it ended at once"))

    def _check(self, url: str) -> Reach | None:
        """Whether the URL leads to us; None when stop() or the end of the child came first."""
        results: list[Reach] = []

        def ask() -> None:
            try:
                reach = self._ask(url)
            except Exception as error:  # the watcher waits for a result
                reach = Reach(is_ours=False, is_answered=False, problem=f"the check failed: {one_line(repr(error))}")
            with self._changed:
                results.append(reach)
                self._changed.notify_all()

        threading.Thread(target=ask, name="tunnel-check", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: results or self._is_over)
            return next(iter(results), None)

    # Watching …

    def _watch(self) -> None:
        misses = 0
        check = self._next_check()
        while self._wait(self._timing.watch):
            if url := self._current_url():
                misses = self._attempts = 0
                if url == self._url and not check.is_over:
                    continue
                is_lost = self._is_astray(url)
            else:
                misses += 1
                is_lost = self._child.log.has_ended or misses == _PATIENCE
            if is_lost:
                misses = 0
                self._reopen()
            check = self._next_check()

    def _next_check(self) -> Deadline:
        return Deadline.after(self._timing.watch if self._problem else self._timing.check)

    def _wait(self, seconds: float) -> bool:
        """Wait, less long if the child ends; False once stop() was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._child.log.has_ended, seconds)
            return not self._stopping

    def _current_url(self) -> str:
        """The URL that leads to us as far as this machine can see, or ""."""
        if self._child.is_started:
            return self._child_url()
        urls = [tunnel.url for tunnel in self._program.running() if tunnel.is_certain or tunnel.url == self._url]
        return self._url if self._url in urls else next(iter(urls), "")

    def _is_astray(self, url: str) -> bool:
        """Whether the URL led to us once and does not any more, at several checks in a row. Announce a new one."""
        reach = self._check(url)
        if reach is None:
            return False
        if reach.is_ours:
            self._has_reached, self._strays = True, 0
            if url != self._url:
                self._problem = ""
                self._change_url(url)
            if self._problem:
                self._problem = ""
                self._report(f"{self._program.name}: {url} leads to this proxy now")
            return False
        self._note_problem(url, reach.problem)
        # Without an answer our own child is left alone: the network may be down, and a restart may cost the URL.
        speaks_against = reach.is_answered and self._has_reached
        if self._reused is not None:
            speaks_against = not self._reused.is_certain
        self._strays += url == self._url and speaks_against
        return self._strays >= _PATIENCE

    def _reopen(self) -> None:
        reason = one_line(self._child.log.error)
        self._report(f"{self._program.name}: the tunnel is lost{reason and f' ({reason})'}; restarting it")
        self._child.close()
        while self._wait(self._timing.backoff[min(self._attempts, len(self._timing.backoff) - 1)]):
            # Reset by a successful look, not by a successful start: a program that dies at once must not spin.
            self._attempts += 1
            try:
                url = self._open()
            except StartupError as failure:
                self._child.close()
                self._report(f"{failure}; trying again")
            else:
                self._report(f"{self._program.name}: the tunnel is back")
                if self._has_reached and url != self._url:
                    self._change_url(url)
                break

    def _change_url(self, url: str) -> None:
        """Announce another URL, which has led to us."""
        self._url = url
        self._on_url(url)
        self._report(f"{self._program.name}: the public URL has changed; paste this Base URL into Cursor: {url}/v1")

    def _note_problem(self, url: str, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            # A URL that is not proven is not printed, but for the first.
            what = url if self._url in ("", url) else "a new URL, which is not used yet,"
            self._report(f"{self._program.name}: {what} does not lead to this proxy, as seen from here: {problem}")

    def _report(self, text: str) -> None:
        if text != self._last_message and not self._stopping:  # a repeated failure is reported once
            self._last_message = text
            with contextlib.suppress(Exception):  # a closed terminal must not end the watch
                self._announce(text)


# Whether a public URL leads to this proxy …


def ask(url: str, path: str, answer: str) -> Reach:
    """Ask for this path below the URL, where this proxy gives that answer. Takes seconds at most, but for DNS."""
    try:
        with build_opener(_NoRedirects).open(Request(url + path, headers=_HEADERS), timeout=_ASK_SECONDS) as reply:
            if reply.read(_MAX_ANSWER) == answer.encode():
                return OURS
            return Reach(is_ours=False, is_answered=True, problem="something else answers there")
    except HTTPError as refusal:
        refusal.close()
        return Reach(is_ours=False, is_answered=True, problem=f"something else answers there, with {refusal.code}")
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        return Reach(is_ours=False, is_answered=False, problem=f"no answer: {one_line(str(reason))}")


class _NoRedirects(HTTPRedirectHandler):
    """Another page that sends us to our own address is not that address."""

    def redirect_request(self, *_: object) -> None:
        return None
