import unittest

from deepseek_cursor_proxy.reasoning import notices
from deepseek_cursor_proxy.reasoning.notices import NO_ANSWER, NOTICE, NOTICE_LINE


class TestNotices(unittest.TestCase):
    def test_the_text_of_the_notice_never_changes(self) -> None:
        self.assertEqual("[deepseek-cursor-proxy] Refreshed reasoning_content history.\n\n", NOTICE)

    def test_notices_are_stripped_only_where_we_write_them(self) -> None:
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
            # Text of a model after or instead of a notice.
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

    def test_a_notice_before_the_start_position_is_not_stripped(self) -> None:
        self.assertEqual("Hi", notices.strip("block" + NOTICE + "Hi", 5))

    def test_notices_of_related_proxies_are_stripped_but_do_not_count_as_ours(self) -> None:
        for line in (
            "[deepseek-cursor-proxy] Recovered this DeepSeek chat because the reasoning was lost.",
            "[deepseek-cursor-proxy] Refreshed reasoning history; older turns dropped.",
            "[cursor-deepseek] Recovered from missing reasoning_content.",
        ):
            self.assertEqual("Hi", notices.strip(line + "\n\nHi"))
            self.assertFalse(notices.is_notice(line + "\n\nHi"))
        self.assertTrue(notices.is_notice(NOTICE + "Hi"))

    def test_only_unusual_finish_reasons_have_an_explanation(self) -> None:
        for reason in ("stop", "tool_calls", "length", "content_filter", None):
            self.assertEqual("", notices.early_end_notice(reason))
        self.assertIn("(insufficient_system_resource)", notices.early_end_notice("insufficient_system_resource"))

    def test_a_text_full_of_notice_beginnings_is_searched_in_linear_time(self) -> None:
        self.assertEqual(1_040_000, len(notices.strip("\n\n[deepseek-cursor-proxy] " * 40_000)))
