"""The files that package, publish and check out the project: what a packager or a Windows checkout stumbles over."""

import re
import tomllib
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}


def project() -> dict[str, Any]:
    parsed: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return parsed


def jobs(workflow: str) -> dict[str, str]:
    parts = re.split(r"^  ([\w-]+):$", WORKFLOWS[workflow].partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rights(text: str) -> set[str]:
    [block] = re.findall(r"^    permissions:\n((?:      .+\n)+)", text, re.MULTILINE)
    return {line.strip() for line in block.splitlines()}


class PackagingTest(unittest.TestCase):
    def test_the_licence_is_an_spdx_expression(self) -> None:
        """A table or a classifier in its place is refused by build tools from 2027 on (PEP 639)."""
        metadata = project()["project"]
        self.assertEqual(("MIT", ["LICENSE"]), (metadata["license"], metadata["license-files"]))
        self.assertFalse([each for each in metadata["classifiers"] if each.startswith("License ::")])
        self.assertEqual(["setuptools>=77"], project()["build-system"]["requires"])

    def test_nothing_is_installed_but_the_package(self) -> None:
        self.assertEqual([], project()["project"]["dependencies"])
        self.assertEqual(["deepseek_cursor_proxy*"], project()["tool"]["setuptools"]["packages"]["find"]["include"])

    def test_the_wheel_holds_every_file_that_is_no_python(self) -> None:
        data = project()["tool"]["setuptools"]["package-data"]
        packed = {
            path
            for place, patterns in data.items()
            for each in patterns
            for path in ROOT.joinpath(*place.split(".")).glob(each)
        }
        others = {path for path in (ROOT / "deepseek_cursor_proxy").rglob("*") if path.suffix not in (".py", ".pyc")}
        self.assertEqual({path for path in others if path.is_file()}, {path for path in packed if path.is_file()})

    def test_no_text_file_has_windows_line_ends(self) -> None:
        self.assertIn("* text=auto eol=lf\n", (ROOT / ".gitattributes").read_text(encoding="utf-8"))
        for folder in ("deepseek_cursor_proxy", "tests", ".ci", ".github"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.is_file() and path.suffix not in (".pyc", ".png"):
                    with self.subTest(path=path):
                        self.assertNotIn(b"\r", path.read_bytes())


class WorkflowsTest(unittest.TestCase):
    def test_every_python_that_is_promised_and_three_systems_are_tested(self) -> None:
        matrix = re.findall(r'system: (\w+)-latest, python: "(.+?)"', jobs("ci")["tests"])
        [checks] = re.findall(r'python-version: "(.+)"', jobs("ci")["checks"])
        names = {each.rpartition(" ")[2] for each in project()["project"]["classifiers"] if ":: 3." in each}
        self.assertEqual({*names, "3.14t"}, {checks, *(python for _, python in matrix)})
        self.assertEqual({"ubuntu", "macos", "windows"}, {system for system, _ in matrix})

    def test_nothing_is_published_before_tests_and_packages_are_good(self) -> None:
        """The tests are those of every change; the packages are what twine accepts, and of the version in the tag."""
        release = jobs("release")
        self.assertIn("uses: ./.github/workflows/ci.yml\n", release["tests"])
        self.assertIn("\n  workflow_call:\n", WORKFLOWS["ci"])
        for line in ("twine check --strict dist/*", "python .ci/build_pyz.py ", '"$GITHUB_REF_NAME" = "v$(python'):
            self.assertIn(line, release["packages"])
        for name, text in release.items():
            if name not in ("tests", "packages"):
                self.assertRegex(text, r"needs: (\[tests, packages\]|image)\n", name)

    def test_each_job_of_a_release_has_only_the_rights_it_needs(self) -> None:
        self.assertIn("\npermissions: {}\n", WORKFLOWS["release"])
        self.assertEqual(
            {
                "tests": {"contents: read"},
                "packages": {"contents: read"},
                "release": {"contents: write"},
                "pypi": {"id-token: write"},
                "image": {"contents: read", "packages: write"},
                "image-name": {"packages: write"},
            },
            {name: rights(text) for name, text in jobs("release").items()},
        )
        self.assertIn("\npermissions:\n  contents: read\n\n", WORKFLOWS["ci"])
        self.assertNotIn("secrets.", "".join(WORKFLOWS.values()))

    def test_every_action_is_pinned_to_a_commit(self) -> None:
        """A tag can be moved to other code, which then runs with the rights of a release. A comment has the version."""
        for name, text in WORKFLOWS.items():
            for action in re.findall(r"\buses:[ \t]*(.*)", text):
                self.assertRegex(action, r"^(\./\.github/\S+|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$", name)
            self.assertEqual(text.count("actions/checkout@"), text.count("persist-credentials: false"), name)

    def test_an_action_has_one_version_everywhere(self) -> None:
        found = re.findall(r"uses: ([\w-]+/[\w-]+)@(.+)", "".join(WORKFLOWS.values()))
        self.assertEqual(len(dict(found)), len(set(found)))
