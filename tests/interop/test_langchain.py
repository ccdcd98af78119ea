"""LangChain's standard tests through the proxy; see langchain_suite."""

import subprocess
import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.interop.command_line import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests/interop/langchain_suite.py"
# One event loop for all tests: LangChain's models share their connections.
OPTIONS = ("asyncio_mode=auto", "asyncio_default_test_loop_scope=session", "asyncio_default_fixture_loop_scope=session")


class LangChainTest(unittest.TestCase):
    def test_the_standard_tests_pass(self) -> None:
        place = Path(self.enterContext(TemporaryDirectory(prefix="langchain-")))
        (place / "pytest.ini").write_text("\n".join(("[pytest]", *OPTIONS, "")), encoding="utf-8")
        given = ("-q", "-p", "no:cacheprovider", "-c", str(place / "pytest.ini"), str(ROOT / SUITE))
        command = [sys.executable, "-m", "pytest", *given]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-20000:]}{done.stderr}")
