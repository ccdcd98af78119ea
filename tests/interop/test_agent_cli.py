"""Coding agents from npm through the proxy, against the strict fake: they read and change real files as the model asks.

`cn` (Continue) drops reasoning_content and writes the arguments of calls anew; `pi` keeps reasoning_content, sends
content as parts and its prompt as `developer`; it speaks all three APIs.
"""

import json

from tests.interop.agents import QUESTION, AgentCase
from tests.interop.command_line import KEY, MODEL

# Pinned: these were seen to run on Node 20, without any install script.
CN = "@continuedev/cli@1.5.47"
PI = "@earendil-works/pi-coding-agent@0.74.2"
FLASH = "deepseek-v4-flash"


class ContinueTest(AgentCase):
    packages = (CN,)

    def point_at(self, url: str) -> None:
        model = {"name": "ds", "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1", "apiKey": KEY}
        able = {"roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"]}
        config = {"name": "proxy", "version": "1.0.0", "schema": "v1", "models": [{**model, **able}]}
        # YAML reads JSON.
        (self.home / "config.yaml").write_text(json.dumps(config), encoding="utf-8")

    def ask(self, question: str, *options: str, may_fail: bool = False) -> str:
        place = {"CONTINUE_GLOBAL_DIR": str(self.home / ".continue"), "CONTINUE_TELEMETRY_ENABLED": "0"}
        command = ("--config", str(self.home / "config.yaml"), "--auto", *options, "-p", question)
        return self.run_client(self.program(self.commands / "cn", **place), *command, may_fail=may_fail)

    def assert_loop(self, *, display: bool) -> None:
        self.point_at(self.new_proxy(display=display))
        self.assert_task_done(self.ask(QUESTION))
        self.assertIn("Done with step 5.", self.ask("How many did I want?", "--resume"))
        self.assert_whole_chat()

    def test_the_task(self) -> None:
        self.assert_loop(display=False)

    def test_the_task_with_the_thinking_shown(self) -> None:
        self.assert_loop(display=True)

    def test_the_chat_continues_through_a_proxy_that_never_saw_it(self) -> None:
        """The thinking that cn kept with the visible text is all there is."""
        self.point_at(self.new_proxy(display=True))
        self.assert_task_done(self.ask(QUESTION))
        self.point_at(self.new_proxy(display=True))
        self.ask("How many did I want?", "--resume")
        self.assert_whole_chat()

    def test_without_the_proxy_deepseek_refuses_the_task(self) -> None:
        self.point_at(self.fake.url)
        self.ask(QUESTION, may_fail=True)
        self.assert_refused_without_the_proxy()


class ContinueSetUpTest(AgentCase):
    """cn with exactly what `setup continue` wrote, ahead of a model of its user."""

    packages = (CN,)

    def test_the_task(self) -> None:
        theirs = (
            "# mine\nname: mine\nversion: 0.0.1\nschema: v1\nmodels:\n- name: other\n  provider: ollama\n  model: o"
        )
        config = self.home / ".continue" / "config.yaml"
        config.parent.mkdir()
        config.write_text(theirs, encoding="utf-8")
        self.set_up("continue", self.new_proxy(display=False))
        place = {"CONTINUE_TELEMETRY_ENABLED": "0", "DEEPSEEK_API_KEY": KEY}
        program = self.program(self.commands / "cn", **place)
        printed = self.run_client(program, "--config", str(config), "--auto", "-p", QUESTION)
        self.assert_task_done(printed)
        self.assert_nothing_lost()
        self.undo("continue")
        self.assertEqual(theirs, config.read_text("utf-8"))


class PiTest(AgentCase):
    packages = (PI,)

    def point_at(self, url: str, api: str = "openai-completions") -> None:
        model = {"reasoning": True, "contextWindow": 128000, "maxTokens": 8192}
        models = [{"id": name, **model} for name in (MODEL, FLASH)]
        provider = {"baseUrl": url, "api": api, "apiKey": KEY, "models": models}
        place = self.home / ".pi" / "agent"
        place.mkdir(parents=True, exist_ok=True)
        (place / "models.json").write_text(json.dumps({"providers": {"proxy": provider}}), encoding="utf-8")

    def ask(self, question: str, *options: str, model: str = MODEL) -> str:
        command = ("--offline", "--provider", "proxy", "--model", model, "--thinking", "high", *options)
        return self.run_client(self.program(self.commands / "pi"), *command, "-p", question)

    def assert_loop(self, *, display: bool) -> None:
        self.point_at(f"{self.new_proxy(display=display)}/v1")
        self.assert_task_done(self.ask(QUESTION))
        self.assertIn("Done with step 5.", self.ask("How many did I want?", "-c"))
        self.assert_whole_chat()

    def test_the_task(self) -> None:
        self.assert_loop(display=False)

    def test_the_task_with_the_thinking_shown(self) -> None:
        self.assert_loop(display=True)

    def test_a_chat_keeps_its_reasoning_over_switches_of_the_model_and_the_api(self) -> None:
        """pi sends the thinking of turns before a switch as text, and changes the ids of calls by Responses."""
        root = self.new_proxy(display=False)
        chat, responses, messages = "openai-completions", "openai-responses", "anthropic-messages"
        self.point_at(f"{root}/v1", responses)
        self.assert_task_done(self.ask(QUESTION))
        for api, model in ((chat, MODEL), (messages, FLASH), (responses, FLASH), (responses, MODEL), (chat, FLASH)):
            self.point_at(root if api == messages else f"{root}/v1", api)
            self.ask("How many did I want?", "-c", model=model)
        self.assert_nothing_lost()

    def test_the_task_by_responses_through_a_proxy_that_never_saw_it(self) -> None:
        """pi keeps the items it was sent."""
        self.point_at(f"{self.new_proxy(display=False)}/v1", "openai-responses")
        self.assert_task_done(self.ask(QUESTION))
        self.point_at(f"{self.new_proxy(display=False)}/v1", "openai-responses")
        self.ask("How many did I want?", "-c")
        self.assert_whole_chat()

    def test_the_task_by_messages_through_a_proxy_that_has_its_secret_only(self) -> None:
        self.point_at(self.proxy_with_a_memory(), "anthropic-messages")
        self.assert_task_done(self.ask(QUESTION))
        self.point_at(self.proxy_with_its_secret_only(), "anthropic-messages")
        self.assertIn("Done with step 5.", self.ask("How many did I want?", "-c"))
        self.assert_whole_chat()
