import itertools
import json
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.tokens import counter as counter_module
from deepseek_cursor_proxy.tokens.bpe import BpeTokenizer
from deepseek_cursor_proxy.tokens.counter import TokenCounter
from deepseek_cursor_proxy.tokens.estimate import count_prompt, estimate_prompt
from tests.support.databases import DatabaseTestCase
from tests.support.harness import PATIENCE
from tests.support.histories import user
from tests.unit.tokens.test_bpe import DOCUMENT, WIRE
from tests.unit.tokens.test_estimate import REAL

LONG = ChatRequest("flash", "deepseek-flash", tuple(user(text * 20) for text in REAL))
GUESS = estimate_prompt(LONG)


class CounterTestCase(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(counter_module, "_SECONDS_TO_BE_IDLE", 0.001))
        self.enterContext(mock.patch.object(counter_module, "_IDLE_CPU_SECONDS", 1.0))

    def counter(self, **settings: Any) -> TokenCounter:
        counter = TokenCounter(ProxyConfig(**settings), self.database, clock=lambda: self.now)
        self.addCleanup(counter.close)
        return counter


class TestSampling(CounterTestCase):
    def learned_count(self, counter: TokenCounter, usage: Any) -> int:
        """The count after `learn` and its thread have ended."""
        counter.learn(LONG, usage)
        counter._sampler.wait(PATIENCE)
        return counter.count(LONG)

    def test_without_a_tokenizer_the_token_count_is_the_estimate(self) -> None:
        self.assertEqual(GUESS, self.counter().count(LONG))

    def test_reported_usage_corrects_the_token_estimate(self) -> None:
        counter = self.counter()
        for _ in range(16):
            count = self.learned_count(counter, {"prompt_tokens": round(GUESS * 1.3)})
        self.assertAlmostEqual(1.3, count / GUESS, delta=0.05)

    def test_after_sixteen_samples_the_counter_takes_one_a_minute(self) -> None:
        counter = self.counter()
        for _ in range(16):
            before = self.learned_count(counter, {"prompt_tokens": GUESS})
        self.assertEqual(before, self.learned_count(counter, {"prompt_tokens": GUESS * 2}))
        self.now += 61
        self.assertGreater(self.learned_count(counter, {"prompt_tokens": GUESS * 2}), before)

    def test_usage_without_a_token_number_is_not_sampled(self) -> None:
        counter = self.counter()
        for usage in (None, {}, {"prompt_tokens": None}, {"prompt_tokens": True}, {"prompt_tokens": 10**400}):
            self.assertEqual(GUESS, self.learned_count(counter, usage))
        self.assertEqual({}, counter._sampled)

    def test_a_prompt_that_grows_by_searches_is_not_sampled(self) -> None:
        counter = self.counter()
        counter.learn(LONG._replace(server_tools=({"type": "web_search"},)), {"prompt_tokens": GUESS * 2})
        self.assertEqual({}, counter._sampled)

    def test_a_closed_token_counter_takes_no_sample(self) -> None:
        counter = self.counter()
        counter.close()
        self.assertEqual(GUESS, self.learned_count(counter, {"prompt_tokens": GUESS * 2}))

    def test_a_process_that_starts_later_takes_one_sample_a_minute_at_once(self) -> None:
        counter = self.counter()
        for _ in range(16):
            self.learned_count(counter, {"prompt_tokens": GUESS})
        counter.close()
        counter = self.counter()
        for _ in range(3):
            self.assertEqual(GUESS, self.learned_count(counter, {"prompt_tokens": GUESS * 2}))
        self.now += 61
        self.assertGreater(self.learned_count(counter, {"prompt_tokens": GUESS * 2}), GUESS)

    def test_long_prompts_are_not_sampled(self) -> None:
        counter = self.counter()
        self.assertEqual(GUESS, self.learned_count(counter, {"prompt_tokens": 32_001}))
        self.assertEqual({}, counter._sampled)

    def test_a_sample_waits_until_the_proxy_is_idle_and_is_dropped_if_that_takes_long(self) -> None:
        counter, times = self.counter(), [0.0, 0.2, 1.0, 1.2, 2.0, 2.001]
        usage = {"prompt_tokens": GUESS * 2}
        with mock.patch.object(counter_module, "_IDLE_CPU_SECONDS", 0.005):
            with mock.patch.object(counter_module.time, "process_time", side_effect=itertools.count()):
                self.assertEqual(GUESS, self.learned_count(counter, usage))
            with mock.patch.object(counter_module.time, "process_time", side_effect=times):
                self.assertGreater(self.learned_count(counter, usage), GUESS)

    def test_another_token_counter_starts_with_the_stored_ratio(self) -> None:
        counter = self.counter()
        learned = self.learned_count(counter, {"prompt_tokens": GUESS * 2})
        counter.close()
        self.assertEqual(learned, self.counter().count(LONG))


class TestTokenizerFile(CounterTestCase):
    def is_exact(self, counter: TokenCounter) -> bool:
        """Whether counts are exact once the tokenizer file is read, if that has begun."""
        if counter._loader is not None:
            counter._loader.join(PATIENCE)
        return counter._tokenizer is not None

    def test_the_token_count_is_exact_once_the_tokenizer_is_read(self) -> None:
        counter = self.counter(tokenizer=str(WIRE / "tokenizer.json"))
        self.assertFalse(self.is_exact(counter))
        self.assertIn(counter.count(LONG), (GUESS, exact := count_prompt(LONG, BpeTokenizer(DOCUMENT).count)))
        self.assertTrue(self.is_exact(counter))
        for _ in range(2):
            self.assertEqual(exact, counter.count(LONG))

    def test_with_a_tokenizer_the_counter_takes_no_sample(self) -> None:
        counter = self.counter(tokenizer=WIRE / "tokenizer.json")
        counter.learn(LONG, {"prompt_tokens": GUESS * 2})
        self.assertEqual({}, counter._sampled)

    def test_a_bad_tokenizer_file_is_logged_once_and_tokens_are_estimated(self) -> None:
        path = self.path.with_name("tokenizer.json")
        for text, why in (
            ("no JSON", "no tokenizer.json"),
            ("[" * 100_000, "no tokenizer.json"),
            ("{}", "structure"),
            (json.dumps(DOCUMENT | {"normalizer": {"type": "NFC"}}), "the normalizer 'NFC'"),
            (None, "No such file"),
        ):
            with self.subTest(why), self.assertLogs(counter_module.__name__) as log:
                path.unlink() if text is None else path.write_text(text)
                counter = self.counter(tokenizer=path)
                self.assertEqual(GUESS, counter.count(LONG))
                self.assertFalse(self.is_exact(counter))
                self.assertEqual(GUESS, counter.count(LONG))
            self.assertEqual(1, len(log.output))
            self.assertIn(why, log.output[0])
