"""The order of tools stays the same in a chat, whatever order the client sends."""

import json
import random

from deepseek_cursor_proxy.cli.demo.cursor import CursorClient
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Failure
from tests.support.harness import SocketTestCase
from tests.unit.reasoning.chats.test_tool_order import tools

NAMES = ("grep", "edit", "shell", "read")


class TestToolOrder(SocketTestCase):
    def ask(self, client: CursorClient, text: str, *given: str) -> tuple[list[str], int]:
        """Ask with these tools in this order; as DeepSeek saw them, and the tokens it had to read anew."""
        client.tools = tools(*given)
        usage = client.ask(text).final.usage
        assert usage is not None
        sent = [tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"]]
        return sent, usage["prompt_cache_miss_tokens"]

    def test_shuffled_tools_still_hit_the_prefix_cache(self) -> None:
        client = self.client(self.proxy())
        _, first = self.ask(client, "hi", *NAMES)
        bodies = set()
        for seed in range(8):
            sent, missed = self.ask(client, f"question {seed}", *random.Random(seed).sample(NAMES, len(NAMES)))
            self.assertEqual(sorted(NAMES), sent)
            bodies.add(json.dumps(self.fake.accepted[-1]["tools"]))
            # Only the question itself is new; the tools alone are more.
            self.assertLess(missed, first / 4)
        self.assertEqual(1, len(bodies))

    def test_the_clients_own_tool_order_misses_the_prefix_cache(self) -> None:
        client = self.client(self.proxy(tool_order="client"))
        _, first = self.ask(client, "hi", *NAMES)
        sent, missed = self.ask(client, "again", *NAMES[::-1])
        self.assertEqual(list(NAMES[::-1]), sent)
        self.assertGreater(missed, first)

    def test_new_tools_are_appended_and_removed_ones_are_forgotten(self) -> None:
        client = self.client(self.proxy())
        for given, expected in (
            (("m", "b"), "b m"),
            (("m", "a", "z", "b"), "b m a z"),
            (("z", "a", "b"), "b a z"),
            (("m", "z", "a", "b"), "b a z m"),
        ):
            self.assertEqual(expected.split(), self.ask(client, f"with {given}", *given)[0])

    def test_tools_are_sorted_when_the_setting_says_so(self) -> None:
        client = self.client(self.proxy(tool_order="sorted"))
        self.ask(client, "hi", "m", "b")
        self.assertEqual(["a", "b", "m"], self.ask(client, "more", "m", "a", "b")[0])

    def test_the_tool_order_survives_a_restart(self) -> None:
        path = self.folder / "store.sqlite3"
        first = self.proxy(ReasoningStore(path))
        client = self.client(first)
        self.ask(client, "hi", "m", "b")
        self.assertEqual(["b", "m", "a"], self.ask(client, "more", "m", "a", "b")[0])
        before = json.dumps(self.fake.accepted[-1]["tools"])
        first.close()
        second = self.client(self.proxy(ReasoningStore(path)))
        second.messages = client.messages
        self.assertEqual(["b", "m", "a"], self.ask(second, "again", "a", "b", "m")[0])
        self.assertEqual(before, json.dumps(self.fake.accepted[-1]["tools"]))

    def test_a_refused_request_does_not_set_the_tool_order(self) -> None:
        client = self.client(self.proxy())
        self.ask(client, "hi", "m", "b")
        client.tools = tools("m", "a", "b")
        self.fake.answer(Failure(402, "no money"))
        client.ask("more")
        client.messages.pop()
        self.assertEqual(["b", "m", "0", "a"], self.ask(client, "more", "m", "a", "b", "0")[0])

    def test_interleaved_chats_and_callers_keep_their_own_tool_order(self) -> None:
        clients = [self.client(self.running, key=key) for key in ("sk-one", "sk-two", "sk-two")]
        for number, client in enumerate(clients):
            self.ask(client, "hi" if number < 2 else "hello", "m", "b")
        self.ask(clients[0], "more", "m", "b", "a")
        self.assertEqual(["b", "m", "a"], self.ask(clients[0], "again", "a", "b", "m")[0])
        for client in clients[1:]:
            self.assertEqual(["b", "m", "0", "a"], self.ask(client, "more", "a", "b", "m", "0")[0])
