"""Tools are sent sorted by name, in whatever order the client sends them."""

import json
import random

from tests.support.cursor import CursorClient
from tests.support.harness import SocketTestCase
from tests.unit.reasoning.test_chats import tools

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
