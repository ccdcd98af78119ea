"""Histories as clients of the Messages API send them back: DeepSeek gets the same bytes."""

import json
from typing import Any

from deepseek_cursor_proxy.json_codec import repair_object
from tests.fake_deepseek import Answer, Call
from tests.support.features import needs
from tests.support.harness import RunningProxy, read_until
from tests.support.messages_client import TOOLS, Json, MessagesTestCase, assistant, kinds, result, user
from tests.support.raw_streams import streamed

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py", "n": 1.0}')
OTHER_CALL = Call("call_01_k1L2m3N4o5P6q7R8s9T0", "read_file", '{"path": "b.py"}')
THOUGHT = "First look. \n\n\u2028 思 </details>"
CALLING = Answer(reasoning=THOUGHT, content="Looking.", calls=(CALL, OTHER_CALL))
DONE = Answer(reasoning="Now I know.", content="Done.")
RESULTS = (result(CALL.id, "one"), result(OTHER_CALL.id, "two"))
FOREIGN = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"


def with_thinking(message: Json, **changes: Any) -> Json:
    """The message as a client sends it back that changed its thinking; without changes, one that dropped it."""
    content = [{**block, **changes} if block["type"] == "thinking" else block for block in message["content"]]
    return assistant({"content": content if changes else [each for each in content if each["type"] != "thinking"]})


def tampered(signature: str) -> str:
    return signature[:40] + ("A" if signature[40] != "A" else "B") + signature[41:]


class HistoryTestCase(MessagesTestCase):
    def called(self, proxy: RunningProxy, **body: Any) -> Json:
        self.fake.answer(CALLING)
        return self.complete(proxy, tools=TOOLS, **body)

    def signature(self, message: Json) -> str:
        return str(message["content"][0]["signature"])


class TestThinkingNotRequested(HistoryTestCase):
    """It knows no thinking blocks: it reads content[0].text, and sends back what it got."""

    def assert_restored(self, proxy: RunningProxy, *chat: Json, **body: Any) -> Json:
        answer = self.complete(proxy, *chat, tools=TOOLS, thinking=None, **body)
        self.assertNotIn("thinking", kinds(answer))
        return answer

    def test_without_thinking_requested_the_first_block_is_text_and_reasoning_is_restored(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream):
                proxy, chat = self.proxy_with_new_store(), [user("q")]
                self.fake.answer(CALLING, DONE, DONE)
                answer = self.assert_restored(proxy, *chat, stream=stream)
                self.assertEqual(["text", "tool_use", "tool_use"], kinds(answer))
                self.assertEqual("Looking.", answer["content"][0]["text"])
                chat += [assistant(answer), user(*RESULTS)]
                chat += [assistant(self.assert_restored(proxy, *chat, stream=stream)), user("And?")]
                self.assert_upstream_saw(THOUGHT)
                self.assert_restored(proxy, *chat, stream=stream)
                self.assert_upstream_saw(THOUGHT, "Now I know.")
        self.assertEqual([], self.fake.refused)

    def test_text_around_hidden_thinking_is_one_block_and_is_restored_byte_for_byte(self) -> None:
        pieces = [{"reasoning_content": "First."}, {"content": "Let me "}, {"reasoning_content": " Then."}]
        call = {"index": 0, "id": CALL.id, "type": "function", "function": {"name": CALL.name, "arguments": "{}"}}
        pieces += [{"content": "look."}, {"tool_calls": [call]}]
        for stream in (True, False):
            with self.subTest(stream=stream):
                proxy = self.proxy_with_new_store()
                self.fake.answer(streamed(*pieces, finish="tool_calls"))
                answer = self.assert_restored(proxy, stream=stream)
                self.assertEqual(["text", "tool_use"], kinds(answer))
                self.assert_restored(proxy, user("q"), assistant(answer), user(result(CALL.id)), stream=stream)
                self.assert_upstream_saw("First. Then.")
                self.assertEqual("Let me look.", self.sent()[1]["content"])

    def test_disabled_thinking_shows_none_even_if_the_model_thinks(self) -> None:
        """Some who serve DeepSeek's models do not know how to turn it off."""
        self.fake.answer(streamed({"reasoning_content": "Hm."}, {"content": "Hi."}))
        answer = self.complete(self.running, thinking={"type": "disabled"}, stream=True)
        self.assertEqual(["text"], kinds(answer))

    def test_hidden_thinking_sends_pings(self) -> None:
        """Claude's libraries give up on a stream that says nothing for minutes."""
        self.fake.answer(Answer("A long thought. ", "Done.", piece=8, stall_after=2))
        with self.open_stream(self.proxy(heartbeat_interval=0.02), thinking=None) as sock:
            self.assertNotIn(b"thought", read_until(sock, b"event: ping") + read_until(sock, b"event: ping"))
            self.fake.release.set()
            read_until(sock, b"event: message_stop")


class TestThinking(HistoryTestCase):
    def test_thinking_echoed_in_any_form_reaches_deepseek_byte_for_byte(self) -> None:
        for stream in (True, False):
            proxy = self.proxy_with_new_store()
            message = self.called(proxy, stream=stream)
            whole = self.called(proxy, stream=stream)
            self.assertEqual(message["content"], whole["content"])
            signature = self.signature(message)
            echoes = {
                "whole": assistant(message),
                "emptied": with_thinking(message, thinking=""),
                "dropped": with_thinking(message),
                "changed": with_thinking(message, thinking="Something else."),
                "cut": with_thinking(message, thinking=THOUGHT[:5]),
                "unsigned": with_thinking(message, signature=""),
                "signed by others": with_thinking(message, signature=FOREIGN),
                "emptied and signed by others": with_thinking(message, thinking="", signature=FOREIGN),
                "tampered": with_thinking(message, signature=tampered(signature)),
                "emptied and tampered": with_thinking(message, thinking="", signature=tampered(signature)),
                "emptied and unsigned": with_thinking(message, thinking="", signature=None),
            }
            bodies = set()
            for name, echo in echoes.items():
                with self.subTest(name, stream=stream):
                    self.fake.answer(DONE)
                    self.complete(proxy, user("q"), echo, user(*RESULTS), tools=TOOLS, stream=stream)
                    self.assert_upstream_saw(THOUGHT)
                    bodies.add(json.dumps(self.sent()))
            self.assertEqual(1, len(bodies))
        self.assertEqual([], self.fake.refused)

    def test_a_turn_with_arguments_that_are_no_object_is_found_without_its_thinking(self) -> None:
        """The client has an object in their place: our repair, the repair of its package, or {}."""
        for arguments in ("", "ls -la", "[1, 2]", '"text"', '{"path": "a.py", "n": ', '{"path": "a.p', '{"n": 1.5e3, '):
            use = {"type": "tool_use", "id": "call_0", "name": "read_file", "input": repair_object(arguments)}
            content = [{"type": "text", "text": "Looking."}, use]
            for stream in (True, False):
                with self.subTest(arguments, stream=stream):
                    proxy = self.proxy_with_new_store()
                    self.fake.answer(Answer(THOUGHT, "Looking.", (Call("call_0", "read_file", arguments),)))
                    reply = self.create(proxy, user("q"), tools=TOOLS, stream=stream)
                    self.assertEqual(content, content if stream else reply.message["content"][1:])
                    for value in (use["input"], {}):
                        self.fake.answer(DONE)
                        echo = {"role": "assistant", "content": [content[0], {**use, "input": value}]}
                        self.complete(proxy, user("q"), echo, user(result("call_0")), tools=TOOLS)
                        self.assert_upstream_saw(THOUGHT)

    def test_foreign_signatures_restore_nothing_and_are_no_error(self) -> None:
        message = self.called(self.proxy_with_new_store())
        signature = self.signature(message)
        others = self.signature(self.called(self.proxy_with_new_store(), key="sk-other"))
        self.assertNotEqual(signature, others)
        for name, other, proxy in (
            ("cut", signature[:-4], self.proxy_with_new_store()),
            ("changed", tampered(signature), self.proxy_with_new_store()),
            ("another caller's", others, self.proxy_with_new_store()), ("another secret's", signature, self.proxy()),
            ("foreign", FOREIGN, self.proxy_with_new_store()), ("empty", "", self.proxy_with_new_store()),
            ("not ASCII", "é" * 40, self.proxy_with_new_store()),
            ("half a character", "dcp1.\ud800", self.proxy_with_new_store()),
        ):  # fmt: skip
            with self.subTest(name):
                self.fake.forget()
                echo = with_thinking(message, thinking="", signature=other)
                self.complete(proxy, user("q"), echo, user(*RESULTS), tools=TOOLS)
                self.assertNotIn("First look.", str(self.fake.seen[-1].payload))
                self.assertEqual([], self.fake.refused)


class TestSystem(HistoryTestCase):
    def test_another_version_of_claude_code_hits_the_same_prefix_cache(self) -> None:
        for version in ("cc_version=2.1.325", "cc_version=2.1.326"):
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: {version}"},
                {"type": "text", "text": "Hi."},
            ]
            usage = self.complete(self.running, user("words " * 50), system=system)["usage"]
        self.assertGreater(usage["cache_read_input_tokens"], 0)


class TestTools(HistoryTestCase):
    @needs("written_calls")
    def test_thinking_is_on_again_after_a_forced_call_or_one_written_as_text(self) -> None:
        for answer in (Answer(calls=(OTHER_CALL,)), Answer(content='{"name": "read_file", "input": {"path": "b.py"}}')):
            for stream in (True, False):
                self.fake.forget()
                proxy = self.proxy()
                self.fake.answer(answer)
                first = self.complete(proxy, tools=TOOLS, tool_choice={"type": "any"}, stream=stream)
                [call] = first["content"]
                self.assertEqual(("tool_use", {"path": "b.py"}), (call["type"], call["input"]))
                self.complete(proxy, user("q"), assistant(first), user(result(call["id"])), tools=TOOLS, stream=stream)
                self.assertEqual(["user", "assistant", "tool"], [message["role"] for message in self.sent()])
