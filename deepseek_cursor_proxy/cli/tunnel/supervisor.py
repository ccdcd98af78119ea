"""Tunnel: one tunnel program in front of the proxy's port, from its start to its end, whichever program it is.

The program runs as our child, and its public URL is what that child announces, nothing else. A tunnel whose program
ends is opened again, with growing pauses, until stop(); its program reconnects by itself after a loss of the network.
Whether the URL can be reached from outside is for `doctor` to check: this machine may be unable to.
Rule: all that start() began is gone when stop() returns or start() raises, and on POSIX when this process is killed.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from deepseek_cursor_proxy.cli.tunnel.child import Child
from deepseek_cursor_proxy.cli.tunnel.programs import Log, Program, one_line
from deepseek_cursor_proxy.errors import StartupError


class TunnelTiming(NamedTuple):
    """Seconds: for a URL to come, before each restart, and after which a program counts as one that works."""

    start: float = 20.0
    pauses: tuple[float, ...] = (1, 2, 5, 10, 30, 60)
    steady: float = 60.0


_TIMING = TunnelTiming()


class Tunnel:
    """Call start() once and stop() once, from one thread; a watcher thread runs in between.

    A signal handler on that thread may call stop() during start(). The watcher calls `announce` and, with every new
    URL, `on_url`; neither may call stop().
    """

    def __init__(
        self,
        program: Program,
        announce: Callable[[str], object],
        on_url: Callable[[str], object] = str,
        timing: TunnelTiming = _TIMING,
    ) -> None:
        self._program = program
        self._announce = announce
        self._on_url = on_url
        self._timing = timing
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
            self._report(f"Opening a tunnel with {self._program.name}; this may take {self._timing.start:g} s …")
        try:
            self._child = Child(command, self._read)
        except OSError as error:
            name, install = self._program.name, self._program.install
            raise StartupError(f"{name}: `{command[0]}` cannot be run ({error.strerror}): {install}") from None
        if self._wait(lambda: self._log.url, self._timing.start) and self._log.url:
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
            attempts = 0 if time.monotonic() - opened_at >= self._timing.steady else attempts
            attempts = self._reopen(attempts)
            opened_at = time.monotonic()

    def _reopen(self, attempts: int) -> int:
        """Open the tunnel again; how often that has been tried. Returns early once stop() was called."""
        while True:
            self._close_child()
            self._log = Log()
            if not self._wait(lambda: False, self._timing.pauses[min(attempts, len(self._timing.pauses) - 1)]):
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
