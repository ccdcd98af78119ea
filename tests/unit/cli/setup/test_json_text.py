import contextlib
import unittest
from random import Random

from deepseek_cursor_proxy.cli.setup.files import ChangedLines, Unreadable
from deepseek_cursor_proxy.cli.setup.json_text import JsonDocument, JsonEdit

EDIT = JsonEdit({("a", "b"): 1, ("c",): {"d": []}}, has_comments=True)

APPLIED = {
    "": '{\n  "a": {\n    "b": 1\n  },\n  "c": {\n    "d": []\n  }\n}\n',
    '{"x": 1}': '{"a": {"b": 1}, "c": {"d": []}, "x": 1}',
    '{"a": {"b": 2}, "c": 3}': '{"a": {"b": 1}, "c": {\n  "d": []\n}}',
    '{\n\t"x": 1\n}': '{\n\t"a": {\n\t\t"b": 1\n\t},\n\t"c": {\n\t\t"d": []\n\t},\n\t"x": 1\n}',
    '{\r\n    "x": 1\r\n}\r\n': '{\r\n    "a": {\r\n        "b": 1\r\n    },\r\n'
    '    "c": {\r\n        "d": []\r\n    },\r\n    "x": 1\r\n}\r\n',
    '{\n  "x": 1, // one\n}': '{\n  "a": {\n    "b": 1\n  },\n  "c": {\n    "d": []\n  },\n  "x": 1, // one\n}',
    '{\n  "x": 1 // one\n}': '{\n  "a": {\n    "b": 1\n  },\n  "c": {\n    "d": []\n  },\n  "x": 1 // one\n}',
    '{"a": {/* none */}, "c": {"d": []}}': '{"a": {\n  "b": 1/* none */}, "c": {"d": []}}',
    '{"c": 1, "c": 2, "a": {"b": 1}}': '{"c": 1, "c": {\n  "d": []\n}, "a": {"b": 1}}',
}
# Each is no JSON, or nothing to put a member into.
REFUSED = ("[]", "1", "{", '{"a"}', '{"a": }', '{"a": 01}', "{} {}", '{"a": tru}', '{"a": "\n"}', '{"a": []}', "{,}")
REFUSED += ('{"a": 1 "b": 2}', "{'a': 1}", '{"a": {"b": 1}', '{"\\x": 1}', "/* open", '{"a":' * 5000)


class ApplyTest(unittest.TestCase):
    def test_values_are_put_in_the_style_of_the_text(self) -> None:
        for text, expected in APPLIED.items():
            with self.subTest(text):
                edited = EDIT.apply(text)
                self.assertEqual(expected, edited.text)
                self.assertEqual(expected, EDIT.apply(expected).text)
                self.assertEqual([], EDIT.apply(expected).record)

    def test_what_cannot_be_read_is_refused(self) -> None:
        for text in REFUSED:
            with self.subTest(text[:40]), self.assertRaises(Unreadable):
                EDIT.apply(text)

    def test_comments_are_refused_where_the_program_does_not_read_them(self) -> None:
        plain = JsonEdit(EDIT.values)
        for text in ('{"x": 1,}', '{"x": 1} // y', "{/**/}", '{"x": [1,]}'):
            with self.subTest(text):
                EDIT.apply(text)
                with self.assertRaises(Unreadable):
                    plain.apply(text)
        plain.apply('{"x": "// no comment, /* neither */ ,}"}')

    def test_a_default_changes_nothing_that_is_there(self) -> None:
        edit = JsonEdit({("x",): 1}, {("version",): 1})
        self.assertEqual('{"x": 1, "version": 2}', edit.apply('{"version": 2}').text)
        self.assertEqual('{"version": 1, "x": 1}', edit.apply('{"x": 1}').text)


class RandomTest(unittest.TestCase):
    """Texts with comments, blanks and commas anywhere: the edit is there, and taken out again it was never there."""

    BLANKS = ("", " ", "\n", "\n  ", "\t", " // note\n", "/* note */", "/*\n*/ ", "\r\n")

    def blank(self) -> str:
        return self.random.choice(self.BLANKS)

    def value(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.4:
            return self.random.choice(("1", "-2.5e3", '"a // b"', "null", "true", '"\\" ]}"', "{}", "[]"))
        if self.random.random() < 0.3:
            return f"[{self.blank()}{self.value(depth - 1)}{self.blank()},{self.blank()}{self.value(0)}{self.blank()}]"
        return self.object(depth - 1)

    def object(self, depth: int) -> str:
        names = self.random.sample(("a", "b", "c", "d", "e"), self.random.randrange(5))
        members = [
            f'{self.blank()}"{name}"{self.blank()}:{self.blank()}{self.value(depth)}{self.blank()}' for name in names
        ]
        comma = "," + self.blank() if members and self.random.random() < 0.3 else ""
        return "{" + ",".join(members) + (comma if members else self.blank()) + "}"

    def test_an_edit_changes_only_what_it_sets_and_can_be_taken_back(self) -> None:
        edits = 0
        for seed in range(300):
            self.random = Random(seed)
            text = self.blank() + self.object(3) + self.blank()
            with self.subTest(text), contextlib.suppress(Unreadable):
                before = JsonDocument(text, has_comments=True).value
                edited = EDIT.apply(text)
                after = JsonDocument(edited.text, has_comments=True).value
                self.assertEqual((1, {"d": []}), (after["a"].pop("b"), after.pop("c")))
                old = {**before, "a": {**before.get("a", {})}}
                old["a"].pop("b", None)
                old.pop("c", None)
                self.assertEqual(old, after)
                left = EDIT.revert(edited.text, edited.record)
                self.assertEqual(before, JsonDocument(left, has_comments=True).value)
                self.assertEqual(text.count("note"), left.count("note"))
                edits += 1
        self.assertGreater(edits, 150)


class RevertTest(unittest.TestCase):
    def test_the_text_is_as_it_was(self) -> None:
        for text in [*APPLIED, '{\n  // note\n  "x": 1\n}', '{"a": {}, "x": [1, 2]}']:
            with self.subTest(text):
                edited = EDIT.apply(text)
                self.assertEqual(text or "{}\n", EDIT.revert(edited.text, edited.record))

    def test_what_others_added_meanwhile_stays(self) -> None:
        edited = EDIT.apply('{"c": 3}')
        added = JsonEdit({("a", "theirs"): True, ("last",): [1]}, has_comments=True).apply(edited.text).text
        left = EDIT.revert(added, edited.record)
        self.assertEqual({"c": 3, "a": {"theirs": True}, "last": [1]}, JsonDocument(left, has_comments=False).value)

    def test_a_text_that_was_laid_out_anew_is_reverted_all_the_same(self) -> None:
        edited = EDIT.apply('{"x": 1}')
        left = EDIT.revert('{"c":{"d":[]},"a":{"b":1},"x":1}', edited.record)
        self.assertEqual('{"x":1}', left)

    def test_a_value_that_was_changed_is_not_taken_out(self) -> None:
        edited = EDIT.apply('{"c": 3}')
        for text in ('{"a": {"b": 7}, "c": {"d": []}}', '{"a": {"b": 1}, "c": {"d": [1]}}'):
            with self.subTest(text), self.assertRaises(ChangedLines):
                EDIT.revert(text, edited.record)

    def test_a_value_that_was_removed_by_hand_stays_so(self) -> None:
        """The refusal advises to remove by hand what was changed."""
        self.assertEqual("{}", EDIT.revert('{"a": {"b": 1}}', EDIT.apply('{"c": 3}').record))
