"""The results of helper processes count as if the first had run its tests; the bytecode of all processes."""

import atexit
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.support import parallel


class TestReport(unittest.TestCase):
    def report(self, *modules: dict[str, list[object]]) -> unittest.TestResult:
        result = unittest.TestResult()
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Path(folder) / "outcomes"
            outcomes.write_text("".join(json.dumps(module) + "\n" for module in modules), encoding="utf-8")
            parallel._report(outcomes, result)
        return result

    def test_failures_errors_and_skips_of_a_helper_are_reported(self) -> None:
        first: dict[str, list[object]] = {"tests": ["a", "b", "c"], "failures": [["b", "the traceback of b"]]}
        second: dict[str, list[object]] = {
            "tests": ["d"],
            "failures": [],
            "errors": [["setUpClass", "x"]],
            "skipped": [],
        }
        result = self.report({**first, "errors": [], "skipped": [["c", "not here"]]}, second)
        self.assertEqual((4, 1, 1, 1), (result.testsRun, *map(len, (result.failures, result.errors, result.skipped))))
        [(test, text)] = result.failures
        self.assertEqual("b", str(test))
        self.assertIn("the traceback of b", text)

    def test_a_helper_that_ended_early_reports_nothing(self) -> None:
        result = unittest.TestResult()
        parallel._report(Path("there is no such file"), result)
        self.assertEqual(0, result.testsRun)

    def test_each_module_is_claimed_once(self) -> None:
        modules = [unittest.TestSuite() for _ in range(5)]
        with tempfile.TemporaryDirectory() as folder:
            one, two = (parallel._claimed(modules, Path(folder)) for _ in range(2))
            claimed = [next(one), next(two), next(one), *two, *one]
        self.assertEqual([id(module) for module in modules], [id(module) for module in claimed])


class TestFolders(unittest.TestCase):
    def test_a_folder_that_the_command_line_names_has_all_its_tests(self) -> None:
        for name in ("tests.unit.net", "tests.unit.storage"):
            tests = [
                f"{name}.{path.stem}" for path in (Path(__file__).parents[1] / name.replace(".", "/")).glob("test*.py")
            ]
            loader = unittest.TestLoader()
            folder = loader.loadTestsFromName(name).countTestCases()
            self.assertGreaterEqual(folder, loader.loadTestsFromNames(tests).countTestCases())
            self.assertGreater(folder, 20)


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
