"""Child: at most one tunnel program of ours, and the thread that reads what it prints.

All that run() began (process, thread, pipe) is gone when close() returns, and when this process is killed: a
ChildProcess ends with this one, however this one ends, even by SIGKILL or the Task Manager.

POSIX: the child leads its own session, and a guard, a shell, reads from a pipe that only we can write to. When we end,
the system closes the pipe, and the guard ends the child's process group. PR_SET_PDEATHSIG is no help: it exists on
Linux only, fires when the thread that started the child ends, and spares the children of a wrapper script.
Windows: the child has its own process group, no window, and belongs to a job that the system ends with its last handle,
which is ours.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO

from deepseek_cursor_proxy.cli.tunnel.programs import Log, Program
from deepseek_cursor_proxy.errors import StartupError

if sys.platform == "win32":
    from deepseek_cursor_proxy.cli.tunnel import windows_job

_MAX_LINE = 1_000_000  # bytes; all programs stay far below
_GRACE_SECONDS = 3.0  # between asking the program to end and killing it
# Reads the process group, then waits for the end of the pipe. SIGTERM first: ngrok then releases its URL.
_GUARD = """
read -r group || exit
read -r _
kill -s TERM -- "-$group" && sleep 3 && kill -s KILL -- "-$group"
"""


class ChildProcess:
    """One process and what it starts. start() once, then end() and wait(); a signal handler may call end()."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._guard: Popen[bytes] | None = None
        self._job: int | None = None

    def start(self, command: Sequence[str]) -> None:
        """Run the command, stdout and stderr in one pipe; raises OSError."""
        if sys.platform == "win32":
            self._process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, creationflags=windows_job.FLAGS)
            self._job = windows_job.hold(self._process)
            return
        with contextlib.suppress(OSError):  # no shell: the child may outlive us, but it runs
            guard = ("/bin/sh", "-c", _GUARD)
            self._guard = Popen(guard, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True, bufsize=0)
        try:
            # Its own session: Ctrl-C in the terminal reaches only us, and we end the child when we choose.
            self._process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
        except BaseException:
            self._dismiss_guard()
            raise
        if self._guard is not None and self._guard.stdin is not None:
            # ValueError: a signal handler has already called wait().
            with contextlib.suppress(OSError, ValueError):
                self._guard.stdin.write(b"%d\n" % self._process.pid)

    @property
    def output(self) -> IO[bytes] | None:
        return self._process.stdout if self._process is not None else None

    def end(self, *, force: bool) -> None:
        """Ask the process and its children to end, or kill them; returns at once."""
        if self._process is None:
            return
        if sys.platform == "win32":
            windows_job.end(self._process, self._job)
        else:
            # The group, because some packages install ngrok as a script that starts the real program. Until wait() its
            # id cannot be reused. macOS answers EPERM for a group that has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL if force else signal.SIGTERM)

    def wait(self) -> None:
        """Wait for the end of the process and release all that belongs to it."""
        self._dismiss_guard()
        if self._process is not None:
            self._process.wait()
        if sys.platform == "win32" and self._job is not None:
            windows_job.release(self._job)
            self._job = None

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()


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
        if (process := self._alive) is not None:
            process.end(force=True)
