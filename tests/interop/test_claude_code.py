"""Claude Code through the proxy, set up by hand and by `setup`, against the strict fake: it changes real files.

It streams from the Messages API, asks for thinking that is signed but not told, and keeps the signatures with its
chats.
"""

import json
import re
from dataclasses import replace

from tests.fake_deepseek import Answer, Citation, Search
from tests.interop import sessions
from tests.interop.agents import CLAUDE, QUESTION, SECOND, AgentCase
from tests.interop.command_line import KEY, MODEL, Json
from tests.test_readme import block


def environment_of_the_page(url: str) -> dict[str, str]:
    """What the page on clients tells people to set, for this proxy and key."""
    told = dict(re.findall(r"^export (\w+)=(\S+)", block("bash", "export ANTHROPIC_BASE_URL"), re.MULTILINE))
    assert told.pop("ANTHROPIC_BASE_URL") == "http://127.0.0.1:9000"
    assert told.pop("ANTHROPIC_AUTH_TOKEN") == "sk-…"
    return {**told, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": KEY}


class ClaudeCodeCase(AgentCase):
    """Set up by hand, as the page on clients has it."""

    agent = CLAUDE

    def configure(self, url: str) -> None:
        self.url = url

    def ask(self, question: str, *options: str, may_fail: bool = False, **environment: str) -> str:
        # Opus is Pro, the stricter of the two.
        page = environment_of_the_page(self.url)
        return super().ask(question, *options, "--model", "opus", may_fail=may_fail, **page, **environment)


class TaskTest(ClaudeCodeCase):
    def test_the_task(self) -> None:
        self.assert_task()
        self.assertEqual({payload["model"] for payload in self.fake.accepted}, {MODEL})

    def test_a_recorded_task_is_exported_as_deepseek_saw_it(self) -> None:
        self.configure(sessions.create(self.start_proxy()))
        self.assert_task_done(self.ask(QUESTION))
        self.assert_second_answer(self.ask(SECOND, "-c"))
        sessions.assert_exported(self, self.url, self.fake.accepted[-1]["messages"], self.said[-1])

    def test_the_chat_continues_through_a_proxy_that_has_nothing_but_its_secret(self) -> None:
        self.assert_task("secret")

    def test_an_answer_that_breaks_before_anything_is_said_is_retried(self) -> None:
        """In one piece, then."""
        self.configure(self.start_proxy())
        self.fake.answer(Answer("This breaks off.", "It is never told", cut_after=1))
        self.assert_task_done(self.ask(QUESTION))
        broken, again = self.fake.seen[:2]
        self.assertEqual(broken.payload["messages"], again.payload["messages"], self.output)
        self.fake.seen.pop(0)
        self.assert_nothing_lost()

    def test_a_chat_continues_from_an_answer_that_broke_off(self) -> None:
        """What was told of it is in the history, and so is what was thought for it."""
        self.configure(self.start_proxy())
        # One event for the role, one for the thought, one for the words.
        broken = Answer("This breaks off.", "It is never told", cut_after=3)
        self.fake.answer(broken)
        self.assert_task_done(self.ask(QUESTION))
        self.said.insert(0, broken)
        self.assert_nothing_lost()


class SetUpCase(AgentCase):
    agent = CLAUDE

    def configure(self, url: str) -> None:
        self._setup("claude-code", "--url", url)


class SetUpTest(SetUpCase):
    def test_the_task_and_the_undo(self) -> None:
        self.assert_task()
        asked = {(one["model"], one["reasoning_effort"]) for one in self.fake.accepted}
        self.assertEqual({("deepseek-flash", "high")}, asked)
        self.assertIn("ANTHROPIC_AUTH_TOKEN", self.output)
        self.undo("claude-code")
        [(place, text)] = self.settings.items()
        self.assertEqual(text, (self.home / place).read_text("utf-8"))

    def test_its_rows_and_efforts_are_ours(self) -> None:
        self.set_up("claude-code", self.start_proxy())
        for row, model in (
            ("fable", MODEL), ("opus", MODEL), ("sonnet", "deepseek-flash"), ("haiku", "deepseek-flash"),
        ):  # fmt: skip
            for effort in ("low", "max"):
                self.said.append(Answer("", ""))
                self.ask("Go on.", "--model", row, "--effort", effort)
                last = self.fake.accepted[-1]
                self.assertEqual((model, effort), (last["model"], last.get("reasoning_effort")), self.output)

    def test_it_lists_our_models_and_takes_their_names(self) -> None:
        """As its `/model` does: it keeps the list in a file, for the next time that it is shown."""
        self.set_up("claude-code", self.start_proxy())
        names, asked = ["claude-deepseek-v4-pro", "claude-deepseek-flash"], list[str]()
        for name in names:
            self.begin()
            self.assert_task_done(self.ask(QUESTION, "--model", name))
            asked += list(dict.fromkeys(payload["model"] for payload in self.fake.accepted))
        listed = json.loads((self.home / ".claude" / "cache" / "gateway-models.json").read_text("utf-8"))["models"]
        self.assertEqual(names, [model["id"] for model in listed])
        self.assertEqual(["DeepSeek V4 Pro", "DeepSeek Flash"], [model["display_name"] for model in listed])
        self.assertEqual(["deepseek-v4-pro", "deepseek-flash"], asked, self.output)


class AutoModeTest(SetUpCase):
    """In auto mode it checks an action by itself before it runs, with the model that setup wrote."""

    agent = replace(CLAUDE, flags=("--permission-mode", "auto"))
    verdict = "<block>no</block>"

    def aside(self, payload: Json) -> Answer:
        return Answer(None, self.verdict)

    def script(self, payload: Json) -> Answer:
        if len(self.said) == 0:
            return Answer("I write it.", None, self.calls(payload, ("bash", {"command": "echo milk | tee list.txt"})))
        return Answer("That is all.", "Finished.")

    def run_task(self) -> list[Json]:
        """The checks that DeepSeek was asked for."""
        self.set_up("claude-code", self.start_proxy())
        self.assertIn("Finished.", self.ask("Write the list."))
        checks = [payload for payload in self.fake.accepted if not payload.get("tools")]
        self.assertEqual({("deepseek-flash", "disabled")}, {(one["model"], one["thinking"]["type"]) for one in checks})
        return checks

    def test_an_action_that_passes_the_check_runs(self) -> None:
        self.assertEqual(1, len(self.run_task()))
        self.assertEqual("milk\n", (self.scratch / "list.txt").read_text("utf-8"))

    def test_an_action_that_the_check_blocks_does_not_run(self) -> None:
        self.verdict = "<block>yes</block><category>Other</category><reason>[Other] It writes.</reason>"
        self.assertEqual(2, len(self.run_task()))
        self.assertFalse((self.scratch / "list.txt").exists())


class SubagentTest(SetUpCase):
    """Set up with --flash-subagents, its sub-agents ask for the model of the chat, and the proxy's rule moves them."""

    def script(self, payload: Json) -> Answer:
        if not self.said:
            task = {"description": "Look", "prompt": "Say hello."}
            return Answer("Let another look.", None, self.calls(payload, ("agent", task)))
        return Answer("It is simple.", "Hello.")

    def test_the_task(self) -> None:
        proxy = self.start_proxy(subagent_model="deepseek-flash")
        printed = self._setup("claude-code", "--flash-subagents", "--model", MODEL, "--url", proxy)
        self.assertIn('+subagent_model = "deepseek-flash"', printed)
        self.assertIn("Hello.", self.ask("Have another agent say hello."))
        models = [payload["model"] for payload in self.fake.accepted]
        self.assertEqual((MODEL, 1), (models[0], models.count("deepseek-flash")), self.output)
        self.assertEqual({MODEL, "deepseek-flash"}, set(models), self.output)


class SearchTest(ClaudeCodeCase):
    """Tools of MCP servers, and some of its own, are only announced until the model searches for them."""

    def script(self, payload: Json) -> Answer:
        if not self.said:
            return Answer(
                "It takes another tool.",
                None,
                self.calls(payload, ("toolsearch", {"query": "select:NotebookEdit", "max": 1})),
            )
        return Answer("There it is.", "Found.")

    def test_what_was_searched_for_can_be_called(self) -> None:
        self.configure(self.start_proxy())
        self.assertIn("Found.", self.ask("Which tools are there?"))
        before, after = ({tool["function"]["name"] for tool in payload["tools"]} for payload in self.fake.accepted)
        self.assertEqual(after - before, {"NotebookEdit"})
        self.assert_nothing_lost()


class WebSearchTest(ClaudeCodeCase):
    """Its WebSearch is a request of its own, with a tool that DeepSeek runs; what comes of it is a result to the chat.

    The model has to find the tool first, because it is only announced.
    """

    FOUND = Search(("rain in Rome",), reasoning="Let me look. ")
    SOURCE = Citation("https://example.com/0", "About rain in Rome", 0, 7)

    def script(self, payload: Json) -> Answer:
        if payload.get("server_tools"):
            return Answer("So it does.", "It rains.", searches=(self.FOUND,), citations=(self.SOURCE,))
        match len([each for each in self.said if not each.searches]):
            case 0:
                return Answer(
                    "I need a tool.", None, self.calls(payload, ("toolsearch", {"query": "select:WebSearch", "max": 1}))
                )
            case 1:
                return Answer("Now look.", None, self.calls(payload, ("websearch", {"query": "rain in Rome"})))
        return Answer("There it is.", "Take an umbrella.")

    def test_a_web_search_runs_at_deepseek_and_reaches_the_chat(self) -> None:
        self.configure(self.start_proxy())
        self.assertIn("Take an umbrella.", self.ask("Does it rain in Rome?"))
        self.assertEqual([], [seen.refusal for seen in self.fake.refused], self.output)
        searches = [seen for seen in self.fake.seen if seen.payload.get("server_tools")]
        self.assertEqual(["/anthropic/v1/messages"], [seen.path for seen in searches], self.output)
        [tool] = searches[0].payload["server_tools"]
        self.assertEqual(("web_search_20250305", "web_search"), (tool["type"], tool["name"]))
        [found] = [result for result in self.tool_results() if "https://example.com/0" in result]
        self.assertIn("It rains.", found)
