"""A feature can be taken away: copies of the package without one, or without all, serve chats."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.support.systems import ROOT
from tests.support.width import width
from tests.test_architecture import FEATURES, NEEDED

# What the core promises: the canonical loop, recovery, 409, display, stored before the end; who finds what.
WALKTHROUGHS = ("tests.proxy.test_walkthrough", "tests.proxy.access.test_isolation")
LOOP = ("tests.proxy.test_walkthrough", "-k", "weather_loop")


class FeaturesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.package = self.root / "deepseek_cursor_proxy"
        ignored = shutil.ignore_patterns("__pycache__", "interop", "bench", "soak")
        shutil.copytree(ROOT / "deepseek_cursor_proxy", self.package, ignore=ignored)
        shutil.copytree(ROOT / "tests", self.root / "tests", ignore=ignored)

    def take_away(self, *features: str) -> None:
        """As `proxy.py` says: the folder, and the lines that name it; and the features that need one of these."""
        features = tuple(each for each in FEATURES if {each, *(NEEDED & {*FEATURES[each].split()})} & {*features})
        for feature in features:
            shutil.rmtree(self.package / "features" / feature)
        root = self.package / "proxy.py"
        named = re.compile(rf"\b(?:{'|'.join(features)})\b")
        kept = [line for line in root.read_text(encoding="utf-8").splitlines() if named.search(line) is None]
        # The last feature takes the import with it.
        text = re.sub(r"from \S+\.features import \(\n\)\n", "", "\n".join(kept))
        root.write_text(text + "\n", encoding="utf-8")

    def run_tests(self, *names: str) -> None:
        command = [sys.executable, "-m", "unittest", *names]
        environment = {**os.environ, "PROXY_TESTS": ""}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=900)
        self.assertEqual(0, done.returncode, done.stderr[-4000:])

    def test_the_core_alone_serves_chats(self) -> None:
        for tools in ("cli", "__main__.py"):
            path = self.package / tools
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.take_away(*FEATURES)
        shutil.rmtree(self.package / "features")
        self.run_tests(*WALKTHROUGHS)

    def test_without_any_one_feature_the_proxy_serves_chats_and_the_other_features_work(self) -> None:
        for feature in FEATURES:
            with self.subTest(feature):
                self.setUp()
                self.take_away(feature)
                others = [f"tests.proxy.features.{other}" for other in FEATURES if other != feature]
                there = [name for name in others if (self.root / name.replace(".", "/")).is_dir()]
                for tests in width([LOOP], [LOOP], [LOOP, there]):
                    self.run_tests(*tests)
