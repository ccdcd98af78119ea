"""Child: a running program, and the thread that reads what it prints.

All that __init__ began (process, thread, pipe) is gone when close() returns, and when this process ends, even by
SIGKILL or the Task Manager.

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
        self._job: int | None = None
        self._process = self._start(command)
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=_read_lines, args=(self._process.stdout, read), name="tunnel-log", daemon=True
        )
        self._reader.start()

    def _start(self, command: Sequence[str]) -> "Popen[bytes]":
        if sys.platform == "win32":
            process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, creationflags=_FLAGS)
            self._job = _hold(process)
            return process
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
        if sys.platform == "win32" and self._job is not None:
            _release(self._job)
            self._job = None

    def _end(self, number: signal.Signals | None) -> None:
        """Send a signal, None for SIGKILL, to the process and its children."""
        if sys.platform == "win32":
            _end_job(self._process, self._job)
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


if sys.platform == "win32":
    # Job objects of Windows: the system ends every process of a job when the job's last handle is closed. If the system
    # refuses (a job within a job before Windows 8), the child runs without one.
    import ctypes
    import subprocess
    from ctypes import wintypes

    # No console window opens, and Ctrl-C in our console reaches only us.
    _FLAGS = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP

    _EXTENDED_LIMITS = 9
    _KILL_ON_CLOSE = 0x2000

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class _Limits(ctypes.Structure):
        _fields_ = (
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateJobObjectW.restype = wintypes.HANDLE
    _kernel.CreateJobObjectW.argtypes = (wintypes.LPVOID, wintypes.LPCWSTR)
    _kernel.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, wintypes.LPVOID, wintypes.DWORD)
    _kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
    _kernel.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
    _kernel.CloseHandle.argtypes = (wintypes.HANDLE,)

    def _hold(process: "Popen[bytes]") -> int | None:
        """Put the process into a new job; the job's handle, or None where the system refuses."""
        job: int | None = _kernel.CreateJobObjectW(None, None)
        if job is None:
            return None
        limits = _Limits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_CLOSE
        handle = int(process._handle)  # type: ignore[attr-defined]
        if _kernel.SetInformationJobObject(
            job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        ) and _kernel.AssignProcessToJobObject(job, handle):
            return job
        _kernel.CloseHandle(job)
        return None

    def _end_job(process: "Popen[bytes]", job: int | None) -> None:
        """End the process and, with a job, its children. Windows cannot ask a process without a console to end."""
        if job is None or not _kernel.TerminateJobObject(job, 1):
            process.kill()

    def _release(job: int) -> None:
        _kernel.CloseHandle(job)
