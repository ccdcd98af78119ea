"""The layout of the package: which folder imports which, which do no I/O, and nothing beyond the standard library.

`python -m tests.test_architecture` prints the sizes of the package and of a request's way through it.
"""

import ast
import functools
import io
import itertools
import re
import sys
import tokenize
import unittest
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

PACKAGE = "deepseek_cursor_proxy"
ROOT = Path(__file__).parent.parent / PACKAGE

# The folders that each folder imports. ROOT_FILES and `config` are open to all and are not repeated.
DIRECTIONS = {
    "config": "",
    "http1": "",
    "net": "http1",
    "deepseek": "http1",
    "reasoning": "deepseek http1",
    "protocols": "deepseek http1 reasoning",
    "storage": "net",
    "upstream": "deepseek http1 net",
    "observers": "deepseek reasoning storage",
    "exchange": "access deepseek http1 net observers protocols reasoning storage upstream",
    "api": "access deepseek exchange http1 net observers protocols reasoning storage upstream",
    # A feature imports the core, and other features only as FEATURES says; its command and its check the tools.
    "features": "access api cli.doctor cli.parser cli.questions cli.running_proxy deepseek exchange http1 net "
    "observers protocols reasoning server storage upstream",
    # The only file that imports core and features and puts them together.
    "proxy": "api exchange storage",
    "server": "api exchange http1 net proxy storage",
    "cli.tunnel": "",
    "cli.setup": "cli.access_key cli.parser cli.questions cli.running_proxy deepseek features proxy storage",
    "cli.doctor": "access cli.parser cli.questions cli.running_proxy cli.setup deepseek features net observers proxy "
    "storage upstream",
    "cli.access_key": "cli.parser cli.questions storage",
    "cli.parser": "api deepseek",
    "cli.questions": "",
    "cli.running_proxy": "storage",
    "cli": "access cli.access_key cli.doctor cli.parser cli.questions cli.running_proxy cli.setup cli.tunnel deepseek "
    "exchange features net observers proxy reasoning server storage upstream",
    # Files of the top level that are not open to all.
    "access": "http1",
    "reasoning_store": "storage",
    "__main__": "cli",
    "__init__": "",
}
# The features, and the other features that each imports.
FEATURES = {
    "responses": "redis tokens", "messages": "tokens", "web_search": "", "choices": "", "written_calls": "",
    "passthrough": "", "sessions": "dashboard tokens", "status_line": "", "response_cache": "", "request_log": "",
    "usage": "dashboard request_log", "keys": "dashboard redis tokens usage", "tokens": "", "redis": "",
    "dashboard": "request_log", "traces": "request_log",
}  # fmt: skip
# Those of them that a feature cannot do without; any other is imported only when it is there.
NEEDED = {"request_log", "tokens"}
# Small things that every folder may use, and what these use themselves.
ROOT_FILES = {
    "errors": "", "redaction": "json_codec", "json_codec": "errors", "chat_memory": "conversation json_codec",
    "conversation": "http1",
}  # fmt: skip
# Folders and files that do no I/O, keep no clock and start no thread.
PURE = {"config", "http1", "deepseek", "reasoning", "protocols", "conversation"}
PURE |= {"features.written_calls.call_markup", "features.written_calls.converter", "errors", "redaction", "json_codec"}
IMPURE = {"socket", "sqlite3", "threading", "time", "os", "logging", "subprocess", "ssl", "select", "random", "urllib"}
# Splitting a URL is no I/O.
HARMLESS = {"urllib.parse"}
# The last request of each chat, in memory.
LOCKED = {("reasoning.chats", "threading")}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    paths = sorted(ROOT.rglob("*.py"))
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def folder(module: str) -> str:
    """The row of DIRECTIONS that a module belongs to; some sub-folders have one."""
    parts = module.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in DIRECTIONS else parts[0]


@functools.cache
def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


# What the methods of a Feature get.
ANNOTATION = f"if TYPE_CHECKING:\n    from {PACKAGE}.exchange.services import Services\n"


def own_imports(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports."""
    is_annotation = ANNOTATION in path.read_text(encoding="utf-8")
    for name in imports(path):
        if name.startswith(PACKAGE + ".") and not (is_annotation and name == f"{PACKAGE}.exchange.services.Services"):
            inner = name.removeprefix(PACKAGE + ".")
            yield next((each for each in (inner, inner.rpartition(".")[0]) if each in modules()), "__init__")


class TestArchitecture(unittest.TestCase):
    def test_a_folder_imports_only_the_folders_named_for_it(self) -> None:
        for module, path in modules().items():
            here = folder(module)
            self.assertIn(here, DIRECTIONS.keys() | ROOT_FILES.keys(), f"{here} has no row in DIRECTIONS")
            allowed = {here, *ROOT_FILES, "config", "__init__", *DIRECTIONS.get(here, "").split()}
            if here in ROOT_FILES:
                allowed = {here, *ROOT_FILES[here].split()}
            if here == "config":
                allowed -= {"conversation"}
            for other in own_imports(path):
                with self.subTest(f"{module} imports {other}"):
                    self.assertIn(folder(other), allowed)

    def test_a_feature_imports_only_the_features_named_for_it(self) -> None:
        self.assertEqual(
            FEATURES.keys(), {each.name for each in (ROOT / "features").iterdir() if (each / "__init__.py").exists()}
        )
        for module, path in modules().items():
            if module.startswith("features."):
                here = module.split(".")[1]
                for other in own_imports(path):
                    if other.startswith("features."):
                        with self.subTest(f"{module} imports {other}"):
                            self.assertIn(other.split(".")[1], [here, "encryption", *FEATURES[here].split()])

    def test_no_two_folders_import_each_other(self) -> None:
        """Features are put together by `proxy`, and their modules are looked at one by one below."""
        rows = {**DIRECTIONS, **ROOT_FILES, "features": ""}
        self.assert_acyclic({name: set(named.split()) for name, named in rows.items()})

    def test_no_two_modules_import_each_other(self) -> None:
        self.assert_acyclic({module: set(own_imports(path)) - {module} for module, path in modules().items()})

    def assert_acyclic(self, graph: dict[str, set[str]]) -> None:
        for name in graph:
            with self.subTest(name):
                self.assertNotIn(name, _reachable(graph, graph[name]))

    def test_the_pure_folders_do_no_io(self) -> None:
        for module, path in modules().items():
            if {module, folder(module), module.split(".")[0]} & PURE:
                for name in imports(path):
                    with self.subTest(f"{module} imports {name}"):
                        is_harmless = any(name.startswith(each) for each in HARMLESS) or (module, name) in LOCKED
                        self.assertFalse(name.split(".")[0] in IMPURE and not is_harmless)
                        self.assertFalse(name.startswith(("http.client", "http.server")))

    def test_a_request_is_plain_functions_on_one_thread(self) -> None:
        words = (
            r"Lull|Steps\[|BLOCKING|EventLoop|event_loop|Workers|parked|without_lulls|WaitHandle|SingleWait|async def"
        )
        for module, path in modules().items():
            self.assertIsNone(re.search(words, path.read_text(encoding="utf-8")), module)

    def test_only_storage_sessions_and_the_ledger_know_sqlite(self) -> None:
        """The doctor names SQLite's version."""
        users = {module for module, path in modules().items() if "sqlite3" in imports(path)}
        others = {each for each in users if not each.startswith(("storage.", "features.", "cli.doctor."))}
        self.assertEqual(set(), others)

    def test_calls_to_deepseek_are_made_with_urllib(self) -> None:
        """The person this is built for asked for it."""
        self.assertIn("urllib.request", imports(ROOT / "upstream" / "client.py"))

    def test_nothing_outside_the_standard_library_is_imported(self) -> None:
        for module, path in modules().items():
            for name in imports(path):
                with self.subTest(f"{module} imports {name}"):
                    self.assertIn(name.split(".")[0], {*sys.stdlib_module_names, PACKAGE})

    def test_unit_tests_start_no_proxy_no_fake_and_no_program(self) -> None:
        words = re.compile(
            r"^from (?:tests\.proxy|tests\.lab)|\b(?:SocketTestCase|ServeTest|FakeDeepSeek|RawUpstream)\b", re.M
        )
        for path in (ROOT.parent / "tests" / "unit").rglob("*.py"):
            with self.subTest(path.name):
                self.assertIsNone(words.search(path.read_text(encoding="utf-8")))

    def test_files_stay_readable_in_one_sitting(self) -> None:
        # Generous: a file is one subject, and a subject is not split to satisfy a number.
        for module, path in modules().items():
            with self.subTest(module):
                self.assertLessEqual(len(path.read_text(encoding="utf-8").splitlines()), 600)

    def test_every_folder_says_what_it_is_for(self) -> None:
        for init in sorted(ROOT.rglob("__init__.py")):
            with self.subTest(init.parent.name):
                self.assertTrue(ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))))

    def test_outside_code_finds_the_public_names(self) -> None:
        from deepseek_cursor_proxy.config import ProxyConfig
        from deepseek_cursor_proxy.reasoning_store import ReasoningStore
        from deepseek_cursor_proxy.server import DeepSeekProxyHandler, DeepSeekProxyServer

        for public in (ProxyConfig, ReasoningStore, DeepSeekProxyHandler, DeepSeekProxyServer):
            self.assertIsInstance(public, type)
        # As the person this is built for asked.
        self.assertTrue(issubclass(DeepSeekProxyServer, ThreadingHTTPServer))


class TestInterop(unittest.TestCase):
    def test_what_interop_imports_of_this_project_exists(self) -> None:
        """It runs only with packages and programs of others: a module that was renamed would not be missed."""
        for path in (ROOT.parent / "tests" / "interop").rglob("*.py"):
            for name in imports(path):
                if name.startswith(("tests.", PACKAGE + ".")):
                    module, _, member = name.rpartition(".")
                    file = ROOT.parent.joinpath(*module.split("."))
                    found = next(
                        (each for each in (file.with_suffix(".py"), file / "__init__.py") if each.exists()), None
                    )
                    is_module = (file / f"{member}.py").exists() or (file / member).is_dir()
                    text = found.read_text(encoding="utf-8") if found else ""
                    self.assertTrue(is_module or re.search(rf"\b{member}\b", text), f"{path.name}: {name}")


class TestTurnTrace(unittest.TestCase):
    def test_the_walk_and_the_invariant_of_contributing_are_those_of_a_traced_turn(self) -> None:
        from tests.support.turn_trace import trace_turn

        trace = trace_turn()
        names = list(dict.fromkeys(name.partition(":")[0] for name in trace.functions))
        page = (ROOT.parent / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
        walk = page.partition("## The walk of one request")[2].partition("**After a failure**")[0]
        steps = [re.findall(r"`([\w/]+\.py)`", row) for row in re.findall(r"(?m)^\| \d+ \|([^|]*)\|", walk)]
        files = list(dict.fromkeys(itertools.chain(*steps)))
        self.assertLessEqual(len(files), 20)
        self.assertLessEqual(set(files), set(names))
        # Up to the call: after it, generators run each other.
        [called] = [number for number, step in enumerate(steps) if "upstream/client.py" in step]
        first = [step[0] for step in steps[: called + 1] if step[0] != "exchange/exchange.py"]
        self.assertEqual(first, sorted(first, key=names.index))
        self.assertEqual(1, trace.threads)


def figures() -> dict[str, int]:
    """The size of the package, to be read and not to be checked: a limit only teaches people to raise it."""
    from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS
    from tests.support.turn_trace import trace_turn

    trace = trace_turn()
    lines = {name: _count_code(path) for name, path in modules().items()}
    return {
        "lines of code": sum(lines.values()),
        "lines of code of the core": sum(
            lines[name] for name in lines if name.split(".")[0] not in ("features", "cli")
        ),
        "files": len(modules()),
        "folders at the top": len(list(ROOT.glob("*/__init__.py"))),
        "files at the top": len(list(ROOT.glob("*.py"))),
        "settings": len(DECLARATIONS),
        "files of a streamed tool turn": trace.files,
        "functions of a streamed tool turn": len(trace.functions),
    }


def _count_code(path: Path) -> int:
    """The lines of a file without blank ones, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _reachable(graph: dict[str, set[str]], start: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, set()) - {name}
    return seen


if __name__ == "__main__":
    for each, size in figures().items():
        print(f"{size:6,} {each}")
