import itertools
import unittest
from collections.abc import Iterator
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols import messages
from deepseek_cursor_proxy.protocols.messages import MessageReader, read_plain
from deepseek_cursor_proxy.protocols.tools import ToolNames
from tests.support.histories import new_chat

ABSENT = object()
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
FIELDS: dict[str, tuple[Any, ...]] = {
    "role": ("user", "system", "assistant", "tool", "developer", "function", "stranger", 1, None, ABSENT),
    "content": ("text", "", None, 1, ["text"], ABSENT),
    "tool_call_id": (ABSENT, "call_1", "", None, 1),
    "reasoning_content": (ABSENT, "why", "", None, 1),
    "tool_calls": (
        ABSENT, None, [], [CALL], [CALL, {**CALL, "index": 1, "id": ""}], [{**CALL, "id": None}],
        [{**CALL, "function": {"name": "read", "arguments": {"a": 1}}}], [{**CALL, "function": None}],
        [{"id": "call_1", "type": "custom", "custom": {"name": "say", "input": "text"}}], ["call"], "calls",
    ),
    "name": (ABSENT, "me"),
    "function_call": (ABSENT, {"name": "read", "arguments": "{}"}),
    "prefix": (ABSENT, True),
}  # fmt: skip


def every_message() -> Iterator[Any]:
    yield from (None, "text", [], {})
    for values in itertools.product(*FIELDS.values()):
        yield {name: value for name, value in zip(FIELDS, values, strict=True) if value is not ABSENT}


def read(message: Any) -> list[Message] | str:
    try:
        return MessageReader().read(message, "messages[0]")
    except BadRequest as error:
        return error.message


class TestPlainMessages(unittest.TestCase):
    def test_the_fast_path_for_messages_gives_the_same_result(self) -> None:
        plain = 0
        for message in every_message():
            found = read_plain(message)
            if found is not None:
                plain += 1
                self.assertEqual([found], read(message), message)
        self.assertGreater(plain, 20)


def long_chat(turns: int) -> list[Any]:
    """A chat of the old functions API, whose calls are counted, with a part that is dropped."""
    history: list[Any] = []
    for number in range(turns):
        history.append({"role": "user", "content": [{"type": "text", "text": f"{number}"}, {"type": "thinking"}]})
        history.append({"role": "assistant", "function_call": {"name": "look", "arguments": f'{{"at":{number}}}'}})
        history.append({"role": "function", "name": "look", "content": f"seen {number}"})
        history.append({"role": "assistant", "content": f"It is {number}."})
    return history


class TestHistory(unittest.TestCase):
    def test_messages_are_read_again_if_the_tools_differ(self) -> None:
        patch = {**CALL, "function": {"name": "patch", "arguments": "{}"}}
        memory, whole, found = new_chat(), [*long_chat(4), {"role": "assistant", "tool_calls": [patch]}], []
        for custom in ({"patch"}, (), {"patch"}):
            names = ToolNames(frozenset(custom), frozenset({"patch"}))
            found.append(messages.read(whole, memory, tools=names).messages[-1].tool_calls[0].arguments)
        self.assertEqual([found[0], "{}", found[0]], found)
        self.assertNotEqual("{}", found[0])

    def test_an_error_in_a_grown_history_has_the_index_of_the_message(self) -> None:
        memory, whole = new_chat(), long_chat(4)
        messages.read(whole, memory)
        with self.assertRaisesRegex(BadRequest, r"messages\[16\]"):
            messages.read([*whole, 5], memory)
