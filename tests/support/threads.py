"""Threads of tests: one in the background, or one for each of several arguments."""

import threading
import unittest
from collections.abc import Callable, Iterable
from typing import Any


def leave_no_thread(test: unittest.TestCase) -> None:
    """Called before anything else in a test, which fails if threads are left that it has started."""
    # Of those that are there some may end meanwhile: what earlier tests have left.
    before = {*threading.enumerate()}
    test.addCleanup(lambda: test.assertEqual(set(), {*threading.enumerate()} - before))


def in_background(test: unittest.TestCase, work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """A thread that works until the test ends, at the latest."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    test.addCleanup(thread.join)
    return thread


def run_at_once(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Work on each argument in a thread of its own; return when all have ended."""
    threads = [threading.Thread(target=work, args=(each,)) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
