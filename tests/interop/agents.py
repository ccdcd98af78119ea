"""Coding agents: the task that each of them is given.

The model's side is written from the tools that an agent offers, so it knows no agent: a tool is found by its name, its
fields by theirs.
"""

import json
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.interop.command_line import AWKWARD, ClientCase, Json, Program
from tests.support.harness import running_proxy

QUESTION = "Put Brötchen on my list instead of bread."
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


class AgentCase(ClientCase):
    """The task: read a file, change it, write another and look at both; then a second question about them."""

    def setUp(self) -> None:
        super().setUp()
        self.notes = self.scratch / "notes.txt"
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        self.copy = self.scratch / "added.txt"
        self.guard = self.home / "loopback.cjs"
        self.guard.write_text(LOOPBACK_ONLY, encoding="utf-8")

    def program(self, *command: str | Path, **environment: str) -> Program:
        given = tuple({"NODE_OPTIONS": f"--require={self.guard}", **environment}.items())
        return Program(tuple(map(str, command)), given, RUN_SECONDS)

    def proxy_with_a_memory(self) -> str:
        """The root URL of a proxy that keeps its memory in this home; the one before it has ended."""
        self._proxy.close()
        store = ReasoningStore(self.home / "proxy" / "reasoning.sqlite3")
        return self._proxy.enter_context(running_proxy(self.fake.url, store))

    def proxy_with_its_secret_only(self) -> str:
        """The same after all it remembered was deleted."""
        self._proxy.close()
        for path in (self.home / "proxy").glob("reasoning.sqlite3*"):
            path.unlink()
        self.assertEqual([path.name for path in (self.home / "proxy").iterdir()], ["secret.key"])
        return self.proxy_with_a_memory()

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
