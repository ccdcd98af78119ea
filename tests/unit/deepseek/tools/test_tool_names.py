import random
import unittest

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Heartbeat, Message, ToolCall
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.apis.chat_stream import StreamReader, read_own_names, restore_names
from deepseek_cursor_proxy.deepseek.tools.tool_definitions import is_accepted, sent_name, sent_names
from deepseek_cursor_proxy.features.web_search import responses_api
from tests.support.chunks import written_chunk
from tests.unit.protocols.test_tool_namespaces import LEGAL, PIECES

READ, SENT = "fs.read", "fs_read_6aacb1df95"


def generated(rng: random.Random, size: int) -> set[str]:
    return {"".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(size)}


class TestSentNames(unittest.TestCase):
    def test_an_accepted_name_is_sent_as_it_is(self) -> None:
        for name in ("read_file", "a", "-", "a" * 64, "multi_agent_v1__spawn_agent"):
            self.assertEqual(name, sent_name(name))
        self.assertEqual({}, sent_names(["read_file", "a" * 64]))

    def test_a_refused_name_is_hashed_alike_in_every_release(self) -> None:
        """Another hash would cost running chats their cache."""
        for name, sent in (
            (READ, SENT),
            ("a" * 65, "a" * 53 + "_7db9df3798"),
            ("工具", "___98a34d4764"),
            ("\ud800", "__8c0c59dd0d"),
            ("a\n", "a__0a38bb8c01"),
        ):
            with self.subTest(name):
                self.assertEqual(sent, sent_name(name))

    def test_every_sent_name_is_accepted_and_belongs_to_one_tool(self) -> None:
        for seed in range(200):
            names = generated(random.Random(seed), 40)
            sent = sent_names(names)
            self.assertEqual({name for name in names if not is_accepted(name)}, set(sent))
            everything = [sent.get(name, name) for name in names]
            self.assertEqual(len(names), len(set(everything)))
            for name in everything:
                self.assertRegex(name, rf"\A{LEGAL.pattern}\Z")

    def test_a_tool_with_the_sent_name_of_another_keeps_its_own(self) -> None:
        second = sent_names([READ, SENT])[READ]
        self.assertNotIn(second, (READ, SENT))
        self.assertTrue(is_accepted(second))
        self.assertEqual(sent_names([READ, SENT]), sent_names([SENT, READ]))
        third = sent_names([READ, SENT, second])[READ]
        self.assertEqual(3, len({SENT, second, third}))


class TestBodies(unittest.TestCase):
    def test_tools_choice_and_history_have_the_sent_name_in_both_apis(self) -> None:
        calls = tuple(ToolCall(f"call_{index}", name, "{}") for index, name in enumerate((READ, "gone tool", "ok", "")))
        tools = tuple({"type": "function", "function": {"name": name}} for name in (READ, "ok"))
        choice = {"type": "function", "function": {"name": READ}}
        request = ChatRequest("m", "m", (Message("assistant", tool_calls=calls),), tools, choice)
        request = request._replace(sent_names=sent_names([READ, "ok"]))
        expected = [SENT, sent_name("gone tool"), "ok", ""]
        body, native = chat_api.payload(request), responses_api.payload(request)
        self.assertEqual([SENT, "ok"], [tool["function"]["name"] for tool in body["tools"]])
        self.assertEqual(expected, [call["function"]["name"] for call in body["messages"][0]["tool_calls"]])
        self.assertEqual({"type": "function", "function": {"name": SENT}}, body["tool_choice"])
        self.assertEqual([SENT, "ok"], [tool["name"] for tool in native["tools"]])
        self.assertEqual(expected, [item["name"] for item in native["input"] if item["type"] == "function_call"])
        self.assertEqual({"type": "function", "name": SENT}, native["tool_choice"])


class TestAnswers(unittest.TestCase):
    def test_a_call_gets_the_clients_name_in_its_piece_and_in_its_chunk(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": SENT, "arguments": ""}, "x": 1}
        chunk = {"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call, {"index": 1}], "y": 2}}]}
        delta = restore_names(chat_api.chunk_delta(chunk), {SENT: READ})
        self.assertEqual((CallPiece(0, "c", READ), CallPiece(1)), delta.calls)
        renamed = {**call, "type": "function", "function": {"name": READ, "arguments": ""}}
        expected = {"index": 0, "delta": {"tool_calls": [renamed, {"index": 1}], "y": 2}}
        self.assertEqual([expected], written_chunk(delta)["choices"])
        # The chunk that came is not changed.
        self.assertEqual(SENT, call["function"]["name"])

    def test_other_calls_texts_and_heartbeats_stay_the_same_objects(self) -> None:
        others = [Delta(text="a"), Delta(calls=(CallPiece(0, "c", "ok"),)), Delta(calls=(CallPiece(0, arguments="{"),))]
        for delta in others:
            self.assertIs(delta, restore_names(delta, {SENT: READ}))
        events = read_own_names(StreamReader().read, {SENT: READ}, b": wait\n\n")
        self.assertEqual([Heartbeat(": wait")], events.batch)
