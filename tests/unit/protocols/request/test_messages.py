import itertools
import unittest
from collections.abc import Iterator
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.request.messages import MessageReader, read_plain

ABSENT = object()
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
FIELDS: dict[str, tuple[Any, ...]] = {
    "role": ("user", "system", "assistant", "tool", "developer", "function", "stranger", 1, None, ABSENT),
    "content": ("text", "", None, 1, ["text"], ABSENT),
    "tool_call_id": (ABSENT, "call_1", "", None, 1),
    "reasoning_content": (ABSENT, "why", "", None, 1),
    "tool_calls": (
        ABSENT,
        None,
        [],
        [CALL],
        [CALL, {**CALL, "index": 1, "id": ""}],
        [{**CALL, "id": None}],
        [{**CALL, "function": {"name": "read", "arguments": {"a": 1}}}],
        [{**CALL, "function": None}],
        [{"id": "call_1", "type": "custom", "custom": {"name": "say", "input": "text"}}],
        ["call"],
        "calls",
    ),
    "name": (ABSENT, "me"),
    "function_call": (ABSENT, {"name": "read", "arguments": "{}"}),
    "prefix": (ABSENT, True),
}


def every_message() -> Iterator[Any]:
    yield from (None, "text", [], {})
    for values in itertools.product(*FIELDS.values()):
        yield {name: value for name, value in zip(FIELDS, values, strict=True) if value is not ABSENT}


def read(message: Any) -> list[Message] | str:
    try:
        return MessageReader().read(message, "messages[0]")
    except BadRequest as error:
        return error.message


class TestReading(unittest.TestCase):
    def test_a_plain_message_is_what_reading_with_all_care_makes_of_it(self) -> None:
        plain = 0
        for message in every_message():
            found = read_plain(message)
            if found is not None:
                plain += 1
                self.assertEqual([found], read(message), message)
        self.assertGreater(plain, 20)

    def test_the_usual_messages_of_an_agent_are_plain(self) -> None:
        for message in (
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "call_1", "content": "t"},
        ):
            self.assertIsNotNone(read_plain(message), message)
