import random
import time
import unittest

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import (
    COLLAPSIBLE,
    NO_ANSWER,
    NOTICE,
    NOTICE_LINE,
    PLAIN,
    early_end_notice,
)
from tests.support.histories import written_block
from tests.support.width import width
from tests.unit.reasoning.test_display import display

FORMS = (COLLAPSIBLE, PLAIN)
EARLY_END = early_end_notice("aborted")
NASTY = (
    *("plain", "</details>", "a </details> b <details> c", "\n</details>\n\nlooks like the end", "<\\/details>"),
    *("<\\\\/details> <\\details", "</DETAILS> </Details >", "</think>\n\n<think>\n", "```\ncode fence never closed"),
    *("<details>\n<summary>Thinking</summary>\n\nnested\n</details>\n\n", "a break at the end\n", "\n\nbreaks first"),
    *("</detail", "<", "<<<</</details", "思考 é \u2028", " "),
)


class TestThinkingBlocks(unittest.TestCase):
    def test_a_thinking_block_has_exactly_the_specified_layout(self) -> None:
        collapsible = "<details>\n<summary>Thinking</summary>\n\nhm\n</details>\n\nHi"
        self.assertEqual([collapsible], display(Delta(reasoning="hm", text="Hi")))
        self.assertEqual(["<think>\nhm\n</think>\n\nHi"], display(Delta(reasoning="hm", text="Hi"), form=PLAIN))

    def test_a_thinking_block_reads_back_whatever_it_contains(self) -> None:
        for form in FORMS:
            for reasoning in NASTY:
                for text in ("", "Answer.", "</details>\n\n", form.opening + "x" + form.closing):
                    with self.subTest(form=form.tag, reasoning=reasoning, text=text):
                        calls = (CallPiece(0, "a", "b"),)
                        (written,) = display(Delta(reasoning=reasoning, text=text, calls=calls), form=form)
                        assert written is not None
                        block = thinking_blocks.block_at(written)
                        assert block is not None
                        self.assertEqual(reasoning, block.reasoning)
                        self.assertEqual(text, written[block.end :])

    def test_a_thinking_block_reads_back_however_its_stream_is_cut(self) -> None:
        random.seed(20261116)
        for form in FORMS:
            for reasoning in (*NASTY, "".join(NASTY)):
                whole = written_block(reasoning, form) + "Done."
                for _ in range(20):
                    cuts = sorted(random.choices(range(len(reasoning) + 1), k=random.randrange(6)))
                    pieces = [reasoning[a:b] for a, b in zip([0, *cuts], [*cuts, len(reasoning)], strict=True)]
                    deltas = [Delta(reasoning=piece) for piece in pieces] + [Delta(text="Done.")]
                    with self.subTest(form=form.tag, pieces=pieces):
                        self.assertEqual(whole, "".join(text or "" for text in display(*deltas, form=form)))

    def test_text_that_looks_like_a_thinking_block_is_none(self) -> None:
        whole = COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing
        summaries = ("<summary>Notes</summary>\n", "<summary>Thinking</summary>")
        details = (f"<details>\n{summary}\nx\n</details>\n\n" for summary in summaries)
        one_break = COLLAPSIBLE.opening + "x\n</details>\nclosed by one line break only"
        for text in (
            "", "<details>", "<think>", " " + whole, *details, one_break, "The tag <think> opens the thinking.",
        ):  # fmt: skip
            self.assertIsNone(thinking_blocks.block_at(text), text)
        self.assertEqual([], thinking_blocks.find_blocks("The tag:\n\n<think>\nopens the thinking."))

    def test_an_unfinished_thinking_block_is_recognised(self) -> None:
        whole = "half `Vec<String>` <b>a</b> </details> <think> &lt; thought\n\n```\n<i>\n  </details>\nx"
        for form in FORMS:
            written = "".join(text or "" for text in display(Delta(reasoning=whole), form=form))
            for end in range(len(form.opening), len(written)):
                (block,) = thinking_blocks.find_blocks(written[:end])
                self.assertTrue(block.is_open)
                self.assertEqual(end, block.end)
                self.assertTrue(block.matches(whole), block)
                self.assertFalse(block.matches("another thought") and len(block.reasoning) > 1, block)

    def test_a_thinking_block_after_white_space_is_recognised(self) -> None:
        (found,) = thinking_blocks.find_blocks("\n " + COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing + "Hi")
        self.assertEqual(("x", 0), (found.reasoning, found.start))

    def test_a_thinking_block_with_a_trimmed_end_is_recognised(self) -> None:
        for form in FORMS:
            block = thinking_blocks.block_at((form.opening + "x" + form.closing).rstrip())
            assert block is not None
            self.assertEqual("x", block.reasoning)


class TestQuotes(unittest.TestCase):
    QUOTED = ("a", " ", "\n", "\n\n", "\r\n", "</think>", NOTICE, NOTICE.strip(), NO_ANSWER, EARLY_END)

    def test_an_answer_that_quotes_our_notices_is_the_same_with_ours_and_without(self) -> None:
        for seed in range(width(1_000, 20_000)):
            rng = random.Random(seed)
            answer, thought = ("".join(rng.choices(self.QUOTED, k=rng.randrange(6))) for _ in range(2))
            form, notice = rng.choice((COLLAPSIBLE, PLAIN, None)), rng.choice(("", NOTICE))
            end = rng.choice(("", EARLY_END))
            shown = written_block(thought, form) if form and thought.strip(" ") else ""
            shown += notice + answer + (end if answer else end.lstrip())
            self.assertEqual(thinking_blocks.strip_display(answer), thinking_blocks.strip_display(shown), (seed, shown))

    def test_an_open_tag_that_an_answer_quotes_is_no_block_after_one_of_the_other_form(self) -> None:
        answer = "The tag\n\n<think>\nopens it."
        block = COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing
        self.assertEqual(answer, thinking_blocks.strip_display(block + answer))
        self.assertEqual("The tag", thinking_blocks.strip_display(PLAIN.opening + "x" + PLAIN.closing + answer))

    def test_a_text_of_nothing_but_notices_takes_linear_time(self) -> None:
        self.assertLess(1_000_000, len(thinking_blocks.strip_display(NOTICE * 20_000)))


class TestManyBlocks(unittest.TestCase):
    """One message may bring thousands of blocks."""

    def test_many_thinking_blocks_with_open_fences_take_linear_time(self) -> None:
        opening, closing = COLLAPSIBLE.opening, COLLAPSIBLE.closing
        for inside in ("```x" + closing, "~~~ x" + closing, "```x\n" + closing + "```\n\n"):
            for before in ("", "Some words.\n\n"):
                started = time.thread_time()
                found = thinking_blocks.find_blocks(before + (opening + inside) * width(800, 4000))
                self.assertTrue(found)
                self.assertLess(time.thread_time() - started, width(0.5, 5), (before, inside))

    def test_many_openings_before_a_tag_that_closes_none_take_linear_time(self) -> None:
        for form in FORMS:
            started = time.thread_time()
            self.assertEqual([], thinking_blocks.find_blocks("x" + ("\n\n" + form.opening) * 20_000 + form.end + "y"))
            self.assertLess(time.thread_time() - started, 0.5)


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
                self.assertEqual(left, thinking_blocks.strip_notices(text), text)
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
            self.assertEqual(text, thinking_blocks.strip_notices(text), text)

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
