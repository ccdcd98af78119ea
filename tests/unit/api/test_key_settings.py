"""The setting in which each client keeps its key."""

import time
import unittest

from deepseek_cursor_proxy.api.clients import key_setting
from deepseek_cursor_proxy.http1.messages import HttpRequest

CHAT, AZURE = "/v1/chat/completions", "/openai/deployments/d/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CURSOR, CODEX, CLAUDE = "Cursor/3.17", "codex_exec/0.166.0 (Linux)", "claude-cli/2.1.325 (external, sdk-cli)"
ANTHROPIC = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}
NAMES = {"Cursor", "VS Code", "Azure", "Codex", "env_key", "Claude Code", "OPENAI_API"} | ANTHROPIC


class TestKeySetting(unittest.TestCase):
    def test_an_error_about_the_key_names_the_setting_of_the_client(self) -> None:
        for path, agent, headers, named in (
            (CHAT, CURSOR, {}, {"Cursor"}),
            (AZURE, CURSOR, {}, {"Cursor", "Azure"}),
            (RESPONSES, CODEX, {}, {"Codex", "env_key"}),
            (RESPONSES, "Codex Desktop/1.2", {}, {"Codex", "env_key"}),
            *((path, "GitHubCopilotChat/0.67.0", {}, {"VS Code"}) for path in (CHAT, RESPONSES, MESSAGES)),
            (MESSAGES, CLAUDE, {}, {"Claude Code"} | ANTHROPIC),
            (MESSAGES, "Anthropic/Python 1.0", {}, ANTHROPIC),
            (MESSAGES, "", {}, ANTHROPIC),
            ("/v1/models", "", {"anthropic-version": "2023-06-01"}, ANTHROPIC),
            (CHAT, "OpenAI/Python 2.54.0", {}, {"OPENAI_API"}),
            (CHAT, "aider", {"x-stainless-lang": "python"}, {"OPENAI_API"}),
            (RESPONSES, "curl/8", {}, {"OPENAI_API"}),
            (CHAT, "curl/8", {}, set()),
            (CHAT, "", {}, set()),
            (CHAT, "NotCursor/1 precursor/2", {}, set()),
        ):
            with self.subTest(path=path, agent=agent):
                sentence = key_setting(HttpRequest("POST", path, headers={"user-agent": agent, **headers}))
                self.assertEqual(named, {name for name in NAMES if name in sentence}, sentence)

    def test_a_long_user_agent_is_searched_in_linear_time(self) -> None:
        for word in (" codex", "codex ", " cursor", " claude-cli", "openai"):
            agent = (word * 65_536)[:65_000]
            began = time.process_time()
            key_setting(HttpRequest("POST", CHAT, headers={"user-agent": agent}))
            self.assertLess(time.process_time() - began, 0.5, word)
