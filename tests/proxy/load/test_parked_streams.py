"""What holds for a request and its stream holds where the event loop resumes them."""

import subprocess
import sys
import unittest

from tests.proxy import test_walkthrough
from tests.proxy.chats import test_chunk_by_chunk
from tests.proxy.faults import test_client_disconnects, test_upstream_bounds
from tests.proxy.load import test_load
from tests.support.driven_streams import DrivenStreams
from tests.support.systems import ROOT

# A Python without these names, in a process of its own: the package looks for them when it is imported.
WITHOUT_THE_NAMES = """
import select, sys, unittest
for name in ("EPOLLRDHUP", "POLLRDHUP"):
    vars(select).pop(name, None)
names = "unit.net.test_wait proxy.test_walkthrough.TestChat"
unittest.main(None, argv=["", *("tests." + name for name in names.split())])
"""


class TestOtherPythons(unittest.TestCase):
    def test_streams_are_driven_by_a_python_without_the_names_of_a_hang_up(self) -> None:
        """PyPy answered 500 to every chat."""
        done = subprocess.run([sys.executable, "-c", WITHOUT_THE_NAMES], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(0, done.returncode, done.stderr)


def _all_driven(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    return type(f"{case.__name__}Driven", (DrivenStreams, case), {"__module__": __name__})


def _cases(module: object) -> list[type[unittest.TestCase]]:
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, unittest.TestCase)]
    return [each for each in found if each.__module__ == module.__name__]  # type: ignore[attr-defined]


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (test_chunk_by_chunk, test_client_disconnects, test_walkthrough):
        for case in _cases(module):
            tests.addTests(loader.loadTestsFromTestCase(_all_driven(case)))
    for case in (test_load.TestSlowClients, test_upstream_bounds.TestSlots):
        tests.addTests(loader.loadTestsFromTestCase(_all_driven(case)))
    return tests
