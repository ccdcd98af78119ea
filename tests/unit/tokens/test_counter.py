import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.lab.fake_deepseek import Answer
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.tokens import counter as counting
from deepseek_cursor_proxy.tokens.bpe import Tokenizer
from deepseek_cursor_proxy.tokens.counter import Counter
from deepseek_cursor_proxy.tokens.estimate import estimated_prompt, prompt_tokens
from tests.support.harness import PATIENCE, SocketTestCase
from tests.support.histories import user
from tests.unit.tokens.test_bpe import DOCUMENT, WIRE
from tests.unit.tokens.test_estimate import REAL

LONG = ChatRequest("flash", "deepseek-flash", tuple(user(text * 40) for text in REAL))
GUESS = estimated_prompt(LONG)


class CounterTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.database = Database(self.folder / "store.sqlite3")
        self.addCleanup(self.database.close)
        self.database.open()
        self.now = 1000.0

    def counter(self, **settings: Any) -> Counter:
        counter = Counter(ProxyConfig(**settings), self.database, clock=lambda: self.now)
        self.addCleanup(counter.close)
        return counter


class TestLearning(CounterTestCase):
    def told(self, counter: Counter, usage: Any) -> int:
        """What is counted once the counter has thought about what DeepSeek told."""
        counter.learn(LONG, usage)
        if (thread := counter._learning) is not None:
            thread.join(PATIENCE)
        return counter.count(LONG)

    def test_at_first_the_guess_is_the_count(self) -> None:
        self.assertEqual(GUESS, self.counter().count(LONG))

    def test_what_deepseek_tells_mends_the_guess(self) -> None:
        counter = self.counter()
        for _ in range(16):
            count = self.told(counter, {"prompt_tokens": round(GUESS * 1.3)})
        self.assertAlmostEqual(1.3, count / GUESS, delta=0.05)

    def test_after_the_first_few_one_prompt_a_minute_is_looked_into(self) -> None:
        counter = self.counter()
        for _ in range(16):
            before = self.told(counter, {"prompt_tokens": GUESS})
        self.assertEqual(before, self.told(counter, {"prompt_tokens": GUESS * 2}))
        self.now += 61
        self.assertGreater(self.told(counter, {"prompt_tokens": GUESS * 2}), before)

    def test_an_answer_without_a_number_teaches_nothing(self) -> None:
        counter = self.counter()
        for usage in (None, {}, {"prompt_tokens": None}, {"prompt_tokens": True}, {"prompt_tokens": "12"}):
            self.assertEqual(GUESS, self.told(counter, usage))
        self.assertEqual({}, counter._looked)

    def test_a_closed_counter_learns_nothing_more(self) -> None:
        counter = self.counter()
        counter.close()
        self.assertEqual(GUESS, self.told(counter, {"prompt_tokens": GUESS * 2}))

    def test_another_counter_goes_on_from_there(self) -> None:
        counter = self.counter()
        learned = self.told(counter, {"prompt_tokens": GUESS * 2})
        counter.close()
        self.assertEqual(learned, self.counter().count(LONG))


class TestTokenizer(CounterTestCase):
    def test_until_it_is_read_the_guess_answers_and_then_it_counts(self) -> None:
        counter = self.counter(tokenizer=str(WIRE / "tokenizer.json"))
        self.assertFalse(counter.wait_for_tokenizer(0))
        self.assertIn(counter.count(LONG), (GUESS, exact := prompt_tokens(LONG, Tokenizer(DOCUMENT).count)))
        self.assertTrue(counter.wait_for_tokenizer(PATIENCE))
        for _ in range(2):
            self.assertEqual(exact, counter.count(LONG))

    def test_with_one_there_is_nothing_to_learn(self) -> None:
        counter = self.counter(tokenizer=WIRE / "tokenizer.json")
        counter.learn(LONG, {"prompt_tokens": GUESS * 2})
        self.assertEqual({}, counter._looked)

    def test_a_file_that_is_none_is_told_once_and_the_guess_goes_on(self) -> None:
        path = self.folder / "tokenizer.json"
        for text, why in (
            ("no JSON", "no tokenizer.json"),
            ("[" * 100_000, "no tokenizer.json"),
            ("{}", "structure"),
            (json.dumps(DOCUMENT | {"normalizer": {"type": "NFC"}}), "the normalizer 'NFC'"),
            (None, "No such file"),
        ):
            with self.subTest(why), self.assertLogs(counting.__name__) as told:
                path.unlink() if text is None else path.write_text(text)
                counter = self.counter(tokenizer=path)
                self.assertEqual(GUESS, counter.count(LONG))
                self.assertFalse(counter.wait_for_tokenizer(PATIENCE))
                self.assertEqual(GUESS, counter.count(LONG))
            self.assertEqual(1, len(told.output))
            self.assertIn(why, told.output[0])


class TestExchange(SocketTestCase):
    def test_an_answer_that_ends_teaches_the_counter(self) -> None:
        proxy = self.proxy()
        counter = proxy.server.generation().services.counter
        self.fake.answer(Answer(content="Hello."))
        self.client(proxy).ask("Hi")
        counter.close()
        self.assertEqual(["deepseek-v4-pro"], list(counter._looked))


if __name__ == "__main__":
    unittest.main()
