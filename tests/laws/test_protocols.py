"""The law of this project across APIs: a chat begun with one API and continued with another keeps all reasoning.

Two callers send the same words and ids and get different reasonings: nothing of one is ever in a request of the other.
Seeded.
"""

import contextlib
import http.client
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.laws.test_chats import words
from tests.support.apis import APIS, Api
from tests.support.generated_conversations import SYSTEM, Conversation, Turn, body
from tests.support.harness import PATIENCE, RawReply, RunningProxy, SocketTestCase
from tests.support.laws import check_law
from tests.support.width import width

CALLERS = ("sk-alice-and-her-key", "sk-bob-and-his-key")


class Visible:
    """The visible part of a conversation, generated from a seed; two callers have it with different reasonings."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self._opening = f"Talk {number}: "
        self._count = 0

    def question(self) -> str:
        opening, self._opening = self._opening, ""
        return opening + self.rng.choice(("continue", "Please fix it.", words(self.rng, 4) or "x"))

    def answer(self, thought: str) -> Answer:
        calls = tuple(self._call() for _ in range(self.rng.choice((0, 0, 1, 2, 3))))
        said = self.rng.choice(("Done.", "I see. " + words(self.rng, 5), "" if calls else "Well."))
        # Some calls come without a thought.
        reasoning = None if calls and self.rng.random() < 0.15 else thought + words(self.rng, 8)
        return Answer(reasoning=reasoning, content=said or None, calls=calls, piece=self.rng.choice((1, 5, 100)))

    def _call(self) -> Call:
        self._count += 1
        call_id = f"call_{self._count:02}_{self.rng.getrandbits(64):016x}"
        return Call(call_id, "read_file", json.dumps({"path": words(self.rng, 4), "n": [1, {"a": "é"}]}))


class ConversationTestCase(SocketTestCase):
    def go_on(
        self,
        conversation: Conversation,
        visible: Visible,
        thought: str,
        api: Api,
        connection: http.client.HTTPConnection,
        rng: random.Random,
    ) -> None:
        if not conversation.turns or not conversation.rounds[-1][1][-1].answer.calls:
            conversation.rounds.append((visible.question(), []))
        answer = visible.answer(thought)
        self.fake.answer(answer)
        data = json.dumps({**body(api, conversation, rng), "stream": rng.random() < 0.6})
        connection.request("POST", api.path, data, {"Authorization": f"Bearer {conversation.key}"})
        reply = connection.getresponse()
        told = RawReply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        self.assertEqual(200, told.status, told.body)
        self.check(conversation, self.fake.accepted[-1])
        turn = Turn(answer, [f"result of {call.id}" for call in answer.calls])
        turn.store_reply(api, told)
        conversation.rounds[-1][1].append(turn)

    def check(self, conversation: Conversation, payload: dict[str, Any]) -> None:
        """DeepSeek got this conversation and nothing of the other caller."""
        messages = payload["messages"]
        self.assertEqual({"role": "system", "content": SYSTEM}, messages[0])
        asked = [message["content"] for message in messages if message["role"] == "user"]
        self.assertEqual([question for question, _ in conversation.rounds], asked)
        said = [message for message in messages if message["role"] == "assistant"]
        thoughts = [turn.answer.reasoning or FILLER for turn in conversation.turns]
        self.assertEqual(thoughts, [message.get("reasoning_content") for message in said])
        self.assertEqual(
            [turn.answer.content or "" for turn in conversation.turns], [message["content"] or "" for message in said]
        )
        calls = [call for message in said for call in message.get("tool_calls", ())]
        expected = [call for turn in conversation.turns for call in turn.answer.calls]
        self.assertEqual([call.id for call in expected], [call["id"] for call in calls])
        self.assertEqual(
            [json.loads(call.arguments) for call in expected],
            [json.loads(call["function"]["arguments"]) for call in calls],
        )
        results = [message["content"] for message in messages if message["role"] == "tool"]
        self.assertEqual([result for turn in conversation.turns for result in turn.results], results)
        for other in CALLERS:
            if other != conversation.key:
                self.assertNotIn(other, json.dumps(payload))


class TestAllApis(ConversationTestCase):
    def test_every_reasoning_is_restored_byte_for_byte_and_only_in_its_chat(self) -> None:
        check_law(range(width(1, 8)), self.play_pairs)
        self.assertEqual([], self.fake.refused)

    def test_a_chat_continues_in_another_api_after_a_restart(self) -> None:
        rng = random.Random(1)
        path = Path(self.enterContext(TemporaryDirectory())) / "store.sqlite3"
        conversation, visible = Conversation(CALLERS[0]), Visible(1, 1)
        for number, api in enumerate(APIS * 3):
            with contextlib.closing(RunningProxy(self.fake.url, ReasoningStore(path))) as proxy:
                with contextlib.closing(http.client.HTTPConnection(*proxy.address, timeout=PATIENCE)) as connection:
                    self.go_on(conversation, visible, f"thought {number} ", api, connection, rng)
        self.assertEqual([], self.fake.refused)

    def play_pairs(self, seed: int) -> Iterator[None]:
        """Three conversations, each of two callers alike, who choose their APIs at every step."""
        proxy = self.proxy(display_reasoning=seed % 3 == 0)
        with contextlib.closing(http.client.HTTPConnection(*proxy.address, timeout=PATIENCE)) as connection:
            for number in range(3):
                rng = random.Random(f"{seed} {number} who")
                conversations = [(Conversation(key), Visible(seed, number)) for key in CALLERS]
                for step, (conversation, visible) in itertools.product(range(7), conversations):
                    thought = f"{conversation.key} thinks {step}: "
                    self.go_on(conversation, visible, thought, rng.choice(APIS), connection, rng)
                    yield
