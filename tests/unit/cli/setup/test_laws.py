"""The laws of setup, for every client, system and shape of file: undone, each byte is as it was; twice is once."""

import json

from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, Client
from deepseek_cursor_proxy.cli.setup.files import Refusal, decode, plan
from deepseek_cursor_proxy.cli.setup.json_text import JsonDocument
from tests.support.width import width
from tests.unit.cli.setup.files_case import FilesCase

TOML = (
    "",
    "\n",
    "# only a comment",
    'model = "gpt-6"',
    '# mine\nmodel = "gpt-6" # the best\nmodel_provider="x"\n\n[model_providers.x]\nname = "X"\n',
    'notify = [\n  "a",\n  "[b]",\n]\nmodel = """\nlong\n"""\n"model_provider" = \'q\'\n',
    '[projects."/a b"]\ntrust_level = "trusted"',
    'model_providers.other.name = "o"\n[tui]\ntheme = "dark"\n\n\n',
    "[model_providers]\n[model_providers.a]\nname = 'a'\n",
)
JSON = (
    "",
    " \n",
    "{}",
    "{ }\n",
    "{\n}\n",
    '{"model": "x"}',
    '{"a": 1, "env": {"EDITOR": "vi"}}\n',
    '{\n    "env": {\n        "ANTHROPIC_MODEL": "claude",\n        "B": ""\n    },\n    "z": [1, {"y": null}]\n}\n',
    '{\n\t"provider": {"mine": {"npm": "x"}},\n\t"agent": {"default_model": null},\n\t"ü": "雨 🌧"\n}',
    '{"security": {"auth": {}}, "providers": {"openai-compatible": {"settings": {}}}, "version": 2}',
    json.dumps({"language_models": {"openai": {"x": [1.5e3, True]}}, "model": {}}, indent=4),
)
JSONC = (
    '// mine\n{\n  // first\n  "a": 1, // one\n  /* two */ "b": {},\n}\n',
    '{\n  "a": "http://x/*no*/", // trailing\n  "agent": {\n    // nothing yet\n  }\n}',
    '{"model": "x", /* y */ "provider": {},}',
)
JSON_LISTS = (
    "", " \n", "[]", "[ ]\n", '[{"name": "x", "vendor": "y"}]',
    '[\n\t{\n\t\t"vendor": "ollama",\n\t\t"name": "mine"\n\t},\n\t1\n]',
    '// mine\n[\n  // first\n  {"name": "a"}, // one\n  {"name": "deepseek-proxy", "vendor": "z", "models": []},\n]\n',
)  # fmt: skip
YAML = ("", "\n", "# mine", "---\n# mine\n")
YAML_KEYS = (
    "name: mine",
    'name: "a # b" # c\nversion: 1\nmodels:\n- name: x\n  model: y\n\n# end\n',
    "models:\n    - name: x\n      roles:\n        - chat\nrules: [a, b]\n",
    "models:",
    "name: Mine\nmodels: []  # none yet\nrules:\n  - short\n",
    "models: [ ]",
    "models: # none yet\nprompt: |\n  model: x\n  - y\n",
    "model: gpt\nopenai-api-base: >\n  http://x\n  y\nread:\n- a\n- b",
)
YAML_LISTS = ("- model_id: a\n  model_name: b\n", "# mine\n- {model_id: a}\n\n- model_id: c", "-\n  model_id: x\n")
SHAPES = {
    "codex": TOML,
    "claude-code": JSON,
    "opencode": JSON + JSONC,
    "vscode": JSON_LISTS,
    # Its `model` is an object.
    "qwen-code": tuple(text for text in JSON + JSONC if '"model": "x"' not in text),
    "continue": YAML + YAML_KEYS,
    "cline": JSON,
    "aider": YAML + YAML_KEYS,
    "pi": JSON,
    "zed": JSON + JSONC,
    "llm": YAML + YAML_LISTS,
}
# Nothing of these is of the right kind, whichever client it is.
DAMAGED = (b"\xff\xfe{", b"\0\0", b'{"a": ', b'x = [1,\n"', b"\t- a\n b: [", b"<xml/>")


def variants(text: str, number: int) -> list[bytes]:
    """The text as it is, with the line ends of Windows, and with a mark in front; a sample has one of these three."""
    plain = text.encode()
    every = [plain, text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + plain]
    return width([every[number % 3]], every)


class LawsTest(FilesCase):
    def each(self, client: Client) -> list[bytes | None]:
        shapes = enumerate(SHAPES[client.name], list(SHAPES).index(client.name))
        return [None, *(data for number, text in shapes for data in variants(text, number))]

    def prepare(self, client: Client, data: bytes | None, system: str = "linux") -> None:
        for target in self.targets(client, system):
            target.path.unlink(missing_ok=True)
        if data is not None:
            self.write(self.targets(client, system)[0].path, data)

    def test_twice_is_once_and_an_undo_restores_every_byte(self) -> None:
        for client in CLIENTS.values():
            for data in self.each(client):
                with self.subTest(client=client.name, data=data):
                    self.prepare(client, data)
                    before = self.snapshot()
                    self.set_up(client)
                    once = self.snapshot()
                    self.assertNotEqual(before, once)
                    again = plan(client.name, self.targets(client), self.history)
                    self.assertEqual([], [change.path for change in again if change.is_needed])
                    self.undo(client)
                    self.assertEqual(before, self.snapshot())

    def test_marked_lines_tell_the_way_back_without_a_record(self) -> None:
        for name in ("codex", "continue", "aider", "llm"):
            client = CLIENTS[name]
            for data in self.each(client)[1:]:
                with self.subTest(client=name, data=data):
                    self.prepare(client, data)
                    path = self.targets(client)[0].path
                    self.set_up(client)
                    self.history.forget(name)
                    target = self.targets(client)[0]
                    document = decode(path.read_bytes())
                    assert data is not None
                    self.assertEqual(data, document.encode(target.editor.revert(document.text, [])))

    def test_what_others_said_is_said_still(self) -> None:
        for name in ("opencode", "zed", "claude-code", "cline", "qwen-code"):
            client = CLIENTS[name]
            for data in self.each(client)[1:]:
                with self.subTest(client=name, data=data):
                    assert data is not None
                    self.prepare(client, data)
                    self.set_up(client)
                    text = decode(data).text
                    before = JsonDocument(text if text.strip() else "{}", has_comments=True).value
                    after = JsonDocument(
                        decode(self.targets(client)[0].path.read_bytes()).text, has_comments=True
                    ).value
                    self.assert_kept(before, after)
                    for comment in ("// mine", "// one", "/* two */", "// trailing", "// nothing yet", "/* y */"):
                        self.assertEqual(comment in text, comment in self.targets(client)[0].path.read_text("utf-8"))
                    self.history.forget(name)

    def assert_kept(self, before: dict[str, object], after: dict[str, object]) -> None:
        """The same names in the same order."""
        self.assertEqual(list(before), [name for name in after if name in before])
        for name, value in before.items():
            if isinstance(value, dict) and isinstance(after[name], dict) and name not in ("openai-compatible",):
                self.assert_kept(value, after[name])  # type: ignore[arg-type]

    def test_a_file_that_cannot_be_read_stays_as_it_is(self) -> None:
        for client in CLIENTS.values():
            for data in DAMAGED:
                with self.subTest(client=client.name, data=data):
                    self.prepare(client, data)
                    before = self.snapshot()
                    with self.assertRaises(Refusal) as refused:
                        self.set_up(client)
                    self.assertEqual(before, self.snapshot())
                    self.assertTrue(str(refused.exception).startswith(str(self.targets(client)[0].path)))
                    self.assertIn("127.0.0.1:9000", self.targets(client)[0].editor.by_hand())
