"""Child: at most one tunnel program of ours, and the thread that reads what it prints.

All that run() began (process, thread, pipe) is gone when close() returns, and when this process is killed.
"""

import contextlib
import threading
from dataclasses import replace
from typing import IO

from deepseek_cursor_proxy.cli.tunnel.child_process import ChildProcess
from deepseek_cursor_proxy.cli.tunnel.program import Log, Program
from deepseek_cursor_proxy.errors import StartupError

_MAX_LINE = 1_000_000  # bytes; all programs stay far below
_GRACE_SECONDS = 3.0  # between asking the program to end and killing it


class Child:
    """Run and closed by the supervisor, by one thread at a time; a signal handler may call kill()."""

    def __init__(self, program: Program, changed: threading.Condition) -> None:
        # Protected by `changed`, which is notified of every line.
        self.log = Log()
        self._program = program
        self._changed = changed
        self._process: ChildProcess | None = None
        # The process to kill, until it is known to be gone.
        self._alive: ChildProcess | None = None
        self._reader = threading.Thread()

    @property
    def is_started(self) -> bool:
        """Whether run() was called, and close() not yet; the process may have ended."""
        return self._process is not None

    def run(self) -> None:
        """Start the program; StartupError when it cannot be."""
        path = self._program.find()
        command = (path, *self._program.arguments())
        self._program.prepare()
        self._alive = self._process = process = ChildProcess()
        try:
            process.start(command)
        except OSError as error:
            self._alive = self._process = None
            name, install = self._program.name, self._program.install
            raise StartupError(f"{name}: `{path}` cannot be run ({error.strerror}): {install}") from None
        self._reader = threading.Thread(target=self._read, args=(process.output,), name="tunnel-log", daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        # ValueError: close() was called by a signal while this thread was started.
        with contextlib.suppress(ValueError), output:
            while not self.log.has_ended:
                line = output.readline(_MAX_LINE).decode(errors="replace")
                with self._changed:
                    self.log = self._program.read(self.log, line) if line else replace(self.log, has_ended=True)
                    self._changed.notify_all()

    def close(self) -> None:
        """End the process, with SIGTERM first; returns when process, thread and pipe are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        for force in (False, True):
            process.end(force=force)
            if self._reader.ident is not None:
                self._reader.join(_GRACE_SECONDS)  # the log ends with the last process that can write to it
        if self._reader.ident is None and process.output is not None:
            # A signal came between the start of the process and of its reader.
            process.output.close()
        process.wait()
        self._alive = None
        self.log = Log()

    def kill(self) -> None:
        """Kill at once, without waiting for the end of the process."""
        process = self._alive
        if process is not None:
            process.end(force=True)
