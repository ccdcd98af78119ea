"""Reasoning that a client sends back blank, changed or replaced: DeepSeek gets the stored bytes, on every API."""

import logging
from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support import messages_client, responses_client
from tests.support.harness import SocketTestCase, request_bytes
from tests.support.histories import TOOLS, tool_calls

THOUGHT = " Look at\n\n  a.py first, \u2028then decide.\n"
CALL = Call("call_0", "read_file", "{}")
CALLING = Answer(reasoning=THOUGHT, content="Looking.", calls=(CALL,))
MANGLED = {
    "empty": "",
    "a space": " ",
    "line breaks": "\n\n",
    "an invisible space": "\ufeff",
    "trimmed": THOUGHT.strip(),
    "without spaces": "".join(THOUGHT.split()),
    "in one line": " ".join(THOUGHT.split()),
    "cut": THOUGHT[:12],
    "joined with others": "An earlier thought.\n\n" + THOUGHT,
    "a dot in its place": ".",
    "words in its place": "(no reasoning)",
}


class BlankReasoningTestCase(SocketTestCase):
    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.round_trip(self.running, request_bytes(body, path=path, headers=["anthropic-version: 2023-06-01"]))
        self.assertEqual(200, reply.status, reply.body)
        return dict(reply.value)

    def chat(self, *history: dict[str, Any]) -> None:
        self.post("/v1/chat/completions", {"messages": list(history), "tools": TOOLS})


class TestChat(BlankReasoningTestCase):
    def turn(self, **changes: Any) -> list[dict[str, Any]]:
        answer = {"role": "assistant", "content": "Looking.", "tool_calls": tool_calls([CALL]), **changes}
        return [{"role": "user", "content": "q"}, answer, {"role": "tool", "tool_call_id": CALL.id, "content": "ok"}]

    def test_blank_or_changed_reasoning_is_replaced_by_the_stored_one(self) -> None:
        self.fake.answer(CALLING)
        self.chat({"role": "user", "content": "q"})
        for name, mangled in MANGLED.items():
            with self.subTest(name):
                self.chat(*self.turn(reasoning_content=mangled))
                self.assert_upstream_saw(THOUGHT)

    def test_reasoning_of_the_client_is_sent_as_it_is_where_no_exact_one_is_stored(self) -> None:
        self.fake.answer(CALLING)
        self.chat({"role": "user", "content": "q"})
        prompt = {"role": "system", "content": "New rules."}
        self.chat(prompt, *self.turn(reasoning_content="My own words."))
        self.assert_upstream_saw("My own words.")

    def test_another_key_gets_no_reasoning_in_place_of_its_own(self) -> None:
        self.fake.answer(CALLING)
        self.chat({"role": "user", "content": "q"})
        body = {"messages": self.turn(reasoning_content="."), "tools": TOOLS}
        self.assertEqual(200, self.round_trip(self.running, request_bytes(body, key="sk-other")).status)
        self.assert_upstream_saw(".")

    def test_trimmed_reasoning_is_whole_again_in_every_turn_although_older_messages_change(self) -> None:
        """Qwen Code 0.24 takes the reminder out of a message as soon as there is another one."""
        history: list[dict[str, Any]] = []
        thoughts = [f"\n  Thought {number}. \n \n" for number in range(5)]
        for number, thought in enumerate(thoughts):
            question = {"role": "user", "content": f"Question {number}"}
            reminder = {
                "role": "user",
                "content": f"<system-reminder>\nToday.\n</system-reminder>\n\nQuestion {number}",
            }
            self.fake.answer(Answer(thought, f"Answer {number}."))
            self.chat(*history, reminder)
            self.assert_upstream_saw(*thoughts[:number])
            answer = {"role": "assistant", "content": f"Answer {number}.", "reasoning_content": thought.strip()}
            history += [question, answer]

    def test_blank_reasoning_without_a_stored_one_counts_as_missing(self) -> None:
        for blank in ("", " ", "\n"):
            with self.subTest(blank):
                self.fake.forget()
                self.chat(*self.turn(reasoning_content=blank))
                self.assertIn("could not be replayed natively", self.fake.accepted[-1]["messages"][0]["content"])

    def test_blank_reasoning_of_a_plain_answer_gets_the_filler(self) -> None:
        for blank in ("", "\n\n"):
            answer = {"role": "assistant", "content": "Hello.", "reasoning_content": blank}
            self.chat({"role": "user", "content": "q"}, answer, {"role": "user", "content": "go on"})
            self.assert_upstream_saw(" ")

    def test_blank_reasoning_of_a_turn_without_reasoning_is_not_missing(self) -> None:
        self.fake.answer(Answer(content="Looking.", calls=(CALL,)))
        self.chat({"role": "user", "content": "q"})
        self.chat(*self.turn(reasoning_content=""))
        self.assert_upstream_saw(" ")

    def test_trimmed_reasoning_tells_two_otherwise_equal_turns_apart(self) -> None:
        for thought in ("It is 1.", "It is 2."):
            self.fake.answer(Answer(reasoning=thought, content="Looking.", calls=(CALL,)))
            self.chat({"role": "user", "content": "q"})
        for mangled, thought in (("Itis1.", "It is 1."), ("It is\n2.", "It is 2.")):
            self.chat(*self.turn(reasoning_content=mangled))
            self.assert_upstream_saw(thought)

    def test_the_log_counts_reasonings_that_the_client_sent(self) -> None:
        self.fake.answer(CALLING)
        self.chat({"role": "user", "content": "q"})
        with self.assertLogs("deepseek_cursor_proxy.observers.console", logging.INFO) as logged:
            self.chat(*self.turn(reasoning_content="My own words."))
            self.chat(*self.turn(reasoning_content=THOUGHT))
            self.chat({"role": "system", "content": "New."}, *self.turn(reasoning_content="My own words."))
            self.chat(*self.turn(reasoning_content=" "))
        lines = [text for record in logged.records if "reasoning  " in (text := record.getMessage())]
        said = [line.partition("reasoning  ")[2] for line in lines]
        kept, filled = "0 filled · 1 from the client · 0 missing", "1 filled · 0 missing"
        self.assertEqual([filled, kept, kept, filled], said)


class TestMessages(BlankReasoningTestCase):
    def test_blank_or_changed_thinking_is_replaced_by_the_stored_reasoning(self) -> None:
        self.fake.answer(CALLING)
        body = {"model": "m", "max_tokens": 2000, "tools": messages_client.TOOLS}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        question = messages_client.user("q")
        said = self.post("/v1/messages", {**body, "messages": [question], "thinking": thinking})["content"]
        results = messages_client.user(messages_client.result(CALL.id, "ok"))
        for name, mangled in MANGLED.items():
            with self.subTest(name):
                blocks = [{"type": "thinking", "thinking": mangled, "signature": ""}, *said[1:]]
                turn = {"role": "assistant", "content": blocks}
                self.post("/v1/messages", {**body, "messages": [question, turn, results]})
                self.assert_upstream_saw(THOUGHT)


class TestResponses(BlankReasoningTestCase):
    def ask(self, *items: dict[str, Any], **body: Any) -> dict[str, Any]:
        body = {"store": False, "tools": responses_client.TOOLS, **body}
        return self.post("/v1/responses", {"model": "deepseek-v4-pro", "input": list(items), **body})

    def test_blank_or_changed_reasoning_items_are_replaced_by_the_stored_reasoning(self) -> None:
        question, result = {"role": "user", "content": "q"}, responses_client.output(CALL.id)
        self.fake.answer(CALLING)
        output = self.ask(question)["output"]
        for name, mangled in MANGLED.items():
            with self.subTest(name):
                content = [{"type": "reasoning_text", "text": mangled}]
                self.ask(question, {**output[0], "content": content}, *output[1:], result)
                self.assert_upstream_saw(THOUGHT)

    def test_a_blank_reasoning_item_is_read_from_its_encrypted_content(self) -> None:
        question, result = {"role": "user", "content": "q"}, responses_client.output(CALL.id)
        self.fake.answer(CALLING)
        output = self.ask(question, include=["reasoning.encrypted_content"])["output"]
        self.running.store.clear()
        for blank in ("", " "):
            content = [{"type": "reasoning_text", "text": blank}]
            self.ask(question, {**output[0], "content": content}, *output[1:], result)
            self.assert_upstream_saw(THOUGHT)
