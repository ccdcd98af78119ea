import tomllib
import unittest

from deepseek_cursor_proxy.cli.setup.files import ChangedLines, Unreadable
from deepseek_cursor_proxy.cli.setup.marked_text import TomlEdit, YamlItems, YamlKeys, insert, take_out

TOML = TomlEdit("codex", {"model": "ours", "path": "C:\\x"}, "providers.ours", {"url": "http://x", "n": 1, "on": True})
KEYS = YamlKeys("aider", {"model": "openai/ours", "yes": "true", "limit": 5})
ITEMS = YamlItems("continue", "models", [{"name": "One", "roles": ["chat", "edit"]}], {"schema": "v1"})
LIST = YamlItems("llm", None, [{"model_id": "ours"}], {})


class MarkedLinesTest(unittest.TestCase):
    def test_lines_are_taken_out_wherever_they_stand(self) -> None:
        for text in ("", "a", "a\n", "a\r\nb\r\n", "a\r\nb", "\n\n", "a\n\nb\n"):
            for at in range(len(text.splitlines()) + 1):
                for lines in (["x = 1"], ["  x", "", "  y"]):
                    self.assertEqual(text, take_out(insert(text, at, lines, "codex")), (text, at, lines))

    def test_what_was_added_below_stays(self) -> None:
        self.assertEqual("a\nb\n", take_out(insert("a\n", 1, ["x"], "codex") + "b\n"))

    def test_lines_that_were_changed_are_not_taken_out(self) -> None:
        text = insert("a\n", 0, ["x = 1", "y = 2"], "codex")
        for changed in (text.replace("x = 1", "x = 2"), text.replace("x = 1\n", ""), text[: text.index("y = 2")]):
            with self.subTest(changed), self.assertRaises(ChangedLines):
                take_out(changed)


class TomlTest(unittest.TestCase):
    def test_a_key_that_was_set_becomes_a_comment(self) -> None:
        text = TOML.apply('a = 1\nmodel = "theirs" # good\n').text
        self.assertIn('# deepseek-cursor-proxy replaced: model = "theirs" # good\n', text)
        found = tomllib.loads(text)
        self.assertEqual({"url": "http://x", "n": 1, "on": True}, found["providers"].pop("ours"))
        self.assertEqual({"a": 1, "model": "ours", "path": "C:\\x", "providers": {}}, found)

    def test_what_cannot_be_edited_is_refused(self) -> None:
        refused = ("a = ", "a = 1\na = 2\n", "[providers.ours]\n", "providers = 1\n", 'providers = {a = "b"}\n', "=")
        for text in refused:
            with self.subTest(text), self.assertRaises(Unreadable):
                TOML.apply(text)


class YamlTest(unittest.TestCase):
    def assert_lines(self, expected: str, text: str) -> None:
        self.assertEqual(expected, "".join(line for line in text.splitlines(True) if "the next" not in line))

    def test_keys_are_added_and_those_that_were_set_become_comments(self) -> None:
        ours = 'model: openai/ours\nyes: "true"\nlimit: 5\n'
        self.assert_lines(f"a: 1\n{ours}", KEYS.apply("a: 1\n").text)
        old = "# deepseek-cursor-proxy replaced: "
        self.assert_lines(
            f"{old}model: [a,\n{old}  b]\n\na: |\n  model: x\n{ours}",
            KEYS.apply("model: [a,\n  b]\n\na: |\n  model: x\n").text,
        )

    def test_items_come_first_in_the_list_as_it_is_indented(self) -> None:
        item = '- name: One\n{0}  roles: ["chat", "edit"]\n'
        self.assert_lines("models:\n" + item.format("") + "- name: x\n", ITEMS.apply("models:\n- name: x\n").text)
        deep = "models:\n    " + item.format("    ") + "    - name: x\n"
        self.assert_lines(deep, ITEMS.apply("models:\n    - name: x\n").text)
        self.assert_lines("a: 1\nmodels:\n  " + item.format("  "), ITEMS.apply("a: 1\n").text)
        self.assert_lines("schema: v1\nmodels:\n  " + item.format("  "), ITEMS.apply("").text)

    def test_items_come_last_in_a_file_that_is_a_list(self) -> None:
        self.assert_lines("- model_id: x\n- model_id: ours\n", LIST.apply("- model_id: x\n").text)

    def test_what_is_not_of_the_usual_shape_is_refused(self) -> None:
        both = (
            "a", "a: 'b", 'a: "b" c', "a: [b", "a: {b: c", "\ta: b", "a:\n\t- b", "{a: b}", "a: b\n...\n", "%YAML 1.2",
        )  # fmt: skip
        both += ("  a: b\n", "a: b\n---\nc: d\n", "? a\n: b\n", "- a\nb: c\n", "!!map\na: b", "&x a: b")
        for editor in (KEYS, ITEMS, LIST):
            for text in both:
                with self.subTest(text=text, client=editor.client), self.assertRaises(Unreadable):
                    editor.apply(text)
        for editor, text in ((KEYS, "- a\n"), (ITEMS, "- a\n"), (LIST, "a: b\n")):
            with self.subTest(text=text, client=editor.client), self.assertRaises(Unreadable):
                editor.apply(text)
        for text in ("models: [a]\n", "models: *other\n", "models:\n  name: x\n", "models: one\n"):
            with self.subTest(text), self.assertRaises(Unreadable):
                ITEMS.apply(text)
