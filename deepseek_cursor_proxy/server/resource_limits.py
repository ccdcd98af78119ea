"""Limits of the process, raised at the start to what the proxy may need: open files, thread stacks, freed memory.

They are never lowered. If the system refuses, the proxy runs within what it has: clients beyond the limit get 503, and
deep JSON is refused before any recursive function sees it.
"""

import contextlib
import sys
import threading

try:
    import resource
except ImportError:  # Windows, where neither is scarce
    resource = None  # type: ignore[assignment]

# How much C stack a Python call takes differs by version; 3.13.0 crashes on deep JSON with half a megabyte, which is
# more than musl gives a thread.
_STACK_BYTES = 8 * 1024 * 1024
# A long chat takes and frees buffers of a megabyte with every request. By default glibc gives these back to the system,
# and gets them again page by page: 800 page faults, a third of the time of a request with 200 tool turns. With 800 tool
# turns buffers have five megabytes, and 2,500 faults took half of the time.
BYTES_KEPT = 8 * 1024 * 1024
# Of mallopt(3).
_M_MMAP_THRESHOLD = -3
# The store, the tunnel, the standard streams, the listener.
_OTHER_DESCRIPTORS = 64
# OPEN_MAX of macOS.
_MACOS_DESCRIPTORS = 10_240


def raise_limits(connections: int) -> None:
    """Allow this number of clients, each with a call to DeepSeek, and stacks for their threads."""
    raise_descriptors(2 * connections + _OTHER_DESCRIPTORS)
    keep_freed_memory()
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _raise_stacks()


def raise_descriptors(wanted: int) -> None:
    """Let the process open `wanted` files, or as many as the system allows."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports no hard limit and refuses more than OPEN_MAX.
    for most in (wanted, min(wanted, _MACOS_DESCRIPTORS)):
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or soft >= allowed:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return


def keep_freed_memory() -> None:
    """Have glibc keep freed buffers of up to `BYTES_KEPT` for the next request."""
    # When a larger one than all before is freed, its size becomes the limit (M_MMAP_THRESHOLD in mallopt(3)). It is
    # never written to, so it takes no memory. Other allocators ignore it.
    bytes(BYTES_KEPT)


def give_back_memory() -> None:
    """Have glibc give the system what requests with larger buffers have freed, and what they will free."""
    # When it frees one of 28 MB, it keeps what is that large from then on: chats of that size left 80 to 370 MB.
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError, MemoryError):
        # Few need it, and it takes a millisecond to import.
        import ctypes

        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, BYTES_KEPT)
        libc.malloc_trim(0)


def _raise_stacks() -> None:
    # A thousand such stacks do not fit into 32 bits.
    if sys.maxsize < 2**32:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    # Most systems give threads the main thread's limit; if that is unlimited they use a small default.
    threading.stack_size(max(_STACK_BYTES, 0 if soft == resource.RLIM_INFINITY else soft, threading.stack_size()))
