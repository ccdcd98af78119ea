from deepseek_cursor_proxy.storage.table import Kind, Table
from tests.support.databases import StoreTestCase
from tests.support.threads import run_at_once


class Pictures(Table):
    kind = Kind("picture_descriptions", "pictures", ("caller", "picture"), ("text",), size="length(text)")


class TestTable(StoreTestCase):
    store_type = Pictures

    def write(self, names: range, size: int = 1) -> None:
        for name in names:
            self.store._write_row((b"me", b"%d" % name), (bytes(size),), self.now)
            self.now += 1

    def names(self) -> list[int]:
        return [int(name) for (name,) in self.select("SELECT picture FROM picture_descriptions ORDER BY id")]

    def test_a_row_is_replaced_or_only_its_time(self) -> None:
        for text, keeps_first, expected in ((b"1", False, b"1"), (b"2", False, b"2"), (b"3", True, b"2")):
            self.now += 1
            written = self.store._write_row((b"me", b"a"), (text,), self.now, keeps_first=keeps_first)
            self.assertEqual((expected,), written)
            self.assertEqual([(b"a", expected, self.now)], self.store._read_rows([b"a", b"b"], [b"me"]))

    def test_the_longest_unused_go_beyond_the_limits_of_number_bytes_and_age(self) -> None:
        for limits, left in (({"max_rows": 3}, 3), ({"max_bytes": 1_000_000}, 4), ({"max_age_seconds": 5.5}, 5)):
            with self.subTest(**limits):
                self.execute("DELETE FROM picture_descriptions")
                self.store = self.store_on(self.database, **limits)
                self.write(range(10), 250_000)
                self.assertEqual(10 - left, self.store.prune())
                self.assertEqual(list(range(10 - left, 10)), self.names())

    def test_two_prunings_at_once_delete_no_more_than_one(self) -> None:
        stores = [self.store_on(self.open(), max_rows=300) for _ in range(2)]
        self.write(range(1000))
        run_at_once(lambda store: store.prune(), stores)
        self.assertEqual(list(range(700, 1000)), self.names())

    def test_a_row_that_cannot_be_written_is_found_in_memory_and_written_when_the_file_reopens(self) -> None:
        locker = self.lock()
        self.write(range(1))
        self.assertEqual((b"x",), self.store._write_row((b"me", b"0"), (b"x",), self.now))
        self.assertEqual([(b"0", b"x", self.now)], self.store._read_rows([b"0"], [b"me"]))
        self.assertEqual([], self.names())
        locker.execute("ROLLBACK")
        self.database.reopen()
        self.assertEqual([(b"x",)], self.select("SELECT text FROM picture_descriptions"))

    def test_a_file_that_cannot_be_used_has_no_rows(self) -> None:
        self.database.close()
        found = self.store._read_rows([b"a"], [b"me"]), self.store._read_all(10), self.store.prune()
        self.assertEqual(([], [], 0), found)
