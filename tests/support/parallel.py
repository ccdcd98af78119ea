"""The whole suite in a few processes: most tests wait, and Python's unittest runs them one after the other.

`python -m unittest` loads every test as ever; only running them is shared. All processes walk the same list of modules;
the one that creates a module's file in a common folder runs that module. The helpers write what they found into that
folder, and the first process reports it as its own, so output and count are unittest's. Tests that the command line
names run in one process.
"""

import atexit
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path

_TESTS = Path(__file__).parents[1]
# Fewer than so many are over before a helper has started.
_FEW = 300
# Beside the first process. Measured on two cores: with one 73 s, with two 57 s, with three 49 s.
_HELPERS = 3
_HELPER = f"from {__name__} import run_helper; run_helper()"
# Set in a helper, which loads the list and shares nothing further.
_is_helper = False


def shared(loader: unittest.TestLoader, pattern: str) -> unittest.TestSuite:
    """All tests below this folder, as a suite that several processes run."""
    _allow_bytecode()
    found = loader.discover(str(_TESTS), pattern, str(_TESTS.parent))
    # What was loaded stays to the end: the garbage collector need not walk over it again and again.
    # PyPy's has no such function.
    if hasattr(gc, "freeze"):
        gc.freeze()
    if _is_helper or found.countTestCases() < _FEW:
        return found
    return _SharedSuite(_modules(found), pattern, loader.testNamePatterns or [])


def _allow_bytecode() -> None:
    """Give processes that may write no bytecode beside the source a folder for it: most of their start is compiling."""
    if not sys.dont_write_bytecode:
        return
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    sys.dont_write_bytecode = False


def _modules(suite: unittest.TestSuite) -> list[unittest.TestSuite]:
    """The suites of single modules, in the order of discovery."""
    modules: dict[str, unittest.TestSuite] = {}
    for test in _flat(suite):
        modules.setdefault(type(test).__module__, unittest.TestSuite()).addTest(test)
    return list(modules.values())


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _claimed(modules: list[unittest.TestSuite], folder: Path) -> Iterator[unittest.TestSuite]:
    """The modules that no other process has begun."""
    for number, module in enumerate(modules):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield module


class _SharedSuite(unittest.TestSuite):
    def __init__(self, modules: list[unittest.TestSuite], pattern: str, names: list[str]) -> None:
        super().__init__(modules)
        self._arguments = [pattern, *names]

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        modules = [module for module in self if isinstance(module, unittest.TestSuite)]
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            command = [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", _HELPER]
            outcomes = [folder / f"{number}.jsonl" for number in range(_HELPERS)]
            helpers = [
                stack.enter_context(subprocess.Popen([*command, str(path), *self._arguments], cwd=_TESTS.parent))
                for path in outcomes
            ]
            for module in _claimed(modules, folder):
                module.run(result, debug)
            for helper, path in zip(helpers, outcomes, strict=True):
                if result.shouldStop:
                    helper.terminate()
                helper.wait()
                _report(path, result)
                if helper.returncode and not result.shouldStop:
                    raise RuntimeError(f"a helper process of the tests ended with exit code {helper.returncode}")
        return result


class _Reported(unittest.TestCase):
    """A test that a helper ran."""

    def __init__(self, name: str) -> None:
        super().__init__("run")
        self._name = name

    def __str__(self) -> str:
        return self._name


def _report(outcomes: Path, result: unittest.TestResult) -> None:
    """Add the outcomes of a helper to the result."""
    for line in outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else ():
        module = json.loads(line)
        problems = {name for kind in ("failures", "errors", "skipped") for name, _ in module[kind]}
        for name in module["tests"]:
            test = _Reported(name)
            result.startTest(test)
            if name not in problems:
                result.addSuccess(test)
            result.stopTest(test)
        for name, reason in module["skipped"]:
            result.addSkip(_Reported(name), reason)
        for kind, add in (("failures", result.addFailure), ("errors", result.addError)):
            for name, text in module[kind]:
                error = AssertionError(f"in a helper process\n{text}")
                add(_Reported(name), (type(error), error, None))


def run_helper() -> None:
    """Run what the others do not; `sys.argv` has the file for outcomes, the pattern and the names asked for."""
    global _is_helper
    _is_helper = True
    _, name, pattern, *names = sys.argv
    outcomes = Path(name)
    loader = unittest.TestLoader()
    loader.testNamePatterns = names or None
    modules = _modules(shared(loader, pattern))
    if not sys.warnoptions:
        warnings.simplefilter("default")
    with outcomes.open("w", encoding="utf-8") as file:
        for module in _claimed(modules, outcomes.parent):
            found: dict[str, list[object]] = {"tests": [str(test) for test in _flat(module)]}
            result = unittest.TestResult()
            module.run(result)
            for kind in ("failures", "errors", "skipped"):
                found[kind] = [(str(test), text) for test, text in getattr(result, kind)]
            print(json.dumps(found), file=file, flush=True)
