"""A child process that ends with this one, however this one ends: also by SIGKILL or the Task Manager.

POSIX: the child leads its own session, and a shell waits at a pipe that only we can write to. The system closes the
pipe when we end, and the shell ends the child's process group. PR_SET_PDEATHSIG is not used: it exists on Linux only,
fires when the thread that started the child ends, and spares what a wrapper script has started.
Windows: the child is in a process group of its own, has no window, and belongs to a job that the system ends when its
last handle is closed, which is ours.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO

# The shell's input: the group to end as its first line, then nothing until we are gone.
# SIGTERM first: ngrok then signs off, and its URL is free for the next start.
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
            from deepseek_cursor_proxy.cli import windows_job

            self._process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, creationflags=windows_job.FLAGS)
            self._job = windows_job.hold(self._process)
            return
        with contextlib.suppress(OSError):  # no shell: the child may outlive us, but it runs
            self._guard = Popen(
                ("/bin/sh", "-c", _GUARD),
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        try:
            # Its own session: Ctrl-C in the terminal is for us, and we then end the child in our order.
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
        """Ask the process and what it started to end, or kill them; waits for nothing."""
        if self._process is None:
            return
        if sys.platform == "win32":
            from deepseek_cursor_proxy.cli import windows_job

            windows_job.end(self._process, self._job)
        else:
            # The group, because some packages install a program as a script that starts the real one. Until wait()
            # its id cannot become a stranger's. macOS answers EPERM for a group that has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL if force else signal.SIGTERM)

    def wait(self) -> None:
        """Return when the process is gone and everything held for it is released."""
        self._dismiss_guard()
        if self._process is not None:
            self._process.wait()
        if sys.platform == "win32" and self._job is not None:
            from deepseek_cursor_proxy.cli import windows_job

            windows_job.release(self._job)
            self._job = None

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()
