import json
import time
import unittest

from deepseek_cursor_proxy.json_codec import close_json

WHOLE = '{"a": "x\\"{[,:", "b": [1, -2.5e+3, {"c": null}, []], "d": {"e": true, "f": {}}, "g": "雨\\n"}'


class TestPartialJson(unittest.TestCase):
    def assert_read(self, text: str, value: object) -> None:
        self.assertEqual(json.loads(close_json(text)), value, text)

    def test_complete_json_stays_unchanged(self) -> None:
        for text in (WHOLE, "{}", "[]", '{"a": [1, 2]}'):
            self.assertEqual(close_json(text), text)

    def test_an_incomplete_last_member_is_left_out(self) -> None:
        for cut in ('"', '"Ro', '"Ro\\', '"Ro\\u12', "-", "1.", "1e", "tr", "nul"):
            self.assert_read(f'{{"city": "Rom", "day": {cut}', {"city": "Rom"})
            self.assert_read(f'{{"days": ["Monday", {cut}', {"days": ["Monday"]})
        for cut in ("", ",", ', "', ', "da', ', "day"', ', "day":', ', "day": '):
            self.assert_read(f'{{"city": "Rom"{cut}', {"city": "Rom"})

    def test_a_complete_last_member_of_incomplete_json_stays(self) -> None:
        for last, value in (('"x"', "x"), ("12", 12), ("true", True), ("null", None), ("[", []), ("{", {})):
            self.assert_read(f'{{"a": {last}', {"a": value})

    def test_every_prefix_of_an_object_becomes_valid_json(self) -> None:
        for end in range(1, len(WHOLE) + 1):
            self.assertIsInstance(json.loads(close_json(WHOLE[:end])), dict, WHOLE[:end])

    def test_json_of_opening_brackets_is_completed_in_linear_time(self) -> None:
        began = time.process_time()
        for opening in ("[", '{"a":', "[1,"):
            self.assertTrue(close_json(opening * 50_000).endswith("]]" if "[" in opening else "}}"))
        # It took a minute while the open brackets were copied for each of them.
        self.assertLess(time.process_time() - began, 5)

    def test_text_that_is_no_json_does_not_become_json(self) -> None:
        for text in ("", "  ", "Rome", '{"a" "b"', '{"a": 1}}', "]"):
            with self.subTest(text), self.assertRaises(ValueError):
                json.loads(close_json(text))
