"""The order of tools: as a pure function, and over real sockets with DeepSeek's prefix cache as the judge."""

import json
import random
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.chats.tool_order import names, order
from deepseek_cursor_proxy.lab.cursor import CursorClient
from deepseek_cursor_proxy.lab.fake_deepseek import Failure
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.harness import SocketTestCase


def tools(*given: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "description": f"does {name}"}} for name in given]


class TestOrder(unittest.TestCase):
    def assert_order(self, expected: str, given: str, last_sent: Sequence[str] | None, mode: str = "sticky") -> None:
        self.assertEqual(tuple(expected), names(order(tools(*given), last_sent, mode)))

    def test_the_table(self) -> None:
        for expected, given, last_sent, mode, why in (
            ("abc", "cab", None, "sticky", "first sight: by name"),
            ("abc", "cab", "", "sticky", "nothing was sent yet"),
            ("cab", "abc", "cab", "sticky", "the order last sent"),
            ("cabde", "edcba", "cab", "sticky", "new ones behind it, by name"),
            ("cb", "bc", "cab", "sticky", "a removed one leaves no gap"),
            ("cad", "adc", "cab", "sticky", "removed and added at once"),
            ("de", "ed", "abc", "sticky", "nothing in common"),
            ("BaZ", "aZB", "BaZ", "sticky", "capitals are letters of their own"),
            ("abc", "cab", "cab", "sorted", "never what was sent"),
            ("cab", "cab", "abc", "client", "as they came"),
            ("z", "z", "ab", "sticky", "one tool"),
            ("", "", "ab", "sticky", "no tool"),
            ("bab", "bab", "ab", "sticky", "one name twice: as they came"),
            ("bab", "bab", "ab", "sorted", "one name twice: as they came"),
        ):
            with self.subTest(why):
                self.assert_order(expected, given, last_sent, mode)

    def test_a_tool_is_moved_and_never_changed(self) -> None:
        given = tools("b", "a")
        self.assertEqual((given[1], given[0]), order(given, None, "sticky"))

    def test_the_same_tools_in_any_order_are_the_same_bytes(self) -> None:
        """The law, over generated chats whose sets of tools change now and then."""
        for seed in range(200):
            rng = random.Random(seed)
            known = [f"tool_{number}" for number in range(12)]
            here = set(rng.sample(known, rng.randrange(2, 8)))
            sent: tuple[str, ...] | None = None
            for _ in range(10):
                shuffled = [tools(*rng.sample(sorted(here), len(here))) for _ in range(3)]
                orders = {names(order(each, sent, "sticky")) for each in shuffled}
                with self.subTest(seed=seed, here=here, sent=sent):
                    self.assertEqual(1, len(orders))
                    (now,) = orders
                    self.assertEqual(here, set(now))
                    kept = [name for name in sent or () if name in here]
                    self.assertEqual(kept, list(now[: len(kept)]))
                    self.assertEqual(sorted(now[len(kept) :]), list(now[len(kept) :]))
                sent = now
                if rng.random() < 0.4:
                    here = (here | {rng.choice(known)}) - {rng.choice(known)} or here


NAMES = ("grep", "edit", "shell", "read")


class TestOverSockets(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "store.sqlite3"

    def ask(self, client: CursorClient, text: str, *given: str) -> tuple[list[str], int]:
        """Ask with these tools in this order; as DeepSeek saw them, and the tokens it had to read anew."""
        client.tools = tools(*given)
        usage = client.ask(text).final.usage
        assert usage is not None
        sent = [tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"]]
        return sent, usage["prompt_cache_miss_tokens"]

    def test_shuffled_tools_keep_hitting_the_cache(self) -> None:
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

    def test_the_client_s_own_order_misses_it(self) -> None:
        client = self.client(self.proxy(tool_order="client"))
        _, first = self.ask(client, "hi", *NAMES)
        sent, missed = self.ask(client, "again", *NAMES[::-1])
        self.assertEqual(list(NAMES[::-1]), sent)
        self.assertGreater(missed, first)

    def test_what_comes_is_added_behind_and_what_goes_leaves_no_trace(self) -> None:
        client = self.client(self.proxy())
        for given, expected in (
            (("m", "b"), "b m"),
            (("m", "a", "z", "b"), "b m a z"),
            (("z", "a", "b"), "b a z"),
            (("m", "z", "a", "b"), "b a z m"),
        ):
            self.assertEqual(expected.split(), self.ask(client, f"with {given}", *given)[0])

    def test_sorted_is_sorted_whatever_was_sent(self) -> None:
        client = self.client(self.proxy(tool_order="sorted"))
        self.ask(client, "hi", "m", "b")
        self.assertEqual(["a", "b", "m"], self.ask(client, "more", "m", "a", "b")[0])

    def test_the_order_survives_a_restart(self) -> None:
        first = self.proxy(ReasoningStore(self.path))
        client = self.client(first)
        self.ask(client, "hi", "m", "b")
        self.assertEqual(["b", "m", "a"], self.ask(client, "more", "m", "a", "b")[0])
        before = json.dumps(self.fake.accepted[-1]["tools"])
        first.close()
        second = self.client(self.proxy(ReasoningStore(self.path)))
        second.messages = client.messages
        self.assertEqual(["b", "m", "a"], self.ask(second, "again", "a", "b", "m")[0])
        self.assertEqual(before, json.dumps(self.fake.accepted[-1]["tools"]))

    def test_what_deepseek_refused_was_never_sent(self) -> None:
        client = self.client(self.proxy())
        self.ask(client, "hi", "m", "b")
        client.tools = tools("m", "a", "b")
        self.fake.answer(Failure(402, "no money"))
        client.ask("more")
        client.messages.pop()
        self.assertEqual(["b", "m", "0", "a"], self.ask(client, "more", "m", "a", "b", "0")[0])

    def test_interleaved_chats_and_callers_keep_their_own_order(self) -> None:
        proxy = self.proxy()
        clients = [self.client(proxy, key=key) for key in ("sk-one", "sk-two", "sk-two")]
        for number, client in enumerate(clients):
            self.ask(client, "hi" if number < 2 else "hello", "m", "b")
        self.ask(clients[0], "more", "m", "b", "a")
        self.assertEqual(["b", "m", "a"], self.ask(clients[0], "again", "a", "b", "m")[0])
        for client in clients[1:]:
            self.assertEqual(["b", "m", "0", "a"], self.ask(client, "more", "a", "b", "m", "0")[0])
