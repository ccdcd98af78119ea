"""The thinking block in the renderers of clients: the answer stands outside, the thought reads as it was written."""

import json
import random
import re
import urllib.request
from typing import Any

from tests.fake_deepseek import Answer
from tests.interop.command_line import KEY, MODEL, Json, NodeCase
from tests.support.histories import written_block
from tests.unit.reasoning.test_markdown_escape import WORDS

RENDERERS = (
    "markdown-it@15.0.3", "marked@18.2.0", "unified@11.0.5", "remark-parse@11.0.0", "remark-gfm@4.0.1",
    "remark-rehype@11.1.2", "rehype-raw@7.0.0", "rehype-stringify@10.0.1", "parse5@8.1.1",
)  # fmt: skip
ANSWER = "The answer [x] stands here."
# What markdown itself makes of a thought.
MARKDOWN = {
    "p", "em", "strong", "code", "pre", "ul", "ol", "li", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "br",
    "a", "table", "thead", "tbody", "tr", "th", "td", "del", "s", "input", "img", "sup", "section",
}  # fmt: skip
CODE = "```rust\nlet v: Vec<String> = x;\n```"
WHOLE_ANSWER = f"The answer is **42**, see [1] and [note].\n\n{CODE}\n\n- [^1] one\n- <kbd>two</kbd>\n"

# A thought, and words of it that a person has to be able to read.
THOUGHTS = {
    "plain words": ("I think.", "I think."),
    "an open fence": ("Let me see\n\n```py\nprint('<b>')", "print('<b>')"),
    "an open fence of tildes": ("Let me see\n~~~\ncode\n\n", "code"),
    "an open fence of five": ("`````md\n```\ninner\n```\n", "inner"),
    "an open fence in a list": ("1. first\n\n   ```sh\n   rm -rf .\n", "rm -rf ."),
    "an open fence in a quote": ("> ```\n> quoted\n", "quoted"),
    "a fence right at the start": ("```\nx = 1\n", "x = 1"),
    "a fence that is closed": ("```html\n<b>bold</b>\n```\nand on", "<b>bold</b>"),
    "a fence whose end is longer": ("~~~~\na\n~~~\nb\n", "b"),
    "an open comment": ("What about <!-- this\n\nand that", "<!-- this"),
    "a comment at the start of a line": ("<!--\n\nhidden?", "hidden?"),
    "pre": ("<pre>\nverbatim", "verbatim"),
    "bold": ("<b>loud", "<b>loud"),
    "a type parameter": ("A Vec<String> or Map<K, V<T>> or &'a str", "Vec<String>"),
    "a type in code": ("Use `Vec<String>` here", "Vec<String>"),
    "script and style": ("<script>alert(1)\n<style>* { display: none }", "alert(1)"),
    "the block's own end": ("It ends with </details>\n\n</details> twice, or </DETAILS >", "</details> twice"),
    "the block's own start": ("<details open><summary>x</summary>", "<summary>"),
    "a textarea": ("<textarea>\n\nand <select><option>", "<textarea>"),
    "a declaration": ("<!DOCTYPE html>\n<?php echo 1;\n<![CDATA[ x", "CDATA"),
    "a tag that stays open": ("ends with <a href='", "ends with"),
    "half a tag": ("ends with <", "ends with <"),
    "a definition of the answer's links": ("[1]: http://a.example\n\n[note]: http://b.example\n\nand on", "and on"),
    "a definition of the answer's note": ("A note[^1].\n\n[^1]: the note", "A note"),
    "an indented end": ("a list\n\n- item\n\n      code in it", "code in it"),
    "a table": ("| a | b |\n|---|---|\n| <i>x | y |", "<i>x"),
    "an underlined last line": ("Heading\n===\nanother\n---", "another"),
    "a backslash at the end": ("C:\\new\\", "C:\\new\\"),
    "entities": ("&lt;/details&gt; &amp; &#60;b&#62;", "/details"),
    "code with a tag": ("```html\n<details>\n</details>\n```", "<details>\n</details>"),
    "a list after a fence": ("1. One\n\n   ```\n   <i>\n   ```\n\n2. Two <i>", "Two <i>"),
    "indented code": ("Indented:\n\n    <table>", "<table>"),
    "an address": ("See http://127.0.0.1/a<b> there", "there"),
    "an open code span": ("see ``` inline `code", "inline"),
    "CRLF": ("a\r\n```\r\nb\r\n", "b"),
}  # fmt: skip


class MarkdownRenderersTest(NodeCase):
    needs = RENDERERS

    def rendered(self, thoughts: list[str]) -> list[dict[str, Any]]:
        texts = [written_block(each) + ANSWER for each in thoughts]
        return list(self.run_script("render_markdown.mjs", texts=texts))

    def assert_apart(self, thought: str, name: str, seen: dict[str, Any]) -> None:
        with self.subTest(thought, renderer=name):
            self.assertEqual([["p", ANSWER, []]], seen["behind"])
            self.assertEqual(1, seen["details"])
            self.assertLessEqual(set(seen["inside"]), MARKDOWN)

    def test_no_generated_thought_reaches_the_answer(self) -> None:
        rng = random.Random(0)
        thoughts = ["".join(rng.choices(WORDS, k=rng.randrange(1, 12))) for _ in range(1500)]
        # markdown-it takes a fence for a table if there is a | in its first line and a rule below.
        thoughts = [each for each in thoughts if not re.search(r"(```|~~~).*\|", each)]
        for thought, results in zip(thoughts, self.rendered(thoughts), strict=True):
            for name, seen in results.items():
                self.assert_apart(thought, name, seen)


class ServedBlockTest(NodeCase):
    """Through the proxy, with an answer that a thought could restyle in more ways."""

    needs = RENDERERS

    def script(self, payload: Json) -> Answer:
        # A size of pieces that splits every mark somewhere.
        return Answer(payload["messages"][0]["content"], WHOLE_ANSWER, piece=len(self.said) % 3 + 1)

    def content(self, url: str, thought: str, *, stream: bool) -> str:
        body = {"model": MODEL, "messages": [{"role": "user", "content": thought}], "stream": stream}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {KEY}")
        with urllib.request.urlopen(request) as response:
            data = response.read().decode()
        if not stream:
            return str(json.loads(data)["choices"][0]["message"]["content"])
        chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    def test_the_answer_stands_outside_the_block_and_looks_as_it_does_alone(self) -> None:
        url = self.start_proxy()
        shown = []
        for name, (thought, _) in THOUGHTS.items():
            shown.append(self.content(url, thought, stream=True))
            with self.subTest(name):
                self.assertEqual(shown[-1], self.content(url, thought, stream=False))
        *seen, alone = self.run_script("render_markdown.mjs", texts=[*shown, WHOLE_ANSWER])
        for (name, (_, words)), text, rendered in zip(THOUGHTS.items(), shown, seen, strict=True):
            for renderer, page in rendered.items():
                with self.subTest(name, renderer=renderer):
                    self.assertEqual(page["details"], 1, text)
                    self.assertEqual(page["outside"], alone[renderer]["outside"], text)
                    self.assertIn(words, page["thought"], text)
                    self.assertEqual(set(page["inside"]) - MARKDOWN, set(), text)
