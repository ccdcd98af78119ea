import io
import random
import unittest
from collections.abc import Callable
from contextlib import ExitStack

from tests.bench import agents
from tests.bench.agent_clients import CLIENTS, AgentClient, Cursor, EditingCursor, OpenCode
from tests.bench.agents import ChatResult, Model, play
from tests.bench.rounds import Target
from tests.fake_deepseek import FakeDeepSeek
from tests.support.harness import running_proxy

# A question with all its calls, its answer, and the next question.
TURNS = 12


class TestAgents(unittest.TestCase):
    def setUp(self) -> None:
        self.stack = self.enterContext(ExitStack())
        self.model = Model(seed=1)
        self.fake = self.stack.enter_context(FakeDeepSeek(responder=lambda payload: self.model.respond(payload)))
        self.fake.is_lenient = True

    def play(self, kind: Callable[[random.Random], AgentClient], url: str) -> ChatResult:
        self.model = Model(seed=1)
        self.fake.forget()
        return play(kind(random.Random(2)), Target("proxy", url), self.fake, self.model, TURNS)

    def test_every_agent_gets_its_answers_and_deepseek_all_reasoning_with_an_unchanged_prefix(self) -> None:
        proxy = self.stack.enter_context(running_proxy(self.fake.url))
        for kind in CLIENTS:
            with self.subTest(kind.name):
                result = self.play(kind, proxy)
                self.assertEqual(("", TURNS, TURNS - 1), (result.error, result.answered, result.reasonings))
                self.assertEqual(TURNS - 1, len(result.prefixes))
                changed = [share for share in result.prefixes if share < 1]
                self.assertEqual(1 if kind is EditingCursor else 0, len(changed))

    def test_a_client_that_drops_its_reasoning_is_refused_without_a_proxy(self) -> None:
        result = self.play(Cursor, self.fake.url)
        self.assertEqual((1, 0), (result.answered, result.reasonings))
        self.assertIn("must be passed back", result.error)
        self.assertEqual(TURNS, self.play(OpenCode, self.fake.url).answered)

    def test_an_api_that_a_proxy_does_not_have_is_no_failure(self) -> None:
        codex = CLIENTS[0]
        bare = self.stack.enter_context(FakeDeepSeek(has_chat_alone=True))
        self.assertEqual("–", str(self.play(codex, bare.url)))

    def test_the_prefix_counts_what_is_there_again_of_the_prompt_before(self) -> None:
        before = "tools system question"
        self.assertEqual(1.0, agents._common_share(before, f"{before} answer"))
        self.assertEqual(12 / 21, agents._common_share(before, "tools system_question"))
        self.assertEqual(0.0, agents._common_share(before, f"other {before}"))

    def test_the_table_has_a_row_for_each_agent(self) -> None:
        out = io.StringIO()
        self.assertEqual(0, agents.run(agents.Options(turns=2), out))
        lines = out.getvalue().splitlines()
        self.assertEqual(
            ["", *[kind.name for kind in CLIENTS]], [line.split("|")[1].strip() for line in [lines[0], *lines[2:7]]]
        )
        self.assertIn("2 · 1 · 100.0 %", lines[2])
