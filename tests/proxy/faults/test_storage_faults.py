"""Whatever happens to the file of the store, the proxy starts, answers every chat, logs it once and recovers by itself.

Each fault is real, and a chat with a tool loop runs through it over sockets: it is answered, and its reasoning is
restored within the run. The strict fake refuses a tool turn whose reasoning is missing, and the thinking is not shown,
so only the store can restore it.
"""

import contextlib
import logging
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy import proxy as composition
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.schema import STORE
from tests.fake_deepseek import FakeDeepSeek, weather_responder
from tests.support.cursor import WEATHER_TOOLS, CursorClient
from tests.support.harness import PATIENCE, RunningProxy
from tests.support.polling import eventually, wait_until
from tests.support.program import ServeTest, address
from tests.support.systems import needs_removable_open_files
from tests.support.threads import leave_no_thread

IS_ROOT = os.name != "posix" or os.geteuid() == 0
QUESTIONS = ("How is the weather here?", "And tomorrow?", "And then?")


class Chat:
    """One chat with a tool loop; every question checks what DeepSeek was sent."""

    def __init__(self, test: unittest.TestCase, url: str, fake: FakeDeepSeek, name: str = "") -> None:
        self._test = test
        self._fake = fake
        self._thought: list[str | None] = []
        self.url = url
        self.client = CursorClient(url, tools=WEATHER_TOOLS, system=f"You are brief. {name}")
        test.addCleanup(self.client.close)

    def ask(self, question: str = QUESTIONS[0]) -> None:
        """Answered whole, and all that was thought before is back, byte for byte."""
        turn = self.client.ask(question)
        self._test.assertTrue(all(answer.is_whole for answer in turn.answers), turn)
        self._thought += [answer.reasoning for answer in turn.answers]
        messages = self._fake.accepted[-1]["messages"]
        sent = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
        self._test.assertEqual(self._thought[: len(sent)], sent)
        self._test.assertEqual([], self._fake.refused)

    def go_on_from(self, other: "Chat") -> None:
        """Asks the second question of another chat, whose first was answered elsewhere."""
        self.client.messages, self._thought = other.client.messages, other._thought
        self.ask(QUESTIONS[1])


class FaultTestCase(unittest.TestCase):
    def setUp(self) -> None:
        leave_no_thread(self)
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.place / "store.sqlite3"
        self.fake = self.enterContext(FakeDeepSeek(responder=weather_responder))
        self.warnings: list[str] = []
        log = logging.getLogger("deepseek_cursor_proxy")
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        self.addCleanup(log.removeHandler, handler)
        before, log.propagate = log.propagate, False
        self.addCleanup(setattr, log, "propagate", before)

    def proxy(self, path: Path | None = None) -> RunningProxy:
        running = RunningProxy(self.fake.url, ReasoningStore(path or self.path), display_reasoning=False)
        self.addCleanup(running.close)
        return running

    def chat(self, proxy: RunningProxy, name: str = "") -> Chat:
        return Chat(self, proxy.url, self.fake, name)

    def assert_reopened(self, proxy: RunningProxy) -> None:
        self.assertTrue(proxy.store.database.background.wait(PATIENCE))

    def until_warned(self, count: int = 1) -> None:
        self.assertTrue(eventually(lambda: len(self.warnings) >= count), self.warnings)

    def rows(self, path: Path | None = None) -> int:
        with contextlib.closing(sqlite3.connect(path or self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])

    def fill(self, count: int = 60) -> bytes:
        with contextlib.closing(ReasoningStore(self.path)) as store:
            # The tables of features, too.
            composition.build(ProxyConfig(), store).close()
            for number in range(count):
                store.record([([random.Random(number).randbytes(32)], f"{number} thought " * 100)])
        return self.path.read_bytes()

    def expect_memory_only(self, words: str, path: Path | None = None) -> RunningProxy:
        """The proxy starts, a chat works in memory, and there is one line about it."""
        proxy = self.proxy(path)
        chat = self.chat(proxy)
        for question in QUESTIONS:
            chat.ask(question)
        self.assertEqual(1, len(self.warnings), self.warnings)
        self.assertRegex(self.warnings[0], "^reasoning is kept in memory until .+ is usable again: .+; .+$")
        self.assertRegex(self.warnings[0], words)
        return proxy


class TestUnusableFiles(FaultTestCase):
    def test_a_folder_that_cannot_be_created_leaves_the_proxy_running(self) -> None:
        (self.place / "file").touch()
        proxy = self.expect_memory_only(
            "Not a directory|exists|cannot find", self.place / "file" / "a" / "store.sqlite3"
        )
        (self.place / "file").unlink()
        self.assert_reopened(proxy)
        self.assertEqual(5, self.rows(self.place / "file" / "a" / "store.sqlite3"))

    def test_a_foreign_file_in_place_of_the_store_is_not_changed(self) -> None:
        kinds: dict[str, Callable[[], object]] = {
            "text": lambda: self.path.write_bytes(b"Dear reader, " * 1000),
            "another program": lambda: self.make("CREATE TABLE theirs (x)"),
            "newer version": lambda: self.make(
                f"PRAGMA application_id = {STORE.application_id}",
                "CREATE TABLE reasonings (x)",
                f"PRAGMA user_version = {STORE.version + 1}",
            ),
        }
        for name, make in kinds.items():
            with self.subTest(name):
                make()
                before = self.path.read_bytes()
                self.warnings.clear()
                self.expect_memory_only("left alone; move it away or choose another place").close()
                self.assertEqual(before, self.path.read_bytes())
                self.assertEqual([self.path], list(self.place.iterdir()))
                self.path.unlink()

    def make(self, *statements: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in ("PRAGMA journal_mode=WAL", *statements):
                connection.execute(statement)

    @unittest.skipIf(IS_ROOT, "nothing is read-only for root")
    def test_a_store_that_is_read_only_is_still_read(self) -> None:
        first = self.proxy()
        chat = self.chat(first)
        chat.ask()
        first.close()
        self.path.chmod(0o400)
        proxy = self.proxy()
        again = self.chat(proxy)
        again.go_on_from(chat)
        again.ask(QUESTIONS[2])
        self.assertRegex(self.warnings[0], "it is read-only; make it and its folder readable and writable")
        self.path.chmod(0o600)
        self.assert_reopened(proxy)
        self.assertEqual(5, self.rows())


class TestLocks(FaultTestCase):
    @contextlib.contextmanager
    def locked(self, statement: str = "BEGIN EXCLUSIVE") -> Iterator[None]:
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "c.execute('PRAGMA locking_mode=EXCLUSIVE') if sys.argv[2] == 'for itself' else None; "
            "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", code, str(self.path), statement]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            self.assertEqual(b"locked", process.stdout.readline().strip())
            yield
            process.kill()

    def test_a_store_locked_while_running_is_written_later(self) -> None:
        proxy = self.proxy()
        chat = self.chat(proxy)
        chat.ask()
        with self.locked():
            chat.ask(QUESTIONS[1])
            self.chat(proxy, "another").ask()
            self.until_warned()
            chat.ask(QUESTIONS[2])
        self.assert_reopened(proxy)
        self.assertRegex(self.warnings[0], "another process holds it locked")
        self.assertRegex(self.warnings[1], r"is usable again; entries written: \d+$")
        wait_until(lambda: self.rows() == 8)
        self.assertEqual(2, len(self.warnings))

    def test_a_store_locked_at_the_start_is_used_later(self) -> None:
        self.fill(1)
        for statement in ("for all", "for itself"):
            with self.subTest(statement):
                self.warnings.clear()
                with self.locked(statement):
                    proxy = self.expect_memory_only("another process holds it locked")
                self.assert_reopened(proxy)
                proxy.close()
        self.assertEqual(1 + 5, self.rows(), "the second chat is the first one again")

    def test_two_proxies_on_one_file_each_find_what_the_other_stored(self) -> None:
        one, two = self.proxy(), self.proxy()
        chat = self.chat(one)
        chat.ask()
        self.chat(two).go_on_from(chat)
        self.chat(one, "another").ask()
        # An answer outside a tool loop is written a moment later.
        wait_until(lambda: self.rows() == 4 + 3)
        self.assertEqual([], self.warnings)


class TestDamage(FaultTestCase):
    def expect_set_aside(self, content: bytes) -> None:
        self.path.write_bytes(content)
        self.warnings.clear()
        proxy = self.proxy()
        chat = self.chat(proxy)
        for question in QUESTIONS:
            chat.ask(question)
        self.assert_reopened(proxy)
        proxy.close()
        self.assertEqual(1, len(self.warnings), self.warnings)
        self.assertRegex(
            self.warnings[0], r"it is damaged \(.+\); it was set aside as .+\.corrupt-\d{8}-\d{6}\S* and a new"
        )
        [aside] = (path for path in self.place.glob("*.corrupt-*") if path.name[-1].isdigit())
        self.assertEqual(content[4096:], aside.read_bytes()[4096:])
        if os.name == "posix":
            self.assertEqual(0o600, aside.stat().st_mode & 0o777)
        self.assertEqual(5, self.rows())
        for path in self.place.iterdir():
            path.unlink()

    def test_a_damaged_store_is_renamed_and_logged(self) -> None:
        data = self.fill()
        rng = random.Random(4)
        for name, content in {
            "head zeroed": bytes(100) + data[100:],
            "first page overwritten": data[:100] + rng.randbytes(3996) + data[4096:],
            "tables overwritten": data[:4096] + rng.randbytes(len(data) - 4096),
            "cut in half": data[: len(data) // 2],
            "all zeroed": bytes(len(data)),
        }.items():
            with self.subTest(name):
                self.expect_set_aside(content)

    def test_a_store_damaged_while_running_is_replaced(self) -> None:
        self.fill()
        proxy = self.proxy()
        chat = self.chat(proxy)
        chat.ask()
        with self.path.open("r+b") as file:
            file.seek(4096)
            file.write(random.Random(4).randbytes(self.path.stat().st_size - 4096))
        # Its pages may be in SQLite's memory; a look at all of it finds the damage.
        with contextlib.suppress(Exception):
            proxy.store.stats()
        for name in ("b", "c"):
            self.chat(proxy, name).ask()
        self.assert_reopened(proxy)
        self.assertEqual(1, len(self.warnings), self.warnings)
        self.assertRegex(self.warnings[0], "is damaged .+ set aside")
        self.assertEqual(1, len([path for path in self.place.glob("*.corrupt-*") if path.name[-1].isdigit()]))
        self.chat(proxy, "d").ask()
        self.assertGreater(self.rows(), 0)

    def happens(self, happening: Callable[[], object]) -> None:
        proxy = self.proxy()
        self.chat(proxy).ask()
        happening()
        chat = self.chat(proxy, "another")
        for question in QUESTIONS:
            chat.ask(question)
        self.assert_reopened(proxy)
        self.assertEqual(1, len(self.warnings), self.warnings)
        self.assertRegex(self.warnings[0], "deleted, emptied or replaced; what is there now is used instead")
        proxy.close()
        self.assertGreaterEqual(self.rows(), 5)

    @needs_removable_open_files
    def test_a_store_deleted_while_running_is_created_again(self) -> None:
        for deed in (lambda: list(map(Path.unlink, self.place.iterdir())), self.path.unlink):
            self.happens(deed)
            self.warnings.clear()

    def test_a_store_emptied_while_running_is_created_again(self) -> None:
        self.happens(lambda: os.truncate(self.path, 0))


@unittest.skipIf(os.name == "nt", "limits are a POSIX thing")
class TestFullDisk(ServeTest):
    """The proxy as a process whose files may not grow beyond a limit, which is lifted later."""

    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek(responder=weather_responder))
        self.directory.mkdir()
        (self.directory / "config.toml").write_text("display_reasoning = false\n")

    def start(self, limit: int) -> tuple[Any, Chat]:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Inherited by the process; this one writes nothing large meanwhile.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            process = self.launch("--port", "0", "--base-url", self.fake.url)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        welcome = process.read_until("Stop with Ctrl-C.\n")
        host, port = address(welcome)
        return process, Chat(self, f"http://{host}:{port}/v1", self.fake)

    def lift(self, process: Any) -> None:
        import resource

        hard = resource.prlimit(process._process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(process._process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    def until(self, process: Any, words: str) -> None:
        self.assertTrue(eventually(lambda: words in process.errors), process.errors)

    def lines(self, process: Any) -> list[str]:
        return [line for line in process.errors.splitlines() if line[:1] not in "┌├└"]

    def expect_recovery(self, limit: int) -> None:
        process, chat = self.start(limit)
        for question in QUESTIONS:
            chat.ask(question)
        for number in range(6):
            Chat(self, chat.url, self.fake, f"{number} " * 2000).ask()
        self.until(process, "kept in memory until")
        if not hasattr(__import__("resource"), "prlimit"):
            self.skipTest("another process's limit can be lifted on Linux only")
        self.lift(process)
        self.until(process, "is usable again")
        chat.ask("And after that?")
        process.send(15)
        self.assertEqual(0, process.wait())
        warnings = self.lines(process)
        self.assertEqual(2, len(warnings), warnings)
        self.assertRegex(warnings[0], "kept in memory until .+: the disk is full.+; free some space")
        self.assertNotIn("Traceback", process.errors)
        with contextlib.closing(ReasoningStore(self.store)) as store:
            self.assertEqual(5 + 6 * 3 + 1, store.stats().reasonings)

    def test_a_full_disk_at_the_start_leaves_the_proxy_running(self) -> None:
        self.expect_recovery(limit=30_000)

    def test_a_disk_that_fills_up_leaves_the_proxy_running(self) -> None:
        self.expect_recovery(limit=80_000)
