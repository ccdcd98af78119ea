"""The thinking block in the renderers that clients use: the answer stands outside, the thought reads as it was written.

Not part of `python -m unittest`; `python -m unittest discover -s tests/interop` installs them into a temporary
directory where npm is, and skips where it is not.
"""

import random
import re
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.reasoning.display import COLLAPSIBLE
from tests.interop import npm
from tests.interop.node_case import NodeCase
from tests.reasoning.test_markdown_escape import WORDS

RENDERERS = (
    "markdown-it@15.0.3", "marked@18.2.0", "unified@11.0.5", "remark-parse@11.0.0", "remark-gfm@4.0.1",
    "remark-rehype@11.1.2", "rehype-raw@7.0.0", "rehype-stringify@10.0.1", "parse5@8.1.1",
)  # fmt: skip
ANSWER = "The answer [x] stands here."
# What markdown itself makes of a thought.
MARKDOWN = {
    "p", "em", "strong", "code", "pre", "ul", "ol", "li", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "br",
    "a", "table", "thead", "tbody", "tr", "th", "td", "del", "s", "input", "img",
}  # fmt: skip
# Thoughts, and what has to be read in them.
READ = {
    "An open fence:\n\n```rust\nlet a: Vec<String>;": "let a: Vec<String>;",
    "~~~\n<b>": "<b>",
    "A comment <!-- that is never closed": "<!-- that is never closed",
    "<pre> and <b> and </details>": "<pre> and <b> and </details>",
    "Vec<String> and `Vec<u8>` &lt; that": "Vec<String> and Vec<u8> &lt; that",
    "<script>alert(1)</script><style>p {color: red}": "<script>alert(1)</script><style>p {color: red}",
    "```html\n<details>\n</details>\n```": "<details>\n</details>",
    "1. One\n\n   ```\n   <i>\n   ```\n\n2. Two <i>": "Two <i>",
    "Indented:\n\n    <table>": "<table>",
    "[x]: http://127.0.0.1/": "[x]: http://127.0.0.1/",
    "See http://127.0.0.1/a<b> there": "there",
}

_commands = Path()


def setUpModule() -> None:
    global _commands
    _commands = npm.installed(*RENDERERS)


class MarkdownRenderersTest(NodeCase):
    def setUp(self) -> None:
        super().setUp()
        self.commands = _commands

    def rendered(self, thoughts: list[str]) -> list[dict[str, Any]]:
        texts = [COLLAPSIBLE.opening + COLLAPSIBLE.escape(each) + COLLAPSIBLE.closing + ANSWER for each in thoughts]
        return list(self.run_script("render_markdown.mjs", texts=texts))

    def assert_apart(self, thought: str, name: str, seen: dict[str, Any]) -> None:
        with self.subTest(thought, renderer=name):
            self.assertEqual([["p", ANSWER, []]], seen["behind"])
            self.assertEqual(1, seen["details"])
            self.assertLessEqual(set(seen["inside"]), MARKDOWN)

    def test_no_thought_swallows_or_restyles_the_answer_and_each_reads_as_it_was_written(self) -> None:
        for (thought, reads), results in zip(READ.items(), self.rendered(list(READ)), strict=True):
            for name, seen in results.items():
                self.assert_apart(thought, name, seen)
                self.assertIn(reads, seen["thought"], name)

    def test_no_generated_thought_reaches_the_answer(self) -> None:
        rng = random.Random(0)
        thoughts = ["".join(rng.choices(WORDS, k=rng.randrange(1, 12))) for _ in range(1500)]
        # markdown-it takes a fence for a table if there is a | in its first line and a rule below.
        thoughts = [each for each in thoughts if not re.search(r"(```|~~~).*\|", each)]
        for thought, results in zip(thoughts, self.rendered(thoughts), strict=True):
            for name, seen in results.items():
                self.assert_apart(thought, name, seen)


if __name__ == "__main__":
    unittest.main()
