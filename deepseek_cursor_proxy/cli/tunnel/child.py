"""Child: a running program, and the thread that reads what it prints.

All that __init__ began (process, thread, pipe) is gone when close() returns, and on POSIX when this process ends, even
by SIGKILL: the child leads its own session, and a guard, a shell, reads from a pipe that only we can write to. When we
end, the system closes the pipe, and the guard ends the child's process group. PR_SET_PDEATHSIG is no help: it exists on
Linux only, fires when the thread that started the child ends, and spares the children of a wrapper script.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO

_MAX_LINE = 1_000_000  # bytes; all programs stay far below
_GRACE_SECONDS = 3.0  # between asking the program to end and killing it
# Reads the process group, then waits for the end of the pipe. SIGTERM first: ngrok then releases its URL.
_GUARD = """
read -r group || exit
read -r _
kill -s TERM -- "-$group" && sleep 3 && kill -s KILL -- "-$group"
"""


class Child:
    """Made and closed by one thread at a time."""

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
