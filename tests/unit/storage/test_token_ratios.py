import logging
import sqlite3

from deepseek_cursor_proxy.storage import learned
from deepseek_cursor_proxy.storage.learned import TokenRatios
from tests.support.databases import StoreTestCase

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"


class TestTokenRatios(StoreTestCase):
    store_type = TokenRatios

    def rows(self) -> dict[str, float]:
        return dict(self.select("SELECT model, mean FROM token_ratios"))

    def learn(self, counted: int, times: int = 50, *, model: str = PRO, estimated: int = 10_000) -> float:
        for _ in range(times):
            self.store.learn(model, estimated, counted)
        return float(self.store.ratio(model))

    def test_the_ratio_of_a_model_begins_at_one_and_follows_its_own_counts(self) -> None:
        self.assertEqual(1, self.store.ratio(PRO))
        self.assertAlmostEqual(1.2, self.learn(12_000), delta=0.02)
        self.learn(12_000, 1000)
        self.assertAlmostEqual(0.9, self.learn(9_000, 100), delta=0.02)
        self.assertEqual(1, self.store.ratio(FLASH))

    def test_a_short_prompt_changes_the_ratio_less_than_a_long_one(self) -> None:
        short, long = self.learn(150, 1, estimated=100), self.learn(15_000, 1, model=FLASH)
        self.assertTrue(1 < short < 1.02 < long)

    def test_a_single_absurd_count_changes_the_ratio_little(self) -> None:
        self.learn(10_000)
        self.assertLess(self.learn(10**12, 1), 1.04)
        self.assertGreater(self.learn(1, 1), 0.97)

    def test_counts_and_estimates_of_zero_are_not_learned(self) -> None:
        for estimated, counted in ((0, 10), (10, 0), (-1, 10), (10, -1)):
            self.store.learn(PRO, estimated, counted)
        self.assertEqual(1, self.store.ratio(PRO))

    def test_the_number_of_models_with_a_ratio_is_limited(self) -> None:
        for number in range(1000):
            self.learn(12_000, 1, model=f"model-{number}")
        self.store.close()
        self.assertEqual(learned._MOST_MODELS, len(self.rows()))

    def test_token_ratios_survive_a_restart(self) -> None:
        before = self.learn(12_000)
        self.restart()
        self.assertAlmostEqual(before, self.store.ratio(PRO))

    def test_writes_of_a_ratio_are_minutes_apart(self) -> None:
        self.learn(12_000, 1)
        first = self.rows()
        self.learn(12_000, 50)
        self.assertEqual(first, self.rows())
        self.now += 301
        self.learn(12_000, 1)
        self.assertGreater(self.rows()[PRO], first[PRO])

    def test_a_ratio_that_hardly_changed_is_written_until_it_is_learned(self) -> None:
        self.learn(10_010, 16)
        self.restart()
        self.assertTrue(self.store.has_learned(PRO))
        self.assertFalse(self.store.has_learned(FLASH))
        before = self.rows()
        self.learn(10_050, 30)
        self.store.close()
        self.assertEqual(before, self.rows())

    def test_short_prompts_alone_teach_little(self) -> None:
        self.learn(110, 100, estimated=100)
        self.assertFalse(self.store.has_learned(PRO))

    def test_token_ratios_on_a_failing_file_raise_nothing(self) -> None:
        self.database.close()
        self.assertAlmostEqual(1.2, self.learn(12_000), delta=0.02)
        self.store.close()

    def test_a_damaged_token_ratio_is_ignored(self) -> None:
        self.execute(f"INSERT INTO token_ratios VALUES ('{PRO}', 400.0, 3.0)")
        self.assertEqual(1, self.store.ratio(PRO))

    def test_a_fault_while_reading_token_ratios_is_warned_about(self) -> None:
        self.execute("DROP TABLE token_ratios", "CREATE TABLE token_ratios (model)")
        with self.assertLogs(learned.__name__, logging.WARNING):
            self.learn(12_000, 1)
            raised = sqlite3.OperationalError("no such column: mean")
            self.store._faults.warn("look up", raised)
        self.assertGreater(self.store.ratio(PRO), 1)
