import json
import re
import tomllib
from dataclasses import replace

from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, FLASH, PRO, ProxyEndpoint, Status, status
from tests.unit.cli.setup.files_case import ENDPOINT, OTHER_ENDPOINT, SYSTEMS, FilesCase

# Below the home; by system where they differ.
SAME = {
    "codex": (".codex/config.toml", ".codex/deepseek-proxy-models.json"),
    "claude-code": (".claude/settings.json",),
    "opencode": (".config/opencode/opencode.json",),
    "vscode": (".config/Code/User/chatLanguageModels.json", ".config/Code/User/settings.json"),
    "qwen-code": (".qwen/settings.json",),
    "continue": (".continue/config.yaml",),
    "cline": (".cline/data/settings/providers.json",),
    "aider": (".aider.conf.yml", ".aider.model.metadata.json"),
    "pi": (".pi/agent/models.json",),
    "zed": (".config/zed/settings.json",),
    "llm": (".config/io.datasette.llm/extra-openai-models.yaml",),
}
VSCODE_PLACES = {"darwin": "Library/Application Support/Code/User", "win32": "AppData/Roaming/Code/User"}
DIFFERENT = {
    **{
        (system, "vscode"): (f"{place}/chatLanguageModels.json", f"{place}/settings.json")
        for system, place in VSCODE_PLACES.items()
    },
    ("darwin", "llm"): ("Library/Application Support/io.datasette.llm/extra-openai-models.yaml",),
    ("win32", "llm"): ("AppData/Roaming/io.datasette.llm/extra-openai-models.yaml",),
    ("win32", "zed"): ("AppData/Roaming/Zed/settings.json",),
}
VARIABLES = {
    "codex": ("linux", "CODEX_HOME", "config.toml"), "claude-code": ("darwin", "CLAUDE_CONFIG_DIR", "settings.json"),
    "opencode": ("linux", "XDG_CONFIG_HOME", "opencode/opencode.json"),
    "continue": ("linux", "CONTINUE_GLOBAL_DIR", "config.yaml"),
    "cline": ("linux", "CLINE_DIR", "data/settings/providers.json"),
    "pi": ("linux", "PI_CODING_AGENT_DIR", "models.json"), "zed": ("win32", "APPDATA", "Zed/settings.json"),
    "llm": ("win32", "LLM_USER_PATH", "extra-openai-models.yaml"),
}  # fmt: skip


class OtherKeysTest(FilesCase):
    """A key that is left in the environment or in a file would reach the proxy in place of the right one."""

    def notes(self, name: str, **environment: str) -> str:
        return "\n".join(CLIENTS[name].notes(self.machine("linux", **environment), ENDPOINT))

    def test_setup_warns_of_a_key_in_the_environment(self) -> None:
        for name, variable in (
            ("claude-code", "ANTHROPIC_API_KEY"), ("aider", "OPENAI_API_KEY"), ("aider", "AIDER_OPENAI_API_KEY"),
            ("qwen-code", "OPENAI_API_KEY"),
        ):  # fmt: skip
            with self.subTest(name, variable=variable):
                found = self.notes(name, **{variable: "sk-other-1234567"})
                self.assertIn(f"{variable} in the environment", found)
                self.assertIn("Unset it", found)
                self.assertNotIn("sk-other", found)
                same = {variable: "sk-own", ENDPOINT.key_variable: "sk-own"}
                for none in ({}, {variable: ""}, same):
                    self.assertNotIn("Warning", self.notes(name, **none))

    def test_setup_warns_of_a_token_that_the_proxy_refuses(self) -> None:
        found = self.notes("claude-code", ANTHROPIC_AUTH_TOKEN="sk-ant-1234567")
        self.assertIn("ANTHROPIC_AUTH_TOKEN holds an Anthropic key", found)
        self.assertNotIn("1234567", found)

    def test_setup_warns_of_a_key_in_a_file_of_the_client(self) -> None:
        for name, path, text, is_found in (
            ("claude-code", ".claude/settings.json", '{"env": {"ANTHROPIC_API_KEY": "sk-ant-1"}}', True),
            ("claude-code", ".claude/settings.json", '{"env": {"ANTHROPIC_API_KEY": ""}}', False),
            ("claude-code", ".claude/settings.json", '{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-1"}}', True),
            ("aider", ".aider.conf.yml", "model: x\nopenai-api-key: sk-1\n", True),
            ("aider", ".aider.conf.yml", "# openai-api-key: sk-1\nopenai-api-base: x\n", False),
            ("aider", ".env", "export OPENAI_API_KEY='sk-1'\n", True),
            ("aider", ".env", "OPENAI_API_KEY=\nX=y\n", False),
        ):
            with self.subTest(path, text=text):
                self.write(self.home / path, text.encode())
                self.assertEqual(is_found, f"in {self.home / path}" in self.notes(name))
                (self.home / path).unlink()


class PathsTest(FilesCase):
    def test_each_system_has_its_places(self) -> None:
        for system in SYSTEMS:
            for name, client in CLIENTS.items():
                with self.subTest(system=system, client=name):
                    found = [target.path for target in self.targets(client, system)]
                    expected = DIFFERENT.get((system, name), SAME[name])
                    self.assertEqual([self.home / path for path in expected], found)

    def test_a_variable_of_the_client_names_another_place(self) -> None:
        for name, (system, variable, path) in VARIABLES.items():
            with self.subTest(name):
                machine = self.machine(system, **{variable: str(self.place / "other")})
                self.assertEqual(self.place / "other" / path, CLIENTS[name].targets(machine, ENDPOINT)[0].path)
                empty = self.machine(system, **{variable: ""})
                self.assertTrue(CLIENTS[name].targets(empty, ENDPOINT)[0].path.is_relative_to(self.home))

    def test_opencode_is_edited_where_its_file_is(self) -> None:
        path = self.home / ".config" / "opencode" / "opencode.jsonc"
        self.write(path, b"{}")
        self.assertEqual(path, self.targets(CLIENTS["opencode"])[0].path)
        named = self.machine(OPENCODE_CONFIG=str(self.place / "mine.json"))
        self.assertEqual(self.place / "mine.json", CLIENTS["opencode"].targets(named, ENDPOINT)[0].path)


class ContentTest(FilesCase):
    def test_no_file_holds_a_key_where_a_variable_can_be_named(self) -> None:
        for name, client in CLIENTS.items():
            with self.subTest(name):
                self.set_up(client)
                written = b"".join(target.path.read_bytes() for target in self.targets(client))
                self.assertEqual(client.needs_key, b"sk-of-the-user" in written)
                kept = b"".join(path.read_bytes() for path in (self.place / "history").iterdir())
                self.assertNotIn(b"sk-of-the-user", kept)

    def test_every_client_asks_for_flash_unless_pro_is_chosen(self) -> None:
        """A list of models begins with the chosen one, because some clients begin with the first."""
        for model in (FLASH, PRO):
            for client in CLIENTS.values():
                with self.subTest(client.name, model=model):
                    target = client.targets(self.machine("linux"), replace(ENDPOINT, model=model))[0]
                    first = re.search("deepseek-(?:flash|v4-pro)", target.editor.by_hand())
                    assert first is not None
                    self.assertEqual(model, first[0])

    def test_claude_codes_rows_are_pro_and_flash_by_their_size(self) -> None:
        for model in (FLASH, PRO):
            [target] = CLIENTS["claude-code"].targets(self.machine("linux"), replace(ENDPOINT, model=model))
            env = json.loads(target.editor.by_hand())["env"]
            rows = {row: env[f"ANTHROPIC_DEFAULT_{row}_MODEL"] for row in ("FABLE", "OPUS", "SONNET", "HAIKU")}
            self.assertEqual({"FABLE": PRO, "OPUS": PRO, "SONNET": FLASH, "HAIKU": FLASH}, rows)
            self.assertEqual(model, env["ANTHROPIC_MODEL"])

    def test_what_vs_code_writes_into_our_group_stays_over_a_second_setup_and_is_no_change_for_undo(self) -> None:
        """As VS Code 1.139 lays the file out when it has got the key and an effort was chosen."""
        client = CLIENTS["vscode"]
        path = self.targets(client)[0].path
        for theirs in ([{"name": "Ollama", "vendor": "ollama"}], []):
            if theirs:
                self.write(path, json.dumps(theirs).encode())
            before = [*self.snapshot()]
            self.set_up(client)
            own = json.loads(path.read_bytes())[0]
            own["apiKey"] = "${input:chat.lm.secret.150055d2}"
            chosen = {**own, "apiType": "messages", "settings": {FLASH: {"reasoningEffort": "max"}}}
            text = json.dumps([chosen, *theirs], indent="\t")
            path.write_text(text, encoding="utf-8")
            self.set_up(client)
            self.assertEqual([chosen, *theirs], json.loads(path.read_bytes()))
            if theirs:
                self.assertEqual(text, path.read_text("utf-8"))
            self.set_up(client, endpoint=OTHER_ENDPOINT)
            again = json.loads(path.read_bytes())[0]
            self.assertEqual(chosen["apiKey"], again["apiKey"])
            self.assertIn(":9100/v1", again["models"][0]["url"])
            self.undo(client)
            self.assertEqual(before, [*self.snapshot()])
            if theirs:
                self.assertEqual(theirs, json.loads(path.read_bytes()))
                path.unlink()

    def test_codex_is_told_about_the_models(self) -> None:
        self.set_up(CLIENTS["codex"])
        config, catalogue = (target.path for target in self.targets(CLIENTS["codex"]))
        settings = tomllib.loads(config.read_text("utf-8"))
        self.assertEqual(str(catalogue), settings["model_catalog_json"])
        self.assertEqual("responses", settings["model_providers"][settings["model_provider"]]["wire_api"])
        flash, pro = json.loads(catalogue.read_text("utf-8"))["models"]
        self.assertEqual(settings["model"], flash["slug"])
        for model in (pro, flash):
            self.assertEqual(1_048_576, model["context_window"])
            self.assertEqual(["low", "high", "max"], [each["effort"] for each in model["supported_reasoning_levels"]])
            self.assertEqual(
                ("freeform", True), (model["apply_patch_tool_type"], model["supports_parallel_tool_calls"])
            )
        self.assertEqual((["text"], ["text", "image"]), (pro["input_modalities"], flash["input_modalities"]))


class StatusTest(FilesCase):
    def test_a_client_is_installed_if_its_program_is_whatever_folders_there_are(self) -> None:
        aider, codex = CLIENTS["aider"], CLIENTS["codex"]
        for client in (aider, codex):
            self.assertEqual(Status(False, False, False), status(client, self.machine(), ENDPOINT))
            self.assertTrue(status(client, self.machine(programs=(client.program,)), ENDPOINT).is_installed)
        (self.home / ".codex").mkdir()
        self.assertEqual(Status(False, False, False), status(codex, self.machine(), ENDPOINT))
        self.write(self.home / ".aider.conf.yml", b"")
        self.assertEqual(Status(False, True, False), status(aider, self.machine(), ENDPOINT))

    def test_a_client_points_here_when_its_file_has_the_address(self) -> None:
        for name, client in CLIENTS.items():
            with self.subTest(name):
                self.set_up(client)
                self.assertEqual(Status(False, True, True), status(client, self.machine(), ENDPOINT))
                self.assertEqual(Status(False, True, False), status(client, self.machine(), OTHER_ENDPOINT))
                longer = ProxyEndpoint("http://127.0.0.1:900")
                self.assertEqual(Status(False, True, False), status(client, self.machine(), longer))
                local = ProxyEndpoint("http://localhost:9000")
                self.assertEqual(Status(False, True, True), status(client, self.machine(), local))

    def test_a_commented_address_does_not_count_and_a_damaged_file_is_unknown(self) -> None:
        codex = CLIENTS["codex"]
        path = self.targets(codex)[0].path
        self.write(path, b'# base_url = "http://127.0.0.1:9000/v1"\n')
        self.assertEqual(Status(False, True, False), status(codex, self.machine(), ENDPOINT))
        self.write(path, b"\xff")
        found = status(codex, self.machine(), ENDPOINT)
        self.assertEqual((False, True, None), found[:3])
        self.assertIn("UTF-8", found.fault)
