"""What clients do to the histories of real chats; the numbers are those of our collection of tricky histories.

Display is off unless the scenario is about it, so that only the store can restore a turn. Every scenario runs against
the strict fake, which refuses what DeepSeek refuses: a scenario that ends well was accepted.
"""

import json
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE
from tests.fake_deepseek import Answer, Call, Raw
from tests.support.cursor import ClientAnswer, CursorClient
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.raw_streams import streamed

ONE, TWO = "call_00_a1B2c3D4e5F6g7H8i9J0", "call_00_Z9y8X7w6V5u4T3s2R1q0"


def call(call_id: str = ONE, path: str = "a.py") -> Call:
    return Call(call_id, "read_file", json.dumps({"path": path}))


class ScenarioTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.running: RunningProxy = self.proxy(display_reasoning=False)

    def chat(self, *answers: Answer | Raw, proxy: RunningProxy | None = None, **details: Any) -> CursorClient:
        """A client whose model gave these answers, one question each (tool loops count as one)."""
        client = self.client(proxy or self.running, **details)
        self.fake.answer(*answers)
        client.ask("question 1")
        return client

    def go_on(self, client: CursorClient) -> ClientAnswer:
        answer = client.ask("go on").final
        self.assertEqual(200, answer.status, answer.error)
        self.assertEqual([], self.fake.refused)
        return answer

    def loop(self, **details: Any) -> CursorClient:
        return self.chat(
            Answer(reasoning="First.", content="Let me look.", calls=(call(ONE, "a.py"),)),
            Answer(reasoning="Second.", calls=(call(TWO, "b.py"),)),
            Answer(reasoning="Third.", content="It is done."),
            **details,
        )

    def assistants(self, client: CursorClient) -> list[dict[str, Any]]:
        return [message for message in client.messages if message["role"] == "assistant"]


class TestMatching(ScenarioTestCase):
    def test_a_turn_that_reasons_on_after_its_calls_keeps_all_of_it(self) -> None:
        """Its calls were known before that, for clients that run them at once; it is still one turn."""
        function = {"name": "read_file", "arguments": "{}"}
        calls = {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}
        for before in ("", "First this, "):
            said = streamed(
                {"reasoning_content": before}, calls, {"reasoning_content": "then that."}, finish="tool_calls"
            )
            self.chat(said, Answer(content="Done."), proxy=self.proxy(display_reasoning=False))
            self.assert_upstream_saw(f"{before}then that.")

    def test_a_loop_that_the_client_edited_keeps_its_reasoning(self) -> None:
        rendered = "<open_files>a.py</open_files> question 1"
        reminder = {"role": "system", "content": "Remember the rules."}
        indented = {"function": {"name": "read_file", "arguments": '{\n  "path": "a.py"\n}'}}
        edits: dict[str, Callable[[CursorClient], object]] = {
            "05 the question was rendered again": lambda client: client.messages[1].update(content=rendered),
            "06 the past was summarised": lambda client: client.messages[1].update(content="Summary of a long talk."),
            "07 old results were elided": lambda client: [client.messages[at].update(content="[cut]") for at in (3, 5)],
            "08 a trailing line break came": lambda client: client.messages[-1].update(content="It is done.\n"),
            "08 spaces came around the text": lambda client: client.messages[-1].update(content="\n It is done.  "),
            "10 arguments were serialised again": lambda client: client.messages[2]["tool_calls"][0].update(indented),
            "14 16 effort and model changed": lambda client: setattr(client, "model", "deepseek-flash"),
            "19 a reminder between result and answer": lambda client: client.messages.insert(-1, reminder),
            "27 stopped before the result": lambda client: client.messages.pop(3),
        }
        for name, edit in edits.items():
            with self.subTest(name):
                client = self.loop()
                edit(client)
                self.go_on(client)
                self.assert_upstream_saw("First.", "Second.", "Third.")

    def test_09_content_came_back_as_nothing_in_any_of_its_forms(self) -> None:
        for nothing in ([], None, ""):
            client = self.loop()
            self.assistants(client)[0]["content"] = nothing
            self.go_on(client)
            self.assert_upstream_saw("First.", "Second.", "Third.")
        del self.assistants(client)[0]["content"]
        self.go_on(client)
        self.assertEqual("", self.fake.accepted[-1]["messages"][2]["content"])

    def test_17_a_turn_of_another_model_in_the_middle(self) -> None:
        client = self.loop()
        calls = [{"id": "call_0", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}]
        client.messages += [
            {"role": "user", "content": "asked elsewhere"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_0", "content": "seen elsewhere"},
        ]
        self.go_on(client)
        sent = json.dumps(self.fake.accepted[-1])
        for words in ("First.", "Third.", "seen elsewhere", "It is done."):
            self.assertIn(words, sent)

    def test_23_no_user_message_at_all(self) -> None:
        client = self.loop()
        messages = [client.messages[0], *client.messages[2:]]
        self.assertEqual(200, client.post(messages).status)
        self.assert_upstream_saw("First.", "Second.", "Third.")
        stranger = self.client(self.running, key="sk-other")
        self.assertEqual(200, stranger.post(messages).status)
        self.assert_upstream_saw(" ", " ", " ")

    def test_24_everything_was_forgotten_in_the_middle_of_a_long_chat(self) -> None:
        client = self.client(self.running)
        self.fake.answer(
            *(Answer(reasoning=f"R{n}.", calls=(call(f"call_00_{n:020d}", f"{n}.py"),)) for n in range(15)),
            Answer(reasoning="End.", content="done"),
        )
        client.ask("a long task")
        self.running.store.clear()
        self.assertTrue(self.go_on(client).content.startswith(NOTICE))
        for number in range(15):
            self.assertIn(f"{number}.py", json.dumps(self.fake.accepted[-1]))


class TestStopped(ScenarioTestCase):
    def test_26_only_an_unclosed_block_came_back(self) -> None:
        client = self.client(self.running)
        opening = "<details>\n<summary>Thinking</summary>\n\n"
        client.messages += [{"role": "user", "content": "q"}, {"role": "assistant", "content": opening + "We need"}]
        self.go_on(client)
        self.assert_upstream_saw("We need")
        client = self.client(self.running)
        client.messages += [{"role": "user", "content": "q2"}, {"role": "assistant", "content": opening}]
        self.go_on(client)
        roles = [message["role"] for message in self.fake.accepted[-1]["messages"]]
        self.assertEqual(["system", "user", "user"], roles)

    def test_28_one_of_three_parallel_calls_was_answered(self) -> None:
        ids = ("call_00_p1A2b3C4d5E6f7G8h9I0", "call_01_q1A2b3C4d5E6f7G8h9I0", "call_02_r1A2b3C4d5E6f7G8h9I0")
        calls = tuple(call(each) for each in ids)
        client = self.chat(Answer(reasoning="Three.", calls=calls), Answer(reasoning="End.", content="ok"))
        del client.messages[5], client.messages[3]
        self.go_on(client)
        self.assert_upstream_saw("Three.", "End.")
        answered = [m["tool_call_id"] for m in self.fake.accepted[-1]["messages"] if m["role"] == "tool"]
        self.assertEqual(list(ids), answered)

    def test_30_calls_and_results_without_ids(self) -> None:
        client = self.client(self.running)
        calls = [{"id": "", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}]
        client.messages += [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "kept"},
            {"role": "tool", "tool_call_id": "", "content": "the result"},
        ]
        self.go_on(client)
        sent = self.fake.accepted[-1]["messages"]
        self.assertEqual(sent[2]["tool_calls"][0]["id"], sent[3]["tool_call_id"])
