"""Where a history diverges from the one before it, as the log tells."""

import logging
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer
from tests.support.cursor import CursorClient
from tests.support.features import needs
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes
from tests.unit.reasoning.test_chats import tool

CONSOLE = "deepseek_cursor_proxy.observers.console"


class TestDivergence(SocketTestCase):
    def last_line(self, client: CursorClient, text: str) -> str:
        """What the console says at the end of a request, which is before the client sees the end of its answer."""
        with self.assertLogs(CONSOLE, logging.INFO) as logged:
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

    @needs("sessions")
    def test_clients_that_begin_with_the_same_word_share_neither_chat_nor_session(self) -> None:
        self.running, user = self.proxy(record="all"), {"role": "user", "content": "hi"}
        senders = (
            ("QwenCode/0.24.4",),
            ("opencode/1.18.33 ai-sdk/provider-utils/3", "x-session-id: ses_1"),
            ("opencode/1.18.33 ai-sdk/provider-utils/3", "x-session-id: ses_2"),
            ("codex_exec/0.166.0", "session-id: 1", "thread-id: 1"),
            # A sub-agent.
            ("codex_exec/0.166.0", "session-id: 1", "thread-id: 2"),
            ("claude-cli/2.1.325 (external, sdk-cli)", "X-Claude-Code-Session-Id: 1"),
            ("claude-cli/2.1.325 (external, sdk-cli)", "X-Claude-Code-Session-Id: 1", "X-Claude-Code-Agent-Id: a"),
        )
        for at, (agent, *ids) in enumerate(senders):
            model = "deepseek-v4-flash" if at % 2 else "deepseek-v4-pro"
            with self.subTest(agent, ids=ids), self.assertLogs(CONSOLE, logging.INFO) as logged:
                self.chat(self.running, user, model=model, headers=(f"User-Agent: {agent}", *ids))
                self.assertNotIn("prefix lost", "".join(logged.output))
        listed = self.call(self.running, "GET", "/sessions")
        self.assertEqual([1] * len(senders), [session["num_requests"] for session in listed.value["sessions"]])

    def test_a_chat_with_an_id_is_known_again_after_its_first_question_changed(self) -> None:
        self.running = self.proxy()
        headers = ("User-Agent: claude-cli/2.1.325", "X-Claude-Code-Session-Id: 1")
        answer = {"role": "assistant", "content": "OK"}

        def last_line(*history: str) -> str:
            messages = [answer if text == "OK" else {"role": "user", "content": text} for text in history]
            with self.assertLogs(CONSOLE, logging.INFO) as logged:
                self.round_trip(self.running, request_bytes({"messages": messages}, headers=headers))
            return logged.records[-1].getMessage()

        for history in (("hi",), ("hi", "OK", "more"), ("A title?",), ("Another title?",)):
            self.assertNotIn("prefix lost", last_line(*history))
        self.assertIn("prefix lost: message 0 changed (user content)", last_line("ho", "OK", "more", "OK", "now"))

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
