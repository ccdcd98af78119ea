"""Job objects of Windows: the system ends every process of a job when the job's last handle is closed.

Imported on Windows only. If the system refuses (a job within a job before Windows 8), the child runs without one.
"""

import ctypes
import subprocess
import sys
from ctypes import wintypes

assert sys.platform == "win32"

# No console window opens, and Ctrl-C in our console reaches only us.
FLAGS = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP

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


def hold(process: "subprocess.Popen[bytes]") -> int | None:
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


def end(process: "subprocess.Popen[bytes]", job: int | None) -> None:
    """End the process and, with a job, its children. Windows cannot ask a process without a console to end."""
    if job is None or not _kernel.TerminateJobObject(job, 1):
        process.kill()


def release(job: int) -> None:
    _kernel.CloseHandle(job)
