"""Tests that several processes run count as if one had run them, with every option; the bytecode of all processes."""

import atexit
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.support import parallel
from tests.support.systems import ROOT

PACKAGE = """
from pathlib import Path
from tests.support import parallel

parallel._TESTS, parallel._FEW, parallel._HELPERS = Path(__file__).parent, 0, 1


def load_tests(loader, tests, pattern):
    return parallel.shared(loader, pattern or "test*.py")
"""
# Twelve modules like this one; `IS_OURS` is true in the process that is to fail.
MODULE = """
import sys, tempfile, unittest
from pathlib import Path
from tests.support.polling import wait_until

IS_OURS = (sys.argv[0] == "-c") == {is_helper}


class Sample(unittest.TestCase):
    def test_that_one_process_fails(self):
        print("printed by a test that " + ("fails" if IS_OURS else "passes"))
        if not IS_OURS:
            wait_until(lambda: list(Path(tempfile.gettempdir()).glob("*/stop")))
        for number in range(2):
            with self.subTest(number=number):
                self.assertFalse(IS_OURS)

    @unittest.skip("not here")
    def test_another(self): ...
"""
MODULES = 12


class TestOptions(unittest.TestCase):
    def run_suite(self, *options: str, is_helper: bool) -> str:
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("temporary", "sample"):
            (root / name).mkdir()
        (root / "sample" / "__init__.py").write_text(PACKAGE)
        for number in range(MODULES):
            (root / "sample" / f"test_{number}.py").write_text(MODULE.format(is_helper=is_helper))
        ours = {"PYTHONPATH": str(ROOT), "PROXY_TESTS": "all", **dict.fromkeys(("TMPDIR", "TEMP"), f"{root}/temporary")}
        command = [sys.executable, "-m", "unittest", *options]
        done = subprocess.run(command, cwd=root, env={**os.environ, **ours}, capture_output=True, encoding="utf-8")
        self.assertEqual(1, done.returncode, done.stderr)
        return done.stdout + done.stderr

    def count(self, text: str) -> int:
        found = re.search(r"^Ran (\d+) tests? in ", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])

    def test_a_failure_in_either_process_ends_both_with_failfast_and_shows_what_it_printed(self) -> None:
        for is_helper in (False, True):
            with self.subTest(is_helper=is_helper):
                text = self.run_suite("-f", "-b", "-k", "one_process", is_helper=is_helper)
                # At most the first test of each.
                self.assertLessEqual(self.count(text), 2, text)
                self.assertIn("FAILED (failures=1)", text)
                self.assertIn("printed by a test that fails", text)
                self.assertNotIn("printed by a test that passes", text)
                self.assertRegex(text, r"FAIL: test_that_one_process_fails \(sample\.test_\d+\..*\(number=0\)")
                self.assertEqual(is_helper, "in a helper process" in text)

    def test_without_options_every_failure_and_skip_of_a_helper_is_reported(self) -> None:
        with mock.patch.dict(globals(), MODULE=MODULE.replace('glob("*/stop")', 'glob("*/sample.test_1")')):
            text = self.run_suite("-v", is_helper=True)
        self.assertEqual(2 * MODULES, self.count(text), text)
        failures = text.count("\nFAIL: ")
        self.assertEqual(0, failures % 2)
        self.assertGreater(failures, 0)
        self.assertIn(f"FAILED (failures={failures}, skipped={MODULES})", text)
        self.assertEqual(MODULES - failures // 2, len(re.findall(r"process_fails.* ok$", text, re.MULTILINE)))


class TestModules(unittest.TestCase):
    def test_each_module_is_claimed_once_until_all_stop(self) -> None:
        names = [*"abcde"]
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        one, two = (parallel._claimed(names, folder) for _ in range(2))
        self.assertEqual([*"abc"], [next(one), next(two), next(one)])
        (folder / "stop").touch()
        self.assertEqual([], [*one, *two])

    def test_a_helper_that_ended_early_reports_nothing(self) -> None:
        result = unittest.TestResult()
        parallel._report(Path("there is no such file"), result)
        self.assertEqual(0, result.testsRun)

    def test_a_case_whose_helper_is_called_run_is_refused(self) -> None:
        """It takes the place of unittest's, and no test of its file runs."""
        case = type("Case", (unittest.TestCase,), {"test": lambda _: None, "run": lambda *_: None})
        with self.assertRaisesRegex(TypeError, "Case"):
            parallel._modules(unittest.TestSuite([case("test")]))

    def test_a_folder_that_the_command_line_names_has_all_its_tests(self) -> None:
        for name in ("tests.unit.net", "tests.unit.storage"):
            tests = [
                f"{name}.{path.stem}" for path in (Path(__file__).parents[1] / name.replace(".", "/")).glob("test*.py")
            ]
            loader = unittest.TestLoader()
            folder = loader.loadTestsFromName(name).countTestCases()
            self.assertGreaterEqual(folder, loader.loadTestsFromNames(tests).countTestCases())
            self.assertGreater(folder, 10)


class TestBytecode(unittest.TestCase):
    def test_processes_that_may_write_no_bytecode_get_a_folder_for_it(self) -> None:
        with (
            mock.patch.multiple(sys, dont_write_bytecode=True, pycache_prefix=None),
            mock.patch.dict(os.environ, {"PYTHONDONTWRITEBYTECODE": "1"}),
            mock.patch.object(atexit, "register") as register,
        ):
            parallel._allow_bytecode()
            self.assertFalse(sys.dont_write_bytecode)
            self.assertNotIn("PYTHONDONTWRITEBYTECODE", os.environ)
            self.assertEqual(sys.pycache_prefix, os.environ["PYTHONPYCACHEPREFIX"])
            folder = Path(os.environ["PYTHONPYCACHEPREFIX"])
        self.assertTrue(folder.is_dir())
        remove, *arguments = register.call_args.args
        remove(*arguments, **register.call_args.kwargs)
        self.assertFalse(folder.exists())
