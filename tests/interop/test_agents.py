"""Coding agents through the proxy, against the strict fake: they read and change real files as the model asks.

`agents` has the table of them. Claude Code and Codex do more, in files of their own.
"""

import itertools
import json
from itertools import pairwise

from deepseek_cursor_proxy.cli.setup.clients import FLASH, PROVIDER
from tests.fake_deepseek import prompt
from tests.fake_deepseek.leaks import FORMS
from tests.interop.agents import CLINE, CN, COPILOT, OPENCODE, PI, QUESTION, QWEN, SECOND, AgentCase
from tests.interop.command_line import AWKWARD, KEY, MODEL


class SetUpCase(AgentCase):
    def test_the_task_and_the_undo(self) -> None:
        self.assert_task()
        self.assertEqual({MODEL}, {payload["model"] for payload in self.fake.accepted})
        # Cline writes its own file anew, which setup leaves alone then.
        for place, text in self.settings.items():
            self.undo(self.agent.setup)
            self.assertEqual(self.of_the_user(text), self.of_the_user((self.home / place).read_text("utf-8")))

    def of_the_user(self, text: str) -> object:
        return text


class ClineTest(SetUpCase):
    """It leaves a daemon behind, which is ended with the home that it lives in."""

    agent = CLINE


class ContinueTest(SetUpCase):
    """It drops reasoning_content, and writes the arguments of calls anew."""

    agent = CN

    def test_the_task_with_the_thinking_shown_through_proxies_that_never_saw_it(self) -> None:
        """The thinking that cn kept with the visible text is all there is."""
        self.assert_task("nothing", display_reasoning=True)


class OpencodeTest(SetUpCase):
    """It sends reasoning_content back; the thinking of turns that another model has made it sends as text."""

    agent = OPENCODE

    def test_a_chat_keeps_its_reasoning_when_the_model_is_switched_and_switched_back(self) -> None:
        self.configure(self.start_proxy())
        self.assert_task_done(self.ask(QUESTION))
        for model in (FLASH, MODEL):
            self.ask(SECOND, "-c", "-m", f"{PROVIDER}/{model}")
        self.assert_every_turn_is_exact()
        self.assertEqual(2, len({payload["model"] for payload in self.fake.accepted}))

    def test_the_task_with_a_deepseek_whose_every_call_leaks_as_text(self) -> None:
        self.fake.leaks = itertools.cycle(FORMS)
        self.assert_task()


class QwenCodeTest(SetUpCase):
    """It trims the reasoning_content that it sends back: the exact one has to reach DeepSeek.

    A chat that goes on has other reminders in its first message.
    """

    agent = QWEN
    awkward = f"{AWKWARD}```notes.txt\nfrom a thought\n```\n\n```bash\ntouch ran.txt\n```\n<tool_call>\n```\nopen\n \n"

    def assert_nothing_lost(self) -> None:
        self.assert_every_turn_is_exact()
        # The third turn has none in its second message either.
        self.assertIn("Done with step 6.", self.ask("And now?", *self.agent.again))
        self.assert_every_turn_is_exact()
        self.assertNotIn("from a thought", self.output)
        found = sorted(path.name for path in self.scratch.iterdir() if not path.name.startswith("."))
        self.assertEqual([self.copy.name, self.notes.name], found, self.output)

    def of_the_user(self, text: str) -> object:
        # It rewrites the file as it runs, and adds this.
        return {name: value for name, value in json.loads(text).items() if name != "$version"}


class CopilotTest(AgentCase):
    """GitHub's Copilot CLI, without a login. Within a run it sends the thinking back.

    A chat that is resumed comes without it, and with the arguments of calls in other bytes, which is the same prompt.
    """

    agent = COPILOT
    # Each with the path of its base URL.
    apis = (
        ("/v1", {}),
        ("/v1", {"COPILOT_PROVIDER_WIRE_API": "responses"}),
        ("", {"COPILOT_PROVIDER_TYPE": "anthropic"}),
    )

    def configure(self, url: str) -> None:
        path, variables = self.api
        place = {"COPILOT_PROVIDER_BASE_URL": url + path, "COPILOT_PROVIDER_API_KEY": KEY, "COPILOT_MODEL": MODEL}
        # Nothing is looked up outside this machine.
        self.variables = {"COPILOT_OFFLINE": "true", **place, **variables}

    def ask(self, question: str, *options: str, may_fail: bool = False, **environment: str) -> str:
        return super().ask(question, *options, may_fail=may_fail, **self.variables, **environment)

    def assert_nothing_lost(self) -> None:
        self.assert_every_turn_is_exact()
        prompts = ["".join(part.text for part in prompt.parts(payload)) for payload in self.fake.accepted]
        for before, after in pairwise(prompts):
            self.assertTrue(after.startswith(before), self.output)

    def test_the_task_by_each_api(self) -> None:
        for api in self.apis:
            self.api = api
            with self.subTest(api):
                self.assert_task()


class PiTest(AgentCase):
    """It keeps reasoning_content, sends content as parts and its prompt as `developer`, and speaks all three APIs."""

    agent = PI

    def configure(self, url: str) -> None:
        self.point_at(self.api)

    def point_at(self, api: str) -> None:
        assert self.proxy is not None
        url = self.proxy.url if api != "anthropic-messages" else self.proxy.url.removesuffix("/v1")
        model = {"reasoning": True, "contextWindow": 128000, "maxTokens": 8192}
        models = [{"id": name, **model} for name in (MODEL, FLASH)]
        provider = {"baseUrl": url, "api": api, "apiKey": KEY, "models": models}
        place = self.home / ".pi" / "agent"
        place.mkdir(parents=True, exist_ok=True)
        (place / "models.json").write_text(json.dumps({"providers": {"proxy": provider}}), encoding="utf-8")

    def ask(self, question: str, *options: str, may_fail: bool = False, **environment: str) -> str:
        model = options if "--model" in options else ("--model", MODEL, *options)
        return super().ask(question, "--provider", "proxy", "--thinking", "high", *model, may_fail=may_fail)

    def test_the_task_by_each_api_with_what_pi_keeps(self) -> None:
        """By responses the items as they came; by messages thinking that needs the secret of the proxy."""
        for api, keep, display in (
            ("openai-completions", "all", False), ("openai-completions", "nothing", True),
            ("openai-responses", "nothing", False), ("anthropic-messages", "secret", False),
        ):  # fmt: skip
            self.api = api
            with self.subTest(api, display=display):
                self.assert_task(keep, display_reasoning=display)

    def test_a_chat_keeps_its_reasoning_over_switches_of_the_model_and_the_api(self) -> None:
        """pi sends the thinking of turns before a switch as text, and changes the ids of calls by Responses."""
        chat, responses, messages = "openai-completions", "openai-responses", "anthropic-messages"
        self.start_proxy(display_reasoning=False)
        self.point_at(responses)
        self.assert_task_done(self.ask(QUESTION))
        for api, model in ((chat, MODEL), (messages, FLASH), (responses, FLASH), (responses, MODEL), (chat, FLASH)):
            self.point_at(api)
            self.ask(SECOND, "-c", "--model", model)
        self.assert_nothing_lost()


del SetUpCase
