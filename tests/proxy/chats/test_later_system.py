"""System messages after the first other message: V4's template writes no assistant header after one."""

from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support.cursor import echo
from tests.support.harness import RunningProxy, SocketTestCase

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"
STEER = {"role": "system", "content": "It is Monday.\n<reminder>Be kind.</reminder>"}
QUESTION = {"role": "user", "content": "question"}
CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
RESULT = {"role": "tool", "tool_call_id": CALL.id, "content": "result"}
ANSWERS = (Answer("First.", "Let me look.", (CALL,)), Answer("Second.", "It is done."), Answer("Third.", "Good."))


class TestLaterSystemMessages(SocketTestCase):
    def chat(self, proxy: RunningProxy, *models: str, size: int = 1) -> list[list[dict[str, Any]]]:
        """The histories that DeepSeek gets of three requests, with steering as Claude Code has it."""
        self.fake.answer(*ANSWERS)
        client = self.client(proxy, system="Lead. " * size)
        history = [*client.messages]
        for client.model, message in zip(models, (QUESTION, RESULT, QUESTION), strict=True):
            history += [message, STEER]
            answer = client.post(history)
            self.assertEqual(200, answer.status, answer.error)
            history.append(echo(answer))
        self.assertEqual([], self.fake.refused)
        return [payload["messages"] for payload in self.fake.accepted]

    def assert_restored(self, sent: list[dict[str, Any]]) -> None:
        self.assertEqual(
            ["First.", "Second."], [each["reasoning_content"] for each in sent if "reasoning_content" in each]
        )

    def test_a_later_system_message_is_sent_as_the_users_with_its_text(self) -> None:
        # Long enough for the chat memory, and short.
        for size in (1, 5000):
            self.fake.forget()
            *_, sent = self.chat(self.proxy(display_reasoning=False), PRO, PRO, PRO, size=size)
            self.assertEqual(
                ["system", "user", "user", "assistant", "tool", "user", "assistant", "user", "user"],
                [message["role"] for message in sent],
            )
            for at in (2, 5, 8):
                self.assertEqual({"role": "user", "content": STEER["content"]}, sent[at])
            self.assert_restored(sent)

    def test_a_chat_that_is_steered_late_keeps_what_was_sent_before(self) -> None:
        """Long enough for the chat memory, which knows its first messages as they are."""
        self.fake.answer(*ANSWERS)
        client = self.client(self.proxy(display_reasoning=False), system="Lead. " * 5000)
        history = [*client.messages, QUESTION]
        for more in ([RESULT], [STEER, QUESTION], []):
            history += [echo(client.post(history)), *more]
        first, second, third = (payload["messages"] for payload in self.fake.accepted)
        self.assertEqual((first, second), (third[: len(first)], third[: len(second)]))
        self.assertEqual(["user", "user"], [message["role"] for message in third[-2:]])
        self.assertEqual([], self.fake.refused)

    def test_flash_at_deepseek_keeps_later_system_messages(self) -> None:
        proxy = self.proxy(display_reasoning=False, upstream_host="deepseek")
        *_, sent = self.chat(proxy, FLASH, FLASH, FLASH)
        self.assertEqual([STEER] * 3, [message for message in sent if message["role"] == "system"][1:])
        self.assert_restored(sent)

    def test_other_hosts_are_not_known_to_take_them(self) -> None:
        *_, sent = self.chat(self.proxy(display_reasoning=False), FLASH, FLASH, FLASH)
        self.assertEqual(1, [message["role"] for message in sent].count("system"))

    def test_a_chat_that_changes_its_model_finds_its_reasoning(self) -> None:
        """The role that is sent is no part of the identity of a turn."""
        for size in (1, 5000):
            for models in ((PRO, FLASH, PRO), (FLASH, PRO, FLASH)):
                with self.subTest(models, size=size):
                    self.fake.forget()
                    proxy = self.proxy(display_reasoning=False, upstream_host="deepseek")
                    *_, sent = self.chat(proxy, *models, size=size)
                    self.assert_restored(sent)
                    later = [message["role"] for message in sent if message["content"] == STEER["content"]]
                    self.assertEqual(["user" if models[-1] == PRO else "system"] * 3, later)

    def test_a_system_message_right_before_an_answer_is_the_users_too(self) -> None:
        client = self.client(self.running)
        lead, greeting = client.messages[0], {"role": "assistant", "content": "Hello."}
        for history in ([lead], [lead, STEER], [lead, greeting, QUESTION]):
            self.assertEqual(200, client.post(history).status)
        self.assertEqual([], self.fake.refused)
        roles = [[message["role"] for message in payload["messages"]] for payload in self.fake.accepted]
        self.assertEqual([["user"], ["system", "user"], ["user", "assistant", "user"]], roles)

    def test_a_system_prompt_that_was_sent_alone_is_one_again_before_a_question(self) -> None:
        client = self.client(self.running, system="Lead. " * 5000)
        for history in (client.messages, [*client.messages, QUESTION]):
            self.assertEqual(200, client.post(history).status)
        self.assertEqual(["system", "user"], [message["role"] for message in self.fake.accepted[-1]["messages"]])
