"""What the system grants a process, raised to what this one may need.

Both are asked for at the start and never lowered. Where the system does not let us, the proxy runs within what it has:
clients without a descriptor or a thread are turned away, and deep JSON is refused before it is walked through.
"""

import contextlib
import sys
import threading

try:
    import resource
except ImportError:  # Windows, where neither is scarce
    resource = None  # type: ignore[assignment]

# What a call from the C stack of Python costs differs by version; 3.13.0 dies of deep JSON on half a megabyte, which
# is more than musl gives a thread.
_STACK_BYTES = 8 * 1024 * 1024
# The store, the tunnel, standard streams, the door.
_OTHER_DESCRIPTORS = 64
# OPEN_MAX of macOS.
_MACOS_DESCRIPTORS = 10_240


def raise_limits(connections: int) -> None:
    """Room for that many clients, each with a call to DeepSeek, and for whatever their threads do."""
    raise_descriptors(2 * connections + _OTHER_DESCRIPTORS)
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _raise_stacks()


def raise_descriptors(wanted: int) -> int | None:
    """Let the process open that many files, or as many as the system allows: the new bound, None if there is none."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    # macOS names no hard limit and refuses more than its own.
    for most in (wanted, min(wanted, _MACOS_DESCRIPTORS)):
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft >= allowed:
            break
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return allowed
    return soft


def _raise_stacks() -> None:
    # On 32 bits a thousand such stacks have no room.
    if sys.maxsize < 2**32:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    # Most systems give threads what the main one has; without a limit they take a small size of their own.
    threading.stack_size(max(_STACK_BYTES, 0 if soft == resource.RLIM_INFINITY else soft, threading.stack_size()))
