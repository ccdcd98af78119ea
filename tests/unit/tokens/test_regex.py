import re
import unittest

from deepseek_cursor_proxy.tokens.bpe import Splitter, UnsupportedTokenizer

SAMPLE = "Ab1é٣Ж中ｱ😀𝐀 \t\u0301_-+€\u3000\x1c\ue000"


def matched(pattern: str, text: str = SAMPLE) -> str:
    """The single characters of the text that the pattern matches."""
    splitter = Splitter(pattern)
    return "".join(each for each in text if splitter.pieces(f"{each}ZZ{each}") != [f"{each}ZZ{each}"])


class TestTranslation(unittest.TestCase):
    def test_a_unicode_class_matches_the_characters_of_its_category(self) -> None:
        for pattern, expected in (
            (r"\p{L}(?=ZZ)", "AbéЖ中ｱ𝐀"),
            (r"\p{Lu}(?=ZZ)", "AЖ𝐀"),
            (r"\p{N}", "1٣"),
            (r"\p{M}", "\u0301"),
            (r"[\p{P}\p{S}]", "😀_-+€"),
            (r"[^\p{L}\p{P}\p{S}](?=ZZ)", "1٣ \t\u0301\u3000\x1c\ue000"),
        ):
            with self.subTest(pattern):
                self.assertEqual(expected, matched(pattern))

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
            with self.subTest(text):
                self.assertEqual(text, "".join(splitter.pieces(text)))

    def test_a_text_is_split_alike_beside_any_other_character(self) -> None:
        splitter = Splitter(r" ?\p{L}+|\s+(?!\S)|\s+")
        for beside in ("1", "§", "\ue000", "😀"):
            with self.subTest(beside):
                self.assertEqual(["one", " two", " ", " ", beside], splitter.pieces(f"one two  {beside}"))
