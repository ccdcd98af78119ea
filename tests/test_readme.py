"""README and the pages in .github say what the program does: tables, flags, commands, quoted texts and links."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.api import clients
from deepseek_cursor_proxy.cli import main
from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX, SECRET_VARIABLE
from deepseek_cursor_proxy.config.loaded_config import SETTINGS, TABLES, LoadedConfig
from deepseek_cursor_proxy.deepseek.model_names import MODELS
from deepseek_cursor_proxy.deepseek.prices import USD, find_step
from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE_LINE
from tests.support.settings_table import settings_table
from tests.test_architecture import DIRECTIONS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "deepseek_cursor_proxy"
PATHS = (ROOT / "README.md", *sorted((ROOT / ".github").glob("*.md")), *sorted((ROOT / ".github/docs").glob("*.md")))
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
README, OPERATIONS = PAGES["README.md"], PAGES[".github/docs/operations.md"]
CHINESE = PAGES[".github/README.zh-CN.md"]
CONTRIBUTING = PAGES[".github/CONTRIBUTING.md"]
MAP = CONTRIBUTING.partition("## The map")[2].partition("\n## ")[0]
ALL = "\n".join(PAGES.values())

PRINT_SETTINGS = "python -m tests.support.settings_table"

# Flags that are no settings.
OTHER_FLAGS = {"--config", "--clear-reasoning-cache", "--new", "--version", "--help"}
OTHER_FLAGS |= {"--from-secret", "--today", "--week", "--month", "--since", "--by", "--csv"}
OTHER_FLAGS |= {"--usd-per-day", "--usd-per-month", "--concurrent", "--group", "--expires"}
OTHER_FLAGS |= {"--quick", "--json", "--against", "--command", "--upstream-port"}
OTHER_FLAGS |= {"--format", "--since", "--min-turns", "--only-complete"}
OTHER_FLAGS |= {"--live", "--report", "--help-all"}
OTHER_FLAGS |= {"--yes", "--print", "--undo", "--url", "--flash-subagents", "--status-line"}
# Flags of other programs, as the pages name them.
FOREIGN_FLAGS = {
    "--strict", "--effort", "--user", "--provider", "--operator", "--read-only", "--tmpfs", "--rm", "--from",
    "--continue", "--set", "--import", "--headless",
}  # fmt: skip


def block(language: str, start: str) -> str:
    """The one code block in that language that starts so, on whichever page; real clients run on it."""
    [found] = re.findall(rf"^```{language}\n({re.escape(start)}.*?)^```$", ALL, re.MULTILINE | re.DOTALL)
    return str(found)


def marked(page: str, mark: str) -> str:
    """The part of a page between <!-- mark --> and <!-- /mark -->."""
    return PAGES[f".github/docs/{page}.md"].partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0].strip()


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def links() -> Iterator[tuple[str, str, str]]:
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            if not target.startswith("https://"):
                found = (ROOT / page).parent / path if path else ROOT / page
                yield page, found.resolve().relative_to(ROOT.resolve()).as_posix(), anchor


class TablesTest(unittest.TestCase):
    def test_the_settings_table_is_the_declared_one(self) -> None:
        self.assertTrue(
            marked("settings", "settings") == settings_table(),
            f"the table in .github/docs/settings.md is out of date; this prints it:\n\n    {PRINT_SETTINGS}\n",
        )

    def test_the_clients_table_is_the_one_the_proxy_uses(self) -> None:
        rows = [f"| {name} | `{marker}` |" for name, marker in clients.AGENTS + clients.SDKS]
        table = "\n".join(["| client | known by |", "|---|---|", *rows])
        self.assertTrue(marked("clients", "clients") == table, f".github/docs/clients.md should have:\n\n{table}\n")

    def test_the_prices_are_todays_and_pro_costs_three_to_seven_times_as_much(self) -> None:
        """So say the README and `setup`, too."""
        flash, pro = (step.peak for name in MODELS[::-1] if (step := find_step(name, USD, datetime.now(UTC))))
        found = re.findall(r"(?m)^\| `deepseek-[^`]*` \| \$([\d.]+) \| \$([\d.]+) \| \$([\d.]+) \|$", ALL)
        rates = [[rates.hit, rates.miss, rates.output] for rates in (flash, pro)]
        self.assertEqual(rates, [list(map(float, row)) for row in found])
        times = sorted(int(each / other) for each, other in zip(rates[1], rates[0], strict=True))
        self.assertEqual([3, 7], [times[0], times[-1]])


class NamesTest(unittest.TestCase):
    def test_every_flag_that_is_named_exists(self) -> None:
        known = {each.flag for each in SETTINGS}
        known |= {each.flag.replace("--", "--no-") for each in SETTINGS if each.switch or each.kind is bool}
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ALL))
        self.assertEqual(set(), named - known - OTHER_FLAGS - FOREIGN_FLAGS)

    def test_every_environment_variable_that_is_named_exists(self) -> None:
        named = set(re.findall(rf"{ENVIRONMENT_PREFIX}[A-Z_]+", ALL))
        self.assertEqual(
            set(), named - {ENVIRONMENT_PREFIX + each.key.upper() for each in SETTINGS} - {SECRET_VARIABLE}
        )

    def test_every_command_that_is_named_exists(self) -> None:
        table = OPERATIONS.partition("## Commands")[2].partition("\n## ")[0]
        commands = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")][1:]
        commands += re.findall(r"python -m deepseek_cursor_proxy ([a-z][a-z -]*)", ALL)
        # What follows `run` is a client's.
        for words in {" ".join(re.findall(r"^run\b|^[a-z-]+(?: [a-z]+)*", command)) for command in commands}:
            with self.subTest(words), contextlib.redirect_stdout(io.StringIO()), self.assertRaises(SystemExit) as ended:
                main([*words.split(), "--help"])
            self.assertEqual(0, ended.exception.code, words)

    def test_the_path_of_the_package_is_a_command_in_any_folder(self) -> None:
        self.assertIn("python …/deepseek_cursor_proxy run claude", README)
        command = [sys.executable, "-I", str(PACKAGE), "--version"]
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual((0, f"deepseek-cursor-proxy {__version__}\n", ""), (ran.returncode, ran.stdout, ran.stderr))

    def test_every_file_that_is_named_exists(self) -> None:
        """Paths from the root or from the package, as CONTRIBUTING writes them."""
        for path in re.findall(r"`([\w.]+(?:/[\w.]+)*/(?:\w+\.\w+)?|\w+\.py)`", CONTRIBUTING):
            with self.subTest(path):
                self.assertTrue((ROOT / path).exists() or (PACKAGE / path).exists())

    def test_every_name_that_is_named_exists(self) -> None:
        """Classes, functions and constants, as CONTRIBUTING writes them."""
        sources = (path for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*.py"))
        known = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in sources)))
        named = set(re.findall(r"`([A-Z]\w+|\w*_\w+)`", CONTRIBUTING)) - {"Manager"}
        self.assertEqual(set(), named - known)

    def test_the_map_has_every_folder_and_file(self) -> None:
        named = re.findall(r"^  ([a-z0-9_]+)[/.]", MAP, re.MULTILINE)
        folders = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
        self.assertEqual({*folders, *(path.stem for path in PACKAGE.glob("*.py"))} - {"__init__"}, set(named))

    def test_the_map_has_a_folder_above_those_that_it_imports(self) -> None:
        named = re.findall(r"^  ([a-z0-9_]+)/", MAP, re.MULTILINE)
        for folder, imported in DIRECTIONS.items():
            for other in {*imported.split()} & {*named}:
                self.assertIn(other, named[named.index(folder) :] if folder in named else named, folder)


class TextsTest(unittest.TestCase):
    def test_the_notice_is_quoted_as_the_proxy_writes_it(self) -> None:
        self.assertIn(f"`{NOTICE_LINE}`", README)

    def test_the_newest_changes_are_of_this_version(self) -> None:
        newest = re.findall(r"^## ([0-9.]+)$", PAGES[".github/docs/changes.md"], re.MULTILINE)[0]
        self.assertEqual(__version__, newest)
        self.assertIn(f"deepseek-cursor-proxy {__version__} is running.", README)

    def test_every_text_that_troubleshooting_quotes_stands_in_the_code(self) -> None:
        written = texts()
        rows = re.findall(r"^\| (.+?) \|", PAGES[".github/docs/troubleshooting.md"], re.MULTILINE)
        for quoted in (text for row in rows for text in re.findall(r"`([^`]+)`", row)):
            parts = [part for part in quoted.split("…") if part]
            with self.subTest(quoted):
                self.assertTrue(any(all(part in text for part in parts) for text in written))

    def test_the_readme_takes_three_minutes(self) -> None:
        self.assertLessEqual(len(README.splitlines()), 220)
        self.assertLessEqual(len(README.split()), 1200)

    def test_the_chinese_readme_says_the_same(self) -> None:
        self.assertEqual("[简体中文](.github/README.zh-CN.md)", README.splitlines()[0])
        self.assertEqual("[English](../README.md)", CHINESE.splitlines()[0])
        for part, english in outline("README.md").items():
            with self.subTest(part):
                self.assertEqual(english, outline(".github/README.zh-CN.md")[part])


def outline(page: str) -> dict[str, list[object]]:
    """What two pages in different languages have in common."""
    text = PAGES[page]
    code = re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    commands = [re.sub(" # .*", "", line) for line in "\n".join(code).splitlines()]
    return {
        "headings": re.findall(r"^#+", prose, re.MULTILINE),
        "commands": [" ".join(each.split()) for each in commands],
        "names in code": sorted(" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose)),
        "tables": [line.count("|") for line in prose.splitlines() if line.startswith("|")],
        "links": sorted((path, anchor) for where, path, anchor in links() if where == page and "README" not in path),
    }


def texts() -> list[str]:
    """Every string of the package, with … for what is filled in."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]", "…", node.value))
    return found


class ExamplesTest(unittest.TestCase):
    def test_the_settings_that_real_clients_are_tested_with_are_on_a_page(self) -> None:
        self.assertIn("base_url", block("toml", 'model = "deepseek-flash"\nmodel_provider'))
        self.assertIn("ANTHROPIC_AUTH_TOKEN", block("bash", "export ANTHROPIC_BASE_URL"))

    def test_every_example_is_well_formed(self) -> None:
        checks = {"json": json.loads, "toml": tomllib.loads, "python": ast.parse}
        for language, example in re.findall(r"^```(\w+)\n(.*?)^```$", ALL, re.MULTILINE | re.DOTALL):
            if language in checks:
                with self.subTest(example):
                    checks[language](example)

    def test_every_example_of_a_table_of_settings_can_be_loaded(self) -> None:
        """Of all tables but [keys], which `access-key` writes. The pages for clients also have files of Codex."""
        text = "\n".join(page for path, page in PAGES.items() if not path.endswith("clients.md"))
        loaded = set()
        for example in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            with self.subTest(example), tempfile.TemporaryDirectory() as folder:
                (path := Path(folder) / "config.toml").write_text(example, encoding="utf-8")
                loaded |= {
                    name for name, origin in LoadedConfig.load(path, {}, {}).origins.items() if origin == str(path)
                }
        self.assertLessEqual({each.field for each in TABLES} - {"keys"}, loaded)


class LinksTest(unittest.TestCase):
    def test_every_link_leads_somewhere(self) -> None:
        for page, path, anchor in links():
            with self.subTest(page=page, path=path, anchor=anchor):
                self.assertTrue((ROOT / path).is_file())
                self.assertTrue(not anchor or anchor in anchors(path))

    def test_every_page_is_linked_from_the_readme(self) -> None:
        self.assertEqual(
            set(), PAGES.keys() - {path for page, path, _ in links() if page == "README.md"} - {"README.md"}
        )
