"""The house keeps its shape: imports go down only, and the pure core stays pure."""

import ast
import functools
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "deepseek_cursor_proxy"
ROOT = Path(__file__).parent.parent / PACKAGE

# A room may import from its own level and those below; whole directories are written with a star.
LEVELS = {
    6: [
        "__main__",
        "lab",
        "lab.*",
        "observers.explain_trace",
        "cli.local_address",
        "cli.__init__",
        "cli.serve",
        "cli.signals",
        "resource_limits",
    ],
    5: [
        "server.proxy_server",
        "server.acceptor",
        "server.client_connection",
        "server.request_body",
        "server.stream_sender",
        "server.stream_loop",
        "server",
        "server.__init__",
    ],
    4: [
        "api.plain_reply",
        "api.routes",
        "api.chat",
        "api.responses",
        "api.messages",
    ],
    3: [
        "observers.*",
        "chats.tracker",
        "exchange.exchange",
        "exchange.upstream_call",
        "exchange.choices",
        "exchange.services",
        "exchange.background_jobs",
        "exchange",
        "exchange.__init__",
        "api.passthrough",
    ],
    2: [
        "reasoning_store",
        "steady_clock",
        "access",
        "private_files",
        "net.wakeup",
        "net.wait",
        "net",
        "net.__init__",
        "storage.reasoning_rows",
        "storage.sqlite_connection",
        "storage.database",
        "storage.schema",
        "storage.faults",
        "storage.file_check",
        "storage.pruner",
        "storage.reopener",
        "storage.group_commit",
        "storage.pending",
        "storage.reasonings",
        "storage.responses",
        "storage.response_rows",
        "storage.token_ratios",
        "storage.installation_secret",
        "chats.store",
        "tokens.counter",
        "upstream.client",
        "upstream.response",
        "upstream.response_head",
        "upstream.connect",
        "upstream.pool",
        "upstream.call_limit",
        "upstream.retry",
        "observers.log_writer",
        "observers.log_lines",
        "observers",
        "cli.child_process",
        "cli.windows_job",
        "cli.tunnel",
        "cli",
    ],
    1: [
        "protocols",
        "protocols.*",
        "reasoning",
        "reasoning.*",
        "deepseek.shortcut",
        "deepseek.chat_api",
        "deepseek.request_json",
        "deepseek.chat_stream",
        "deepseek.responses_api",
        "deepseek.responses_stream",
        "deepseek.api",
        "deepseek.error_messages",
        "deepseek.repeated_chunks",
        "deepseek.model_names",
        "deepseek.models",
        "deepseek.history_repair",
        "deepseek.forced_tools",
        "chats.divergence",
        "chats.tool_order",
        "chats",
        "chats.__init__",
        "tokens.estimate",
        "tokens.bpe",
        "api.clients",
        "api.key_settings",
    ],
    0: [
        "conversation",
        "memo",
        "wire",
        "errors",
        "own_hosts",
        "__init__",
        "config.__init__",
        "config.settings",
        "config.sources",
        "config.access_keys",
        "config.https_proxy",
        "config",
        "http1.heads",
        "http1.bodies",
        "http1.content_encoding",
        "http1.sse",
        "http1",
        "http1.__init__",
        "deepseek.images",
        "deepseek",
        "deepseek.__init__",
        "storage.event_log",
        "storage",
        "storage.__init__",
        "tokens.regex",
        "tokens",
        "tokens.__init__",
        "upstream.destination",
        "upstream",
        "upstream.__init__",
        "api.growing_json",
        "api",
        "api.__init__",
    ],
}
PURE_LEVELS = (0, 1)
IMPURE = {"socket", "sqlite3", "threading", "time", "os", "logging", "subprocess", "ssl", "select", "random", "urllib"}
# Splitting a URL is no I/O.
HARMLESS = {"urllib.parse"}


@functools.cache
def rooms() -> list[tuple[str, Path]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), path) for path in paths]


def level(room: str) -> int:
    for number, names in LEVELS.items():
        if room in names or any(name.endswith(".*") and room.startswith(name[:-1]) for name in names):
            return number
    raise AssertionError(f"{room} has no level; say in LEVELS where it belongs")


@functools.cache
def imports(path: Path) -> list[str]:
    return list(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    known = {room for room, _ in rooms()} | {room.removesuffix(".__init__") for room, _ in rooms()}
    for name in imports(path):
        if name.startswith(PACKAGE + "."):
            inner = name.removeprefix(PACKAGE + ".")
            yield next((each for each in (inner, inner.rpartition(".")[0]) if each in known), "__init__")


class TestArchitecture(unittest.TestCase):
    def test_imports_go_down_only(self) -> None:
        for room, path in rooms():
            for other in own_imports(path):
                with self.subTest(f"{room} imports {other}"):
                    self.assertGreaterEqual(level(room), level(other))

    def test_no_two_rooms_import_each_other(self) -> None:
        graph = {room.removesuffix(".__init__"): set(own_imports(path)) for room, path in rooms()}
        for start in graph:
            with self.subTest(start):
                self.assertNotIn(start, _reachable(graph, graph[start] - {start}))

    def test_the_core_does_no_io(self) -> None:
        for room, path in rooms():
            if level(room) in PURE_LEVELS:
                for name in imports(path):
                    with self.subTest(f"{room} imports {name}"):
                        is_harmless = any(name.startswith(each) for each in HARMLESS)
                        self.assertFalse(name.split(".")[0] in IMPURE and not is_harmless)
                        self.assertFalse(name.startswith(("http.client", "http.server")))

    def test_nothing_outside_the_standard_library_is_imported(self) -> None:
        for room, path in rooms():
            for name in imports(path):
                with self.subTest(f"{room} imports {name}"):
                    self.assertIn(name.split(".")[0], {*sys.stdlib_module_names, PACKAGE})

    def test_files_stay_readable_in_one_sitting(self) -> None:
        # Generous: a file is one subject, and a subject is not split to satisfy a number.
        for room, path in rooms():
            with self.subTest(room):
                self.assertLessEqual(len(path.read_text(encoding="utf-8").splitlines()), 450)


def _reachable(graph: dict[str, set[str]], start: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        room = waiting.pop()
        if room not in seen:
            seen.add(room)
            waiting += graph.get(room, set()) - {room}
    return seen
