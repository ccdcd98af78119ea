"""Codex through the proxy, against the strict fake: it runs commands and patches a file as the model asks.

Its configuration is that of the page on clients, word for word but for the port, or what `setup` writes. Codex sends no
`previous_response_id`: it echoes every item it was sent, reasoning included, in a task and when one is resumed.
"""

import itertools
import json
import os
import re
import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.fake_deepseek import Answer, Call, Citation, Failure, Search, prompt
from tests.fake_deepseek.leaks import FORMS
from tests.interop import sessions
from tests.interop.agents import CODEX, AgentCase
from tests.interop.command_line import AWKWARD, KEY, MODEL, Json, Program
from tests.support.harness import PATIENCE
from tests.test_readme import block

# A name for which this Codex offers its own tool for patches; for a name it does not know it offers none.
PATCHING_MODEL = "gpt-5.5"
# One for which it offers little but a tool that runs JavaScript, from which all others are called.
CODE_MODEL = "gpt-6-sol"
PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
 milk
-bread
+Brötchen – "zwei" 🌧
*** End Patch
"""
PATCHED = 'milk\nBrötchen – "zwei" 🌧\n'

# What a test needs and a user may choose: no questions, and nothing looked up outside this machine.
ALONE = ("check_for_update_on_startup", "analytics.enabled", "features.apps", "features.plugins")
OPTIONS = ("--dangerously-bypass-approvals-and-sandbox", *(word for name in ALONE for word in ("-c", f"{name}=false")))


def guide() -> str:
    """The configuration that the page on clients has, for the model of these tests."""
    return block("toml", 'model = "deepseek-flash"\nmodel_provider').replace("deepseek-flash", MODEL)


class CodexCase(AgentCase):
    """The task: look around, change a file, look again; then a second question in the same session."""

    agent = CODEX
    is_repository = True

    def setUp(self) -> None:
        super().setUp()
        # What the second step runs, besides listing the files.
        self.pause = "git status --short"
        # The session that records it, if one does.
        self.session = ""

    def start_proxy(self, keep: str = "nothing", **settings: Any) -> str:
        return super().start_proxy(keep, models=dict.fromkeys((PATCHING_MODEL, CODE_MODEL), MODEL), **settings)

    def codex(self, *arguments: str, config: str | None = None, may_fail: bool = False) -> str:
        assert self.proxy is not None
        written = guide() if config is None else config
        place = self.home / ".codex"
        place.mkdir(exist_ok=True)
        here = written.replace("http://127.0.0.1:9000/v1", f"{self.session}/v1" if self.session else self.proxy.url)
        (place / "config.toml").write_text(here, encoding="utf-8")
        return self.start_codex(*arguments, may_fail=may_fail)

    def start_codex(self, *arguments: str, may_fail: bool = False) -> str:
        environment = (("DEEPSEEK_API_KEY", KEY), ("CODEX_API_KEY", KEY))
        return self.run_client(Program(self.executable, environment), *arguments, may_fail=may_fail)

    def ask(self, question: str, *options: str, may_fail: bool = False) -> str:
        return self.codex("exec", *OPTIONS, *options, question, may_fail=may_fail)

    def ask_again(self, question: str, *options: str) -> str:
        return self.codex("exec", "resume", *OPTIONS, *options, "--last", question)

    # What the model says …

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        thought = f"Step {number}.{AWKWARD}"
        match number:
            case 0:
                return Answer(thought, None, self.shell("cat notes.txt"))
            case 1:
                return Answer(thought, "I look around.", self.shell("ls -a", self.pause))
            case 2:
                return Answer(thought, "", self.patch(payload))
            case 3:
                return Answer(thought, None, self.other_agent(payload) + self.shell("cat notes.txt"))
            case 5:
                return Answer(thought, None, self.shell("wc -l notes.txt"))
        return Answer(thought, f"Done with step {number}.")

    def call(self, index: int, name: str, arguments: Json) -> Call:
        return Call(f"call_{index:02}_{len(self.said):024}", name, json.dumps(arguments))

    def shell(self, *commands: str) -> tuple[Call, ...]:
        return tuple(self.call(index, "exec_command", {"cmd": command}) for index, command in enumerate(commands))

    def patch(self, payload: Json) -> tuple[Call, ...]:
        """By the tool for it where there is one, else by the command that Codex finds in what a shell is to run."""
        if any(tool["function"]["name"] == "apply_patch" for tool in payload["tools"]):
            return (self.call(0, "apply_patch", {"input": PATCH}),)
        return self.shell(f"apply_patch <<'EOF'\n{PATCH}EOF\n")

    def other_agent(self, payload: Json) -> tuple[Call, ...]:
        """A call into a namespace, where Codex has one: closing an agent that was never there."""
        names = [tool["function"]["name"] for tool in payload["tools"]]
        return tuple(self.call(9, name, {"target": "nobody"}) for name in names if name.endswith("close_agent"))

    # What must come of it …

    def assert_task_done(self, printed: str) -> None:
        self.assertIn("Done with step 4.", printed)
        self.assertEqual(self.notes.read_text("utf-8"), PATCHED, self.output)

    def assert_whole_session(self) -> None:
        self.assertEqual(len(self.said), 7, self.output)
        self.assert_nothing_lost()
        results = self.tool_results()
        self.assertIn("bread", results[0])
        self.assertIn("notes.txt", results[1])
        self.assertIn("Success", results[3])
        self.assertNotIn("unsupported call", "".join(results), self.output)
        self.assertIn("Brötchen", results[-2])
        self.assertIn("2 notes.txt", results[-1])


class CodexTest(CodexCase):
    def assert_session(self, *options: str, between: Callable[[], Any] = lambda: None) -> None:
        self.start_proxy()
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread.", *options))
        between()
        self.assertIn("Done with step 6.", self.ask_again("How many lines are these?", *options))
        self.assert_whole_session()

    def test_the_task(self) -> None:
        self.assert_session()
        self.assertIn("multi_agent_v1__close_agent", [call.name for call in self.said[3].calls])

    def test_the_task_with_a_deepseek_whose_every_call_leaks_as_text(self) -> None:
        self.fake.leaks = itertools.cycle(FORMS)
        self.assert_session()

    def test_a_recorded_task_is_exported_as_deepseek_saw_it(self) -> None:
        self.start_proxy()
        assert self.proxy is not None
        self.session = sessions.create(self.proxy.url.removesuffix("/v1"))
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.assertIn("Done with step 6.", self.ask_again("How many lines are these?"))
        self.assert_whole_session()
        sessions.assert_exported(self, self.session, self.fake.accepted[-1]["messages"], self.said[-1])

    def test_the_task_with_the_tool_for_patches(self) -> None:
        self.assert_session("--model", PATCHING_MODEL)
        self.assertEqual(["apply_patch"], [call.name for call in self.said[2].calls])

    def test_a_session_continues_from_sealed_reasoning_when_the_database_is_lost(self) -> None:
        """Codex 0.166 keeps the plain words of an item as well; they are taken from it."""
        self.assert_session(between=lambda: (self.start_proxy("secret"), self.leave_only_sealed_reasoning()))

    def test_a_task_continues_when_the_database_is_lost_amid_it(self) -> None:
        """A command tells when it runs, and waits until everything but the secret is gone."""
        begun, done = self.home / "begun", self.home / "done"
        os.mkfifo(begun)
        os.mkfifo(done)
        self.pause = f"echo now > {begun}; cat {done}"
        lost = threading.Event()

        def lose() -> None:
            if begun.read_bytes():
                self.start_proxy("secret")
                done.write_bytes(b"")
                lost.set()

        thread = threading.Thread(target=lose)
        thread.start()
        try:
            self.assert_session()
        finally:
            # Where no command came so far, whoever waits at one of the two is let go.
            for path in (begun, done) if thread.is_alive() else ():
                os.close(os.open(path, os.O_RDWR))
            thread.join(PATIENCE)
        self.assertTrue(lost.is_set())

    def leave_only_sealed_reasoning(self) -> None:
        [session] = (self.home / ".codex" / "sessions").rglob("*.jsonl")
        lines = [json.loads(line) for line in session.read_text("utf-8").splitlines()]
        thoughts = [line["payload"] for line in lines if line["payload"].get("type") == "reasoning"]
        self.assertEqual(len(thoughts), len(self.said))
        for thought in thoughts:
            thought |= {"summary": [], "content": None}
        session.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def test_an_answer_that_is_cut_off_leaves_no_half_of_a_thought_or_text_in_the_history(self) -> None:
        """Codex asks again by itself, and keeps whatever was done by then."""
        self.start_proxy()
        long = Answer("Let me look at all of it first. " * 20, "It is " * 20, piece=16)
        for cut_after in (3, 44):
            with self.subTest(cut_after=cut_after):
                self.fake.forget()
                self.fake.answer(replace(long, cut_after=cut_after), Answer("A whole thought.", "All done."))
                self.assertIn("All done.", self.ask("What is on my list?"))
                first, again = (payload["messages"] for payload in self.fake.accepted)
                half = [message for message in again[len(first) :] if message["content"]]
                self.assertEqual((first, []), (again[: len(first)], half))
                thoughts = [message.get("reasoning_content") for message in again[len(first) :]]
                self.assertTrue(set(thoughts) <= {long.reasoning}, thoughts)

    def test_a_chat_that_is_too_long_is_told_in_the_words_of_codex(self) -> None:
        self.start_proxy()
        too_long = "This model's maximum context length is 1048576 tokens. However, you requested 1100000 tokens."
        self.fake.answer(Failure(400, too_long, "invalid_request_error", "invalid_request_error"))
        self.ask("What is on my list?", may_fail=True)
        self.assertIn("ran out of room in the model's context window", self.output)
        self.assertEqual([400], [seen.status for seen in self.fake.seen], self.output)

    def test_the_provider_that_wants_a_web_socket_is_sent_to_post_at_once(self) -> None:
        self.start_proxy()
        built_in = f'model = "{MODEL}"\nopenai_base_url = "http://127.0.0.1:9000/v1"\n'
        with self.assertLogs("deepseek_cursor_proxy.observers.console", "INFO") as logs:
            printed = self.codex("exec", *OPTIONS, "Put Brötchen on my list instead of bread.", config=built_in)
        self.assert_task_done(printed)
        self.assert_nothing_lost()
        self.assertEqual(["426" in line for line in logs.output if " refused: " in line], [True], logs.output)


class SetUpTest(CodexCase):
    THEIRS = '# mine\nmodel = "gpt-6-sol"\n\n[projects."/tmp/other"]\ntrust_level = "trusted"'

    def setUp(self) -> None:
        super().setUp()
        self.settings_file = self.home / ".codex" / "config.toml"
        self.settings_file.parent.mkdir()
        self.settings_file.write_text(self.THEIRS, encoding="utf-8")
        self.set_up("codex", self.start_proxy())

    def codex(self, *arguments: str, config: str | None = None, may_fail: bool = False) -> str:
        return self.start_codex(*arguments, may_fail=may_fail)

    def test_the_task_runs_with_the_catalogue(self) -> None:
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread."))
        self.assertIn("Done with step 6.", self.ask_again("How many lines are these?"))
        self.assert_whole_session()
        self.assertEqual(["apply_patch"], [call.name for call in self.said[2].calls])
        self.assertNotIn("fallback", self.output.lower())
        self.assertEqual({MODEL}, {payload["model"] for payload in self.fake.accepted})
        self.assertEqual({"high"}, {payload.get("reasoning_effort") for payload in self.fake.accepted})

    def test_codex_reads_the_catalogue_as_it_was_written(self) -> None:
        found = {model["slug"]: model for model in json.loads(self.codex("debug", "models"))["models"]}
        written = json.loads((self.settings_file.parent / "deepseek-proxy-models.json").read_text("utf-8"))["models"]
        self.assertEqual(2, len(written))
        for model in written:
            # Releases before this one ask for these.
            later = {"supports_reasoning_summaries", "supports_parallel_tool_calls"}
            known = {name: value for name, value in model.items() if name not in later}
            self.assertEqual(known, {name: found[model["slug"]].get(name) for name in known})

    def test_what_codex_adds_meanwhile_survives_the_undo(self) -> None:
        self.codex("mcp", "add", "notes", "--", "true")
        self.undo("codex")
        left = self.settings_file.read_text("utf-8")
        self.assertTrue(left.startswith(self.THEIRS), left)
        self.assertEqual({"true"}, {server["command"] for server in tomllib.loads(left)["mcp_servers"].values()})


class SearchTest(CodexCase):
    """Codex offers a search with every request; it drops the ids of searches when it sends them back."""

    def script(self, payload: Json) -> Answer:
        match len(self.said):
            case 0:
                searches = (Search(("rain", "雨"), reasoning="Where? "), Search(url="https://a.example"))
                return Answer("And what do I need?", None, self.shell("cat notes.txt"), searches=searches)
            case 1:
                cited = (Citation("https://a.example", "A", 0, 2),)
                return Answer("So.", "It rains.", searches=(Search(text="I look again."),), citations=cited)
        return Answer("Easy.", "You are welcome.")

    def test_searches_go_back_to_deepseek_as_it_sent_them(self) -> None:
        self.start_proxy()
        self.assertIn("It rains.", self.ask("Do I need an umbrella?"))
        self.assertIn("You are welcome.", self.ask_again("Thanks."))
        self.assertEqual(([], {"/responses"}), (self.fake.refused, {seen.path for seen in self.fake.seen}), self.output)
        *_, before, last = (json.loads(seen.body)["input"] for seen in self.fake.seen)
        self.assertEqual(before, last[: len(before)])
        answers = [item for item in last if item["type"] != "message" or item["role"] == "assistant"]
        search, called = "web_search_call", ["function_call", "function_call_output"]
        first, second = ["reasoning", search, search, "reasoning", *called], ["message", search, "reasoning", "message"]
        self.assertEqual([*first, *second], [item["type"] for item in answers], self.output)
        self.assertTrue(all(item["id"].startswith("ws_") for item in last if item["type"] == search), last)
        sent = [message for message in self.fake.accepted[-1]["messages"] if message["role"] == "assistant"]
        thoughts = [message["reasoning_content"] for message in sent]
        self.assertEqual(["Where? And what do I need?", "So."], thoughts, self.output)


class CodeModeTest(CodexCase):
    """Codex puts its tools into the first item: namespaces, and in one of them `exec`, which takes bare JavaScript."""

    def script(self, payload: Json) -> Answer:
        number, last = len(self.said), str(payload["messages"][-1]["content"])
        match number:
            case 0:
                # It tells of its progress by a second output of the same call.
                code = 'notify("halfway"); text(await tools.exec_command({cmd: "cat notes.txt"}));'
            case 1:
                code = (
                    'text("begun"); yield_control(); await new Promise(done => setTimeout(done, 500)); text("ended");'
                )
            case 2:
                cell = re.search(r"cell ID (\w+)", last)
                return Answer("I wait.", None, (self.call(0, "functions__wait", {"cell_id": cell[1] if cell else ""}),))
            case 3:
                code = f"text(await tools.apply_patch({json.dumps(PATCH)}));"
            case _:
                return Answer(f"Step {number}.", f"Done with step {number}.")
        return Answer(f"Step {number}.{AWKWARD}", None, (self.call(0, "functions__exec", {"input": code}),))

    def test_the_task_in_javascript(self) -> None:
        self.start_proxy()
        self.assert_task_done(self.ask("Put Brötchen on my list instead of bread.", "--model", CODE_MODEL))
        self.assertIn("Done with step 5.", self.ask_again("Thanks.", "--model", CODE_MODEL))
        self.assert_nothing_lost()
        results = self.tool_results()
        self.assertEqual(4, len(results), results)
        self.assertIn("bread", results[0])
        self.assertIn("ended", results[2])
        self.assertIn("halfway", json.dumps(self.fake.accepted[-1]["messages"]))
        prompts = ["".join(part.text for part in prompt.parts(payload)) for payload in self.fake.accepted]
        self.assertTrue(all(after.startswith(before) for before, after in itertools.pairwise(prompts)))


class CompactionTest(CodexCase):
    """Codex has its context compacted by the server where it takes the server for OpenAI's, else by a question."""

    SMALL = "model_auto_compact_token_limit = 200\nmodel_context_window = 20000\n"

    def script(self, payload: Json) -> Answer:
        if re.match(
            "Summarize this conversation|You are performing a CONTEXT", str(payload["messages"][-1]["content"])
        ):
            return Answer(None, "The list was read: milk and bread.")
        if not self.said:
            return Answer("I look.", None, self.shell("cat notes.txt"))
        return Answer("I know it.", "All done.")

    def test_a_context_that_is_full_continues_from_its_summary(self) -> None:
        self.start_proxy()
        built_in = f'model = "{MODEL}"\nopenai_base_url = "http://127.0.0.1:9000/v1"\n{self.SMALL}'
        self.assertIn("All done.", self.codex("exec", *OPTIONS, "What is on my list?", config=built_in))
        self.assertIn("context compacted", self.output)
        *_, summary, last = (payload["messages"] for payload in self.fake.accepted)
        self.assertEqual("tool", summary[-2]["role"])
        self.assertEqual(("user", False), (last[-1]["role"], any(each["role"] == "tool" for each in last)))
        self.assertIn("milk and bread.", last[-1]["content"])
        self.assert_cached()

    def test_codex_asks_for_a_summary_of_a_chat_that_deepseek_has_in_its_cache(self) -> None:
        self.start_proxy()
        ours = self.SMALL + guide()
        with self.assertLogs("deepseek_cursor_proxy.observers.console", "INFO") as logs:
            self.assertIn("All done.", self.codex("exec", *OPTIONS, "What is on my list?", config=ours))
        self.assertIn("of the chat restored", "\n".join(logs.output))
        self.assert_cached()

    def assert_cached(self) -> None:
        """The request for the summary begins as the one before it does."""
        before, summary = self.fake.accepted[-3:-1]
        self.assertEqual(before["tools"], summary["tools"])
        prompts = ["".join(part.text for part in prompt.parts(payload)) for payload in (before, summary)]
        self.assertTrue(prompts[1].startswith(prompts[0]))
        self.assertEqual("none", summary["tool_choice"])
