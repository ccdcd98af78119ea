"""An error about a key says where the client that sent it keeps its key, and names no other client's settings."""

import contextlib
import json
import time
import unittest
from typing import Any

from deepseek_cursor_proxy.api.key_settings import key_setting
from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.lab.fake_deepseek import Failure
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.harness import SocketTestCase

CHAT, AZURE = "/v1/chat/completions", "/openai/deployments/d/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CURSOR, CODEX, CLAUDE = "Cursor/3.17", "codex_exec/0.166.0 (Linux)", "claude-cli/2.1.325 (external, sdk-cli)"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
}
NAMES = (
    "Cursor",
    "Azure",
    "Codex",
    "env_key",
    "Claude Code",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_API",
)


class TestKeySetting(unittest.TestCase):
    def test_each_client_is_told_its_own_setting(self) -> None:
        claude = {"Claude Code", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"}
        anthropic = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}
        for path, agent, headers, named in (
            (CHAT, CURSOR, {}, {"Cursor"}),
            (AZURE, CURSOR, {}, {"Cursor", "Azure"}),
            (RESPONSES, CODEX, {}, {"Codex", "env_key"}),
            (RESPONSES, "Codex Desktop/1.2", {}, {"Codex", "env_key"}),
            (MESSAGES, CLAUDE, {}, claude),
            (MESSAGES, "Anthropic/Python 1.0", {}, anthropic),
            (MESSAGES, "", {}, anthropic),
            ("/v1/models", "", {"anthropic-version": "2023-06-01"}, anthropic),
            (CHAT, "OpenAI/Python 2.54.0", {}, {"OPENAI_API"}),
            (CHAT, "aider", {"x-stainless-lang": "python"}, {"OPENAI_API"}),
            (RESPONSES, "curl/8", {}, {"OPENAI_API"}),
            (CHAT, "curl/8", {}, set()),
            (CHAT, "", {}, set()),
            (CHAT, "NotCursor/1 precursor/2", {}, set()),
        ):
            with self.subTest(path=path, agent=agent):
                told = key_setting(HttpRequest("POST", path, headers={"user-agent": agent, **headers}))
                self.assertEqual(named, {name for name in NAMES if name in told}, told)

    def test_a_long_user_agent_without_a_key_does_not_hold_up_everybody(self) -> None:
        for word in (" codex", "codex ", " cursor", " claude-cli", "openai"):
            agent = (word * 65_536)[:65_000]
            began = time.process_time()
            key_setting(HttpRequest("POST", CHAT, headers={"user-agent": agent}))
            self.assertLess(time.process_time() - began, 0.5, word)


class TestKeyErrors(SocketTestCase):
    def told(self, path: str, agent: str, key: str | None, stream: bool, **settings: Any) -> str:
        config = ProxyConfig(upstream_base_url=self.fake.url, retry_budget=0, **settings)
        with contextlib.closing(ReasoningStore(":memory:")) as store:
            services = Services.build(config, store)
            headers = {"user-agent": agent, **({"authorization": f"Bearer {key}"} if key else {})}
            data = json.dumps({"model": "m", "stream": stream, **BODIES[path]}).encode()
            request = HttpRequest("POST", path, headers=headers, read_body=lambda: data)
            reply = App(config, lambda: services)(request)
            services.close()
        assert isinstance(reply.body, bytes)
        self.assertEqual(401, reply.status)
        return str(json.loads(reply.body)["error"]["message"])

    def test_every_401_about_the_key_names_the_setting_of_the_client_that_asked(self) -> None:
        for path, agent, named in ((CHAT, CURSOR, "Cursor"), (RESPONSES, CODEX, "Codex"), (MESSAGES, CLAUDE, "Claude")):
            for stream in (False, True):
                with self.subTest(path, stream=stream):
                    self.fake.answer(Failure(401, "Authentication Fails"))
                    messages = {
                        "No API key.": self.told(path, agent, None, stream),
                        "not among the access keys": self.told(path, agent, "sk-x", stream, access_keys=["sk-other"]),
                        "Authentication Fails": self.told(path, agent, "sk-wrong", stream),
                    }
                    for words, message in messages.items():
                        self.assertIn(words, message)
                        self.assertIn(named, message)
                        others = {"Cursor", "Codex", "Claude"} - {named}
                        self.assertFalse([other for other in others if other in message], message)

    def test_a_client_that_is_not_known_reads_of_no_other(self) -> None:
        message = self.told(CHAT, "curl/8", None, False)
        self.assertFalse([name for name in NAMES if name in message], message)
