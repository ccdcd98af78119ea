"""Coding agents from npm through the proxy, against the strict fake: they read and change real files as the model asks.

Not part of `python -m unittest`; `python -m unittest discover -s tests/interop` installs both into a temporary
directory where npm is, and skips where it is not. `cn` (Continue) drops reasoning_content and writes the arguments of
calls anew; `pi` keeps reasoning_content, sends content as parts and its prompt as `developer`. The model's side is
written from the tools that the agent offers, so it knows no agent: a tool is found by its name, its fields by theirs.
"""

import json
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.lab.fake_deepseek import Answer, Call
from tests.interop import npm
from tests.interop.command_line import AWKWARD, KEY, MODEL, ClientCase, Json, Program

# Pinned: these were seen to run on Node 20, without any install script.
CN = "@continuedev/cli@1.5.47"
PI = "@earendil-works/pi-coding-agent@0.74.2"
RUN_SECONDS = 120

# Node runs this before the agent: cn would report to its makers.
LOOPBACK_ONLY = """
const net = require("node:net");
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  const [first, second] = Array.isArray(given[0]) ? given[0] : given;
  const host = typeof first === "object" ? first.host : typeof second === "string" ? second : undefined;
  if ([undefined, null, "127.0.0.1", "localhost"].includes(host)) return connect.apply(this, given);
  process.nextTick(() => this.destroy(Object.assign(new Error(`no network here: ${host}`), { code: "ENETUNREACH" })));
  return this;
};
"""

_commands = Path()


def setUpModule() -> None:
    global _commands
    _commands = npm.installed(CN, PI)


class AgentCase(ClientCase):
    """The task: read a file, change it, write another and look at both; then a second question about them."""

    def setUp(self) -> None:
        super().setUp()
        self.notes = self.scratch / "notes.txt"
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        self.copy = self.scratch / "added.txt"
        self.guard = self.home / "loopback.cjs"
        self.guard.write_text(LOOPBACK_ONLY, encoding="utf-8")

    def program(self, name: str, **environment: str) -> Program:
        given = tuple({"NODE_OPTIONS": f"--require={self.guard}", **environment}.items())
        return Program((str(_commands / name),), given, RUN_SECONDS)

    # What the model says …

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        thought = f"Step {number}.{AWKWARD}"
        match number:
            case 0:
                return Answer(thought, calls=self.calls(payload, ("read", {"path": str(self.notes)})))
            case 1:
                edit = {"path": str(self.notes), "old": "bread", "new": "Brötchen"}
                return Answer(thought, "First the list.", self.calls(payload, ("edit", edit)))
            case 2:
                write = {"path": str(self.copy), "content": "Brötchen – zwei\n"}
                look = {"command": f"cat {self.notes.name}"}
                return Answer(thought, "", self.calls(payload, ("write", write), ("bash", look)))
            case 4:
                return Answer(thought, None, self.calls(payload, ("read", {"path": str(self.copy)})))
        return Answer(thought, f"Done with step {number}.")

    def calls(self, payload: Json, *wanted: tuple[str, Json]) -> tuple[Call, ...]:
        offered = {tool["function"]["name"].lower(): tool["function"] for tool in payload["tools"]}
        made = []
        for index, (name, values) in enumerate(wanted):
            # With spaces and escapes that JavaScript does not write: cn and pi send the same values in other bytes.
            arguments = json.dumps(filled(offered[name]["parameters"], values))
            made.append(Call(f"call_{index:02}_{len(self.said):024}", offered[name]["name"], arguments))
        return tuple(made)

    # What must come of it …

    def assert_task_done(self, printed: str) -> None:
        self.assertIn("Done with step 3.", printed)
        self.assertEqual(self.notes.read_text("utf-8"), "milk\nBrötchen\n", self.output)
        self.assertEqual(self.copy.read_text("utf-8"), "Brötchen – zwei\n", self.output)

    def assert_whole_chat(self) -> None:
        self.assertEqual(len(self.said), 6, self.output)
        self.assert_nothing_lost()
        read, _, _, look, again = self.tool_results()
        self.assertIn("bread", read)
        self.assertIn("Brötchen", look)
        self.assertIn("zwei", again)


def filled(schema: Json, values: Json) -> Json:
    """The required fields of a tool, each with the value whose name is part of the field's."""
    return {name: _field(name, schema["properties"][name], values) for name in schema["required"]}


def _field(name: str, schema: Json, values: Json) -> Any:
    if schema["type"] == "array":
        return [filled(schema["items"], values)]
    return next(value for part, value in values.items() if part in name.lower())


class ContinueTest(AgentCase):
    def point_at(self, url: str) -> None:
        model = {"name": "ds", "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1", "apiKey": KEY}
        able = {"roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"]}
        config = {"name": "proxy", "version": "1.0.0", "schema": "v1", "models": [{**model, **able}]}
        # YAML reads JSON.
        (self.home / "config.yaml").write_text(json.dumps(config), encoding="utf-8")

    def ask(self, question: str, *options: str, may_fail: bool = False) -> str:
        place = {"CONTINUE_GLOBAL_DIR": str(self.home / ".continue"), "CONTINUE_TELEMETRY_ENABLED": "0"}
        command = ("--config", str(self.home / "config.yaml"), "--auto", *options, "-p", question)
        return self.run_client(self.program("cn", **place), *command, may_fail=may_fail)

    def assert_loop(self, *, display: bool) -> None:
        self.point_at(self.new_proxy(display=display))
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.assertIn("Done with step 5.", self.ask("How many did I want?", "--resume"))
        self.assert_whole_chat()

    def test_the_task(self) -> None:
        self.assert_loop(display=False)

    def test_the_task_with_the_thinking_shown(self) -> None:
        self.assert_loop(display=True)

    def test_the_chat_goes_on_through_a_proxy_that_never_saw_it(self) -> None:
        """The thinking that cn kept with the visible text is all there is."""
        self.point_at(self.new_proxy(display=True))
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.point_at(self.new_proxy(display=True))
        self.ask("How many did I want?", "--resume")
        self.assert_whole_chat()

    def test_without_the_proxy_deepseek_refuses_the_task(self) -> None:
        self.point_at(self.fake.url)
        self.ask("Put Brötchen on my list instead of bread.", may_fail=True)
        self.assert_refused_without_the_proxy()


class PiCase(AgentCase):
    api = ""

    def point_at(self, url: str) -> None:
        model = {"id": MODEL, "reasoning": True, "contextWindow": 128000, "maxTokens": 8192}
        provider = {"baseUrl": f"{url}/v1", "api": self.api, "apiKey": KEY, "models": [model]}
        place = self.home / ".pi" / "agent"
        place.mkdir(parents=True, exist_ok=True)
        (place / "models.json").write_text(json.dumps({"providers": {"proxy": provider}}), encoding="utf-8")

    def ask(self, question: str, *options: str) -> str:
        command = ("--offline", "--provider", "proxy", "--model", MODEL, "--thinking", "high", *options)
        return self.run_client(self.program("pi"), *command, "-p", question)

    def assert_loop(self, *, display: bool) -> None:
        self.point_at(self.new_proxy(display=display))
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.assertIn("Done with step 5.", self.ask("How many did I want?", "-c"))
        self.assert_whole_chat()


class PiTest(PiCase):
    api = "openai-completions"

    def test_the_task(self) -> None:
        self.assert_loop(display=False)

    def test_the_task_with_the_thinking_shown(self) -> None:
        self.assert_loop(display=True)


class PiResponsesTest(PiCase):
    """The same by the Responses API, where pi keeps the items it was sent."""

    api = "openai-responses"

    def test_the_chat_goes_on_through_a_proxy_that_never_saw_it(self) -> None:
        self.point_at(self.new_proxy(display=False))
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.point_at(self.new_proxy(display=False))
        self.ask("How many did I want?", "-c")
        self.assert_whole_chat()


if __name__ == "__main__":
    unittest.main()
