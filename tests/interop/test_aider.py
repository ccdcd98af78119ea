"""aider in a scratch repository, through the proxy, against the strict fake: it edits by what stands in the text.

It gets an environment of its own, since it pins every package it needs. aider has no tools: a fence under a file's name
is the file's new content, and a fence of shell commands is run. A thought in the text would overwrite files that the
model never meant to touch.
"""

import subprocess

from tests.fake_deepseek import Answer
from tests.interop import packages
from tests.interop.command_line import AWKWARD, KEY, MODEL, ClientCase, Json, Program

AIDER = "aider-chat==0.86.2"
RUN_SECONDS = 120
OPTIONS = (
    *("--yes-always", "--no-auto-commits", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-gitignore", "--no-detect-urls", "--map-tokens", "0"),
)

WHOLE = "notes.txt\n```\n{}\n```\n"
EDIT = "notes.txt\n```\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n```\n"
COMMAND = "```bash\ntouch ran.txt\n```\n"


class AiderTest(ClientCase):
    needs, install = (AIDER,), staticmethod(packages.pypi)

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(["git", "init", "--quiet", str(self.scratch)], check=True)
        self.notes = self.scratch / "notes.txt"
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        self.answer = Answer()

    def script(self, payload: Json) -> Answer:
        return self.answer

    def edit(self, edit_format: str, *options: str) -> None:
        url = f"{self.proxy_with()}/v1"
        place = (("OPENAI_API_BASE", url), ("OPENAI_API_KEY", KEY), ("LITELLM_LOCAL_MODEL_COST_MAP", "True"))
        program = Program((str(self.commands / "aider"), "--model", f"openai/{MODEL}"), place, RUN_SECONDS)
        given = ("--edit-format", edit_format, *OPTIONS, *options, "--message", "Milk only.", "notes.txt")
        self.run_client(program, *given)
        self.assertEqual(len(self.said), 1, self.output)

    def test_an_edit_with_what_setup_wrote(self) -> None:
        self.answer = Answer("Butter.", f"Here it is.\n\n{EDIT.format('bread', 'butter')}")
        self.set_up("aider", self.proxy_with())
        place = (("OPENAI_API_KEY", KEY), ("LITELLM_LOCAL_MODEL_COST_MAP", "True"))
        program = Program((str(self.commands / "aider"),), place, RUN_SECONDS)
        # The warnings are those about a model that aider knows nothing about.
        options = [option for option in OPTIONS if option != "--no-show-model-warnings"]
        printed = self.run_client(program, *options, "--no-stream", "--message", "Milk only.", "notes.txt")
        self.assert_files("milk\nbutter\n")
        self.assertEqual([MODEL], [payload["model"] for payload in self.fake.accepted], self.output)
        self.assertNotIn("unknown context window", printed.lower())
        self.undo("aider")
        self.assertEqual([], list(self.home.glob(".aider.*.yml")) + list(self.home.glob(".aider.*.json")))

    def assert_files(self, notes: str) -> None:
        self.assertEqual(self.notes.read_text("utf-8"), notes, self.output)
        found = sorted(path.name for path in self.scratch.iterdir() if not path.name.startswith("."))
        self.assertEqual(found, ["notes.txt"], self.output)

    def test_no_file_is_overwritten_from_a_thought(self) -> None:
        other = "other.txt\n```\nfrom a thought\n```\n"
        self.answer = Answer(f"Perhaps\n\n{WHOLE.format('from a thought')}{other}{COMMAND}{AWKWARD}", "Nothing to do.")
        self.edit("whole")
        self.assert_files("milk\nbread\n")

    def test_the_answer_is_applied_though_a_thought_held_other_edits(self) -> None:
        thought = f"Perhaps\n\n{EDIT.format('bread', 'from a thought')}\n{COMMAND}```\nan open fence\n"
        self.answer = Answer(thought, f"Here it is.\n\n{EDIT.format('bread', 'butter')}")
        self.edit("diff", "--no-stream")
        self.assert_files("milk\nbutter\n")
