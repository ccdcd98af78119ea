"""The proxy on a Python without names that the package looks for."""

import subprocess
import sys
import unittest

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
    def test_streams_are_served_by_a_python_without_the_names_of_a_hang_up(self) -> None:
        """PyPy answered 500 to every chat."""
        done = subprocess.run([sys.executable, "-c", WITHOUT_THE_NAMES], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(0, done.returncode, done.stderr)
