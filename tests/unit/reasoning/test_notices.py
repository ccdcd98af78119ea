import unittest

from deepseek_cursor_proxy.reasoning import notices
from deepseek_cursor_proxy.reasoning.notices import NO_ANSWER, NOTICE, NOTICE_LINE


class TestNotices(unittest.TestCase):
    def test_the_words_of_the_notice_are_fixed(self) -> None:
        self.assertEqual("[deepseek-cursor-proxy] Refreshed reasoning_content history.\n\n", NOTICE)

    def test_notices_are_taken_out_at_their_places_only(self) -> None:
        early = notices.early_end_notice("aborted")
        for text, left in (
            (NOTICE + "Hi", "Hi"),
            (NOTICE_LINE, ""),
            (NOTICE_LINE + "\n", ""),
            (NO_ANSWER, ""),
            (NO_ANSWER + "\n", ""),
            ("Hi" + early, "Hi"),
            ("Hi" + early + "\n", "Hi"),
            (early.lstrip(), ""),
            (NOTICE + "Hi" + early, "Hi"),
            ("Hi " + NOTICE, "Hi " + NOTICE),
            ("[deepseek-cursor-proxy] Hello", "[deepseek-cursor-proxy] Hello"),
            ("As I said: [deepseek-cursor-proxy] DeepSeek ended this answer early (x): y.", None),
            (early + "\n\nmore", None),
            ("", ""),
            # Words that a model said behind or instead of a notice.
            (NOTICE_LINE + " And the answer is 42.", None),
            (NOTICE_LINE * 3 + "Hi", None),
            (NOTICE_LINE + "\nHi", "Hi"),
            ("[deepseek-cursor-proxy] Refreshed the page and saw it.", None),
            ("[deepseek-cursor-proxy] Recovered 3 files\n\nHi", None),
            (NO_ANSWER + " So I say it now.", None),
            ("[deepseek-cursor-proxy] The model ended the war.\nHi", None),
            ("Hi\n\n[deepseek-cursor-proxy] DeepSeek ended this answer early (I am not done", None),
            ("Hi" + early + " Said in my own words.", None),
        ):
            with self.subTest(text):
                self.assertEqual(text if left is None else left, notices.strip(text))

    def test_a_text_before_the_start_is_not_looked_at(self) -> None:
        self.assertEqual("Hi", notices.strip("block" + NOTICE + "Hi", 5))

    def test_notices_of_relatives_are_taken_out_but_are_not_ours(self) -> None:
        for line in (
            "[deepseek-cursor-proxy] Recovered this DeepSeek chat because the reasoning was lost.",
            "[deepseek-cursor-proxy] Refreshed reasoning history; older turns dropped.",
            "[cursor-deepseek] Recovered from missing reasoning_content.",
        ):
            self.assertEqual("Hi", notices.strip(line + "\n\nHi"))
            self.assertFalse(notices.is_notice(line + "\n\nHi"))
        self.assertTrue(notices.is_notice(NOTICE + "Hi"))

    def test_only_unusual_ends_are_explained(self) -> None:
        for reason in ("stop", "tool_calls", "length", "content_filter", None):
            self.assertEqual("", notices.early_end_notice(reason))
        self.assertIn("(insufficient_system_resource)", notices.early_end_notice("insufficient_system_resource"))

    def test_a_long_text_of_beginnings_stays_quick(self) -> None:
        self.assertEqual(1_040_000, len(notices.strip("\n\n[deepseek-cursor-proxy] " * 40_000)))
