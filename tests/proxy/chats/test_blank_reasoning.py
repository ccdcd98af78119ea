"""Reasoning that a client sends back blank, changed or replaced: DeepSeek gets the stored bytes, on every API."""

import logging
from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support.apis import CHAT, RESPONSES, Api, ApiReply, ApiTestCase, Json, each_api

THOUGHT = " Look at\n\n  a.py first, \u2028then decide.\n"
CALL = Call("call_0", "read_file", "{}")
CALLING = Answer(reasoning=THOUGHT, content="Looking.", calls=(CALL,))
MANGLED = {
    "empty": "", "a space": " ", "line breaks": "\n\n", "an invisible space": "\ufeff", "trimmed": THOUGHT.strip(),
    "without spaces": "".join(THOUGHT.split()), "in one line": " ".join(THOUGHT.split()), "cut": THOUGHT[:12],
    "joined with others": "An earlier thought.\n\n" + THOUGHT, "a dot in its place": ".",
    "words in its place": "(no reasoning)",
}  # fmt: skip


class BlankReasoningTestCase(ApiTestCase):
    def begin(self, api: Api = CHAT, **fields: Any) -> ApiReply:
        """The turn that a client sends back with changes."""
        self.fake.answer(CALLING)
        return self.ask(self.running, api, **fields)

    def turn(self, thinking: str, api: Api = CHAT) -> list[Json]:
        answer = api.turn("Looking.", [CALL], api.thinking(thinking))
        return [api.user("q"), *answer, *api.results([(CALL.id, "ok")])]

    def chat(self, *history: Json, **fields: Any) -> None:
        self.ask(self.running, CHAT, history, **fields)


class TestEveryApi(BlankReasoningTestCase):
    @each_api()
    def test_blank_or_changed_reasoning_is_replaced_by_the_stored_one(self, api: Api) -> None:
        self.begin(api)
        for name, mangled in MANGLED.items():
            with self.subTest(name):
                self.ask(self.running, api, self.turn(mangled, api))
                self.assert_upstream_saw(THOUGHT)

    def test_a_blank_reasoning_item_is_read_from_its_encrypted_content(self) -> None:
        thought, *rest = self.begin(RESPONSES, include=["reasoning.encrypted_content"]).turn()
        self.running.store.clear()
        for blank in ("", " "):
            content = [{"type": "reasoning_text", "text": blank}]
            results = RESPONSES.results([(CALL.id, "ok")])
            self.ask(self.running, RESPONSES, [RESPONSES.user("q"), {**thought, "content": content}, *rest, *results])
            self.assert_upstream_saw(THOUGHT)


class TestChat(BlankReasoningTestCase):
    def test_reasoning_of_the_client_is_sent_as_it_is_where_no_exact_one_is_stored(self) -> None:
        self.begin()
        prompt = {"role": "system", "content": "New rules."}
        self.chat(prompt, *self.turn("My own words."))
        self.assert_upstream_saw("My own words.")

    def test_trimmed_reasoning_is_whole_again_in_every_turn_although_older_messages_change(self) -> None:
        """Qwen Code 0.24 takes the reminder out of a message as soon as there is another one."""
        history: list[Json] = []
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
                self.chat(*self.turn(blank))
                self.assertIn("could not be replayed natively", self.fake.accepted[-1]["messages"][0]["content"])

    def test_blank_reasoning_of_a_plain_answer_gets_the_filler(self) -> None:
        for blank in ("", "\n\n"):
            answer = {"role": "assistant", "content": "Hello.", "reasoning_content": blank}
            self.chat({"role": "user", "content": "q"}, answer, {"role": "user", "content": "go on"})
            self.assert_upstream_saw(" ")

    def test_blank_reasoning_of_a_turn_without_reasoning_is_not_missing(self) -> None:
        self.fake.answer(Answer(content="Looking.", calls=(CALL,)))
        self.chat({"role": "user", "content": "q"})
        self.chat(*self.turn(""))
        self.assert_upstream_saw(" ")

    def test_trimmed_reasoning_tells_two_otherwise_equal_turns_apart(self) -> None:
        for thought in ("It is 1.", "It is 2."):
            self.fake.answer(Answer(reasoning=thought, content="Looking.", calls=(CALL,)))
            self.chat({"role": "user", "content": "q"})
        for mangled, thought in (("Itis1.", "It is 1."), ("It is\n2.", "It is 2.")):
            self.chat(*self.turn(mangled))
            self.assert_upstream_saw(thought)

    def test_the_log_counts_reasonings_that_the_client_sent(self) -> None:
        self.begin()
        with self.assertLogs("deepseek_cursor_proxy.observers.console", logging.INFO) as logged:
            self.chat(*self.turn("My own words."))
            self.chat(*self.turn(THOUGHT))
            self.chat({"role": "system", "content": "New."}, *self.turn("My own words."))
            self.chat(*self.turn(" "))
        lines = [text for record in logged.records if "reasoning  " in (text := record.getMessage())]
        said = [line.partition("reasoning  ")[2] for line in lines]
        kept, filled = "0 filled · 1 from the client · 0 missing", "1 filled · 0 missing"
        self.assertEqual([filled, kept, kept, filled], said)
