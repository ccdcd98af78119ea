"""Real clients as `run` starts them, in a clean home: a task with a tool, then a second question in the same chat.

Each gets what `run` sets for it and the flags with which it asks nobody. What it leaves behind is its own.
"""

import json
import subprocess
import sys

from tests.fake_deepseek import Answer, Call
from tests.interop import packages
from tests.interop.agents import AgentCase, filled
from tests.interop.command_line import AWKWARD, KEY, ROOT, Json, Program

SHELLS = {"bash", "exec_command", "run_shell_command"}
LOOK = {"command": "cat notes.txt", "cmd": "cat notes.txt", "is_background": False, "description": "Look."}
# Nobody listens there: what is meant for the world outside does not get there.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
RUN_SECONDS = 120


class RunCase(AgentCase):
    client = ""
    first: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(["git", "init", "--quiet", str(self.scratch)], check=True)
        self.bin = self.home / "bin"
        self.bin.mkdir()
        path = self.bin / self.client
        path.write_text(f'#!/bin/sh\nexec {self.executable()} "$@"\n', encoding="utf-8")
        path.chmod(0o700)

    def executable(self) -> str:
        return str(self.commands / self.client)

    def script(self, payload: Json) -> Answer:
        if self.said:
            return Answer(f"Step {len(self.said)}.{AWKWARD}", f"Done with step {len(self.said)}.")
        tools = [tool["function"] for tool in payload["tools"] if tool["function"]["name"].lower() in SHELLS]
        call = Call(
            "call_00_0123456789abcdef01234567", tools[0]["name"], json.dumps(filled(tools[0]["parameters"], LOOK))
        )
        return Answer(f"I look.{AWKWARD}", None, (call,))

    def run_through(self, *arguments: str) -> str:
        place = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "DEEPSEEK_API_KEY": KEY}
        place |= {**NOWHERE, "DEEPSEEK_CURSOR_PROXY_BASE_URL": self.fake.url, **dict(self.environment)}
        command = (sys.executable, "-W", "error", "-m", "deepseek_cursor_proxy", "run", self.client)
        return self.run_client(Program(command, tuple(place.items()), RUN_SECONDS), *arguments)

    def assert_task(self) -> None:
        self.assertIn("Done with step 1.", self.run_through(*self.first))
        self.assertIn("Done with step 2.", self.run_through(*self.again))
        self.assertEqual(3, len(self.said), self.output)
        self.fake.seen[:] = [seen for seen in self.fake.seen if seen.payload.get("tools")]
        self.assert_every_turn_is_exact()
        self.assertIn("bread", self.tool_results()[0])
        self.assertEqual(2, len(list((self.home / ".deepseek-cursor-proxy").glob("run-*.log"))), self.output)


class ClaudeCodeTest(RunCase):
    needs, client = ("@anthropic-ai/claude-code@2.1.327",), "claude"
    first = ("-p", "What is on my list?", "--allowedTools", "Bash")
    again = ("-c", "-p", "Thanks.")

    def executable(self) -> str:
        return f"node {self.commands.parent / '@anthropic-ai' / 'claude-code' / 'cli-wrapper.cjs'}"

    def test_the_task(self) -> None:
        """The address and the other key in the settings of its user do not count."""
        settings = self.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        theirs = '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_API_KEY": "sk-ant-1234567"}}'
        settings.write_text(theirs, encoding="utf-8")
        self.assert_task()
        self.assertEqual(theirs, settings.read_text("utf-8"))


class CodexTest(RunCase):
    needs, client = ("@openai/codex@0.169.0",), "codex"
    first = ("exec", "--dangerously-bypass-approvals-and-sandbox", "What is on my list?")
    again = ("exec", "resume", "--dangerously-bypass-approvals-and-sandbox", "--last", "Thanks.")

    def test_the_task(self) -> None:
        self.assert_task()
        self.assertNotIn("fallback", self.output.lower())
        self.assertFalse((self.home / ".codex" / "config.toml").exists())


class OpencodeTest(RunCase):
    needs, client = ("opencode-ai@1.18.33",), "opencode"
    first = ("run", "What is on my list?")
    again = ("run", "-c", "Thanks.")
    environment = tuple(
        (f"OPENCODE_DISABLE_{name}", "1") for name in ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
    )

    def executable(self) -> str:
        return str(sorted(self.commands.parent.glob("opencode-*-*/bin/opencode"))[0])

    def _respond(self, payload: Json) -> Answer:
        # The title of the chat, asked for beside it.
        return super()._respond(payload) if payload.get("tools") else Answer(None, "A list")

    def test_the_task(self) -> None:
        self.assert_task()


class CopilotTest(RunCase):
    needs, client = ("@github/copilot@1.0.102",), "copilot"
    first = ("--allow-all-tools", "-p", "What is on my list?")
    again = ("--allow-all-tools", "--continue", "-p", "Thanks.")

    def test_the_task(self) -> None:
        self.assert_task()


class QwenCodeTest(RunCase):
    needs, client = ("@qwen-code/qwen-code@0.24.4",), "qwen"
    first = ("--yolo", "-p", "What is on my list?")
    again = ("--yolo", "-c", "-p", "Thanks.")

    def test_the_task(self) -> None:
        # Its own memory would ask the model by itself after a turn.
        settings = self.home / ".qwen" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false}}')
        self.assert_task()


class PiTest(RunCase):
    needs, client = ("@earendil-works/pi-coding-agent@0.74.2",), "pi"
    first = ("--offline", "-p", "What is on my list?")
    again = ("--offline", "-c", "-p", "Thanks.")

    def test_the_task(self) -> None:
        self.assert_task()


class AiderTest(RunCase):
    needs, install, client = ("aider-chat==0.86.2",), staticmethod(packages.pypi), "aider"
    environment = (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)
    options = ("--yes-always", "--no-auto-commits", "--no-check-update", "--analytics-disable", "--no-gitignore")

    def script(self, payload: Json) -> Answer:
        return Answer(
            "Butter.", "Done.\n\nnotes.txt\n```\n<<<<<<< SEARCH\nbread\n=======\nbutter\n>>>>>>> REPLACE\n```\n"
        )

    def test_an_edit(self) -> None:
        printed = self.run_through(*self.options, "--no-stream", "--message", "Butter.", "notes.txt")
        self.assertEqual("milk\nbutter\n", self.notes.read_text("utf-8"), self.output)
        self.assertNotIn("unknown context window", printed.lower())
        self.assertEqual(["deepseek-flash"], [payload["model"] for payload in self.fake.accepted], self.output)
