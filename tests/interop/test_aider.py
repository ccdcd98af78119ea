"""aider in a scratch repository, through the proxy, against the strict fake: it edits by what stands in the text.

It gets an environment of its own, since it pins every package it needs. aider has no tools: a fence under a file's name
is the file's new content, and a fence of shell commands is run. A thought in the text would overwrite files that the
model never meant to touch.
"""

import subprocess
import sys

from tests.fake_deepseek import Answer
from tests.interop import packages
from tests.interop.command_line import AWKWARD, KEY, MODEL, ROOT, ClientCase, Json, Program

OPTIONS = (
    *("--yes-always", "--no-auto-commits", "--no-check-update", "--analytics-disable", "--no-gitignore"),
    *("--no-detect-urls", "--map-tokens", "0", "--message", "Milk only.", "notes.txt"),
)

WHOLE = "notes.txt\n```\n{}\n```\n"
EDIT = "notes.txt\n```\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n```\n"
BUTTER = f"Here it is.\n\n{EDIT.format('bread', 'butter')}"
COMMAND = "```bash\ntouch ran.txt\n```\n"


class AiderTest(ClientCase):
    needs, install = ("aider-chat==0.86.2",), staticmethod(packages.pypi)

    def setUp(self) -> None:
        super().setUp()
        subprocess.run(["git", "init", "--quiet", str(self.scratch)], check=True)
        self.notes = self.scratch / "notes.txt"
        self.notes.write_text("milk\nbread\n", encoding="utf-8")
        self.answer = Answer("Butter.", BUTTER)

    def script(self, payload: Json) -> Answer:
        return self.answer

    def start(self, *command: str, **environment: str) -> None:
        place = {"OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **environment}
        printed = self.run_client(Program(command, tuple(place.items())), *OPTIONS)
        self.assertEqual(len(self.said), 1, self.output)
        # As for a model that it knows nothing about.
        self.assertNotIn("unknown context window", printed.lower())

    def edit(self, *options: str) -> None:
        self.set_up("aider", self.start_proxy())
        self.start(str(self.commands / "aider"), *options)

    def assert_files(self, notes: str) -> None:
        self.assertEqual(self.notes.read_text("utf-8"), notes, self.output)
        found = sorted(path.name for path in self.scratch.iterdir() if not path.name.startswith("."))
        self.assertEqual(found, ["notes.txt"], self.output)

    def test_an_edit_and_the_undo_of_setup(self) -> None:
        self.edit("--no-stream")
        self.assert_files("milk\nbutter\n")
        self.assertEqual([MODEL], [payload["model"] for payload in self.fake.accepted], self.output)
        self.undo("aider")
        self.assertEqual([], list(self.home.glob(".aider.*.yml")) + list(self.home.glob(".aider.*.json")))

    def test_an_edit_as_run_starts_it(self) -> None:
        place = {"PATH": f"{self.commands}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        place |= {"DEEPSEEK_API_KEY": KEY, "DEEPSEEK_CURSOR_PROXY_BASE_URL": self.fake.url}
        self.start(sys.executable, "-W", "error", "-m", "deepseek_cursor_proxy", "run", "aider", **place)
        self.assert_files("milk\nbutter\n")
        self.assertEqual(["deepseek-flash"], [payload["model"] for payload in self.fake.accepted], self.output)

    def test_no_file_is_overwritten_from_a_thought(self) -> None:
        other = "other.txt\n```\nfrom a thought\n```\n"
        self.answer = Answer(f"Perhaps\n\n{WHOLE.format('from a thought')}{other}{COMMAND}{AWKWARD}", "Nothing to do.")
        self.edit("--edit-format", "whole")
        self.assert_files("milk\nbread\n")

    def test_the_answer_is_applied_though_a_thought_held_other_edits(self) -> None:
        thought = f"Perhaps\n\n{EDIT.format('bread', 'from a thought')}\n{COMMAND}```\nan open fence\n"
        self.answer = Answer(thought, BUTTER)
        self.edit("--edit-format", "diff", "--no-stream")
        self.assert_files("milk\nbutter\n")
