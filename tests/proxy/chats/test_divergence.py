"""Where a history diverges from the one before it, as the log tells."""

import json
import logging
import random
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.support.apis import Api, ApiTestCase, each_api
from tests.support.cursor import CursorClient
from tests.support.features import needs
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import TOOLS
from tests.support.messages_client import MessagesTestCase
from tests.support.responses_client import ResponsesTestCase, output, question
from tests.unit.reasoning.test_chats import tool, tools

CONSOLE = "deepseek_cursor_proxy.observers.console"


class TestDivergence(SocketTestCase):
    def last_line(self, client: CursorClient, text: str) -> str:
        """What the console says at the end of a request, which is before the client sees the end of its answer."""
        with self.assertLogs(CONSOLE, logging.INFO) as logged:
            client.ask(text)
        return logged.records[-1].getMessage()

    def begin(self, store: ReasoningStore | None = None, **settings: Any) -> CursorClient:
        self.running: RunningProxy = self.proxy(store, **settings)
        return self.client(self.running)

    def test_the_console_tells_where_a_chat_diverged(self) -> None:
        client = self.begin()
        for text in ("hi", "more", "and more"):
            self.assertNotIn("prefix lost", self.last_line(client, text))
        client.messages[3]["content"] = "edited"
        line = self.last_line(client, "again")
        self.assertRegex(line, r"in \(\d+ % cached\) .* prefix lost: message 3 changed \(user content\)")
        self.assertNotIn("prefix lost", self.last_line(client, "once more"))
        client.messages[0]["content"] = "Another prompt."
        client.tools = [*client.tools, tool("grep")]
        self.assertIn(
            "prefix lost: tools changed (added grep), system prompt changed, about $", self.last_line(client, "now")
        )

    @needs("sessions")
    def test_clients_that_begin_with_the_same_word_share_neither_chat_nor_session(self) -> None:
        self.running, user = self.proxy(record="all"), {"role": "user", "content": "hi"}
        senders = (
            ("QwenCode/0.24.4",),
            ("opencode/1.18.33 ai-sdk/provider-utils/3", "x-session-id: ses_1"),
            ("opencode/1.18.33 ai-sdk/provider-utils/3", "x-session-id: ses_2"),
            ("codex_exec/0.166.0", "session-id: 1", "thread-id: 1"),
            # A sub-agent.
            ("codex_exec/0.166.0", "session-id: 1", "thread-id: 2"),
            ("claude-cli/2.1.325 (external, sdk-cli)", "X-Claude-Code-Session-Id: 1"),
            ("claude-cli/2.1.325 (external, sdk-cli)", "X-Claude-Code-Session-Id: 1", "X-Claude-Code-Agent-Id: a"),
        )
        for at, (agent, *ids) in enumerate(senders):
            model = "deepseek-v4-flash" if at % 2 else "deepseek-v4-pro"
            with self.subTest(agent, ids=ids), self.assertLogs(CONSOLE, logging.INFO) as logged:
                self.chat(self.running, user, model=model, headers=(f"User-Agent: {agent}", *ids))
                self.assertNotIn("prefix lost", "".join(logged.output))
        listed = self.call(self.running, "GET", "/sessions")
        self.assertEqual([1] * len(senders), [session["num_requests"] for session in listed.value["sessions"]])


class TestNamedChats(ApiTestCase):
    @each_api()
    def test_a_chat_with_an_id_is_known_again_after_its_first_question_changed(self, api: Api) -> None:
        running = self.proxy()
        headers = ("User-Agent: claude-cli/2.1.325", "X-Claude-Code-Session-Id: 1")

        def last_line(*texts: str) -> str:
            history = [each for text in texts for each in (api.turn(text) if text == "OK" else [api.user(text)])]
            with self.assertLogs(CONSOLE, logging.INFO) as logged:
                self.ask(running, api, history, tools="", headers=headers)
            return logged.records[-1].getMessage()

        for texts in (("hi",), ("hi", "OK", "more"), ("A title?",), ("Another title?",)):
            self.assertNotIn("prefix lost", last_line(*texts))
        self.assertIn("prefix lost: message 0 changed (user content)", last_line("ho", "OK", "more", "OK", "now"))


NAMES = ("grep", "edit", "shell", "read")


class TestToolOrder(SocketTestCase):
    def ask(self, client: CursorClient, text: str, *given: str) -> tuple[list[str], int]:
        client.tools = tools(*given)
        usage = client.ask(text).final.usage
        assert usage is not None
        sent = [tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"]]
        return sent, usage["prompt_cache_miss_tokens"]

    def test_shuffled_tools_still_hit_the_prefix_cache(self) -> None:
        client = self.client(self.proxy())
        _, first = self.ask(client, "hi", *NAMES)
        bodies = set()
        for seed in range(8):
            sent, missed = self.ask(client, f"question {seed}", *random.Random(seed).sample(NAMES, len(NAMES)))
            self.assertEqual(sorted(NAMES), sent)
            bodies.add(json.dumps(self.fake.accepted[-1]["tools"]))
            # Only the question itself is new; the tools alone are more.
            self.assertLess(missed, first / 4)
        self.assertEqual(1, len(bodies))


CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
SPAWN = Call("call_00_b1B2c3D4e5F6g7H8i9J0", "agents__spawn", "{}")
ANSWERS = (Answer("I look.", "Looking.", (CALL,)), Answer("Fine.", "Done."))


class TestChats(SocketTestCase):
    def chat(self, text: str = "question", **details: Any) -> CursorClient:
        self.fake.forget()
        client = self.client(self.running, tools=[*TOOLS, tool("grep")], **details)
        self.fake.answer(*ANSWERS)
        client.ask(text)
        client.tools = []
        return client

    def ask(self, client: CursorClient) -> dict[str, Any]:
        client.ask("Summarise.")
        self.assertEqual([], self.fake.refused)
        return self.fake.accepted[-1]

    def test_tools_that_a_request_leaves_out_are_restored_and_not_to_be_called(self) -> None:
        for stream in (True, False):
            client = self.chat(f"Stream: {stream}.", stream=stream)
            with self.assertLogs(CONSOLE, logging.INFO) as logged:
                sent = self.ask(client)
            self.assertEqual((self.fake.accepted[0]["tools"], "none"), (sent["tools"], sent["tool_choice"]))
            self.assertIn("2 tools of the chat restored, for its cache", "\n".join(logged.output))
            self.assertNotIn("prefix lost", "\n".join(logged.output))
            reasonings = [each.get("reasoning_content") for each in sent["messages"] if each["role"] == "assistant"]
            self.assertEqual(["I look.", "Fine."], reasonings)

    def test_an_agent_does_not_get_the_tools_of_another_one_in_its_chat(self) -> None:
        client = self.chat()
        other = self.client(self.running, tools=[tool("find")], system="Another agent.")
        for text in ("question", "Do something else."):
            other.ask(text)
        self.assertNotIn("find", str(self.ask(client).get("tools")))

    def test_nothing_is_put_back_where_the_prompt_is_another_anyway(self) -> None:
        def change(client: CursorClient) -> None:
            client.messages[1]["content"] = "another question"

        def restart(client: CursorClient) -> None:
            del client.messages[1:]

        changes: dict[str, Callable[[CursorClient], Any]] = {
            "another model": lambda client: setattr(client, "model", "deepseek-flash"),
            "another system prompt": lambda client: client.messages[0].update(content="Make a title."),
            "an edited question": change,
            "a new question": restart,
            "some tools": lambda client: client.tools.append(tool("grep")),
        }
        for name, edit in changes.items():
            with self.subTest(name):
                client = self.chat(name)
                edit(client)
                sent = self.ask(client)
                self.assertNotEqual("none", sent.get("tool_choice"))
                self.assertLess(len(sent.get("tools", ())), 2)

    def test_another_caller_does_not_get_the_tools_of_a_chat(self) -> None:
        client = self.chat()
        stranger = self.client(self.running, key="sk-of-somebody-else")
        stranger.messages, stranger.tools = list(client.messages), []
        self.assertNotIn("tools", self.ask(stranger))


class TestResponses(ResponsesTestCase):
    def test_codex_compacts_a_chat_that_deepseek_has_in_its_cache(self) -> None:
        namespace = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}
        patch = {"type": "custom", "name": "apply_patch"}
        read = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}
        for search in ([], [{"type": "web_search"}]):
            with self.subTest(search=search):
                self.fake.forget()
                fields: dict[str, Any] = {"store": False, "prompt_cache_key": f"chat {search}", "stream": True}
                tools = [read, namespace, patch, *search]
                patched = Call("call_00_c1B2c3D4e5F6g7H8i9J0", "apply_patch", '{"input": "*** Begin"}')
                self.fake.answer(Answer("I look.", "Looking.", (CALL, SPAWN, patched)), Answer("Fine.", "Done."))
                items: list[dict[str, Any]] = [question(f"Look. {search}")]
                items += self.complete(self.running, items, tools=tools, **fields)["output"]
                results = [output(each.id) for each in (CALL, SPAWN)]
                items += [*results, {"type": "custom_tool_call_output", "call_id": patched.id, "output": "ok"}]
                items += [*self.complete(self.running, items, tools=tools, **fields)["output"], question("Summarise.")]
                for others in ({}, {"tools": []}, {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}):
                    usage = self.complete(self.running, items, **fields, **others)["usage"]
                    self.assertLess(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"], 20)
                self.assertEqual([], self.fake.refused)
                self.assertEqual(1, len({seen.path for seen in self.fake.seen}))

    def test_a_compaction_item_is_made_of_the_cached_prompt(self) -> None:
        self.fake.answer(*ANSWERS, Answer("Hm.", "They met."), Answer("Hm.", "They met."))
        items = [question("Hello?" * 50)]
        items += [*self.complete(self.running, items, tools=TOOLS)["output"], output(CALL.id)]
        items += self.complete(self.running, items, tools=TOOLS)["output"]
        for more in ({"tools": TOOLS}, {}):
            body = {"model": "deepseek-v4-pro", "input": items, **more}
            usage = self.send(self.running, "POST", "/v1/responses/compact", body).value["usage"]
            self.assertGreater(usage["input_tokens_details"]["cached_tokens"], 100)
            self.assertEqual("none", self.fake.accepted[-1]["tool_choice"])


class TestMessages(MessagesTestCase):
    def test_messages_without_the_tools_of_their_chat_get_them_back(self) -> None:
        tools = [{"name": "read_file", "input_schema": {"type": "object", "properties": {}}}]
        asked = {"role": "user", "content": "Hello?"}
        chat: list[dict[str, Any]] = [asked]
        for fields in ({"tools": tools}, {"tools": tools}, {}):
            answer = self.complete(self.running, *chat, **fields)
            chat += [{"role": "assistant", "content": answer["content"]}, asked]
        self.assertEqual("none", self.fake.accepted[-1]["tool_choice"])

    def test_a_chat_with_one_question_is_not_known_well_enough(self) -> None:
        asked = {"role": "user", "content": "Hello?"}
        answer = self.complete(self.running, asked, tools=[{"name": "look", "input_schema": {"type": "object"}}])
        self.complete(self.running, asked, {"role": "assistant", "content": answer["content"]}, asked)
        self.assertNotIn("tools", self.fake.accepted[-1])
