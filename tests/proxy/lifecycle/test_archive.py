"""The program as one file: what is in it, that every build is the same, and that all of it works from there."""

import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import ClassVar

from tests.support.admin_client import fetch
from tests.support.archive import build_archive
from tests.support.program import Process, ServeTest
from tests.support.systems import ROOT

PACKAGE = ROOT / "deepseek_cursor_proxy"
UPSTREAM = ("--base-url", "http://127.0.0.1:9")


class ArchiveTest(ServeTest):
    archive: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        cls.archive = build_archive(Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.command = (sys.executable, "-W", "error", str(cls.archive))

    def environment(self, **more: str) -> dict[str, str]:
        """Without the checkout, so that nothing can be found but the archive."""
        return {name: value for name, value in super().environment(**more).items() if name != "PYTHONPATH"}

    def run_command(self, *arguments: str, code: int = 0) -> Process:
        process = self.launch(*arguments)
        self.assertEqual(code, process.wait(), process.errors)
        return process

    def test_it_holds_the_package_and_the_licence_and_nothing_else(self) -> None:
        expected = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
        for path in PACKAGE.rglob("*"):
            if path.suffix in (".py", ".typed", ".html", ".css", ".js", ".svg"):
                expected[path.relative_to(ROOT).as_posix()] = path.read_bytes()
        with zipfile.ZipFile(self.archive) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
        del found["__main__.py"]
        self.assertEqual(expected, found)
        self.expect_mode(self.archive, 0o755)

    def test_the_same_tree_gives_the_same_bytes(self) -> None:
        """Whatever the times and modes of files are, and what Python or the system left between them."""
        copy = self.bin / "copy"
        shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / ".ci").mkdir()
        for name in ("LICENSE", ".ci/build_pyz.py"):
            shutil.copy(ROOT / name, copy / name)
        for path in (copy / PACKAGE.name).rglob("*.py"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
            path.chmod(0o600)
        (copy / PACKAGE.name / "__pycache__").mkdir()
        (copy / PACKAGE.name / "__pycache__" / "x.pyc").write_bytes(b"x")
        (copy / PACKAGE.name / ".DS_Store").write_bytes(b"x")
        self.assertEqual(self.archive.read_bytes(), build_archive(self.bin, copy).read_bytes())

    def test_the_demo_runs_from_it(self) -> None:
        printed = self.run_command("demo").rest()
        self.assertIn("6 of 6 reasonings restored exactly.", printed)
        self.assertRegex(printed, rf"Now with your own key: \S*python\S* {re.escape(str(self.archive))}\n")

    def test_its_exit_code_is_the_one_of_the_program(self) -> None:
        hint = rf"`\S*python\S* {re.escape(str(self.archive))} serve --help-all`"
        self.assertRegex(self.run_command("--bogus", code=2).errors, hint)

    def test_it_serves_the_dashboard_and_the_other_commands_find_it(self) -> None:
        _, welcome = self.serve("--admin-port", "9001", *UPSTREAM)
        found = re.search(r"Dashboard +(http://\S+?)/", welcome)
        assert found is not None, welcome
        for path, file in (("/", "index.html"), ("/js/views/now.js", "js/views/now.js")):
            reply = fetch(found[1], path, {})
            self.assertEqual(
                (200, (PACKAGE / "features/dashboard/page" / file).read_bytes()), (reply.status, reply.body)
            )
        self.assertIn(str(self.archive), self.run_command("service", "install", "--print").rest())
