"""`python -m tests.interop`: all tests with real clients and browsers, in a few processes; most of them wait."""

import unittest
from pathlib import Path

from tests.interop import packages
from tests.support import parallel

MODULES = [f"tests.interop.{path.stem}" for path in sorted(Path(__file__).parent.glob("test_*.py"))]
# Beside the first process. One after the other they took 584 s on two cores that others used as well, of which their
# own work was 318 s; installing each client once takes a third of that off.
HELPERS = 2


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    packages.folder()
    return parallel.split(loader, loader.loadTestsFromNames(MODULES), HELPERS)


if __name__ == "__main__":
    unittest.main()
