import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.features.tokens import feature as counter_module
from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer
from deepseek_cursor_proxy.features.tokens.estimate import count_prompt, estimate_prompt
from deepseek_cursor_proxy.features.tokens.feature import TokenCounter
from tests.support.harness import PATIENCE
from tests.support.histories import user
from tests.unit.features.tokens.test_bpe import DOCUMENT, WIRE
from tests.unit.features.tokens.test_estimate import REAL

LONG = ChatRequest("flash", "deepseek-flash", tuple(user(text * 20) for text in REAL))
GUESS = estimate_prompt(LONG)


class TestTokenizerFile(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def counter(self, **settings: Any) -> TokenCounter:
        return TokenCounter(ProxyConfig(**settings))

    def test_without_a_tokenizer_the_token_count_is_the_estimate(self) -> None:
        self.assertEqual(GUESS, self.counter().count(LONG))

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

    def test_a_bad_tokenizer_file_is_logged_once_and_tokens_are_estimated(self) -> None:
        path = self.place / "tokenizer.json"
        for text, why in (
            ("no JSON", "no tokenizer.json"), ("[" * 100_000, "no tokenizer.json"), ("{}", "structure"),
            (json.dumps(DOCUMENT | {"normalizer": {"type": "NFC"}}), "the normalizer 'NFC'"), (None, "No such file"),
        ):  # fmt: skip
            with self.subTest(why), self.assertLogs(counter_module.__name__) as log:
                path.unlink() if text is None else path.write_text(text)
                counter = self.counter(tokenizer=path)
                self.assertEqual(GUESS, counter.count(LONG))
                self.assertFalse(self.is_exact(counter))
                self.assertEqual(GUESS, counter.count(LONG))
            self.assertEqual(1, len(log.output))
            self.assertIn(why, log.output[0])
