"""GitHub's Copilot CLI, without a login, on each of the three APIs, against the strict fake: it changes real files.

Within a run it sends the thinking back. A chat that is resumed comes without it, on every API, and with the arguments
of its calls in other bytes, which is the same prompt.
"""

import json
from itertools import pairwise

from tests.fake_deepseek import Call, prompt
from tests.interop.agents import QUESTION, AgentCase
from tests.interop.command_line import KEY, MODEL, Json

COPILOT = "@github/copilot@1.0.102"
# Each with the path of its base URL.
APIS = {
    "completions": ("/v1", {}),
    "responses": ("/v1", {"COPILOT_PROVIDER_WIRE_API": "responses"}),
    "messages": ("", {"COPILOT_PROVIDER_TYPE": "anthropic"}),
}
TOOLS = {"read": "view", "write": "create"}
FIELDS = {"old": "old_str", "new": "new_str", "content": "file_text"}


class CopilotTest(AgentCase):
    packages = (COPILOT,)

    def ask(self, url: str, api: str, *options: str, question: str = QUESTION) -> str:
        path, variables = APIS[api]
        place = {"COPILOT_PROVIDER_BASE_URL": url + path, "COPILOT_PROVIDER_API_KEY": KEY, "COPILOT_MODEL": MODEL}
        # Nothing is looked up outside this machine.
        program = self.program(self.commands / "copilot", COPILOT_OFFLINE="true", **place, **variables)
        return self.run_client(program, "--allow-all-tools", *options, "-p", question)

    def calls(self, payload: Json, *wanted: tuple[str, Json]) -> tuple[Call, ...]:
        """Its tool `edit` needs more fields than it requires."""
        made = []
        for index, (name, values) in enumerate(wanted):
            arguments = {FIELDS.get(field, field): value for field, value in values.items()}
            if name == "bash":
                arguments["description"] = "Look"
            call_id = f"call_{index:02}_{len(self.said):024}"
            made.append(Call(call_id, TOOLS.get(name, name), json.dumps(arguments)))
        return tuple(made)

    def test_the_task_and_a_resumed_chat_on_each_api(self) -> None:
        for api in APIS:
            with self.subTest(api):
                self.notes.write_text("milk\nbread\n", encoding="utf-8")
                self.copy.unlink(missing_ok=True)
                self.said.clear()
                self.fake.seen.clear()
                url = self.new_proxy(display=False)
                self.assert_task_done(self.ask(url, api))
                printed = self.ask(url, api, "--continue", question="How many did I want?")
                self.assertIn("Done with step 5.", printed)
                self.assert_every_turn_is_exact()
                prompts = ["".join(part.text for part in prompt.parts(payload)) for payload in self.fake.accepted]
                self.assertEqual(6, len(prompts), self.output)
                for before, after in pairwise(prompts):
                    self.assertTrue(after.startswith(before), self.output)
                self.assertIn("zwei", self.tool_results()[-1])
