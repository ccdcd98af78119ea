"""A feature can be taken away: a copy of the package without one, or without all, serves chats; none needs another.

The copy is tested by one process, which imports the package anew after each change.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.systems import ROOT
from tests.support.width import some
from tests.test_architecture import FEATURES, NEEDED, PACKAGE

# What the core promises: the canonical loop, recovery, 409, display, stored before the end; who finds what.
WALKTHROUGHS = "tests.proxy.test_walkthrough tests.proxy.access.test_isolation"
LOOP = "tests.proxy.test_walkthrough -k weather_loop"
# Runs the tests that each line names, but for those that import a feature that is not there.
SCRIPT = f"""
import importlib, sys, unittest

def is_there(name):
    try:
        name.startswith("tests.") and importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name.startswith("{PACKAGE}.features."):
            raise
        return False
    return True

for line in sys.stdin:
    names = [*filter(is_there, line.split())]
    done = unittest.main(None, argv=["", *names], exit=False, verbosity=0).result if names else None
    print(bool(done and done.wasSuccessful() and done.testsRun), flush=True)
    for name in list(sys.modules):
        if name.split(".")[0] in ("tests", "{PACKAGE}"):
            del sys.modules[name]
"""


class FeaturesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.package = self.root / PACKAGE
        self.changes = 0
        ignored = shutil.ignore_patterns("__pycache__", "interop", "bench", "soak")
        shutil.copytree(ROOT / PACKAGE, self.package, ignore=ignored)
        shutil.copytree(ROOT / ".github", self.root / ".github")
        shutil.copytree(ROOT / "tests", self.root / "tests", ignore=ignored)
        self.errors = self.enterContext(tempfile.TemporaryFile("w+"))
        self.runner = self.enterContext(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                cwd=self.root,
                # Compiling takes longer than the loop.
                env={**os.environ, "PROXY_TESTS": "", "PYTHONDONTWRITEBYTECODE": ""},
            )
        )

    def assert_pass(self, names: str) -> None:
        assert self.runner.stdin is not None
        assert self.runner.stdout is not None
        start = self.errors.tell()
        self.runner.stdin.write(names + "\n")
        self.runner.stdin.flush()
        result = self.runner.stdout.readline()
        self.errors.seek(start)
        self.assertEqual("True\n", result, self.errors.read()[-40000:])

    @contextmanager
    def taken_away(self, *features: str) -> Iterator[None]:
        """As CONTRIBUTING says: the folder, the tests and the name; and the features that need one of these."""
        features = tuple(each for each in FEATURES if {each, *(NEEDED & {*FEATURES[each].split()})} & {*features})
        composition = self.package / "proxy.py"
        with tempfile.TemporaryDirectory() as away:
            text = kept = composition.read_text(encoding="utf-8")
            folders = [Path(PACKAGE), Path("tests", "unit"), Path("tests", "proxy")]
            paths = [folder / "features" / feature for feature in features for folder in folders]
            paths = [path for path in paths if (self.root / path).exists()]
            for path in paths:
                (away / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(self.root / path, away / path)
            for feature in features:
                self.assertEqual(1, kept.count(name := f'    "{feature}",\n'))
                kept = kept.replace(name, "")
            self.write(composition, kept)
            try:
                yield
            finally:
                self.write(composition, text)
                for path in paths:
                    shutil.move(away / path, self.root / path)

    def write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Else Python would take what it compiled within the same second.
        self.changes += 1
        os.utime(path, (self.changes, self.changes))

    def test_the_core_alone_serves_chats(self) -> None:
        with self.taken_away(*FEATURES):
            for tools in ("features", "cli"):
                shutil.rmtree(self.package / tools)
            (self.package / "__main__.py").unlink()
            self.assert_pass(WALKTHROUGHS)

    def test_without_any_one_feature_the_proxy_serves_chats(self) -> None:
        for feature in FEATURES:
            with self.subTest(feature), self.taken_away(feature):
                self.assert_pass(LOOP)

    def test_each_feature_works_without_the_others(self) -> None:
        for feature in some(reversed(FEATURES), 6):
            here = {feature, *(NEEDED & {*FEATURES[feature].split()})}
            with self.subTest(feature), self.taken_away(*(FEATURES.keys() - here)):
                trees = [self.root / "tests" / tree / "features" / feature for tree in ("unit", "proxy")]
                found = sorted(path.relative_to(self.root) for tree in trees for path in tree.rglob("test_*.py"))
                self.assert_pass(" ".join(".".join(path.with_suffix("").parts) for path in found))
