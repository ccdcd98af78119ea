"""qwen-code in a scratch repository, through the proxy, against the strict fake: it runs tools and sends back thoughts.

qwen-code sends back the reasoning_content it was sent, with its outer whitespace trimmed: the exact one has to reach
DeepSeek.
"""

import json
import subprocess

from tests.fake_deepseek import Answer, Call
from tests.interop.command_line import AWKWARD, KEY, MODEL, ClientCase, Json, Program

# Pinned: seen to run on Node 20 and 22, though it asks for 22; without a version npm takes one from a year before.
QWEN = "@qwen-code/qwen-code@0.24.4"
RUN_SECONDS = 120
SETTINGS: Json = {
    "telemetry": {"enabled": False},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "security": {"auth": {"selectedType": "openai"}},
    # Its own memory would ask the model by itself after a turn.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
}
FENCES = "```notes.txt\nfrom a thought\n```\n\n```bash\ntouch ran.txt\n```\n<tool_call>\n```\nan open fence"


class QwenCodeTest(ClientCase):
    packages = (QWEN,)

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(["git", "init", "--quiet", str(self.scratch)], check=True)
        self.notes = self.scratch / "notes.txt"
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        place = self.home / ".qwen"
        place.mkdir()
        (place / "settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        thought = f"\n  Step {number}.{AWKWARD}{FENCES}\n \n"
        file = {"file_path": str(self.notes)}
        match number:
            case 0:
                return Answer(thought, None, self.calls(("read_file", file)))
            case 1:
                edit = {**file, "old_string": "bread", "new_string": "Brötchen"}
                return Answer(thought, "First the list.", self.calls(("edit", edit)))
            case 2:
                look = {"command": "cat notes.txt", "is_background": False, "description": "Looks."}
                return Answer(thought, None, self.calls(("read_file", file), ("run_shell_command", look)))
        return Answer(thought, f"Done with step {number}.")

    def calls(self, *wanted: tuple[str, Json]) -> tuple[Call, ...]:
        # With spaces and escapes that JavaScript does not write: the same values come back in other bytes.
        place = f"{len(self.said):024}"
        return tuple(Call(f"call_{at:02}_{place}", name, json.dumps(given)) for at, (name, given) in enumerate(wanted))

    def ask(self, question: str, *options: str) -> str:
        place = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_MODEL": MODEL}
        program = Program((str(self.commands / "qwen"),), tuple(place.items()), RUN_SECONDS)
        return self.run_client(program, "--yolo", *options, "-p", question)

    def test_the_task_with_what_setup_wrote(self) -> None:
        self.set_up("qwen-code", self.proxy_with())
        program = Program((str(self.commands / "qwen"),), (("DEEPSEEK_API_KEY", KEY),), RUN_SECONDS)
        printed = self.run_client(program, "--yolo", "-p", "Put Brötchen on my list instead of bread.")
        self.assertIn("Done with step 3.", printed)
        self.assertEqual(self.notes.read_text("utf-8"), "milk\nBrötchen\n", self.output)
        self.assert_nothing_lost()
        self.undo("qwen-code")
        left = json.loads((self.home / ".qwen" / "settings.json").read_text("utf-8"))
        # It rewrites the file as it runs, and adds this.
        self.assertEqual(SETTINGS, {name: value for name, value in left.items() if name != "$version"})

    def test_trimmed_thoughts_reach_deepseek_exactly_and_nothing_in_them_is_done(self) -> None:
        self.url = self.proxy_with()
        printed = self.ask("Put Brötchen on my list instead of bread.")
        self.assertIn("Done with step 3.", printed)
        self.assertNotIn("from a thought", printed)
        self.assert_nothing_lost()
        # A session that goes on has other reminders in its first message.
        self.assertIn("Done with step 4.", self.ask("How many are there?", "-c"))
        self.assertEqual(self.notes.read_text("utf-8"), "milk\nBrötchen\n", self.output)
        found = sorted(path.name for path in self.scratch.iterdir() if not path.name.startswith("."))
        self.assertEqual(found, ["notes.txt"], self.output)
        # The third turn has none in its second message either.
        self.assertIn("Done with step 5.", self.ask("And now?", "-c"))
        self.assertEqual(len(self.said), 6, self.output)
        self.assert_every_turn_is_exact()
