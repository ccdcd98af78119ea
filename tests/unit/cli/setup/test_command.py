import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.cli.running_proxy import RunningProxy
from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, CODEX_CATALOGUE
from deepseek_cursor_proxy.config.access_keys import AccessKey
from tests.support.commands import CommandTestCase

KEY = "sk-abcdefghijklmnopqrstuvwxyz"


class SetupCase(CommandTestCase):
    command = ("setup",)

    def setUp(self) -> None:
        super().setUp()
        self.running = self.enterContext(mock.patch.object(running_proxy, "find_running", return_value=None))
        self.enterContext(mock.patch("socket.create_connection", side_effect=ConnectionRefusedError))
        self.codex = self.home / ".codex" / "config.toml"
        self.claude = self.home / ".claude" / "settings.json"


class SetupTest(SetupCase):
    def test_a_client_may_be_named_by_its_command_as_for_run(self) -> None:
        self.assertEqual(0, self.run_command("claude", "--yes").code)
        self.assertTrue(self.claude.exists())

    def test_it_shows_the_difference_and_asks(self) -> None:
        self.codex.parent.mkdir()
        self.codex.write_text('model = "gpt-6"\n', encoding="utf-8")
        ran = self.run_command("codex", answers=("y",))
        self.assertEqual((0, ""), (ran.code, ran.err))
        self.assertIn('-model = "gpt-6"\n', ran.out)
        self.assertIn('+model = "deepseek-flash"\n', ran.out)
        self.assertIn("export DEEPSEEK_API_KEY=" if sys.platform != "win32" else "setx DEEPSEEK_API_KEY", ran.out)
        self.assertIn('model = "deepseek-flash"', self.codex.read_text("utf-8"))
        again = self.run_command("codex", answers=())
        self.assertEqual((0, True), (again.code, "nothing was changed" in again.out))
        self.assertEqual(0, self.run_command("codex", "--undo", answers=("yes",)).code)
        self.assertEqual('model = "gpt-6"\n', self.codex.read_text("utf-8"))

    def test_without_a_yes_nothing_is_written(self) -> None:
        for answers in (("n",), ("",), ()):
            with self.subTest(answers):
                ran = self.run_command("codex", answers=answers)
                self.assertEqual((1, []), (ran.code, self.files()))
                self.assertIn("Nothing was changed.", ran.out)

    def test_without_a_terminal_it_wants_yes(self) -> None:
        for arguments in (("codex",), ("codex", "--undo")):
            with self.subTest(arguments):
                ran = self.run_command(*arguments)
                self.assertEqual((2, []), (ran.code, self.files()))
                self.assertIn("--yes", ran.err)
        self.assertEqual(0, self.run_command("codex", "--yes").code)
        self.assertEqual(0, self.run_command("codex", "--undo", "--yes").code)
        self.assertFalse(self.codex.exists())

    def test_another_model_can_be_chosen_later_and_undo_needs_no_choice(self) -> None:
        for client, path in (("codex", self.codex), ("claude-code", self.claude)):
            told = self.run_command(client, "--yes").out
            self.assertIn("--model deepseek-v4-pro chooses V4 Pro, for three to seven times the money", told)
            for model in ("deepseek-v4-pro", "deepseek-flash", "deepseek-v4-pro"):
                self.assertEqual(0, self.run_command(client, "--yes", "--model", model).code)
                asked = re.findall(r'(?m)^model = "(.+)"|"ANTHROPIC_MODEL": "(.+)"', path.read_text("utf-8"))
                self.assertEqual([model], ["".join(each) for each in asked])
            self.assertEqual(0, self.run_command(client, "--undo", "--yes").code)
            self.assertFalse(path.exists())

    def test_a_missing_variable_is_named_with_the_file_that_keeps_it(self) -> None:
        for system, shell, file in (
            ("linux", "/bin/zsh", "~/.zshrc"), ("linux", "/usr/bin/bash", "~/.bashrc"),
            ("darwin", "/bin/bash", "~/.bash_profile"), ("linux", "", "the file that your shell"),
        ):  # fmt: skip
            with mock.patch.dict(os.environ, {"SHELL": shell}), mock.patch.object(sys, "platform", system):
                told = self.run_command("codex", "--yes").out
            self.assertIn(f"export DEEPSEEK_API_KEY=sk-…\n  To keep it, add that line to {file}", told)
        os.environ["DEEPSEEK_API_KEY"] = KEY
        self.assertNotIn("Set the key", self.run_command("codex", "--yes").out)

    def test_subagents_go_to_flash_by_a_rule_of_the_proxy_that_undo_takes_out(self) -> None:
        self.configure("# mine\nport = 9000\n\n[models]\n")
        ran = self.run_command("claude-code", "--flash-subagents", "--yes")
        self.assertIn('+subagent_model = "deepseek-flash"\n', ran.out)
        self.assertIn("Restart the proxy", ran.out)
        path = self.home / ".deepseek-cursor-proxy" / "config.toml"
        found = tomllib.loads(path.read_text("utf-8"))
        self.assertEqual({"subagent_model": "deepseek-flash", "port": 9000, "models": {}}, found)
        for variable in ("CLAUDE_CODE_SUBAGENT_MODEL", "CLAUDE_CODE_AUTO_MODE_MODEL"):
            self.assertNotIn(variable, self.claude.read_text("utf-8"))
        self.assertEqual(0, self.run_command("claude-code", "--undo", "--yes").code)
        self.assertEqual("# mine\nport = 9000\n\n[models]\n", path.read_text("utf-8"))
        self.assertEqual(2, self.run_command("codex", "--flash-subagents", "--yes").code)

    def test_the_status_line_of_claude_code_is_a_script_that_undo_takes_out(self) -> None:
        self.claude.parent.mkdir(exist_ok=True)
        self.claude.write_text(theirs := '{"statusLine": {"type": "command", "command": "mine"}}', encoding="utf-8")
        self.assertEqual(0, self.run_command("claude-code", "--status-line", "--yes").code)
        found = json.loads(self.claude.read_bytes())["statusLine"]
        python, *flags, script = shlex.split(found["command"])
        self.assertEqual(("command", ["-I", "-S"]), (found["type"], flags))
        self.assertTrue(Path(python).exists() and Path(script).exists(), found)
        self.assertEqual(0, self.run_command("claude-code", "--undo", "--yes").code)
        self.assertEqual(theirs, self.claude.read_text("utf-8"))
        self.assertIn("--status-line is for claude-code", self.run_command("codex", "--status-line", "--yes").err)

    def test_print_prints_and_writes_nothing(self) -> None:
        ran = self.run_command("claude-code", "--print", "--url", "https://proxy.example/v1/")
        self.assertEqual((0, "", []), (ran.code, ran.err, self.files()))
        self.assertIn(str(self.claude), ran.out)
        self.assertIn('"ANTHROPIC_BASE_URL": "https://proxy.example"', ran.out)
        self.assertNotIn("Warning", ran.out)
        os.environ["ANTHROPIC_API_KEY"] = "sk-ant-1234567"
        self.assertIn("Warning: ANTHROPIC_API_KEY", self.run_command("claude-code", "--print").out)

    def test_a_file_that_cannot_be_read_is_refused_with_what_to_add_by_hand(self) -> None:
        self.claude.parent.mkdir()
        self.claude.write_text("{// mine\n}", encoding="utf-8")
        ran = self.run_command("claude-code", "--yes")
        self.assertEqual(2, ran.code)
        self.assertIn(f"nothing was changed. {self.claude}: it has comments", ran.err)
        self.assertIn('"ANTHROPIC_MODEL"', ran.out)
        self.assertEqual([self.claude], self.files())

    def test_the_address_is_that_of_the_running_proxy_else_of_the_settings(self) -> None:
        self.configure("port = 9100\n")
        self.assertIn('"http://127.0.0.1:9100/v1"', self.run_command("codex", "--print").out)
        self.configure('host = "0.0.0.0"\nport = 9200\n')
        self.assertIn('"http://127.0.0.1:9200/v1"', self.run_command("codex", "--print").out)
        self.running.return_value = RunningProxy("1", "http://127.0.0.1:9300/v1", None, "")
        self.assertIn('"http://127.0.0.1:9300/v1"', self.run_command("codex", "--print").out)
        self.assertIn('"https://x/v1"', self.run_command("codex", "--print", "--url", "https://x").out)

    def test_a_proxy_that_does_not_run_is_named_with_the_command_that_starts_it(self) -> None:
        url, words = (
            "http://127.0.0.1:9123",
            "No proxy runs at http://127.0.0.1:9123 yet. Start it: deepseek-cursor-proxy\n",
        )
        for error in (None, ConnectionRefusedError()):
            with mock.patch("socket.create_connection", side_effect=error, return_value=mock.MagicMock()):
                self.assertEqual(error is not None, words in self.run_command("codex", "--yes", "--url", url).out)

    def test_alone_it_lists_the_clients(self) -> None:
        self.run_command("codex", "--yes")
        self.claude.parent.mkdir()
        self.claude.write_bytes(b"\xff")
        ran = self.run_command()
        self.assertEqual((0, ""), (ran.code, ran.err))
        rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines()[1:-1]}
        self.assertEqual(["settings", "only", "yes"], rows["codex"])
        self.assertEqual(["settings", "only", "unknown:"], rows["claude-code"][:3])
        self.assertEqual(["-", "no"], rows["aider"])
        self.assertIn("cursor", rows)

    def test_cursor_gets_the_public_address_and_the_way_to_the_long_context(self) -> None:
        proxy = RunningProxy("1", "http://127.0.0.1:9000/v1", "https://x.ngrok-free.app", "")
        flash = '"gpt-5.6-sol" = "deepseek-flash"'
        for settings, running, arguments, expected, absent in (
            ("", None, "", ("with a tunnel", flash), "https://mine"),
            ('public_hosts = ["mine.example"]', None, "", ("https://mine.example/v1",), "with a tunnel"),
            ("", proxy, "", ("https://x.ngrok-free.app/v1", "config.toml", flash), "with a tunnel"),
            ("", proxy, "--model deepseek-v4-pro", ('"gpt-5.6-sol" = "deepseek-v4-pro"',), flash),
            ('model = "vendor/model"', proxy, "", ('"gpt-5.6-sol" = "vendor/model"',), flash),
            ('[models]\n"gpt-6" = "deepseek-flash"', proxy, "", ("gpt-6",), "gpt-5.6-sol"),
        ):
            with self.subTest(settings, arguments=arguments):
                path = self.configure(settings)
                self.running.return_value = running
                out = self.output_of("cursor", *arguments.split())
                self.assertEqual([], [words for words in expected if words not in out], out)
                self.assertNotIn(absent, out)
                self.assertEqual([path], self.files())

    def test_what_cannot_be_done_changes_nothing(self) -> None:
        for line, words in (
            ("emacs", "claude-code"),
            *((f"codex --print --url {url}", url) for url in ("x", "ftp://x", "http://", "http://x:0", "http://x?y")),
            ("cline --yes", "DEEPSEEK_API_KEY"),
        ):
            with self.subTest(line):
                ran = self.run_command(*line.split())
                self.assertEqual((2, []), (ran.code, self.files()))
                self.assertIn(words, ran.err)
        ran = self.run_command("codex", "--undo", "--yes")
        self.assertEqual((0, True), (ran.code, "nothing from setup" in ran.out))


class KeysTest(SetupCase):
    def test_a_key_can_be_typed_and_a_slip_is_not_taken_for_one(self) -> None:
        for typed, code, words in (("y", 2, "too short for a key"), (KEY, 0, "")):
            with mock.patch("getpass.getpass", return_value=typed):
                ran = self.run_command("cline", answers=("y",))
            self.assertEqual((code, code == 0), (ran.code, bool(self.files())))
            self.assertIn(words, ran.err)
            self.assertNotIn(KEY, ran.out + ran.err)

    def test_a_key_in_a_file_is_not_shown(self) -> None:
        with mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": KEY}):
            ran = self.run_command("cline", "--yes")
        self.assertEqual(0, ran.code)
        self.assertNotIn(KEY, ran.out + ran.err)
        [path] = (self.home / ".cline").rglob("providers.json")
        found = json.loads(path.read_text("utf-8"))["providers"]["openai-compatible"]["settings"]
        self.assertEqual(KEY, found["apiKey"])
        others = [each.read_text("utf-8") for each in self.files() if each != path]
        self.assertNotIn(KEY, "".join(others))

    def test_a_key_that_is_there_already_is_not_shown(self) -> None:
        self.claude.parent.mkdir()
        env = {"ANTHROPIC_AUTH_TOKEN": "my-company-token", "ANTHROPIC_API_KEY": "k3y-of-mine", "MAX_TOKENS": "77"}
        theirs = {"env": {**env, "ANTHROPIC_CUSTOM_HEADERS": "x-api-key: hidden-too"}}
        self.claude.write_text(json.dumps(theirs, indent=2), encoding="utf-8")
        text = self.run_command("claude-code", answers=("n",)).out
        for secret in ("my-company-token", "k3y-of-mine", "hidden-too"):
            self.assertNotIn(secret, text)
        self.assertIn('"MAX_TOKENS": "77"', text)
        self.assertIn('env_key = "DEEPSEEK_API_KEY"', self.run_command("codex", answers=("n",)).out)
        self.assertIn("secrets.DEEPSEEK_API_KEY", self.run_command("continue", answers=("n",)).out)

    def test_what_is_shown_of_new_files_is_what_is_written(self) -> None:
        """The prices of aider's models looked like keys: `input_cost_per_token`."""
        for name in CLIENTS.keys() - {"cline"}:
            with self.subTest(name):
                shown = self.run_command(name, "--yes").out.splitlines()
                ours = self.home / ".deepseek-cursor-proxy"
                # The catalogue of Codex is one line there.
                paths = [path for path in self.files() if ours not in path.parents and path.name != CODEX_CATALOGUE]
                written = [path.read_text("utf-8") for path in paths]
                for line in "".join(written).splitlines():
                    self.assertIn(f"+{line}", shown)
                self.run_command(name, "--undo", "--yes")

    def test_a_variable_that_is_not_set_is_named_unless_the_file_of_the_client_sets_it(self) -> None:
        told = self.run_command("claude-code", "--yes").out
        self.assertIn("reads your DeepSeek key from ANTHROPIC_AUTH_TOKEN", told)
        self.assertIn("Not logged in · Please run /login", told)
        self.run_command("claude-code", "--undo", "--yes")
        self.claude.write_text('{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-1"}}', encoding="utf-8")
        text = self.run_command("claude-code", "--yes").out
        self.assertNotIn("is not set.", text)
        self.assertNotIn("Not logged in", text)
        self.assertIn("is what Claude Code sends to the proxy: it must be your DeepSeek key.", text)

    def test_with_access_keys_a_new_one_is_offered(self) -> None:
        self.configure(f'access_keys = ["{AccessKey.of(KEY).line}"]\n')
        ran = self.run_command("codex", answers=("y", "y"))
        self.assertIn('env_key = "DEEPSEEK_PROXY_API_KEY"', ran.out)
        self.assertRegex(ran.out, r"sk-\S+   the key[^\n]*\nsha256:[0-9a-f]{64} ")
        self.run_command("codex", "--undo", "--yes")
        self.assertIn("access-key --new", self.run_command("codex", "--yes").out)
        self.run_command("codex", "--undo", "--yes")
        with mock.patch.dict(os.environ, {"DEEPSEEK_PROXY_API_KEY": KEY}):
            self.run_command("codex", answers=("y",))
        self.assertEqual(1, self.questions.call_count)
