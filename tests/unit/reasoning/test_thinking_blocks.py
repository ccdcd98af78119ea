import html
import random
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.conversation import Batches, CallPiece, Delta, Heartbeat
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.notices import SILENT, early_end
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, PLAIN

FORMS = (COLLAPSIBLE, PLAIN)
NASTY = (
    "plain",
    "</details>",
    "a </details> b <details> c",
    "\n</details>\n\nlooks like the end",
    "<\\/details>",
    "<\\\\/details> <\\details",
    "</DETAILS> </Details >",
    "<details>\n<summary>Thinking</summary>\n\nnested\n</details>\n\n",
    "</think>\n\n<think>\n",
    "```\ncode fence never closed",
    "ends with a break\n",
    "\n\nstarts with breaks",
    "</detail",
    "<",
    "<<<</</details",
    "思考 é \u2028",
    " ",
)


def source(*items: Delta | Heartbeat, fails: bool = False) -> Batches:
    for item in items:
        yield [item]
    if fails:
        raise UpstreamFailed("cut")


def shown(
    *items: Delta | Heartbeat, form: thinking_blocks.Form | None = COLLAPSIBLE, notice: str = ""
) -> list[str | None]:
    batches = thinking_blocks.mirror(source(*items), form, lambda choice: notice)
    return [item.text for batch in batches for item in batch if isinstance(item, Delta)]


class TestForms(unittest.TestCase):
    def test_the_block_has_exactly_the_agreed_layout(self) -> None:
        self.assertEqual(
            ["<details>\n<summary>Thinking</summary>\n\nhm\n</details>\n\nHi"], shown(Delta(reasoning="hm", text="Hi"))
        )
        self.assertEqual(["<think>\nhm\n</think>\n\nHi"], shown(Delta(reasoning="hm", text="Hi"), form=PLAIN))

    def test_what_is_written_is_read_back_whatever_it_contains(self) -> None:
        for form in FORMS:
            for reasoning in NASTY:
                for text in ("", "Answer.", "</details>\n\n", form.opening + "x" + form.closing):
                    with self.subTest(form=form.tag, reasoning=reasoning, text=text):
                        calls = (CallPiece(0, "a", "b"),)
                        (written,) = shown(Delta(reasoning=reasoning, text=text, calls=calls), form=form)
                        assert written is not None
                        block = thinking_blocks.leading_block(written)
                        assert block is not None
                        self.assertEqual(reasoning, block.reasoning)
                        self.assertEqual(text, written[block.end :])

    def test_it_does_not_matter_how_the_stream_is_cut(self) -> None:
        random.seed(20261116)
        for form in FORMS:
            for reasoning in (*NASTY, "".join(NASTY)):
                whole = form.opening + form.escape(reasoning) + form.closing + "Done."
                for _ in range(20):
                    cuts = sorted(random.choices(range(len(reasoning) + 1), k=random.randrange(6)))
                    pieces = [reasoning[a:b] for a, b in zip([0, *cuts], [*cuts, len(reasoning)], strict=True)]
                    deltas = [Delta(reasoning=piece) for piece in pieces] + [Delta(text="Done.")]
                    with self.subTest(form=form.tag, pieces=pieces):
                        self.assertEqual(whole, "".join(text or "" for text in shown(*deltas, form=form)))

    def test_text_that_merely_looks_like_a_block_is_not_one(self) -> None:
        for text in (
            "",
            "<details>",
            " " + COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing,
            "<details>\n<summary>Notes</summary>\n\nx\n</details>\n\n",
            "<details>\n<summary>Thinking</summary>\nx\n</details>\n\n",
            COLLAPSIBLE.opening + "x\n</details>\nclosed by one line break only",
            "The tag <think> opens the thinking.",
            "<think>",
        ):
            with self.subTest(text):
                self.assertIsNone(thinking_blocks.leading_block(text))

    def test_a_block_that_was_stopped_while_thinking_is_ours(self) -> None:
        whole = "half `Vec<String>` <b>a</b> </details> <think> &lt; thought\n\n```\n<i>\n  </details>\nx"
        for form in FORMS:
            written = "".join(text or "" for text in shown(Delta(reasoning=whole), form=form))
            for end in range(len(form.opening), len(written)):
                (block,) = thinking_blocks.blocks(written[:end])
                self.assertTrue(block.is_open)
                self.assertEqual(end, block.end)
                self.assertTrue(block.fits(whole), block)
                self.assertFalse(block.fits("another thought") and len(block.reasoning) > 1, block)

    def test_a_tag_that_somebody_writes_about_in_the_midst_of_a_text_opens_nothing(self) -> None:
        self.assertEqual([], thinking_blocks.blocks("The tag:\n\n<think>\nopens the thinking."))

    def test_a_block_is_ours_after_html_escaping_and_other_line_ends(self) -> None:
        thought = 'a "Vec<String>" & &amp; </details>\n\n```\n<b>'
        for form in FORMS:
            shown = form.opening + form.escape(thought) + form.closing + "Is a < b?\n\nYes &amp; no."
            escaped = html.escape(shown)
            for name, text in {
                "HTML": escaped,
                "HTML, quotes left": html.escape(shown, quote=False),
                "CRLF": shown.replace("\n", "\r\n"),
                "both": escaped.replace("\n", "\r\n"),
            }.items():
                with self.subTest(name, form=form.tag):
                    (block,) = thinking_blocks.blocks(text)
                    self.assertEqual(thought, block.reasoning)
                    self.assertEqual("Is a < b?\n\nYes &amp; no.", thinking_blocks.cut(text, [block]))

    def test_text_without_a_block_stays_as_it_is_whatever_it_is_written_like(self) -> None:
        for text in ("&lt;b&gt;", "a\r\nb", "&lt;details&gt;\nx", "x <b> &lt;think&gt;\n", "<think>\r\na\n"):
            self.assertEqual(text, thinking_blocks.as_written(text))

    def test_white_space_before_a_block_does_not_hide_it(self) -> None:
        (found,) = thinking_blocks.blocks("\n " + COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing + "Hi")
        self.assertEqual(("x", 0), (found.reasoning, found.start))

    def test_a_block_whose_end_was_trimmed_is_still_one(self) -> None:
        for form in FORMS:
            block = thinking_blocks.leading_block((form.opening + "x" + form.closing).rstrip())
            assert block is not None
            self.assertEqual("x", block.reasoning)


class TestManyBlocks(unittest.TestCase):
    """One message may bring thousands of blocks, or a block in thousands of parts."""

    def test_blocks_with_open_fences_cost_no_more_than_their_length(self) -> None:
        opening, closing = COLLAPSIBLE.opening, COLLAPSIBLE.closing
        for inside in ("```x" + closing, "~~~ x" + closing, "```x\n" + closing + "```\n\n"):
            for before in ("", "Some words.\n\n"):
                started = time.thread_time()
                self.assertGreaterEqual(len(thinking_blocks.blocks(before + (opening + inside) * 4000)), 2000)
                self.assertLess(time.thread_time() - started, 5, (before, inside))

    def test_a_text_in_very_many_parts_costs_no_more_than_its_length(self) -> None:
        for part in ("x\n</details>\n", COLLAPSIBLE.opening, "\n</think> ", " ", "\n"):
            started = time.thread_time()
            text = thinking_blocks.rejoined([COLLAPSIBLE.opening, *[part] * 50_000])
            self.assertIsNotNone(text)
            self.assertLess(time.thread_time() - started, 5, part)


class TestMirror(unittest.TestCase):
    def test_one_delta_out_per_delta_in_and_the_block_closes_with_the_first_word(self) -> None:
        self.assertEqual(
            [None, "<details>\n<summary>Thinking</summary>\n\nI ", "think", "\n</details>\n\nFinal.", None],
            shown(
                Delta(reasoning=""),
                Delta(reasoning="I "),
                Delta(reasoning="think"),
                Delta(text="Final."),
                Delta(finish_reason="stop"),
            ),
        )

    def test_a_tool_call_or_the_end_closes_the_block_too(self) -> None:
        for last in (Delta(calls=(CallPiece(0, "a", "b"),)), Delta(finish_reason="length")):
            self.assertEqual("\n</details>\n\n", shown(Delta(reasoning="x"), last)[-1])

    def test_empty_text_beside_the_reasoning_does_not_close_it(self) -> None:
        self.assertEqual(
            [COLLAPSIBLE.opening + "a", "b", "\n</details>\n\n!"],
            shown(Delta(reasoning="a", text=""), Delta(reasoning="b", text=""), Delta(text="!")),
        )

    def test_reasoning_after_a_call_opens_no_block(self) -> None:
        self.assertIsNone(shown(Delta(calls=(CallPiece(0, "a", "b"),)), Delta(reasoning="late"))[-1])

    def test_thinking_is_in_the_text_or_beside_it_never_both(self) -> None:
        call, late = Delta(calls=(CallPiece(0, "a", "b"),)), Delta(reasoning="late")
        for name, deltas, told in (
            ("in the block", (Delta(reasoning="a"), Delta(reasoning="b", text="c"), Delta(text="d")), [None] * 3),
            ("no room for a block", (call, late), [None, "late"]),
            # A client would send the part back as if it were the whole.
            ("a part that does not fit", (Delta(reasoning="a"), call, late), [None] * 3),
        ):
            with self.subTest(name):
                batches = thinking_blocks.mirror(source(*deltas), COLLAPSIBLE)
                found = [item.reasoning for batch in batches for item in batch if isinstance(item, Delta)]
                self.assertEqual(told, found)

    def test_thinking_that_goes_on_gets_a_block_of_its_own_and_all_are_read_back(self) -> None:
        deltas = (Delta(reasoning="a"), Delta(text="b"), Delta(reasoning="c </det"), Delta(text="d"))
        for form in FORMS:
            written = "".join(text or "" for text in shown(*deltas, form=form))
            self.assertEqual(
                form.opening
                + "a"
                + form.closing
                + "b\n\n"
                + form.opening
                + form.escape("c </det")
                + form.closing
                + "d",
                written,
            )
            found = thinking_blocks.blocks(written)
            self.assertEqual(["a", "c </det"], [block.reasoning for block in found])
            self.assertEqual("bd", thinking_blocks.cut(written, found))

    def test_a_text_full_of_openings_is_not_read_to_its_end_for_each(self) -> None:
        openings = "\n\n<think>\n" * 20_000
        mixed = "\n\n<think>\n x\n</details>" * 20_000
        bad = ("\n\n" + COLLAPSIBLE.opening + "x\n</details>x") * 10_000
        for hostile in (openings, openings + "\n</think>x", openings * 2 + "\n</details>x", mixed, bad):
            self.assertEqual([], thinking_blocks.blocks("x" + hostile))
        self.assertEqual(1, len(thinking_blocks.blocks("x" + ("\n\n" + COLLAPSIBLE.opening) * 5_000)))

    def test_an_answer_left_in_the_thinking_is_told(self) -> None:
        self.assertEqual(
            SILENT, (shown(Delta(reasoning="all of it"), Delta(finish_reason="stop"))[-1] or "")[-len(SILENT) :]
        )
        for spoken in (
            (Delta(reasoning="x"), Delta(text="y"), Delta(finish_reason="stop")),
            (Delta(reasoning="x"), Delta(calls=(CallPiece(0, "a", "b"),)), Delta(finish_reason="stop")),
            (Delta(reasoning="x"), Delta(finish_reason="length")),
            (Delta(finish_reason="stop"),),
        ):
            self.assertNotIn(SILENT, shown(*spoken)[-1] or "")

    def test_an_end_for_an_unusual_reason_is_explained(self) -> None:
        last = shown(Delta(text="half"), Delta(finish_reason="insufficient_system_resource"))[-1]
        self.assertEqual(early_end("insufficient_system_resource"), last)

    def test_the_notice_stands_before_the_first_visible_word(self) -> None:
        self.assertEqual(
            [COLLAPSIBLE.opening + "x", "\n</details>\n\nNOTICE Hi", "again"],
            shown(Delta(reasoning="x"), Delta(text="Hi"), Delta(text="again"), notice="NOTICE "),
        )
        self.assertEqual(
            [None, "NOTICE Hi"], shown(Delta(reasoning="x"), Delta(text="Hi"), form=None, notice="NOTICE ")
        )
        self.assertEqual(["NOTICE "], shown(Delta(calls=(CallPiece(0, "a", "b"),)), form=None, notice="NOTICE "))

    def test_without_a_form_and_a_notice_nothing_is_touched(self) -> None:
        delta = Delta(reasoning="x", text="y")
        self.assertEqual([[delta]], list(thinking_blocks.mirror(source(delta), None)))

    def test_asides_and_usage_pass(self) -> None:
        usage = Delta(usage={"total_tokens": 1}, source={"choices": []})
        self.assertEqual(
            [[Heartbeat()], [usage]],
            list(thinking_blocks.mirror(source(Heartbeat(), usage), COLLAPSIBLE, lambda choice: "N")),
        )

    def test_choices_have_a_block_each(self) -> None:
        texts = shown(Delta(reasoning="a"), Delta(choice=1, reasoning="b"), Delta(text="x"), Delta(choice=1, text="y"))
        opening, closing = COLLAPSIBLE.opening, COLLAPSIBLE.closing
        self.assertEqual([opening + "a", opening + "b", closing + "x", closing + "y"], texts)

    def test_an_open_block_is_closed_before_a_failure_goes_on(self) -> None:
        batches = thinking_blocks.mirror(source(Delta(reasoning="half <"), fails=True), COLLAPSIBLE)
        next(batches)
        self.assertEqual([[Delta(text="<\n</details>\n\n")]], [next(batches)])
        with self.assertRaises(UpstreamFailed):
            next(batches)

    def test_a_failure_after_the_block_adds_nothing(self) -> None:
        batches = thinking_blocks.mirror(source(Delta(text="half"), fails=True), COLLAPSIBLE)
        next(batches)
        with self.assertRaises(UpstreamFailed):
            next(batches)

    def test_closing_the_mirror_closes_its_source(self) -> None:
        batches = source(Delta(text="a"), Delta(text="b"))
        mirror = thinking_blocks.mirror(batches, COLLAPSIBLE)
        next(mirror)
        mirror.close()
        self.assertEqual([], list(batches))

    def test_a_long_run_of_half_tags_stays_quick(self) -> None:
        """Each of these made a naive pattern quadratic."""
        for hostile in ("<" * 200_000, "<\\" * 100_000, "<details" * 20_000, "\\" * 200_000):
            (written,) = shown(Delta(reasoning=hostile, text="x"))
            assert written is not None
            block = thinking_blocks.leading_block(written)
            assert block is not None
            self.assertEqual(hostile, block.reasoning)

    def test_backslashes_without_end_are_read_once(self) -> None:
        """A model in a loop: every piece of it once made all the pieces before be read again."""
        pieces = [
            Delta(reasoning="<"),
            *(Delta(reasoning="\\" * 8) for _ in range(20_000)),
            Delta(reasoning="/details>"),
        ]
        read = 0
        split = thinking_blocks.Form.split_unfinished

        def counted(form: thinking_blocks.Form, text: str) -> tuple[str, str]:
            nonlocal read
            read += len(text)
            return split(form, text)

        with mock.patch.object(thinking_blocks.Form, "split_unfinished", counted):
            written = "".join(text or "" for text in shown(*pieces, Delta(text="x")))
        block = thinking_blocks.leading_block(written)
        assert block is not None
        self.assertEqual("<" + "\\" * 160_000 + "/details>", block.reasoning)
        self.assertLess(read, 500_000)
