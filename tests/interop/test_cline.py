"""Cline's command line with exactly what `setup cline` wrote, against the strict fake: it changes a real file.

It leaves a daemon behind, which is ended with the home that it lives in.
"""

import json

from tests.fake_deepseek import Answer, Call
from tests.interop.agents import QUESTION, AgentCase
from tests.interop.command_line import KEY, MODEL, Json

# Pinned: seen to run on Node 20, without any install script.
CLINE = "cline@3.0.65"


class ClineTest(AgentCase):
    packages = (CLINE,)

    def script(self, payload: Json) -> Answer:
        match len(self.said):
            case 0:
                return Answer("I read it.", None, self.call("read_files", {"files": [{"path": str(self.notes)}]}))
            case 1:
                edit = {"path": str(self.notes), "old_text": "bread", "new_text": "Brötchen"}
                return Answer("I change it.", "First the list.", self.call("editor", edit))
        return Answer("All is there.", "Done.")

    def call(self, name: str, arguments: Json) -> tuple[Call, ...]:
        return (Call(f"call_00_{len(self.said):024}", name, json.dumps(arguments)),)

    def test_the_task(self) -> None:
        self.set_up("cline", self.new_proxy(display=False), DEEPSEEK_API_KEY=KEY)
        printed = self.run_client(self.program(self.commands / "cline"), "--auto-approve", "true", QUESTION)
        self.assertIn("Done.", printed)
        self.assertEqual("milk\nBrötchen\n", self.notes.read_text("utf-8"), self.output)
        self.assertEqual({MODEL}, {payload["model"] for payload in self.fake.accepted})
        self.assert_nothing_lost()
