import gc
import json
import marshal
import unittest
from unittest import mock

from deepseek_cursor_proxy.chat_memory import json_size
from deepseek_cursor_proxy.conversation import Memo, guess_size, size_of, value_key
from tests.support.traced_memory import traced_memory


class TestSizes(unittest.TestCase):
    def test_a_size_is_guessed_where_python_does_not_tell_it(self) -> None:
        """PyPy raises in sys.getsizeof(); a guess is no smaller than what CPython counts for text."""
        for character in "xü你😀":
            with self.subTest(character):
                text = character * 1000
                self.assertGreaterEqual(guess_size(text), size_of(text))
        self.assertGreater(guess_size(None), 0)

    def test_the_memory_estimate_of_a_value_is_not_too_small(self) -> None:
        for name, written in {
            "a message": json.dumps({"role": "user", "content": "words " * 500}),
            "a long name": json.dumps({"n" * 50_000: 1}),
            "many names": json.dumps({f"name {number}": None for number in range(5000)}),
            "many lists": json.dumps({"content": [[] for _ in range(5000)]}),
            "many objects": json.dumps({"content": [{} for _ in range(5000)]}),
            "wide characters": json.dumps({"content": [{"text": "\U0001f600" * 20_000}]}),
            "numbers": json.dumps([number + 0.5 for number in range(5000)]),
        }.items():
            with self.subTest(name):
                gc.collect()
                with traced_memory() as memory:
                    value = json.loads(written)
                    taken = memory.held()
                # With what is counted for any message.
                self.assertGreater(json_size(value) + 1000, taken)

    def test_equal_values_and_no_others_have_equal_keys(self) -> None:
        written = ["{}", "[]", "1", "1.0", "true", '"1"', '{"a":{"b":[1,null]}}', '{"a":{"b":[1,0]}}']
        values = [json.loads(text) for text in written for _ in range(2)]
        keys = [value_key(value) for _ in range(2) for value in values]
        self.assertEqual([at // 2 for at in range(len(values))] * 2, [keys.index(key) // 2 for key in keys])

    def test_sixteen_agents_with_forty_tools_each_are_known(self) -> None:
        agents = [[{"name": f"tool {agent} {n}", "text": f"{n}" * 600} for n in range(40)] for agent in range(16)]
        with mock.patch.object(marshal, "dumps", side_effect=marshal.dumps) as dumps:
            for _ in range(3):
                dumps.reset_mock()
                for tools in agents:
                    for tool in tools:
                        value_key(tool)
        self.assertEqual(0, dumps.call_count)


class TestMemo(unittest.TestCase):
    def setUp(self) -> None:
        self.memo: Memo[str, str] = Memo(100, lambda key, value: len(key) + len(value))

    def test_a_memo_never_holds_more_than_its_bound(self) -> None:
        for number in range(1000):
            self.memo.put(f"{number:05}", "12345")
        held = [number for number in range(1000) if f"{number:05}" in {**self.memo._old, **self.memo._young}]
        self.assertLessEqual(len(held) * 10, 100)
        self.assertEqual(list(range(1000 - len(held), 1000)), held)

    def test_an_entry_in_use_stays_when_others_are_dropped(self) -> None:
        self.memo.put("often", "asked")
        for number in range(1000):
            self.memo.put(f"{number:05}", "12345")
            self.assertEqual("asked", self.memo.get("often"))

    def test_an_entry_that_is_too_large_evicts_nothing(self) -> None:
        self.memo.put("small", "x")
        self.memo.put("large", "x" * 100)
        self.assertIsNone(self.memo.get("large"))
        self.assertEqual("x", self.memo.get("small"))
