"""The files that package and check out the project: what a packager or a Windows checkout would stumble over."""

import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).parent.parent


class PackagingTest(unittest.TestCase):
    def test_the_licence_is_an_spdx_expression(self) -> None:
        """A table or a classifier in its place is refused by build tools from 2027 on (PEP 639)."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        self.assertEqual(("MIT", ["LICENSE"]), (project["project"]["license"], project["project"]["license-files"]))
        self.assertFalse([each for each in project["project"]["classifiers"] if each.startswith("License ::")])
        self.assertEqual(["setuptools>=77"], project["build-system"]["requires"])

    def test_no_text_file_has_windows_line_ends(self) -> None:
        self.assertIn("* text=auto eol=lf\n", (ROOT / ".gitattributes").read_text(encoding="utf-8"))
        for folder in ("deepseek_cursor_proxy", "tests", ".ci", ".github"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.is_file() and path.suffix not in (".pyc", ".png"):
                    with self.subTest(path=path):
                        self.assertNotIn(b"\r", path.read_bytes())
