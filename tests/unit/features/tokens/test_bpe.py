import json
import re
import time
import unittest
from copy import deepcopy
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer, Splitter, UnsupportedTokenizer
from tests.unit.features.tokens.test_estimate import REAL

WIRE = Path(__file__).parents[3] / "wire"
DOCUMENT: dict[str, Any] = json.loads((WIRE / "tokenizer.json").read_text(encoding="utf-8"))
VECTORS = json.loads((WIRE / "tokenizer_vectors.json").read_text(encoding="utf-8"))


class TestTokenizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.tokenizer = BpeTokenizer(DOCUMENT)

    def test_texts_of_every_kind_get_hugging_faces_token_ids_and_count_also_the_second_time(self) -> None:
        for vector in VECTORS * 2:
            with self.subTest(vector["text"]):
                self.assertEqual(vector["ids"], self.tokenizer.encode(vector["text"]))
                self.assertEqual(len(vector["ids"]), self.tokenizer.count(vector["text"]))

    def test_lines_have_as_many_tokens_together_as_alone(self) -> None:
        texts = [f"{text.strip()}\n" for text in REAL]
        self.assertEqual(sum(map(self.tokenizer.count, texts)), self.tokenizer.count("".join(texts)))

    def test_tokens_of_a_huge_word_are_counted_within_seconds(self) -> None:
        for text in ("a" * 300_000, "代" * 100_000, "<" * 100_000, " " * 100_000):
            with self.subTest(text[:1]):
                started = time.process_time()
                self.assertGreater(self.tokenizer.count(text), 100)
                self.assertLess(time.process_time() - started, 5)


class TestTokenizerFiles(unittest.TestCase):
    def refused(self, change: Any) -> str:
        document = deepcopy(DOCUMENT)
        change(document)
        with self.assertRaises(UnsupportedTokenizer) as refused:
            BpeTokenizer(document)
        return str(refused.exception)

    def test_a_tokenizer_file_may_write_merges_as_pairs(self) -> None:
        document = deepcopy(DOCUMENT)
        document["model"]["merges"] = [merge.split(" ") for merge in document["model"]["merges"]]
        newer = BpeTokenizer(document)
        for vector in VECTORS:
            self.assertEqual(vector["ids"], newer.encode(vector["text"]))

    def test_a_tokenizer_option_that_is_not_supported_is_refused_by_name(self) -> None:
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
            self.assertIn(named, self.refused(change), named)

    def test_json_that_is_no_tokenizer_is_refused(self) -> None:
        for document in ({}, {"model": None}, {"model": {"type": "BPE"}}, [], "text", None):
            with self.subTest(str(document)), self.assertRaises(UnsupportedTokenizer):
                BpeTokenizer(document)  # type: ignore[arg-type]
        self.assertIn("structure", self.refused(lambda it: it.pop("pre_tokenizer")))
        self.assertIn("structure", self.refused(lambda it: it["model"]["merges"].append("no pair at all")))


SPLIT = {"behavior": "Isolated", "invert": False}


SAMPLE = "Ab1é٣Ж中ｱ😀𝐀 \t\u0301_-+€\u3000\x1c\ue000"


def matched(pattern: str, text: str = SAMPLE) -> str:
    """The single characters of the text that the pattern matches."""
    splitter = Splitter(pattern)
    return "".join(each for each in text if splitter.pieces(f"{each}ZZ{each}") != [f"{each}ZZ{each}"])


class TestTranslation(unittest.TestCase):
    def test_a_unicode_class_matches_the_characters_of_its_category(self) -> None:
        for pattern, expected in (
            (r"\p{L}(?=ZZ)", "AbéЖ中ｱ𝐀"), (r"\p{Lu}(?=ZZ)", "AЖ𝐀"), (r"\p{N}", "1٣"), (r"\p{M}", "\u0301"),
            (r"[\p{P}\p{S}]", "😀_-+€"), (r"[^\p{L}\p{P}\p{S}](?=ZZ)", "1٣ \t\u0301\u3000\x1c\ue000"),
        ):  # fmt: skip
            self.assertEqual(expected, matched(pattern), pattern)

    def test_white_space_in_a_pattern_is_unicodes_and_not_pythons(self) -> None:
        self.assertEqual(" \t\u3000", matched(r"\s"))
        self.assertEqual(" \t\u3000", matched(r"[\s]"))
        self.assertIn("\x1c", matched(r"\S(?=ZZ)"))
        self.assertTrue(re.match(r"\s", "\x1c"))

    def test_escapes_and_ranges_of_a_pattern_keep_their_meaning(self) -> None:
        self.assertEqual(["a", "-]\\", "b"], Splitter(r"[\-\]\\]+").pieces("a-]\\b"))
        self.assertEqual(["x", "一龥", "y"], Splitter("[一-龥]+").pieces("x一龥y"))

    def test_pattern_syntax_that_python_reads_differently_is_refused_by_name(self) -> None:
        classes = (r"\w+", r"\d", r"\P{L}", r"\p{^L}", r"\p{Han}", "[a&&b]", "[[:alpha:]]")
        for pattern in (*classes, "(?i)a", "(a)", "a*", "("):
            with self.subTest(pattern), self.assertRaises(UnsupportedTokenizer) as refused:
                Splitter(pattern)
            self.assertIn("p" if "p{" in pattern else pattern[:1], str(refused.exception))


class TestSplitter(unittest.TestCase):
    def test_pieces_of_a_split_text_join_to_the_text(self) -> None:
        splitter = Splitter(r"\p{L}+|\p{N}{1,3}")
        for text in ("", "ab 12345 -- c", "ü ab 1", "😀 ab😀12345", "…"):
            self.assertEqual(text, "".join(splitter.pieces(text)), text)

    def test_a_text_is_split_alike_beside_any_other_character(self) -> None:
        splitter = Splitter(r" ?\p{L}+|\s+(?!\S)|\s+")
        for beside in ("1", "§", "\ue000", "😀"):
            self.assertEqual(["one", " two", " ", " ", beside], splitter.pieces(f"one two  {beside}"), beside)
