"""Searches that DeepSeek runs itself on its Responses API: sent, read whole or in events, and sent back."""

import json
import unittest
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.conversation import (
    ChatRequest,
    Delta,
    Message,
    ServerPiece,
    ToolCall,
    pack_items,
)
from deepseek_cursor_proxy.features.web_search.responses_api import payload, response_deltas, usage
from tests.fake_deepseek import Answer, Call, Citation, Search
from tests.fake_deepseek.completion import PrefixCache
from tests.fake_deepseek.native import Response
from tests.support.histories import TOOLS, user
from tests.unit.features.web_search.test_responses_api import call_item, message_item, reasoning_item, response
from tests.unit.features.web_search.test_responses_stream import event, read_pieces, reply

TOOL = {"type": "web_search", "external_web_access": True}
CHOICE = {"type": "web_search"}
REQUEST = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "Rain?"}], "server_tools": [TOOL]}
CITED = (Citation("https://a.example", "A", 0, 2), Citation("https://b.example", "B", 3, 9))
FAILED = Search(status="failed", reasoning="Again. ")
ODD = Search(raw='{"type": "odd_call", "id": "odd_1", "status": "completed", "data": [1]}')
ANSWERS = (
    Answer(reasoning="So.", content="It rains.", searches=(Search(),), citations=CITED, piece=2),
    Answer(reasoning="So.", content="It rains.", searches=(Search(reasoning="Where? ", text="I look."), FAILED, ODD)),
    Answer(content="Rain.", searches=(Search(("a", "b")), Search(url="https://a.example", pattern="rain"))),
    Answer(calls=(Call("call_a", "look", "{}"),), searches=(Search(has_id=False),)),
    Answer(searches=(Search(),), finish_reason="length"),
)


def written(answer: Answer) -> Response:
    return Response(answer, REQUEST, PrefixCache(), "0", 1)


def read_both_ways(answer: Answer) -> tuple[list[Delta], list[Delta], dict[str, Any]]:
    """The deltas of a stream and of the response object at its end, and that object."""
    events = [json.loads(each.partition(b"data: ")[2]) for each in written(answer).events()]
    return read_pieces(map(event, events))[0], response_deltas(events[-1]["response"]), events[-1]["response"]


def pieces(deltas: Iterable[Delta]) -> list[ServerPiece]:
    return [piece for delta in deltas if delta.server is not None for piece in delta.server.pieces]


def citations(deltas: Iterable[Delta]) -> list[Any]:
    return [each for delta in deltas if delta.server is not None for each in delta.server.citations]


class TestAnswers(unittest.TestCase):
    def test_a_stream_and_a_whole_response_give_the_same_reply(self) -> None:
        for answer in ANSWERS:
            streamed, whole, _ = read_both_ways(answer)
            with self.subTest(answer):
                self.assertEqual(reply(whole), reply(streamed))
                self.assertEqual([each.annotation() for each in answer.citations], citations(streamed))
                self.assertEqual(citations(whole), citations(streamed))

    def test_each_item_is_there_once_as_it_came(self) -> None:
        for answer in ANSWERS:
            streamed, whole, body = read_both_ways(answer)
            items = [item for item in body["output"] if item["type"] in ("web_search_call", "odd_call")]
            for deltas in (streamed, whole):
                self.assertEqual(items, [piece.item for piece in pieces(deltas) if piece.is_whole])

    def test_a_stream_tells_each_step_of_a_search(self) -> None:
        steps = [piece.step for piece in pieces(read_both_ways(ANSWERS[0])[0])]
        self.assertEqual(["in_progress", "searching", "completed"], steps)

    def test_an_item_that_only_began_is_taken_from_the_end_or_has_failed(self) -> None:
        item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}
        begun = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
        for output, status in (([item], "completed"), ([], "failed"), ([{"id": "ws_2"}, None], "failed")):
            last = {"type": "response.completed", "response": {"output": output}}
            deltas, events = read_pieces([event(begun), event(last)])
            with self.subTest(output):
                self.assertTrue(events.is_done)
                self.assertEqual([status], [piece.item["status"] for piece in pieces(deltas) if piece.is_whole])

    def test_odd_shapes_are_left_out(self) -> None:
        text = {**message_item("assistant", "output_text", "a"), "annotations": 7}
        text["content"][0]["annotations"] = [None, {"type": "url_citation"}, 7]
        items = ({"type": "mcp_call"}, {"type": "custom_tool_call"}, {"type": ["x_call"]}, text)
        deltas = response_deltas(response(*items))
        self.assertEqual(([], [{"type": "url_citation"}]), (pieces(deltas), citations(deltas)))
        for kind in ("response.web_search_call.searching", "response.output_text.annotation.added"):
            self.assertEqual([], read_pieces([event({"type": kind, "output_index": 3})])[0])


class TestUsage(unittest.TestCase):
    def test_searches_that_succeeded_are_counted_and_pages_are_not(self) -> None:
        for answer, count in zip(ANSWERS, (1, 1, 1, 1, 1), strict=True):
            for deltas in read_both_ways(answer)[:2]:
                self.assertEqual({"web_search_requests": count}, reply(deltas)[2]["server_tool_use"])
        self.assertNotIn("server_tool_use", reply(read_both_ways(Answer(searches=(FAILED,)))[0])[2])

    def test_a_number_of_deepseeks_own_wins(self) -> None:
        counted = {"input_tokens": 1, "server_tool_use": {"web_search_requests": 7}}
        found = usage(counted, 2) or {}
        self.assertEqual({"web_search_requests": 7}, found["server_tool_use"])
        self.assertIsNone(usage(None, 2))


class TestRequests(unittest.TestCase):
    def body(self, *messages: Message, **details: Any) -> dict[str, Any]:
        return payload(ChatRequest("m", "deepseek-flash", messages, **details))

    def test_tools_that_deepseek_runs_follow_the_functions(self) -> None:
        body = self.body(user("u"), tools=tuple(TOOLS), server_tools=(TOOL,))
        self.assertEqual(["function", "web_search"], [tool["type"] for tool in body["tools"]])
        self.assertEqual(TOOL, body["tools"][1])
        self.assertEqual([TOOL], self.body(user("u"), server_tools=(TOOL,))["tools"])

    def test_a_forced_search_is_sent_as_the_client_forces_it(self) -> None:
        body = self.body(user("u"), server_tools=(TOOL,), server_choice=CHOICE, tool_choice=None)
        self.assertEqual(CHOICE, body["tool_choice"])

    def test_a_turn_goes_back_with_everything_in_its_place(self) -> None:
        first, second = {"type": "web_search_call", "id": "a"}, {"type": "web_search_call", "id": "b"}
        thought, text = reasoning_item, lambda words: message_item("assistant", "output_text", words)
        long, short = {"type": "thinking", "length": 7}, {"type": "thinking", "length": 3}
        words, rest = {"type": "text", "length": 3}, {"type": "text", "length": 6}
        for name, items, sent in (
            ("all", [long, first, words, short, second, rest], ["Where? ", first, "It ", "So.", second, "rains."]),
            ("no places", [first, second], ["Where? So.", first, second, "It rains."]),
            ("other lengths", [long, first, rest, second], ["Where? So.", first, second, "It rains."]),
            ("a search at the end", [long, short, words, rest, first], ["Where? ", "So.", "It ", "rains.", first]),
        ):
            message = Message("assistant", "It rains.", "Where? So.", server_items=pack_items("responses", items))
            expected = [
                each if isinstance(each, dict) else thought(each) if each in "Where? So." else text(each)
                for each in sent
            ]
            self.assertEqual(expected, self.body(user("u"), message)["input"][1:], name)

    def test_calls_come_last_under_the_names_that_deepseek_gets(self) -> None:
        search = {"type": "web_search_call", "id": "a"}
        call = ToolCall("call_1", "agents.look", "{}")
        looked = Message("assistant", "", "Hm.", (call,), server_items=pack_items("responses", [search]))
        input_items = self.body(user("u"), looked, sent_names={"agents.look": "agents_look"})["input"]
        self.assertEqual([reasoning_item("Hm."), search, call_item("call_1", "agents_look", "{}")], input_items[1:])
