"""Threads and descriptors of this process, for tests that nothing leaks."""

import os
import socket
import threading
import unittest

from tests.support.harness import PATIENCE
from tests.support.polling import eventually


def descriptors() -> int:
    """The number of open descriptors; 0 where the system has no list."""
    if os.name == "nt":
        return 0
    for listing in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(listing):
            return len(os.listdir(listing))
    return 0


def threads() -> set[threading.Thread]:
    """The threads but those that write what requests left, which any request starts."""
    return {thread for thread in threading.enumerate() if not thread.name.endswith("-write")}


class ResourceBaseline:
    """The threads and descriptors of a proxy after its first request, to which it has to return."""

    def __init__(self, address: tuple[str, int]) -> None:
        # The listener, and what the first request builds, are part of the baseline.
        before = threads()
        with socket.create_connection(address, timeout=PATIENCE) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while sock.recv(65536):
                pass
        # Some may have ended since: those of an earlier test.
        assert eventually(lambda: threads() <= before), threading.enumerate()
        self.threads = before
        self.descriptors = descriptors()

    def assert_restored(self, test: unittest.TestCase) -> None:
        # Fewer descriptors are no leak, nor are fewer threads.
        if not eventually(lambda: threads() <= self.threads and descriptors() <= self.descriptors):
            held = (self.threads, self.descriptors)
            test.assertEqual(held, (threads(), descriptors()), threading.enumerate())
