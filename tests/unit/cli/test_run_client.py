import json
import os
import subprocess
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli import questions, run_client, running_proxy
from deepseek_cursor_proxy.cli.run_client import RUNNABLE, Launch
from deepseek_cursor_proxy.cli.running_proxy import RunningProxy
from deepseek_cursor_proxy.cli.setup.clients import ACCESS_KEY_VARIABLE, PRO, ProxyEndpoint
from tests.support.commands import CommandTestCase

KEY = "sk-abcdefghijklmnopqrstuvwxyz"
ENDPOINT = ProxyEndpoint("http://127.0.0.1:9009", key=KEY, model=PRO)


class LaunchTest(CommandTestCase):
    def launches(self, endpoint: ProxyEndpoint = ENDPOINT) -> dict[str, Launch]:
        return {name: client.launch(endpoint, Path("/private/folder")) for name, client in RUNNABLE.items()}

    def test_every_client_gets_the_address_and_the_model_and_no_key_but_in_a_variable(self) -> None:
        for name, launch in self.launches().items():
            with self.subTest(name):
                given = json.dumps([dict(launch.variables), list(launch.flags)])
                files = "".join(launch.files.values())
                self.assertIn("http://127.0.0.1:9009", given + files)
                self.assertIn(PRO, given)
                self.assertNotIn(KEY, files + " ".join(launch.flags))
                self.assertEqual([], [path for path in launch.files if path.parent != Path("/private/folder")])

    def test_no_flag_has_a_character_that_a_shell_of_windows_reads(self) -> None:
        """npm's commands are batch files there."""
        for name, launch in self.launches().items():
            self.assertNotRegex(" ".join(launch.flags), r"[\"%&|<>^!\n]", name)

    def test_an_access_key_has_a_variable_of_its_own(self) -> None:
        endpoint = ProxyEndpoint("http://127.0.0.1:9009", ACCESS_KEY_VARIABLE, KEY)
        for name, launch in self.launches(endpoint).items():
            given = json.dumps([dict(launch.variables), list(launch.flags), list(launch.files.values())])
            self.assertTrue(KEY in given or ACCESS_KEY_VARIABLE in given, name)
            self.assertNotIn("DEEPSEEK_API_KEY", given)


class RunTest(CommandTestCase):
    command = ("run",)

    def setUp(self) -> None:
        super().setUp()
        running = RunningProxy("0", "http://127.0.0.1:9009/v1", None, "")
        self.enterContext(mock.patch.object(running_proxy, "find_running", return_value=running))
        self.enterContext(mock.patch.object(run_client.shutil, "which", side_effect=lambda name: f"/bin/{name}"))
        self.child = self.enterContext(mock.patch.object(subprocess, "Popen"))
        self.child.return_value.wait.return_value = 3
        self.typed = self.enterContext(mock.patch.object(questions, "ask_secret", return_value=""))

    def environment(self) -> dict[str, str]:
        return self.child.call_args.kwargs["env"]  # type: ignore[no-any-return]

    def test_flags_behind_the_client_are_its_own(self) -> None:
        os.environ["DEEPSEEK_API_KEY"] = KEY
        for arguments in (
            ("-p", "hi"), ("--version",), ("--model", "opus", "--config", "x"), ("exec", "--", "-h"), ("help",),
        ):  # fmt: skip
            self.assertEqual(3, self.run_command("--model", PRO, "claude-code", *arguments).code)
            program, _, _, *given = self.child.call_args.args[0]
            self.assertEqual(("/bin/claude", list(arguments)), (program, given))
            self.assertEqual(PRO, self.environment()["ANTHROPIC_MODEL"])

    def test_a_key_that_is_typed_is_the_clients_alone(self) -> None:
        self.typed.return_value = KEY
        os.environ["ANTHROPIC_API_KEY"] = "sk-ant-1"
        self.assertEqual(3, self.run_command("claude").code)
        self.assertEqual(1, self.typed.call_count)
        self.assertEqual(
            (KEY, KEY), (self.environment()["DEEPSEEK_API_KEY"], self.environment()["ANTHROPIC_AUTH_TOKEN"])
        )
        self.assertNotIn("ANTHROPIC_API_KEY", self.environment())
        self.assertEqual((None, []), (os.environ.get("DEEPSEEK_API_KEY"), self.files()))

    def test_the_proxy_on_this_machine_is_asked_without_another_proxy(self) -> None:
        os.environ.update({"DEEPSEEK_API_KEY": KEY, "NO_PROXY": "intern.example"})
        self.run_command("qwen")
        names = ("NO_PROXY", "no_proxy")
        found = [self.environment()[name] for name in names]
        self.assertEqual(["intern.example,127.0.0.1,localhost", "127.0.0.1,localhost"], found)

    def test_a_token_in_the_settings_of_claude_code_is_not_sent_to_deepseek(self) -> None:
        settings = self.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        os.environ["DEEPSEEK_API_KEY"] = KEY
        settings.write_text('{"env": {"ANTHROPIC_AUTH_TOKEN": "of-another-service"}}')
        line = self.refusal("claude")
        self.assertIn(f"ANTHROPIC_AUTH_TOKEN in {settings} in place of your DeepSeek key; remove it there", line)
        self.assertNotIn("of-another", line)
        settings.write_text(f'{{"env": {{"ANTHROPIC_AUTH_TOKEN": "{KEY}"}}}}')
        self.assertEqual(3, self.run_command("claude").code)

    def test_what_cannot_be_done_is_said_with_a_remedy(self) -> None:
        for arguments, words, typed in (
            (("claude",), "set DEEPSEEK_API_KEY, as in `DEEPSEEK_API_KEY=sk-…", ""),
            (("claude",), "too short for a key", "y"),
            (("claude",), "a key of Anthropic", "sk-ant-123456"),
            (("claud",), "knows no client 'claud', only claude, codex, opencode, copilot, qwen, aider, pi", KEY),
            (("cursor",), "setup cursor` sets it up", KEY),
            (("zed",), "setup zed` sets it up", KEY),
            (("--model", "x", "claude"), "invalid choice", KEY),
        ):
            with self.subTest(arguments, typed=typed):
                self.typed.return_value = typed
                self.assertIn(words, self.refusal(*arguments))
        self.configure('access_keys = ["sk-access-key-1234567890"]')
        self.typed.return_value = ""
        self.assertIn("needs an access key of the proxy: set DEEPSEEK_PROXY_API_KEY", self.refusal("claude"))
        os.environ["DEEPSEEK_PROXY_API_KEY"] = "two words"
        self.assertIn("DEEPSEEK_PROXY_API_KEY: that is not a key", self.refusal("claude"))
        self.child.side_effect = OSError(8, "Exec format error")
        os.environ["DEEPSEEK_PROXY_API_KEY"] = KEY
        self.assertIn("cannot start /bin/claude: Exec format error", self.refusal("claude"))
        run_client.shutil.which.side_effect = lambda name: None  # type: ignore[attr-defined]
        self.assertIn("not installed: no `codex` is on the PATH; `npm install -g @openai/codex`", self.refusal("codex"))

    def test_without_a_client_it_lists_them(self) -> None:
        run_client.shutil.which.side_effect = {"codex": "/bin/codex"}.get  # type: ignore[attr-defined]
        lines = self.output_of().splitlines()
        self.assertIn("codex      yes", lines)
        self.assertIn("claude     no: npm install -g @anthropic-ai/claude-code", lines)
