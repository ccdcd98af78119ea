"""Chats in the same words share the oldest reasoning; each keeps its prefix, whatever other chats say meanwhile."""

import random
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import TOOLS, tool_calls
from tests.support.width import width

Json = dict[str, Any]


class EqualChatsTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.settings: Json = {"display_reasoning": False}
        self.running = self.started()
        self.addCleanup(lambda: self.running.close())

    def started(self) -> RunningProxy:
        return RunningProxy(self.fake.url, ReasoningStore(self.folder / "store.sqlite3"), **self.settings)

    def restart(self, **settings: Any) -> None:
        self.running.close()
        self.settings |= settings
        self.running = self.started()

    def ask(self, history: list[Json], answer: Answer, *, stream: bool = False, **body: Any) -> list[Json]:
        """Send a history and add the answer to it as it was shown; what DeepSeek saw."""
        self.fake.answer(answer)
        reply = self.chat(self.running, *history, tools=TOOLS, stream=stream, **body)
        calls = tool_calls(answer.calls)
        history.append({"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})})
        return self.sent()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


class TestEqualChats(EqualChatsTestCase):
    def test_a_second_chat_in_the_same_words_does_not_move_the_prefix_of_the_first(self) -> None:
        first, second = [user("Hello")], [user("Hello")]
        self.ask(first, Answer(reasoning="Thought of the first.", content="Hi."))
        first.append(user("first goes on"))
        before = self.ask(first, Answer(reasoning="x", content="One."))
        self.assertEqual("Thought of the first.", before[1]["reasoning_content"])
        self.ask(second, Answer(reasoning="Thought of the second.", content="Hi."))
        second.append(user("second goes on"))
        other = self.ask(second, Answer(reasoning="y", content="Two."))
        self.assertEqual("Thought of the first.", other[1]["reasoning_content"])
        for _ in range(2):
            for history, sent in ((first, before), (second, other)):
                history.append(user("and on"))
                self.assertEqual(sent, self.ask(history, Answer(reasoning="z", content="."))[: len(sent)])
            self.restart()

    def test_a_chat_that_shows_its_reasoning_keeps_its_own(self) -> None:
        self.restart(display_reasoning=True)
        chats = {name: [user("Hello")] for name in ("a", "b")}
        for name, history in chats.items():
            self.ask(history, Answer(reasoning=f"Thought of {name}.", content="Hi."))
            history.append(user("go on"))
        for name, history in chats.items():
            sent = self.ask(history, Answer(reasoning="x", content="."))
            self.assertEqual(f"Thought of {name}.", sent[1]["reasoning_content"])

    def test_no_interleaving_of_equal_chats_moves_a_prefix(self) -> None:
        for seed in range(width(6, 40)):
            rng = random.Random(seed)
            self.restart(display_reasoning=rng.random() < 0.3)
            chats: list[tuple[list[Json], list[Json]]] = [([], []) for _ in range(4)]
            for step in range(16):
                at = rng.randrange(len(chats))
                history, sent = chats[at]
                self.go_on(history, rng, f"{seed}-{step}")
                seen = self.ask(history, self.made_up(rng, f"{seed}-{step}"), stream=rng.random() < 0.5)
                self.assertEqual(sent, seen[: len(sent)], (seed, step))
                chats[at] = history, seen
                if rng.random() < 0.1:
                    self.restart()

    def go_on(self, history: list[Json], rng: random.Random, name: str) -> None:
        calls = history[-1].get("tool_calls", ()) if history else ()
        history += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
        if not calls:
            history.append(user(rng.choice(("go on", "again")) if history else f"Hello {name.partition('-')[0]}"))
        if not calls and rng.random() < 0.15:
            # Made up by the client, as another model's answer is.
            history += [{"role": "assistant", "content": rng.choice(("Well.", "No."))}, user("go on")]

    def made_up(self, rng: random.Random, name: str) -> Answer:
        letters = "abcdefghijklmnopqrstuvwxyzABCDEF0123456789"
        call = Call("call_00_" + "".join(rng.choices(letters, k=24)), "read_file", "{}")
        calls = (call,) if rng.random() < 0.25 else ()
        return Answer(reasoning=f"Thought {name}.", content=rng.choice(("Done.", "Yes.")), calls=calls)
