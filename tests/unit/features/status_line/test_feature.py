import unittest

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.status_line import feature
from deepseek_cursor_proxy.observers.events import COMPLETED, Finished, RequestFacts, Timing

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"


class StatusLineTest(unittest.TestCase):
    def setUp(self) -> None:
        self.status_line = feature.StatusLine()

    def end(
        self, chat: str, model: str, hit: int, miss: int, dollars: float | None, tools: int = 5, key: str = "me"
    ) -> None:
        facts = RequestFacts(1, 0.0, "messages", key=key, model=model, tools=tools, chat=chat)
        cost = None if dollars is None else Cost(dollars, 0.0, 0.0, "USD", "")
        tokens = None if hit < 0 else Tokens(hit, miss, 1)
        event = Finished(facts, COMPLETED, Timing(1.0), None, None, None, tokens=tokens, cost=cost)
        self.status_line.handlers()[Finished](event)

    def test_the_line_has_the_model_of_the_chat_and_the_sums_of_all_its_requests(self) -> None:
        for chat, model, hit, miss, dollars, tools, line in (
            ("a", FLASH, 0, 100, 0.01, 0, "DeepSeek Flash · 0 % cached · $0.01"),
            ("a", PRO, 90, 10, 0.1, 5, "DeepSeek V4 Pro · 45 % cached · $0.11"),
            ("a/agent", FLASH, 700, 100, 1.0, 5, "DeepSeek V4 Pro · 79 % cached · $1.11"),
            ("a", FLASH, 0, 0, None, 0, "DeepSeek V4 Pro · 79 % cached · $1.11"),
            ("a", "other", -1, 0, None, 5, "DeepSeek V4 Pro · 79 % cached · $1.11"),
            ("b", "other", 0, 0, None, 5, "DeepSeek V4 Pro · 79 % cached · $1.11"),
        ):
            with self.subTest(chat, model=model):
                self.end(chat, model, hit, miss, dollars, tools)
                self.assertEqual(line, self.status_line.line("me", "a"))
        self.assertEqual("other · 0 % cached", self.status_line.line("me", "b"))

    def test_what_another_key_and_a_caller_without_one_used_is_not_shown(self) -> None:
        for key in ("you", ""):
            self.end("a", PRO, 1, 1, 1.0, key=key)
        self.assertEqual(["", ""], [self.status_line.line(key, "a") for key in ("me", "")])

    def test_of_many_chats_the_one_that_rested_longest_is_forgotten(self) -> None:
        for number in (*range(1000), 0, 1000):
            self.end(str(number), PRO, 1, 1, 1.0)
        lines = [self.status_line.line("me", str(number)) for number in (0, 1, 2)]
        self.assertEqual([True, False, True], list(map(bool, lines)))
