"""What this process uses: CPU time, memory, open files. Systems that do not tell have None."""

import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple

# From the kernel's view, so that a late import of this file changes nothing.
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Elsewhere a directory has a size that means something else, or none.
_HAS_FD_COUNT = sys.platform == "linux" and os.stat("/proc/self/fd").st_size > 0


class ProcessUse(NamedTuple):
    cpu_seconds: float
    memory_bytes: int | None
    open_files: int | None
    most_files: int | None


def measure() -> ProcessUse:
    return ProcessUse(time.process_time(), _memory_bytes(), _open_files(), _most_files())


def _memory_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    return None


def _open_files() -> int | None:
    """Their number. Linux has it as a size since 6.2: a listing hands the interpreter over for every entry."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            # One of them is for the listing itself.
            return os.stat(folder).st_size if _HAS_FD_COUNT else len(os.listdir(folder)) - 1
    return None


def _most_files() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
