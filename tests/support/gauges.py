"""What this process holds open, so that a test can tell whether everything came back to where it started."""

import os
import socket
import threading
import time
import unittest
from collections.abc import Callable

from tests.support.harness import PATIENCE

# A moment between two looks at something that tells nobody when it changes.
_LOOK_SECONDS = 0.002


def eventually(is_so: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Whether it becomes so; for what gives no sign of its own."""
    deadline, pause = time.monotonic() + patience, threading.Event()
    while not (so := is_so()) and time.monotonic() < deadline:
        pause.wait(_LOOK_SECONDS)
    return so


def descriptors() -> int:
    """How many descriptors are open; 0 where the system does not tell."""
    if os.name == "nt":
        return 0
    for listing in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(listing):
            return len(os.listdir(listing))
    return 0


class StartLine:
    """Threads and descriptors of a proxy that has served before, which later moments have to get back to."""

    def __init__(self, address: tuple[str, int]) -> None:
        # What listens, and what is built for the first request, belongs to nobody who comes later.
        threads = threading.active_count()
        with socket.create_connection(address, timeout=PATIENCE) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while sock.recv(65536):
                pass
        assert eventually(lambda: threading.active_count() == threads)
        self.threads = threads
        self.descriptors = descriptors()

    def assert_reached(self, test: unittest.TestCase) -> None:
        # Fewer is no leak: somebody of an earlier test may have been on his way out at the start.
        if not eventually(lambda: threading.active_count() <= self.threads and descriptors() <= self.descriptors):
            held = (self.threads, self.descriptors)
            test.assertEqual(held, (threading.active_count(), descriptors()), threading.enumerate())
