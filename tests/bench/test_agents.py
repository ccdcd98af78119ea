import io
import random
import unittest
from collections.abc import Callable
from unittest.mock import patch

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
        self.fake = self.enterContext(FakeDeepSeek(responder=lambda payload: self.model.respond(payload)))
        self.fake.is_lenient = True

    def play(self, kind: Callable[[random.Random], AgentClient], url: str) -> ChatResult:
        self.model = Model(seed=1)
        self.fake.forget()
        return play(kind(random.Random(2)), Target("proxy", url), self.fake, self.model, TURNS)

    def test_every_agent_gets_its_answers_and_deepseek_all_reasoning_with_an_unchanged_prefix(self) -> None:
        proxy = self.enterContext(running_proxy(self.fake.url))
        for kind in CLIENTS:
            with self.subTest(kind.name):
                result = self.play(kind, proxy)
                self.assertEqual(("", TURNS, TURNS - 1), (result.error, result.answered, result.reasonings))
                changed = [share for share in result.prefixes if share < 1]
                self.assertEqual((TURNS - 1, kind is EditingCursor), (len(result.prefixes), len(changed) == 1))

    def test_a_client_that_drops_its_reasoning_is_refused_without_a_proxy(self) -> None:
        result = self.play(Cursor, self.fake.url)
        self.assertEqual((1, 0), (result.answered, result.reasonings))
        self.assertIn("must be passed back", result.error)
        self.assertEqual(TURNS, self.play(OpenCode, self.fake.url).answered)

    def test_an_api_that_a_proxy_does_not_have_is_no_failure(self) -> None:
        bare = self.enterContext(FakeDeepSeek(has_chat_alone=True))
        self.assertEqual("–", str(self.play(CLIENTS[0], bare.url)))

    def test_the_table_has_a_row_for_each_agent(self) -> None:
        out = io.StringIO()
        with patch.object(agents, "CLIENTS", CLIENTS[:2]):
            self.assertEqual(0, agents.run((), out, turns=2))
        names = [line.split("|")[1].strip() for line in out.getvalue().splitlines()[2:4]]
        self.assertEqual([kind.name for kind in CLIENTS[:2]], names)
        self.assertIn("2 · 1 · 100.0 %", out.getvalue())
