"""Where a history diverges from the one before it, as the log tells."""

import logging
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer
from tests.support.cursor import CursorClient
from tests.support.harness import RunningProxy, SocketTestCase
from tests.unit.reasoning.test_chats import tool


class TestDivergence(SocketTestCase):
    def last_line(self, client: CursorClient, text: str) -> str:
        """What the console says at the end of a request, which is before the client sees the end of its answer."""
        with self.assertLogs("deepseek_cursor_proxy.observers.console", logging.INFO) as logged:
            client.ask(text)
        return logged.records[-1].getMessage()

    def begin(self, store: ReasoningStore | None = None, **settings: Any) -> CursorClient:
        self.running: RunningProxy = self.proxy(store, **settings)
        return self.client(self.running)

    def test_the_console_tells_where_a_chat_diverged(self) -> None:
        client = self.begin()
        for text in ("hi", "more", "and more"):
            self.assertNotIn("prefix lost", self.last_line(client, text))
        client.messages[3]["content"] = "edited"
        line = self.last_line(client, "again")
        self.assertRegex(line, r"in \(\d+ % cached\) .* prefix lost: message 3 changed \(user content\)")
        self.assertNotIn("prefix lost", self.last_line(client, "once more"))
        client.messages[0]["content"] = "Another prompt."
        client.tools = [*client.tools, tool("grep")]
        self.assertIn(
            "prefix lost: tools changed (added grep), system prompt changed, about $", self.last_line(client, "now")
        )

    def test_shuffled_tools_do_not_diverge(self) -> None:
        client = self.begin()
        client.tools = [tool("a"), tool("b")]
        self.last_line(client, "hi")
        client.tools = client.tools[::-1]
        self.assertNotIn("prefix lost", self.last_line(client, "more"))

    def test_interleaved_chats_with_one_opening_raise_no_false_alarm(self) -> None:
        """Every chat has answers of its own; after the same first words nothing else is the same."""
        client = self.begin()
        chats = [self.client(self.running) for _ in range(6)]
        self.fake.answer(*(Answer(reasoning="r", content=f"answer {number}") for number in range(18)))
        for text in ("hi", "more", "and more"):
            for chat in chats:
                self.assertNotIn("prefix lost", self.last_line(chat, text))
        client.tools, client.messages = [], [{"role": "system", "content": "Make a title."}]
        self.assertNotIn("prefix lost", self.last_line(client, "hi"))
        self.assertNotIn("prefix lost", self.last_line(chats[0], "go on"))

    def test_after_a_restart_divergence_is_found_from_the_second_request_on(self) -> None:
        path = self.folder / "store.sqlite3"
        client = self.begin(ReasoningStore(path))
        client.ask("hi")
        self.running.close()
        again = self.begin(ReasoningStore(path))
        again.messages = client.messages
        self.assertNotIn("prefix lost", self.last_line(again, "more"))
        again.messages[1]["content"] = "ho"
        again.messages[3]["content"] = "less"
        self.assertNotIn("prefix lost", self.last_line(again, "another chat, then"))
        again.messages[3]["content"] = "more"
        self.assertIn("prefix lost: message 3", self.last_line(again, "the same"))
