import unittest
from unittest import mock

from deepseek_cursor_proxy.conversation import Batches, CallPiece, Delta, Heartbeat
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import (
    COLLAPSIBLE,
    NO_ANSWER,
    PLAIN,
    Form,
    early_end_notice,
    show_reasoning,
)
from tests.support.histories import written_block

FORMS = (COLLAPSIBLE, PLAIN)
CALL = Delta(calls=(CallPiece(0, "a", "b"),))


def source(*items: Delta | Heartbeat, fails: bool = False) -> Batches:
    for item in items:
        yield [item]
    if fails:
        raise UpstreamFailed("cut")


def display(*items: Delta | Heartbeat, form: Form | None = COLLAPSIBLE, notice: str = "") -> list[str | None]:
    batches = show_reasoning(source(*items), form, lambda choice: notice)
    return [item.text for batch in batches for item in batch if isinstance(item, Delta)]


class TestDisplay(unittest.TestCase):
    def test_the_display_writes_one_delta_per_delta_and_closes_the_block_before_text(self) -> None:
        deltas = [Delta(reasoning=text) for text in ("", "I ", "think")]
        self.assertEqual(
            [None, "<details>\n<summary>Thinking</summary>\n\nI ", "think", "\n</details>\n\nFinal.", None],
            display(*deltas, Delta(text="Final."), Delta(finish_reason="stop")),
        )

    def test_a_tool_call_or_the_end_closes_the_displayed_block(self) -> None:
        for last in (CALL, Delta(finish_reason="length")):
            self.assertEqual("\n</details>\n\n", display(Delta(reasoning="x"), last)[-1])

    def test_empty_text_beside_reasoning_does_not_close_the_displayed_block(self) -> None:
        self.assertEqual(
            [COLLAPSIBLE.opening + "a", "b", "\n</details>\n\n!"],
            display(Delta(reasoning="a", text=""), Delta(reasoning="b", text=""), Delta(text="!")),
        )

    def test_reasoning_after_a_call_opens_no_displayed_block(self) -> None:
        self.assertIsNone(display(CALL, Delta(reasoning="late"))[-1])

    def test_displayed_reasoning_is_in_the_text_or_in_its_field_never_both(self) -> None:
        late = Delta(reasoning="late")
        for name, deltas, expected in (
            ("in the block", (Delta(reasoning="a"), Delta(reasoning="b", text="c"), Delta(text="d")), [None] * 3),
            ("no room for a block", (CALL, late), [None, "late"]),
            # A client would send the part back as if it were the whole.
            ("a part that does not fit", (Delta(reasoning="a"), CALL, late), [None] * 3),
        ):
            with self.subTest(name):
                batches = show_reasoning(source(*deltas), COLLAPSIBLE)
                found = [item.reasoning for batch in batches for item in batch if isinstance(item, Delta)]
                self.assertEqual(expected, found)

    def test_later_reasoning_gets_a_displayed_block_of_its_own_and_all_read_back(self) -> None:
        deltas = (Delta(reasoning="a"), Delta(text="b"), Delta(reasoning="c </det"), Delta(text="d"))
        for form in FORMS:
            written = "".join(text or "" for text in display(*deltas, form=form))
            blocks = [written_block(reasoning, form) for reasoning in ("a", "c </det")]
            self.assertEqual(blocks[0] + "b\n\n" + blocks[1] + "d", written)
            found = thinking_blocks.find_blocks(written)
            self.assertEqual(["a", "c </det"], [block.reasoning for block in found])
            self.assertEqual("bd", thinking_blocks.strip_blocks(written, found))

    def test_an_answer_without_text_gets_a_note_in_the_display(self) -> None:
        thought, stop = Delta(reasoning="x"), Delta(finish_reason="stop")
        self.assertTrue((display(thought, stop)[-1] or "").endswith(NO_ANSWER))
        others = ((thought, Delta(text="y"), stop), (thought, CALL, stop), (thought, Delta(finish_reason="length")))
        for deltas in (*others, (stop,)):
            self.assertNotIn(NO_ANSWER, display(*deltas)[-1] or "")

    def test_an_unusual_finish_reason_is_explained_in_the_display(self) -> None:
        last = display(Delta(text="half"), Delta(finish_reason="insufficient_system_resource"))[-1]
        self.assertEqual(early_end_notice("insufficient_system_resource"), last)

    def test_the_notice_precedes_the_first_visible_text(self) -> None:
        self.assertEqual(
            [COLLAPSIBLE.opening + "x", "\n</details>\n\nNOTICE Hi", "again"],
            display(Delta(reasoning="x"), Delta(text="Hi"), Delta(text="again"), notice="NOTICE "),
        )
        for deltas, expected in (
            ((Delta(reasoning="x"), Delta(text="Hi")), [None, "NOTICE Hi"]),
            ((CALL,), ["NOTICE "]),
        ):
            self.assertEqual(expected, display(*deltas, form=None, notice="NOTICE "))

    def test_without_display_and_notice_deltas_stay_unchanged(self) -> None:
        delta = Delta(reasoning="x", text="y")
        self.assertEqual([[delta]], list(show_reasoning(source(delta), None)))

    def test_heartbeats_and_usage_pass_the_display(self) -> None:
        usage = Delta(usage={"total_tokens": 1}, chunk={"choices": []})
        batches = show_reasoning(source(Heartbeat(), usage), COLLAPSIBLE, lambda choice: "N")
        self.assertEqual([[Heartbeat()], [usage]], list(batches))

    def test_each_choice_has_a_displayed_block_of_its_own(self) -> None:
        thoughts = (Delta(reasoning="a"), Delta(choice=1, reasoning="b"))
        opening, closing = COLLAPSIBLE.opening, COLLAPSIBLE.closing
        texts = [opening + "a", opening + "b", closing + "x", closing + "y"]
        self.assertEqual(texts, display(*thoughts, Delta(text="x"), Delta(choice=1, text="y")))

    def test_only_an_open_displayed_block_is_closed_before_a_failure(self) -> None:
        for delta, closing in (
            (Delta(reasoning="half <"), [[Delta(text="<\n</details>\n\n")]]),
            (Delta(text="half"), []),
        ):
            batches = show_reasoning(source(delta, fails=True), COLLAPSIBLE)
            next(batches)
            self.assertEqual(closing, [next(batches) for _ in closing])
            with self.assertRaises(UpstreamFailed):
                next(batches)

    def test_closing_the_display_closes_its_source(self) -> None:
        batches = source(Delta(text="a"), Delta(text="b"))
        shown_batches = show_reasoning(batches, COLLAPSIBLE)
        next(shown_batches)
        shown_batches.close()
        self.assertEqual([], list(batches))

    def test_many_backslashes_are_displayed_in_linear_time(self) -> None:
        """Every piece once made all earlier pieces be read again."""
        pieces = [Delta(reasoning=text) for text in ("<", *["\\" * 8] * 20_000, "/details>")]
        read = 0
        split = thinking_blocks.Form.split_unfinished

        def counted(form: thinking_blocks.Form, text: str) -> tuple[str, str]:
            nonlocal read
            read += len(text)
            return split(form, text)

        with mock.patch.object(thinking_blocks.Form, "split_unfinished", counted):
            written = "".join(text or "" for text in display(*pieces, Delta(text="x")))
        block = thinking_blocks.block_at(written)
        assert block is not None
        self.assertEqual("<" + "\\" * 160_000 + "/details>", block.reasoning)
        self.assertLess(read, 500_000)
