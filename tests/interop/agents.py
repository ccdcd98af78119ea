"""Coding agents from npm: a table of how each is started and configured, and the task that all of them are given.

The model's side is written from the tools that an agent offers: a tool is found by its name, of which the table has
those that are other than usual, and a field by a part of its name.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.interop.command_line import AWKWARD, KEY, ClientCase, Json, Program

QUESTION = "Put Brötchen on my list instead of bread."
SECOND = "How many did I want?"
ADDED = "Brötchen – zwei\n"
# Nobody listens there: what is meant for the world outside does not get there.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}

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


@dataclass(frozen=True)
class Agent:
    # Its command.
    name: str
    package: str
    # The program, in node_modules, where it is without install scripts.
    file: str
    # The flags with which it asks nobody, and those with which the last chat goes on, if it has such.
    flags: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    question: tuple[str, ...] = ("-p",)
    # Its name for the command `setup`.
    setup: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    # Settings of its user, by their place in the home.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Its own names of the tools read, edit, write and bash.
    tools: Mapping[str, str] = field(default_factory=dict)


# Pinned: these were seen to run on Node 20, without any install script.
CLAUDE = Agent(
    "claude",
    "@anthropic-ai/claude-code@2.1.327",
    "@anthropic-ai/claude-code/cli-wrapper.cjs",
    # It refuses to run without asking anybody as root, but not with tools that are allowed by name.
    ("--allowedTools", "Bash,Read,Edit,Write,WebSearch,Agent"),
    ("-c",),
    setup="claude-code",
    settings={".claude/settings.json": '{"includeCoAuthoredBy": false, "env": {"EDITOR": "vi"}}'},
)
CLINE = Agent(
    "cline",
    "cline@3.0.65",
    ".bin/cline",
    ("--auto-approve", "true"),
    question=(),
    setup="cline",
    tools={"read": "read_files", "edit": "editor", "write": "editor", "bash": "run_commands"},
)
CN = Agent(
    "cn",
    "@continuedev/cli@1.5.47",
    ".bin/cn",
    ("--config", "{home}/.continue/config.yaml", "--auto"),
    ("--resume",),
    setup="continue",
    environment={"CONTINUE_TELEMETRY_ENABLED": "0"},
    settings={
        ".continue/config.yaml": "# mine\nname: mine\nversion: 0.0.1\nschema: v1\nmodels:\n- name: other\n"
        "  provider: ollama\n  model: o"
    },
)
CODEX = Agent(
    "codex", "@openai/codex@0.169.0", ".bin/codex", ("exec", "--dangerously-bypass-approvals-and-sandbox"),
    ("resume", "--last"), question=(), tools={"bash": "exec_command"},
)  # fmt: skip
COPILOT = Agent(
    "copilot", "@github/copilot@1.0.102", ".bin/copilot", ("--allow-all-tools",), ("--continue",),
    tools={"read": "view", "write": "create"},
)  # fmt: skip
OPENCODE = Agent(
    "opencode",
    "opencode-ai@1.18.33",
    "opencode-*-*/bin/opencode",
    ("run",),
    ("-c",),
    question=(),
    setup="opencode",
    # Nothing is looked up outside this machine.
    environment={
        f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
    },
    settings={
        ".config/opencode/opencode.jsonc": '{\n\t// mine\n\t"autoupdate": false, "share": "disabled",\n'
        '\t"permission": {"*": "allow"}, // everything\n}\n'
    },
)
PI = Agent("pi", "@earendil-works/pi-coding-agent@0.74.2", ".bin/pi", ("--offline",), ("-c",))
QWEN = Agent(
    "qwen",
    # Without a version npm takes one from a year before.
    "@qwen-code/qwen-code@0.24.4",
    ".bin/qwen",
    ("--yolo",),
    ("-c",),
    setup="qwen-code",
    # Its own memory would ask the model by itself after a turn.
    settings={".qwen/settings.json": '{"memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false}}'},
    tools={"read": "read_file", "write": "write_file", "bash": "run_shell_command"},
)


class AgentCase(ClientCase):
    """The task: read a file, change it, write another and look at both; then a second question about them.

    A subclass names its agent.
    """

    agent: Agent
    is_repository = False
    # What a thought ends with.
    awkward = AWKWARD

    @classmethod
    def setUpClass(cls) -> None:
        cls.needs = (cls.agent.package,)
        super().setUpClass()

    def setUp(self) -> None:
        super().setUp()
        if self.is_repository:
            subprocess.run(["git", "init", "--quiet", str(self.scratch)], check=True)
        self.copy = self.scratch / "added.txt"
        self.notes = self.scratch / "notes.txt"
        self.begin()
        self.guard = self.home / "loopback.cjs"
        self.guard.write_text(LOOPBACK_ONLY, encoding="utf-8")
        for place, text in self.settings.items():
            (self.home / place).parent.mkdir(parents=True, exist_ok=True)
            (self.home / place).write_text(text, encoding="utf-8")

    def begin(self) -> None:
        """Make everything as it was before the task."""
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        self.copy.unlink(missing_ok=True)
        self.said.clear()
        self.fake.forget()

    @property
    def settings(self) -> Mapping[str, str]:
        return self.agent.settings

    @property
    def executable(self) -> tuple[str, ...]:
        path = str(next(self.commands.parent.glob(self.agent.file)))
        return ("node", path) if path.endswith(".cjs") else (path,)

    def ask(self, question: str, *options: str, may_fail: bool = False, **environment: str) -> str:
        place = {"NODE_OPTIONS": f"--require={self.guard}", "DEEPSEEK_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": KEY}
        place |= {**NOWHERE, **self.agent.environment, **environment}
        program = Program(self.executable, tuple(place.items()))
        words = (*self.agent.flags, *options, *self.agent.question, question)
        return self.run_client(program, *(word.replace("{home}", str(self.home)) for word in words), may_fail=may_fail)

    # What the model says …

    def respond(self, payload: Json) -> Answer:
        # The title of the chat and the like, asked for beside it.
        is_aside = not (payload.get("tools") or payload.get("server_tools"))
        return self.aside(payload) if is_aside else super().respond(payload)

    def aside(self, payload: Json) -> Answer:
        return Answer(None, "A list")

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        thought = f"Step {number}.{self.awkward}"
        match number:
            case 0:
                return Answer(thought, calls=self.calls(payload, ("read", {"path": str(self.notes)})))
            case 1:
                edit = {"path": str(self.notes), "old": "bread", "new": "Brötchen"}
                return Answer(thought, "First the list.", self.calls(payload, ("edit", edit)))
            case 2:
                write = {"path": str(self.copy), **dict.fromkeys(("content", "file_text", "new"), ADDED)}
                return Answer(thought, "", self.calls(payload, ("write", write), ("bash", look(self.notes.name))))
            case 4:
                return Answer(thought, None, self.calls(payload, ("read", {"path": str(self.copy)})))
        return Answer(thought, f"Done with step {number}.")

    def calls(self, payload: Json, *wanted: tuple[str, Json]) -> tuple[Call, ...]:
        offered = {tool["function"]["name"].lower(): tool["function"] for tool in payload["tools"]}
        made = []
        for index, (name, values) in enumerate(wanted):
            function = offered[self.agent.tools.get(name, name)]
            # With spaces and escapes that JavaScript does not write: cn and pi send the same values in other bytes.
            arguments = json.dumps(filled(function["parameters"], values))
            made.append(Call(f"call_{index:02}_{len(self.said):024}", function["name"], arguments))
        return tuple(made)

    # What must come of it …

    def configure(self, url: str) -> None:
        self.set_up(self.agent.setup, url, DEEPSEEK_API_KEY=KEY)

    def assert_task(self, keep: str = "all", **settings: Any) -> None:
        """Both questions, and between them another proxy, which has what `keep` names of the files of the first."""
        self.begin()
        self.configure(self.start_proxy(**settings))
        self.assert_task_done(self.ask(QUESTION))
        if not self.agent.again:
            self.assert_nothing_lost()
            return
        self.start_proxy(keep, **settings)
        self.assert_second_answer(self.ask(SECOND, *self.agent.again))

    def assert_task_done(self, printed: str) -> None:
        self.assertIn("Done with step 3.", printed)
        self.assertEqual(self.notes.read_text("utf-8"), "milk\nBrötchen\n", self.output)
        self.assertEqual(self.copy.read_text("utf-8"), ADDED, self.output)

    def assert_second_answer(self, printed: str) -> None:
        """All of both questions reached DeepSeek."""
        self.assertIn("Done with step 5.", printed)
        self.assertEqual(len(self.said), 6, self.output)
        self.assert_nothing_lost()
        read, _, _, seen, again = self.tool_results()
        self.assertIn("bread", read)
        self.assertIn("Brötchen", seen)
        self.assertIn("zwei", again)

    def assert_every_turn_is_exact(self) -> None:
        self.fake.seen[:] = [seen for seen in self.fake.seen if seen.payload.get("tools")]
        super().assert_every_turn_is_exact()


def look(name: str) -> Json:
    return {"cmd": f"cat {name}", "command": f"cat {name}", "description": "Look.", "background": False}


def filled(schema: Json, values: Json) -> Json:
    """The fields of a tool whose names have the name of a value as a part; the required ones must."""
    found = {name: _field(name, part, values) for name, part in schema.get("properties", {}).items()}
    return {name: value for name, value in found.items() if value is not None or name in schema.get("required", ())}


def _field(name: str, schema: Json, values: Json) -> Any:
    items = schema.get("items", {})
    if "properties" in items:
        return [filled(items, values)]
    found = next((value for part, value in values.items() if part in name.lower()), None)
    return [found] if found is not None and items else found
