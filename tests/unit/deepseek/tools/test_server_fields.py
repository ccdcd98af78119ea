import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Message, Reply, unpack_items
from deepseek_cursor_proxy.deepseek.apis.api import CHAT, with_server_tools
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.reasoning.identity import digest_message

SEARCHES = [{"id": "ws_1", "results": [{"url": "u", "score": 0.7}]}]
USE: dict[str, Any] = {"type": "server_tool_use", "id": "1"}
TEXT = {"type": "text", "text": "It is sunny."}


def parse(fields: dict[str, Any]) -> Message:
    """A message as the chat reader makes it."""
    content = fields.get("content")
    text = server_tools.text_of(content) if isinstance(content, list) else content or ""
    return Message("assistant", text, server_items=server_tools.read_fields(fields))


class TestMessages(unittest.TestCase):
    def test_fields_come_and_go_unchanged(self) -> None:
        for fields in (
            {"searches": SEARCHES},
            {"searches": SEARCHES, "citations": {"a": [1, 2.5, None, "日本\ud800"]}},
            {"content": [USE, TEXT]},
            {"content": [TEXT, USE, TEXT], "searches": SEARCHES},
        ):
            with self.subTest(fields):
                message = parse({"role": "assistant", "content": "It is sunny.", **fields})
                self.assertEqual(fields, server_tools.fields_to_send(message))

    def test_nothing_is_read_of_a_plain_message(self) -> None:
        for fields in (
            {},
            {"reasoning_content": "r", "tool_calls": [], "refusal": None, "annotations": []},
            {"content": [TEXT]},
            {"content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use"}]},
            {"content": ["text", None, {"text": "a"}]},
        ):
            with self.subTest(fields):
                self.assertIsNone(server_tools.read_fields({"role": "assistant", "content": "x", **fields}))

    def test_text_of_ours_before_the_answer_stays_behind(self) -> None:
        ours = {"type": "text", "text": "<details>thought"}
        end = {"type": "text", "text": "</details>\n\n"}
        for blocks in ([ours, end, USE, TEXT], [ours, USE, end, TEXT], [USE, TEXT]):
            with self.subTest(blocks):
                message = parse({"content": blocks})._replace(content=" It is sunny.\n")
                self.assertEqual({"content": [USE, TEXT]}, server_tools.fields_to_send(message))

    def test_blocks_with_another_text_than_the_message_are_not_sent(self) -> None:
        mixed = {"type": "text", "text": "</details>It is sunny."}
        for blocks, text in (([USE, TEXT], "It rains."), ([USE, mixed], "It is sunny."), ([USE], "much longer")):
            with self.subTest(blocks):
                message = parse({"content": blocks})._replace(content=text)
                self.assertEqual({}, server_tools.fields_to_send(message))


class TestAnswers(unittest.TestCase):
    def setUp(self) -> None:
        self.api = with_server_tools(CHAT)

    def stream(self, *deltas: dict[str, Any]) -> Reply:
        reader, reply = self.api.open_reader(), Reply()
        for at, delta in enumerate(deltas):
            finish = "stop" if at == len(deltas) - 1 else None
            chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            for item in reader.read(b"data: " + encode_json(chunk) + b"\n\n").batch:
                reply.add(item)  # type: ignore[arg-type]
        return reply

    def plain(self, message: dict[str, Any]) -> Reply:
        reply = Reply()
        for delta in self.api.read_answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}):
            reply.add(delta)
        return reply

    def test_an_answer_has_the_identity_of_its_echo_however_it_came(self) -> None:
        for fields in ({"searches": SEARCHES, "content": "It is sunny."}, {"content": [USE, TEXT]}):
            with self.subTest(fields):
                echo = digest_message(parse(fields)).digest
                pieces = [{name: value} for name, value in fields.items()]
                for reply in (self.plain(fields), self.stream(*pieces), self.stream({"searches": []}, *pieces, fields)):
                    message = reply.message()._replace(content="It is sunny.")
                    items = [each for each in unpack_items(message, "answer") if each["type"] != "text"]
                    self.assertEqual([{"type": "fields"}], items)
                    self.assertEqual(echo, digest_message(message).digest)

    def test_an_answer_without_fields_is_any_other(self) -> None:
        for reply in (self.plain({"content": "a", "annotations": []}), self.stream({"content": "a"}, {"content": "b"})):
            self.assertIsNone(reply.message().server_items)

    def test_damaged_blocks_break_nothing(self) -> None:
        for content in ([None], [1], [{"type": 5}], [[]], [{"type": "x", "text": 1}], {"type": "x"}):
            with self.subTest(content):
                self.assertTrue(self.stream({"content": content}, {"content": "a"}).is_finished)
                self.assertEqual("a", self.stream({"content": content}, {"content": "a"}).message().content)
