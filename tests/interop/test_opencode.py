"""opencode with exactly what `setup opencode` wrote, against the strict fake: it changes real files.

It sends reasoning_content back, and writes the arguments of calls anew. The thinking of turns that another model has
made it sends as text before the answer.
"""

import itertools
from pathlib import Path

from deepseek_cursor_proxy.cli.setup.clients import FLASH, PROVIDER
from tests.fake_deepseek import Answer
from tests.fake_deepseek.leaks import FORMS
from tests.interop.agents import QUESTION, AgentCase
from tests.interop.command_line import KEY, MODEL, Json

# Pinned: this one was seen to run without its install script.
OPENCODE = "opencode-ai@1.18.33"
# Nothing is looked up outside this machine.
ALONE = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
THEIRS = """{
\t// mine
\t"autoupdate": false, "share": "disabled",
\t"permission": {"*": "allow"}, // everything
}
"""


class OpencodeTest(AgentCase):
    packages = (OPENCODE,)

    def script(self, payload: Json) -> Answer:
        if not payload.get("tools"):
            # The title of the chat, asked for beside it.
            return Answer(None, "A list")
        return super().script(payload)

    def ask(self, question: str, *options: str) -> str:
        settings = {f"OPENCODE_DISABLE_{name}": "1" for name in ALONE}
        # Without install scripts the program stays in the package for its system.
        command = sorted(self.commands.parent.glob("opencode-*-*/bin/opencode"))[0]
        program = self.program(command, DEEPSEEK_API_KEY=KEY, **settings)
        return self.run_client(program, "run", *options, question)

    def configure(self) -> Path:
        config = self.home / ".config" / "opencode" / "opencode.jsonc"
        config.parent.mkdir(parents=True)
        config.write_text(THEIRS, encoding="utf-8")
        self.set_up("opencode", self.new_proxy(display=False))
        return config

    def test_a_chat_keeps_its_reasoning_when_the_model_is_switched_and_switched_back(self) -> None:
        self.configure()
        self.assert_task_done(self.ask(QUESTION))
        for model in (FLASH, MODEL):
            self.ask("How many did I want?", "-c", "-m", f"{PROVIDER}/{model}")
        agent = [payload for payload in self.fake.accepted if payload.get("tools")]
        self.assertEqual(2, len({payload["model"] for payload in agent}))
        said = [(each.reasoning, each.content or "") for each in self.said if each.reasoning is not None]
        for number, payload in enumerate(agent):
            turns = [message for message in payload["messages"] if message["role"] == "assistant"]
            sent = [(one["reasoning_content"], one["content"] or "") for one in turns]
            self.assertEqual(said[:number], sent, self.output)
        self.assertEqual([], self.fake.refused)

    def test_the_task_with_a_deepseek_whose_every_call_leaks_as_text(self) -> None:
        self.fake.leaks = itertools.cycle(FORMS)
        self.test_the_task()

    def test_the_task(self) -> None:
        config = self.configure()
        self.assert_task_done(self.ask(QUESTION))
        self.assertEqual({MODEL}, {payload["model"] for payload in self.fake.accepted if payload.get("tools")})
        self.undo("opencode")
        self.assertEqual(THEIRS, config.read_text("utf-8"))
