import random
import time
import unittest

from deepseek_cursor_proxy.reasoning.markdown_escape import Escaper, escape_open, unescape
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, find_blocks, strip_blocks
from tests.support.traced_memory import traced_memory
from tests.support.width import width

WORDS = (
    "a", "word ", " ", "\n", "\n\n", "\r\n", "\r", "`", "``", "```", "````", "~~~", "~~~~", "<b>", "</b>", "<", "<!--",
    "<pre>", "&lt;", "&", "&#60;", "\\", "\\\\", "|", "- ", "1. ", "2) ", "> ", "    ", "\t", "[x]: http://y", "]", ":",
    "www.foo.com", "http://z?a=1&lt;", "Vec<String>", "</details>", "<details>", "\n```\n", "\n````\n", "\n~~~~\n",
    "# h", "===", "---", "\n    code <b>", "`<b>`", "<?php", "<![CDATA[",
    "\n- item\n  ```\n  <b>\n", "\n</details>\n\n",
)  # fmt: skip


def escape(text: str) -> str:
    escaper = Escaper()
    return escaper.write(text) + escaper.end()


def in_pieces(text: str, rng: random.Random) -> str:
    escaper, written, at = Escaper(), "", 0
    while at < len(text):
        end = at + rng.choice((1, 1, 2, 3, 7))
        written += escaper.write(text[at:end])
        at = end
    return written + escaper.end()


class TestRoundTrip(unittest.TestCase):
    def test_any_escaped_reasoning_reads_back_however_it_is_cut(self) -> None:
        for seed in range(width(800, 4000)):
            rng = random.Random(seed)
            text = "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14)))
            with self.subTest(seed=seed, text=text):
                written = escape(text)
                self.assertEqual(text, unescape(written))
                self.assertEqual(written, in_pieces(text, rng))
                display_text = COLLAPSIBLE.opening + written + COLLAPSIBLE.closing + "Answer."
                (block,) = find_blocks(display_text)
                self.assertEqual(text, block.reasoning)
                self.assertEqual("Answer.", strip_blocks(display_text, [block]))

    def test_repetitive_reasoning_is_escaped_in_linear_time(self) -> None:
        loops = ("<", "\\", "`", "&", "<a>", "`<", "]:", "```\n", "- ", "> ", "1. ", "&a", "`a|", "\r")
        for loop in (*loops, ":", ":)", "http://", "://", "www."):
            started, escaper, count = time.thread_time(), Escaper(), width(6_000, 30_000)
            written = "".join([escaper.write(piece) for piece in [*[loop] * count, " <b>"]]) + escaper.end()
            self.assertEqual(loop * count + " <b>", unescape(written))
            self.assertLess(time.thread_time() - started, width(0.5, 5), loop)


class TestMemory(unittest.TestCase):
    def test_reasoning_that_was_written_takes_about_as_much_memory_as_its_text(self) -> None:
        with traced_memory() as memory:
            escaper = Escaper()
            for number in range(5000):
                escaper.write(f"{number:05}")
            self.assertLess(memory.held(), 2.5 * 25_000)


class TestEscape(unittest.TestCase):
    def assert_written(self, cases: dict[str, str]) -> None:
        for text, written in cases.items():
            self.assertEqual(written, escape(text), text)

    def test_plain_reasoning_is_not_escaped(self) -> None:
        plain = ("hm", "a < b && c", "1 <= 2", "x[0]: y", "**bold**", "`a <b> c`", "cats & dogs", "http://a?b=1&c=2")
        self.assert_written({text: text for text in plain})

    def test_html_outside_code_is_escaped_with_a_backslash(self) -> None:
        marked = (r"Vec|<String>", r"|<b>x|</b>", r"|<!-- x", r"|&lt;", r"[a]|: http://b", r"- |<pre>", r"`open |<b>")
        self.assert_written({text.replace("|", ""): text.replace("|", "\\") for text in marked})
        self.assert_written({"\\<b>": "\\\\\\<b>", "http://a<b>": "http://a&lt;b>"})

    def test_code_in_reasoning_is_not_escaped(self) -> None:
        fences = (
            "```html\n<b>\n</details>\n```", "~~~\n<b>\n~~~", "1. a\n\n   ```\n   <b>\n   ```", "> ```\n> <b>\n> ```",
        )  # fmt: skip
        for code in (*fences, "`Vec<String>`", "``a ` <b>``", "x:\n\n    <b>"):
            self.assertEqual(code, escape(code))

    def test_a_list_or_quote_ends_code_for_the_escape(self) -> None:
        self.assert_written({"- ```\n  <b>\n<i>": "- ```\n  <b>\n\\<i>", "> ```\n<i>": "> ```\n\\<i>"})

    def test_an_open_fence_in_reasoning_is_closed(self) -> None:
        self.assert_written(
            {
                "```": "```\n````",
                "```py\nx": "```py\nx\n````",
                "~~~~\n```\n": "~~~~\n```\n\n~~~~~",
                "```\nx\n```": "```\nx\n```",
                # The model closed it like this: a line break makes the difference.
                "```\nx\n````": "```\nx\n````\n",
                "- ```\n  x": "- ```\n  x",
            }
        )
        self.assertEqual("```\nx", escape_open("```\nx"))
