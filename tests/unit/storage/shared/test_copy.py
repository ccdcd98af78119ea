import random
from contextlib import ExitStack, closing
from pathlib import Path

from deepseek_cursor_proxy.reasoning.sealed import Sealer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.resp.protocol import EngineDown
from deepseek_cursor_proxy.storage.responses import ResponseStore, StoredResponse
from deepseek_cursor_proxy.storage.shared.copy import EngineSide, FileSide, copy
from tests.support.resp_server import RespServer
from tests.support.shared_engine import SECRET, EngineTestCase, key
from tests.unit.storage.shared.test_responses import stored

CALLERS = (b"a" * 32, b"b" * 32)


class TestCopy(EngineTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.resources = self.enterContext(ExitStack())
        self.reports: list[str] = []

    def filled(self) -> Path:
        """A file with reasonings under several keys, some of them under the same, and two responses."""
        path, rng = self.place / "filled.sqlite3", random.Random(1)
        with closing(ReasoningStore(path)) as store:
            for number in range(250):
                keys = [key(number), *(key(1000 + 2 * rng.randrange(20) + number % 2) for _ in range(rng.randrange(3)))]
                store.record([(keys, f"text {rng.randrange(200)}")], caller=CALLERS[number % 2])
            store.record([([key(9999)], "of an older version")])
            with closing(ResponseStore(store.database)) as responses:
                for number in range(2):
                    responses.put(CALLERS[number], stored(number))
        return path

    def content(self, path: Path) -> tuple[dict[bytes, list[str]], list[StoredResponse | None]]:
        every = [key(number) for number in (*range(250), *range(1000, 1040))]
        with closing(ReasoningStore(path)) as store, closing(ResponseStore(store.database)) as responses:
            return store.find(every), [responses.get(CALLERS[number], f"resp_{number}") for number in range(2)]

    def engine_side(self, server: RespServer, secret: bytes = SECRET) -> EngineSide:
        return EngineSide(server.url, secret, Sealer, self.resources)

    def file_side(self, path: Path) -> FileSide:
        return FileSide(path, self.resources)

    def copy(self, source: EngineSide | FileSide, target: EngineSide | FileSide) -> str:
        return copy(source, target, self.reports.append)

    def test_a_copy_to_an_engine_to_another_one_and_to_a_file_has_everything(self) -> None:
        path, last = self.filled(), self.place / "last.sqlite3"
        other = self.enterContext(RespServer())
        line = self.copy(self.file_side(path), self.engine_side(self.engine))
        self.assertTrue(line.startswith("Copied 250 reasonings and 2 responses. 1 reasonings of older"), line)
        # The other engine has another secret.
        self.copy(self.engine_side(self.engine), self.engine_side(other, b"x" * 32))
        self.copy(self.engine_side(other, b"x" * 32), self.file_side(last))
        self.resources.close()
        self.assertEqual(self.content(path), self.content(last))
        self.assertEqual(["100 reasonings", "200 reasonings", "250 reasonings"], self.reports[:3])
        found = self.instance("new").reasonings.find([key(number) for number in range(0, 1040, 2)], CALLERS[0])
        expected = {name: texts for name, texts in self.content(path)[0].items() if name[-1] % 2 == 0}
        self.assertEqual(expected, found)

    def test_a_copy_that_stopped_is_run_again(self) -> None:
        path, last = self.filled(), self.place / "last.sqlite3"
        before = EngineSide.add_reasonings

        def stop(side: EngineSide, entries: object) -> None:
            if len(self.reports) == 2:
                raise EngineDown("gone")
            before(side, entries)  # type: ignore[arg-type]

        EngineSide.add_reasonings = stop  # type: ignore[assignment, method-assign]
        try:
            with self.assertRaises(EngineDown):
                self.copy(self.file_side(path), self.engine_side(self.engine))
        finally:
            EngineSide.add_reasonings = before  # type: ignore[method-assign]
        for _ in range(2):
            self.copy(self.file_side(path), self.engine_side(self.engine))
            self.copy(self.engine_side(self.engine), self.file_side(last))
        self.assertEqual(250, len(self.engine.run(b"SCAN", b"0", b"MATCH", b"dcp:*}:r*")[1]))
        self.resources.close()
        self.assertEqual(self.content(path), self.content(last))

    def test_an_engine_with_another_secret_is_refused(self) -> None:
        self.instance("one")
        with self.assertRaisesRegex(EngineDown, "another installation secret"):
            self.engine_side(self.engine, b"x" * 32)
