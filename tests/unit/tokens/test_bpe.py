"""A small tokenizer of our own, against the numbers that Hugging Face's implementation makes with it."""

import json
import time
import unittest
from copy import deepcopy
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.tokens import bpe as room
from deepseek_cursor_proxy.tokens.bpe import Tokenizer
from deepseek_cursor_proxy.tokens.regex import NotUnderstood
from tests.unit.tokens.test_estimate import REAL

WIRE = Path(__file__).parents[2] / "wire"
DOCUMENT: dict[str, Any] = json.loads((WIRE / "tokenizer.json").read_text(encoding="utf-8"))
VECTORS = json.loads((WIRE / "tokenizer_vectors.json").read_text(encoding="utf-8"))


class TestTokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.tokenizer = Tokenizer(DOCUMENT)

    def test_texts_of_every_kind_become_the_known_tokens(self) -> None:
        for vector in VECTORS:
            with self.subTest(vector["text"]):
                self.assertEqual(vector["ids"], self.tokenizer.encode(vector["text"]))

    def test_counting_counts_the_tokens_the_second_time_as_the_first(self) -> None:
        for vector in VECTORS * 2:
            with self.subTest(vector["text"]):
                self.assertEqual(len(vector["ids"]), self.tokenizer.count(vector["text"]))

    def test_texts_one_after_another_count_as_much_as_a_line_each(self) -> None:
        texts = [f"{text.strip()}\n" for text in REAL]
        self.assertEqual(sum(map(self.tokenizer.count, texts)), self.tokenizer.count("".join(texts)))

    def test_a_word_without_end_is_counted_in_no_time(self) -> None:
        for text in ("a" * 300_000, "代" * 100_000, "<" * 100_000, " " * 100_000):
            with self.subTest(text[:1]):
                started = time.process_time()
                self.assertGreater(self.tokenizer.count(text), 100)
                self.assertLess(time.process_time() - started, 5)

    def test_words_are_forgotten_rather_than_kept_without_end(self) -> None:
        for number in range(room._WORDS_IN_MEMORY + 1000):
            self.tokenizer._remember(str(number), 1)
        self.assertLessEqual(len(self.tokenizer._lengths), room._WORDS_IN_MEMORY)

    def test_half_a_character_is_counted_too(self) -> None:
        self.assertEqual(1, self.tokenizer.count("\ud83d"))


class TestFiles(unittest.TestCase):
    def refused(self, change: Any) -> str:
        document = deepcopy(DOCUMENT)
        change(document)
        with self.assertRaises(NotUnderstood) as refused:
            Tokenizer(document)
        return str(refused.exception)

    def test_merges_may_be_pairs_as_newer_files_write_them(self) -> None:
        document = deepcopy(DOCUMENT)
        document["model"]["merges"] = [merge.split(" ") for merge in document["model"]["merges"]]
        newer = Tokenizer(document)
        for vector in VECTORS:
            self.assertEqual(vector["ids"], newer.encode(vector["text"]))

    def test_what_would_change_the_tokens_is_refused_by_name(self) -> None:
        steps = ("pre_tokenizer", "pretokenizers")
        for named, change in (
            ("Unigram", lambda it: it["model"].update(type="Unigram")),
            ("ignore_merges", lambda it: it["model"].update(ignore_merges=True)),
            ("end_of_word_suffix", lambda it: it["model"].update(end_of_word_suffix="</w>")),
            ("NFC", lambda it: it.update(normalizer={"type": "NFC"})),
            ("Digits", lambda it: it[steps[0]][steps[1]].insert(0, {"type": "Digits"} | SPLIT)),
            ("Removed", lambda it: it[steps[0]][steps[1]][0].update(behavior="Removed")),
            ("ByteLevel", lambda it: it[steps[0]][steps[1]].pop()),
            (r"\\w", lambda it: it[steps[0]][steps[1]][0].update(pattern={"Regex": r"\w"})),
            ("lstrip", lambda it: it["added_tokens"][0].update(lstrip=True)),
            ("byte 97", lambda it: it["model"]["vocab"].pop("a")),
        ):
            with self.subTest(named):
                self.assertIn(named, self.refused(change))

    def test_what_is_no_tokenizer_at_all_is_refused(self) -> None:
        for document in ({}, {"model": None}, {"model": {"type": "BPE"}}, [], "text", None):
            with self.subTest(str(document)), self.assertRaises(NotUnderstood):
                Tokenizer(document)  # type: ignore[arg-type]
        self.assertIn("structure", self.refused(lambda it: it.pop("pre_tokenizer")))
        self.assertIn("structure", self.refused(lambda it: it["model"]["merges"].append("no pair at all")))


SPLIT = {"behavior": "Isolated", "invert": False}

if __name__ == "__main__":
    unittest.main()
