import unittest

from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import NO_ANSWER, NOTICE, NOTICE_LINE


class TestNotices(unittest.TestCase):
    def test_the_text_of_the_notice_never_changes(self) -> None:
        self.assertEqual("[deepseek-cursor-proxy] Refreshed reasoning_content history.\n\n", NOTICE)

    def test_notices_are_stripped_only_where_we_write_them(self) -> None:
        early = thinking_blocks.early_end_notice("aborted")
        for left, *texts in (
            ("", "", NOTICE_LINE, NOTICE_LINE + "\n", NO_ANSWER, NO_ANSWER + "\n", early.lstrip()),
            ("Hi", NOTICE + "Hi", "Hi" + early, "Hi" + early + "\n", NOTICE + "Hi" + early, NOTICE_LINE + "\nHi"),
        ):
            for text in texts:
                with self.subTest(text):
                    self.assertEqual(left, thinking_blocks.strip_notices(text))
        for text in (
            "Hi " + NOTICE,
            "[deepseek-cursor-proxy] Hello",
            "As I said: [deepseek-cursor-proxy] DeepSeek ended this answer early (x): y.",
            early + "\n\nmore",
            # Text of a model after or instead of a notice.
            NOTICE_LINE + " And the answer is 42.",
            NOTICE_LINE * 3 + "Hi",
            "[deepseek-cursor-proxy] Refreshed the page and saw it.",
            "[deepseek-cursor-proxy] Recovered 3 files\n\nHi",
            NO_ANSWER + " So I say it now.",
            "[deepseek-cursor-proxy] The model ended the war.\nHi",
            "Hi\n\n[deepseek-cursor-proxy] DeepSeek ended this answer early (I am not done",
            "Hi" + early + " Said in my own words.",
        ):
            with self.subTest(text):
                self.assertEqual(text, thinking_blocks.strip_notices(text))

    def test_notices_of_related_proxies_are_stripped_but_do_not_count_as_ours(self) -> None:
        for line in (
            "[deepseek-cursor-proxy] Recovered this DeepSeek chat because the reasoning was lost.",
            "[deepseek-cursor-proxy] Refreshed reasoning history; older turns dropped.",
            "[cursor-deepseek] Recovered from missing reasoning_content.",
        ):
            self.assertEqual("Hi", thinking_blocks.strip_notices(line + "\n\nHi"))
            self.assertFalse(thinking_blocks.is_notice(line + "\n\nHi"))
        self.assertTrue(thinking_blocks.is_notice(NOTICE + "Hi"))

    def test_only_unusual_finish_reasons_have_an_explanation(self) -> None:
        for reason in ("stop", "tool_calls", "length", "content_filter", None):
            self.assertEqual("", thinking_blocks.early_end_notice(reason))
        self.assertIn(
            "(insufficient_system_resource)", thinking_blocks.early_end_notice("insufficient_system_resource")
        )

    def test_a_text_full_of_notice_beginnings_is_searched_in_linear_time(self) -> None:
        self.assertEqual(1_040_000, len(thinking_blocks.strip_notices("\n\n[deepseek-cursor-proxy] " * 40_000)))
