import unittest
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.request import history


def grown(turns: int) -> list[Any]:
    """A chat of the old functions API, which takes counting, and with a part that is left out."""
    said: list[Any] = []
    for number in range(turns):
        said.append({"role": "user", "content": [{"type": "text", "text": f"{number}"}, {"type": "thinking"}]})
        said.append({"role": "assistant", "function_call": {"name": "look", "arguments": f'{{"at":{number}}}'}})
        said.append({"role": "function", "name": "look", "content": f"seen {number}"})
        said.append({"role": "assistant", "content": f"It is {number}."})
    return said


class TestChatHistory(unittest.TestCase):
    def test_a_history_that_grew_is_read_like_a_new_one(self) -> None:
        whole = grown(8)
        for count in (*range(1, len(whole)), 9, 20, 11):
            with self.subTest(count):
                self.assertEqual(history.read(grown(8)[:count]), history.read(whole[:count]))

    def test_what_was_read_is_the_very_same_again(self) -> None:
        whole = grown(5)
        before, after = history.read(whole[:12]).messages, history.read(whole).messages
        self.assertEqual([True] * 12, [old is new for old, new in zip(before, after[:12], strict=True)])

    def test_a_complaint_names_the_place_in_all_of_it(self) -> None:
        whole = grown(4)
        history.read(whole)
        with self.assertRaisesRegex(BadRequest, r"messages\[16\]"):
            history.read([*whole, 5])
