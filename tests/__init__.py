import unittest

from tests.support import parallel
from tests.support.width import scale_waits

scale_waits()


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    return parallel.shared(loader, pattern or "test*.py")
