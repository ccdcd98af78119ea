"""Agents as `run` starts them, in a clean home: a task with a tool, then a second question in the same chat.

Each gets what `run` sets for it and the flags with which it asks nobody. What it leaves behind is its own.
"""

import sys
from collections.abc import Mapping

from tests.fake_deepseek import Answer
from tests.interop.agents import CLAUDE, CODEX, COPILOT, NOWHERE, OPENCODE, PI, QWEN, AgentCase, look
from tests.interop.command_line import KEY, ROOT, Json, Program


class RunCase(AgentCase):
    settings: Mapping[str, str] = {}
    is_repository = True

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        calls = () if number else self.calls(payload, ("bash", look("notes.txt")))
        return Answer(f"Step {number}.{self.awkward}", None if calls else f"Done with step {number}.", calls)

    def ask(self, question: str, *options: str, may_fail: bool = False, **environment: str) -> str:
        # The command stands on the PATH.
        path = self.home / "bin" / self.agent.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {" ".join(self.executable)} "$@"\n', encoding="utf-8")
        path.chmod(0o700)
        place = {"PATH": f"{path.parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        place |= {"DEEPSEEK_API_KEY": KEY, **NOWHERE, "DEEPSEEK_CURSOR_PROXY_BASE_URL": self.fake.url}
        command = (sys.executable, "-W", "error", "-m", "deepseek_cursor_proxy", "run", self.agent.name)
        return self.run_client(
            Program(command, tuple({**place, **environment}.items())),
            *(*self.agent.flags, *options, *self.agent.question, question),
        )

    def test_the_task(self) -> None:
        self.assertIn("Done with step 1.", self.ask("What is on my list?", **self.agent.environment))
        self.assertIn("Done with step 2.", self.ask("Thanks.", *self.agent.again, **self.agent.environment))
        self.assertEqual(3, len(self.said), self.output)
        self.assert_every_turn_is_exact()
        self.assertIn("bread", self.tool_results()[0])
        self.assertEqual(2, len(list((self.home / ".deepseek-cursor-proxy").glob("run-*.log"))), self.output)


class ClaudeCodeTest(RunCase):
    """The address and the other key in the settings of its user do not count."""

    agent = CLAUDE
    theirs = '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_API_KEY": "sk-ant-1234567"}}'
    settings: Mapping[str, str] = {".claude/settings.json": theirs}

    def test_the_task(self) -> None:
        super().test_the_task()
        self.assertEqual(self.theirs, (self.home / ".claude" / "settings.json").read_text("utf-8"))


class CodexTest(RunCase):
    agent = CODEX

    def test_the_task(self) -> None:
        super().test_the_task()
        self.assertNotIn("fallback", self.output.lower())
        self.assertFalse((self.home / ".codex" / "config.toml").exists())


class OpencodeTest(RunCase):
    agent = OPENCODE


class CopilotTest(RunCase):
    agent = COPILOT


class QwenCodeTest(RunCase):
    agent, settings = QWEN, QWEN.settings


class PiTest(RunCase):
    agent = PI


del RunCase
