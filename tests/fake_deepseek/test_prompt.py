"""The prompts that the model reads: the header of each answer, and what stays the same when a chat grows."""

import itertools
import unittest
from typing import Any

from tests.fake_deepseek import contract, prompt
from tests.fake_deepseek.contract import NEWEST_RULES, Rules
from tests.fake_deepseek.prompt import HEADER, MISSING_HEADER

Json = dict[str, Any]

SYSTEM, LATER = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "It is Monday."}
USER = {"role": "user", "content": "Hello?"}
SAID = {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def call(*ids: str, arguments: str = '{"path": "a"}') -> Json:
    function = {"name": "look", "arguments": arguments}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": calls}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": f"result of {call_id}"}


def rendered(*messages: Json, model: str = "deepseek-v4-pro", **fields: Any) -> str:
    payload = {"model": model, "messages": list(messages), "tools": [TOOL], **fields}
    return "".join(part.text for part in prompt.parts(payload))


def refused(*messages: Json, model: str = "deepseek-v4-pro", rules: Rules = NEWEST_RULES) -> str | None:
    found = contract.refusal({"model": model, "messages": list(messages), "tools": [TOOL]}, rules)
    return found and found.message


class TestHeaders(unittest.TestCase):
    def test_every_answer_follows_a_header_and_the_prompt_ends_in_one(self) -> None:
        for model in ("deepseek-v4-pro", "deepseek-flash"):
            text = rendered(SYSTEM, USER, SAID, USER, call("a"), result("a"), model=model)
            self.assertEqual(3, text.count(HEADER))
            self.assertIn(f"{HEADER}<think>Hm.</think>Hello.", text)
            self.assertTrue(text.endswith(f"{HEADER}<think>"))

    def test_v4_has_no_header_after_a_system_message(self) -> None:
        text = rendered(SYSTEM, USER, LATER, SAID, USER)
        self.assertIn("It is Monday.Hm.</think>", text)
        self.assertIn(f"It is Monday.{HEADER}<think>Hm.", rendered(USER, LATER, SAID, USER, model="deepseek-flash"))

    def test_a_history_without_a_header_is_refused_where_the_template_is_that_of_v4(self) -> None:
        for history in (
            (SYSTEM, USER, LATER),
            (USER, LATER, SAID, USER),
            (USER, call("a"), result("a"), LATER),
            (SYSTEM,),
            (SYSTEM, SAID, USER),
        ):
            with self.subTest([message["role"] for message in history]):
                self.assertEqual(MISSING_HEADER, refused(*history))
                self.assertIsNone(refused(*history, model="deepseek-flash"))
                rules = Rules(has_v4_template=True)
                self.assertEqual(MISSING_HEADER, refused(*history, model="deepseek-flash", rules=rules))

    def test_a_system_message_before_a_question_does_no_harm(self) -> None:
        self.assertIsNone(refused(SYSTEM, LATER, USER))
        self.assertIsNone(refused(USER, SAID, LATER, USER))


class TestPrompts(unittest.TestCase):
    def test_a_chat_that_grows_keeps_its_prompt(self) -> None:
        history = [SYSTEM, USER, call("a", "b"), result("b"), result("a"), SAID, USER, SAID]
        for model, end in itertools.product(("deepseek-v4-pro", "deepseek-flash"), (2, 5, 7)):
            with self.subTest(model, end=end):
                whole = rendered(*history, USER, model=model)
                self.assertTrue(whole.startswith(rendered(*history[:end], model=model)))

    def test_results_are_the_users_in_the_order_of_their_calls(self) -> None:
        text = rendered(USER, call("a", "b"), result("b"), result("a"), USER)
        self.assertRegex(text, "(?s)<｜User｜><tool_result>result of a.*result of b</tool_result>\n\nHello[?]")

    def test_the_spelling_of_arguments_is_no_part_of_a_prompt(self) -> None:
        first, second = (rendered(USER, call("a", arguments=text)) for text in ('{"path":"a"}', '{ "path": "a" }'))
        self.assertEqual(first, second)

    def test_tools_are_part_of_the_prompt_whatever_the_choice(self) -> None:
        self.assertEqual(rendered(USER, tool_choice="none"), rendered(USER))
        self.assertNotEqual(rendered(USER, tools=[]), rendered(USER))

    def test_without_tools_the_reasoning_before_the_last_question_is_gone(self) -> None:
        self.assertNotIn("Hm.", rendered(USER, SAID, USER, tools=[]))
        self.assertIn(f"{HEADER}</think>Hello.", rendered(USER, SAID, USER, tools=[]))
