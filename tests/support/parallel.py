"""The whole suite in a few processes: most tests wait, and Python's unittest runs them one after the other.

`python -m unittest` loads every test as ever; only running them is shared. All processes walk the same list of modules;
the one that creates a module's file in a common folder runs that module. The helpers write what happens to each test
into that folder, and the first process reports it as its own, so output, count and options are unittest's. After a
failure with `-f`, and after Ctrl-C, each ends with its current test or module. Few tests run in one process, and so do
those that the command line names.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1]
# Fewer than so many are over before a helper has started.
_FEW = 300
# Beside the first process. Measured on two cores: with one 73 s, with two 57 s, with three 49 s.
_HELPERS = 3
_HELPER = f"from {__name__} import run_helper; run_helper()"
_MEMORY = "/dev/shm"
# Options of unittest that a result has.
_OPTIONS = ("failfast", "buffer", "tb_locals")
# Files of the common folder: what the helpers need to know, and that all are to stop.
_PLAN, _STOP = "plan.json", "stop"


def shared(loader: unittest.TestLoader, pattern: str) -> unittest.TestSuite:
    """All tests below this folder, as a suite that several processes run."""
    _write_to_memory()
    _allow_bytecode()
    found = loader.discover(str(_TESTS), pattern, str(_TESTS.parent))
    return split(loader, found, 0 if found.countTestCases() < _FEW else _HELPERS)


def split(loader: unittest.TestLoader, found: unittest.TestSuite, helpers: int) -> unittest.TestSuite:
    """These tests, as a suite that so many processes run beside the first one."""
    modules = _modules(found)
    return _SharedSuite(modules, loader.testNamePatterns, helpers) if helpers else unittest.TestSuite(modules.values())


def _freeze() -> None:
    """What is there stays to the end, so the garbage collector need not walk over it again and again."""
    # PyPy's has no such function.
    if hasattr(gc, "freeze"):
        gc.freeze()


def _write_to_memory() -> None:
    """Have temporary files in memory where there is room: what tests commit does not wait for a disk."""
    # Measured on a busy machine: a commit of 100 bytes takes 20 ms on its disk and 5 µs in memory.
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    place = os.statvfs(_MEMORY)
    # Tests run programs that they write; containers often have 64 MB there.
    if not place.f_flag & os.ST_NOEXEC and place.f_bavail * place.f_frsize > 2**31:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


def _allow_bytecode() -> None:
    """Give processes that may write no bytecode beside the source a folder for it: most of their start is compiling."""
    if not sys.dont_write_bytecode:
        return
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    sys.dont_write_bytecode = False


def _modules(suite: unittest.TestSuite) -> dict[str, unittest.TestSuite]:
    """The tests of each module, each once although another module imports its class."""
    modules: dict[str, unittest.TestSuite] = {}
    for test in {test.id(): test for test in _flat(suite)}.values():
        if type(test).run is not unittest.TestCase.run:
            raise TypeError(f"{type(test).__name__} has a method `run` of its own: unittest would call it and no test")
        modules.setdefault(type(test).__module__, unittest.TestSuite()).addTest(test)
    return modules


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _claimed(names: Iterable[str], folder: Path) -> Iterator[str]:
    """The modules that no other process has begun, until all are to stop."""
    for name in names:
        if (folder / _STOP).exists():
            return
        with contextlib.suppress(FileExistsError):
            (folder / name).touch(exist_ok=False)
            yield name


class _SharedSuite(unittest.TestSuite):
    def __init__(self, modules: dict[str, unittest.TestSuite], patterns: list[str] | None, helpers: int) -> None:
        super().__init__(modules.values())
        self._modules = modules
        self._patterns = patterns
        self._helpers = helpers

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            options = {option: getattr(result, option) for option in _OPTIONS}
            # What could not be loaded has no module; it is reported here.
            names = [module for module in self._modules if not module.startswith("unittest.")]
            plan = {"modules": names, "patterns": self._patterns, "options": options}
            (folder / _PLAN).write_text(json.dumps(plan), encoding="utf-8")
            command = [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", _HELPER]
            outcomes = [folder / f"{number}.jsonl" for number in range(self._helpers)]
            helpers = [
                stack.enter_context(subprocess.Popen([*command, str(path)], cwd=_TESTS.parent)) for path in outcomes
            ]
            # Ctrl-C ends this function, and the helpers with it, which the stack waits for.
            stack.callback((folder / _STOP).touch)
            for module in _claimed(self._modules, folder):
                _freeze()
                self._modules[module].run(result, debug)
                if result.shouldStop:
                    (folder / _STOP).touch()
            # What a helper's tests printed is in its texts.
            result.buffer = False
            for helper, path in zip(helpers, outcomes, strict=True):
                helper.wait()
                _report(path, result)
                if helper.returncode:
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
        for name in module["started"]:
            test = _Reported(name)
            result.startTest(test)
            if name not in module["problems"]:
                result.addSuccess(test)
            result.stopTest(test)
        for name, reason in module["skipped"]:
            result.addSkip(_Reported(name), reason)
        for kind, add in (("failures", result.addFailure), ("errors", result.addError)):
            for name, text in module[kind]:
                error = AssertionError(f"in a helper process\n{text}")
                add(_Reported(name), (type(error), error, None))


class _HelperResult(unittest.TestResult):
    def __init__(self, stop: Path, options: dict[str, bool]) -> None:
        super().__init__()
        vars(self).update(options)
        self._stop = stop
        self._started: list[str] = []

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._started.append(str(test))
        if self._stop.exists():
            self.stop()

    def stop(self) -> None:
        super().stop()
        self._stop.touch()

    def outcomes(self) -> dict[str, Any]:
        """What `_report` needs to know."""
        kinds: dict[str, list[tuple[unittest.TestCase, str]]] = {
            "failures": self.failures, "errors": self.errors, "skipped": self.skipped,
        }  # fmt: skip
        # A subtest is a problem of its test.
        problems = {str(getattr(test, "test_case", test)) for found in kinds.values() for test, _ in found}
        found = {kind: [(str(test), text) for test, text in found] for kind, found in kinds.items()}
        return {"started": self._started, "problems": sorted(problems), **found}


def run_helper() -> None:
    """Run what the others do not; `sys.argv` has the file for outcomes."""
    path = Path(sys.argv[1])
    plan = json.loads((path.parent / _PLAN).read_text(encoding="utf-8"))
    if not sys.warnoptions:
        warnings.simplefilter("default")
    loader = unittest.TestLoader()
    loader.testNamePatterns = plan["patterns"]
    # Ctrl-C reaches every process of a terminal; the first one says so.
    with path.open("w", encoding="utf-8") as outcomes, contextlib.suppress(KeyboardInterrupt):
        for name in _claimed(plan["modules"], path.parent):
            result = _HelperResult(path.parent / _STOP, plan["options"])
            tests = _modules(loader.loadTestsFromName(name))[name]
            _freeze()
            tests.run(result)
            print(json.dumps(result.outcomes()), file=outcomes, flush=True)
