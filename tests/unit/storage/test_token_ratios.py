import logging
import sqlite3
import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.storage import token_ratios
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.token_ratios import TokenRatios

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"


class TestTokenRatios(unittest.TestCase):
    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "store.sqlite3"
        self.now = 1000.0
        self.database = self.open()
        self.ratios = TokenRatios(self.database, clock=lambda: self.now)

    def open(self) -> Database:
        database = Database(self.path)
        self.addCleanup(database.close)
        database.open()
        return database

    def restart(self) -> None:
        self.database.close()
        self.database = self.open()
        self.ratios = TokenRatios(self.database, clock=lambda: self.now)

    def rows(self) -> dict[str, float]:
        with self.database.reader() as connection:
            return dict(connection.execute("SELECT model, mean FROM token_ratios").fetchall())

    def learn(self, told: int, times: int = 50, *, model: str = PRO, guessed: int = 10_000) -> float:
        for _ in range(times):
            self.ratios.learn(model, guessed, told)
        return self.ratios.ratio(model)

    # What is learned …

    def test_a_guess_is_left_alone_as_long_as_nothing_is_known(self) -> None:
        self.assertEqual(1, self.ratios.ratio(PRO))

    def test_what_keeps_being_told_is_believed(self) -> None:
        self.assertAlmostEqual(1.2, self.learn(12_000), delta=0.02)

    def test_a_change_is_followed(self) -> None:
        self.learn(12_000, 1000)
        self.assertAlmostEqual(0.9, self.learn(9_000, 100), delta=0.02)

    def test_one_model_says_nothing_about_another(self) -> None:
        self.learn(12_000, model=PRO)
        self.assertEqual(1, self.ratios.ratio(FLASH))

    def test_a_short_prompt_says_less_than_a_long_one(self) -> None:
        short, long = self.learn(150, 1, guessed=100), self.learn(15_000, 1, model=FLASH)
        self.assertTrue(1 < short < 1.02 < long)

    def test_a_single_absurdity_does_little_harm(self) -> None:
        self.learn(10_000)
        self.assertLess(self.learn(10**12, 1), 1.04)
        self.assertGreater(self.learn(1, 1), 0.97)

    def test_nonsense_is_not_learned(self) -> None:
        for guessed, told in ((0, 10), (10, 0), (-1, 10), (10, -1)):
            self.ratios.learn(PRO, guessed, told)
        self.assertEqual(1, self.ratios.ratio(PRO))

    def test_names_without_end_do_not_fill_the_memory(self) -> None:
        for number in range(1000):
            self.learn(12_000, 1, model=f"model-{number}")
        self.ratios.close()
        self.assertEqual(token_ratios._MOST_MODELS, len(self.rows()))

    # What is kept …

    def test_what_was_learned_survives_a_restart(self) -> None:
        before = self.learn(12_000)
        self.ratios.close()
        self.restart()
        self.assertAlmostEqual(before, self.ratios.ratio(PRO))

    def test_writes_are_minutes_apart(self) -> None:
        self.learn(12_000, 1)
        first = self.rows()
        self.learn(12_000, 50)
        self.assertEqual(first, self.rows())
        self.now += 301
        self.learn(12_000, 1)
        self.assertGreater(self.rows()[PRO], first[PRO])

    def test_what_has_hardly_changed_is_not_written(self) -> None:
        self.learn(10_010)
        self.ratios.close()
        self.assertEqual({}, self.rows())

    def test_a_file_that_fails_fails_nobody(self) -> None:
        self.database.close()
        self.assertAlmostEqual(1.2, self.learn(12_000), delta=0.02)
        self.ratios.close()

    def test_a_damaged_row_is_passed_over(self) -> None:
        with self.database.transaction() as connection:
            connection.execute("INSERT INTO token_ratios VALUES (?, 400.0, 3.0)", (PRO,))
        self.assertEqual(1, self.ratios.ratio(PRO))

    def test_a_fault_of_the_file_is_told(self) -> None:
        with self.database.transaction() as connection:
            connection.execute("DROP TABLE token_ratios")
            connection.execute("CREATE TABLE token_ratios (model)")
        with self.assertLogs(token_ratios.__name__, logging.WARNING):
            self.learn(12_000, 1)
            raised = sqlite3.OperationalError("no such column: mean")
            self.ratios._faults.warn("look up", raised)
        self.assertGreater(self.ratios.ratio(PRO), 1)


if __name__ == "__main__":
    unittest.main()
