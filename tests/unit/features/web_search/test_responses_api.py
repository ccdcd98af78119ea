import json
import random
import unittest
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.conversation import (
    CallPiece,
    ChatRequest,
    Delta,
    Heartbeat,
    Message,
    Reply,
    ServerPiece,
    pack_items,
)
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents
from deepseek_cursor_proxy.deepseek.usage import read_logprobs
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.web_search import responses_api
from deepseek_cursor_proxy.features.web_search.responses_api import ResponseReader, payload, response_deltas, usage
from tests.fake_deepseek import Answer, Call, Citation, Search
from tests.fake_deepseek.completion import PrefixCache
from tests.fake_deepseek.native import Response
from tests.support.histories import TOOLS, assistant, result, system, user

CALL = ("call_1", "read_file", '{"at":1}')
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


def request(*messages: Message, model: str = "deepseek-v4-pro", **details: Any) -> ChatRequest:
    return ChatRequest(model, model, messages, **details)


def message_item(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def reasoning_item(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call_item(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


class TestInputItems(unittest.TestCase):
    def items(self, *messages: Message, **details: Any) -> list[Any]:
        found: list[Any] = payload(request(*messages, **details))["input"]
        return found

    def test_a_history_becomes_items_of_the_native_responses_api(self) -> None:
        other = ("call_2", "read_file", "{}")
        chat = (system("s"), user("u"), assistant("look", CALL, other, reasoning="hm"))
        chat += (result("call_1", "one"), result("call_2", "two"), assistant("done", reasoning="ah"))
        self.assertEqual(
            [
                message_item("system", "input_text", "s"), message_item("user", "input_text", "u"),
                reasoning_item("hm"), message_item("assistant", "output_text", "look"), call_item(*CALL),
                call_item(*other), {"type": "function_call_output", "call_id": "call_1", "output": "one"},
                {"type": "function_call_output", "call_id": "call_2", "output": "two"}, reasoning_item("ah"),
                message_item("assistant", "output_text", "done"),
            ],
            self.items(*chat),
        )  # fmt: skip

    def test_an_assistant_without_text_has_no_message_item(self) -> None:
        for name, message, kinds in (
            ("a call without words", assistant("", CALL, reasoning="r"), ["reasoning", "function_call"]),
            ("no reasoning", assistant("a"), ["message"]),
            ("an empty one is refused like none", assistant("a", reasoning=""), ["message"]),
            ("a single space is the filler", assistant("a", reasoning=" "), ["reasoning", "message"]),
            ("nothing at all is still a turn", assistant(""), ["message"]),
        ):
            self.assertEqual(kinds, [item["type"] for item in self.items(message)], name)

    def test_images_become_items_only_for_models_that_see_them(self) -> None:
        parts = ({"type": "text", "text": "look"}, IMAGE, {"type": "file", "file": {"file_id": "file-1"}})
        inline_file = {"type": "file", "file": {"file_data": "data:text/plain;base64,AAAA", "filename": "a.txt"}}
        (item,) = self.items(Message("user", (*parts, inline_file)), model="deepseek-flash")
        text, image, file, words = item["content"]
        self.assertEqual({"type": "input_text", "text": "look"}, text)
        self.assertEqual({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}, image)
        self.assertEqual({"type": "input_image", "file_id": "file-1"}, file)
        self.assertRegex(words["text"], r"^\[file: a\.txt, text/plain, 3 B, ")
        (blind,) = self.items(Message("user", parts))
        self.assertEqual(["input_text"], [part["type"] for part in blind["content"]])


def history(rng: random.Random) -> tuple[Message, ...]:
    """A repaired chat: every result right after its call, and reasoning wherever it is required."""
    chat = [system("Be brief.")] if rng.random() < 0.5 else []
    for number in range(rng.randint(1, 5)):
        chat.append(user(rng.choice(("Go on.", "äöü \U0001f600\n", f"Question {number}"))))
        for loop in range(rng.randrange(3)):
            calls = [(f"call_{number}_{loop}_{each}", "look", "{}") for each in range(rng.randint(1, 3))]
            chat.append(assistant(rng.choice(("", "Let me see.")), *calls, reasoning=rng.choice((" ", "Hm."))))
            chat += [result(call[0], rng.choice(("", "found"))) for call in calls]
        chat.append(assistant(f"Answer {number}", reasoning=rng.choice(("Thought.", None))))
    return tuple(chat)


class TestRequestFields(unittest.TestCase):
    def test_request_fields_get_their_native_responses_names(self) -> None:
        params = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "user_id": "me", "stop": ["x"], "seed": 1}
        body = payload(request(user("u"), tools=tuple(TOOLS), stream=True, effort="max", params=params))
        del body["input"]
        schema = {"type": "object", "properties": {}}
        expected = {"model": "deepseek-v4-pro", "stream": True, "max_output_tokens": 5, "temperature": 0.5}
        tool = {"type": "function", "name": "read_file", "parameters": schema}
        self.assertEqual(
            {**expected, "top_p": 0.9, "user": "me", "reasoning": {"effort": "max"}, "tools": [tool]}, body
        )


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "object": "response", "status": "completed", "error": None, "output": list(output), **fields}


class TestResponseDeltas(unittest.TestCase):
    def test_a_native_response_is_a_delta_per_item_and_one_for_the_end(self) -> None:
        items = (reasoning_item("hm"), message_item("assistant", "output_text", "look"), call_item(*CALL))
        self.assertEqual(
            [
                Delta(reasoning="hm"), Delta(text="look"), Delta(calls=(CallPiece(0, "call_1", "read_file"),)),
                Delta(calls=(CallPiece(0, arguments='{"at":1}'),)), Delta(finish_reason="tool_calls"),
            ],
            response_deltas(response(*items)),
        )  # fmt: skip

    def test_a_native_status_becomes_the_finish_reason(self) -> None:
        words = message_item("assistant", "output_text", "a")
        reasons = (("max_output_tokens", "length"), ("content_filter", "content_filter"), ("the weather", "aborted"))
        details = ((None, "length"), *(({"reason": reason}, ending) for reason, ending in (*reasons, ([], "length"))))
        incomplete = (({"status": "incomplete", "incomplete_details": each}, ending) for each, ending in details)
        for fields, expected in (({}, "stop"), ({"status": None}, "stop"), *incomplete):
            self.assertEqual(expected, response_deltas(response(words, **fields))[-1].finish_reason, fields)

    def test_a_failed_native_response_raises_its_own_message(self) -> None:
        for body, words in (
            (response(status="failed", error={"code": "server_error", "message": "Too hot."}), "Too hot."),
            (response(status="failed"), "no reason given"),
            (response(status="cancelled"), "no reason given"),
            ({"error": {"message": "Too cold."}}, "Too cold."),
            (response(status="in_progress"), "not finished"),
            ({"status": "completed"}, "no output"),
            ({"output": {}}, "no output"),
        ):
            with self.subTest(words), self.assertRaisesRegex(UpstreamFailed, words):
                response_deltas(body)


class TestUsage(unittest.TestCase):
    def test_native_usage_gets_the_names_of_chat_completions(self) -> None:
        cached, thought = {"cached_tokens": 8}, {"reasoning_tokens": 3}
        native = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        native |= {"input_tokens_details": cached, "output_tokens_details": thought}
        chat = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        chat |= {"prompt_tokens_details": cached, "completion_tokens_details": thought}
        chat |= {"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2}
        self.assertEqual(chat, responses_api.usage(native))

    def test_native_usage_without_numbers_is_left_out(self) -> None:
        self.assertIsNone(responses_api.usage(None))
        self.assertIsNone(responses_api.usage([]))
        self.assertEqual({"prompt_tokens": 1}, responses_api.usage({"input_tokens": 1, "output_tokens": "5"}))


REQUEST = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
CALLS = (Call("call_a", "look", '{"at": "the \U0001f600"}'), Call("call_b", "look", "{}"))
ANSWERS = (
    Answer(reasoning="Let me think \U0001f600.", content='Hello, "you".\n', piece=3),
    Answer(reasoning="I need a tool.", content="Looking.", calls=CALLS, piece=2), Answer(calls=CALLS[:1], piece=1),
    Answer(content="Cut sho", finish_reason="length"), Answer(reasoning="", content=""),
)  # fmt: skip


def written(answer: Answer) -> Response:
    return Response(answer, REQUEST, PrefixCache(), "0", 1)


def event_objects(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in written(answer).events()]


def event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def read_pieces(pieces: Iterable[bytes]) -> tuple[list[Delta], ParsedEvents]:
    reader, deltas, events = ResponseReader(), [], ParsedEvents([])
    for piece in pieces:
        events = reader.read(piece)
        deltas += [item for item in events.batch if isinstance(item, Delta)]
        if events.is_done or events.problem:
            break
    return deltas, events


def reply(deltas: Iterable[Delta]) -> tuple[Message, str | None, Any]:
    found = Reply()
    for delta in deltas:
        found.add(delta)
    return found.message(), found.finish_reason, found.usage


def read_reply(events: Iterable[Any]) -> tuple[Message, str | None, Any]:
    return reply(read_pieces(map(event, events))[0])


class TestSplits(unittest.TestCase):
    def test_a_native_stream_in_pieces_of_any_size_is_read_alike(self) -> None:
        for answer in ANSWERS:
            data = b"".join(written(answer).events())
            expected, _ = read_pieces([data])
            for size in (1, 7, 100):
                deltas, events = read_pieces(data[at : at + size] for at in range(0, len(data), size))
                self.assertEqual((expected, True, None), (deltas, events.is_done, events.problem))

    def test_native_items_that_come_only_whole_are_read(self) -> None:
        """Some gateways leave out the pieces, or all but the end."""
        for answer in ANSWERS:
            events = event_objects(answer)
            expected = read_reply(events)
            for rest in ("response.output_item", "response.output_item.done", "response.created"):
                fewer = [each for each in events[:-1] if each["type"].startswith(rest)] + events[-1:]
                self.assertEqual(expected, read_reply(fewer), rest)

    def test_a_last_event_without_its_response_ends_a_native_stream(self) -> None:
        events = event_objects(ANSWERS[1])
        message, ending, _ = read_reply(events)
        self.assertEqual((message, ending, None), read_reply([*events[:-1], {"type": "response.completed"}]))


class TestResponseReader(unittest.TestCase):
    def test_a_native_stream_without_a_last_event_is_not_done(self) -> None:
        for count in range(len(event_objects(ANSWERS[1]))):
            deltas, events = read_pieces(list(written(ANSWERS[1]).events())[:count])
            self.assertEqual((False, None), (events.is_done, reply(deltas)[1]))

    def test_a_failure_in_a_native_stream_has_its_own_message(self) -> None:
        failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "Too hot."}}}
        for chunk, words in (
            (failed, "Too hot."),
            ({"type": "response.failed"}, "no reason given"),
            ({"type": "error", "code": "server_error", "message": "Too cold."}, "Too cold."),
            ({"type": "error", "error": {"message": "Too wet."}}, "Too wet."),
            ({"error": {"message": "Too dry."}}, "Too dry."),
            ({"type": "response.completed", "response": {}}, "no output"),
        ):
            with self.subTest(words):
                end = event({"type": "response.completed", "response": {"output": []}})
                deltas, events = read_pieces([event(chunk) + end])
                self.assertIsInstance(events.problem, UpstreamFailed)
                self.assertIn(words, str(events.problem))
                self.assertEqual(([], False), (deltas, events.is_done))

    def test_an_in_progress_event_is_no_progress_but_a_piece_is(self) -> None:
        self.assertFalse(ResponseReader().read(event({"type": "response.in_progress", "response": {}})).is_progress)
        events = ResponseReader().read(event({"type": "response.output_text.delta", "delta": "a", "output_index": 0}))
        self.assertTrue(events.is_progress)
        self.assertEqual([Heartbeat(": keep-alive")], ResponseReader().read(b": keep-alive\n\n").batch)

    def test_a_native_call_that_may_be_complete_may_be_stored(self) -> None:
        reader, durable = ResponseReader(), []
        for each in written(Answer(calls=CALLS[1:], piece=1)).events():
            durable += [each] if reader.read(each).must_store_first else []
        self.assertIn(b'"delta":"}"', durable[0])
        self.assertIn(b"response.completed", durable[-1])

    def test_native_log_probabilities_come_with_their_text(self) -> None:
        entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        piece = {"type": "response.output_text.delta", "delta": "a", "output_index": 0, "logprobs": [entry]}
        part = {"type": "output_text", "text": "a", "logprobs": [entry]}
        item = {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "content": [part]}}
        for chunk in (piece, item):
            [delta] = read_pieces([event(chunk)])[0]
            self.assertEqual([entry], read_logprobs(delta))
        self.assertEqual([], read_logprobs(read_pieces([event({**piece, "logprobs": "many"})])[0][0]))


TOOL = {"type": "web_search", "external_web_access": True}
CHOICE = {"type": "web_search"}
SEARCH_REQUEST = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "Rain?"}], "server_tools": [TOOL]}
CITED = (Citation("https://a.example", "A", 0, 2), Citation("https://b.example", "B", 3, 9))
FAILED = Search(status="failed", reasoning="Again. ")
ODD = Search(raw='{"type": "odd_call", "id": "odd_1", "status": "completed", "data": [1]}')
SEARCHES = (
    Answer(reasoning="So.", content="It rains.", searches=(Search(),), citations=CITED, piece=2),
    Answer(reasoning="So.", content="It rains.", searches=(Search(reasoning="Where? ", text="I look."), FAILED, ODD)),
    Answer(content="Rain.", searches=(Search(("a", "b")), Search(url="https://a.example", pattern="rain"))),
    Answer(calls=(Call("call_a", "look", "{}"),), searches=(Search(has_id=False),)),
    Answer(searches=(Search(),), finish_reason="length"),
)


def searched(answer: Answer) -> Response:
    return Response(answer, SEARCH_REQUEST, PrefixCache(), "0", 1)


def read_both_ways(answer: Answer) -> tuple[list[Delta], list[Delta], dict[str, Any]]:
    """The deltas of a stream and of the response object at its end, and that object."""
    events = [json.loads(each.partition(b"data: ")[2]) for each in searched(answer).events()]
    return read_pieces(map(event, events))[0], response_deltas(events[-1]["response"]), events[-1]["response"]


def pieces(deltas: Iterable[Delta]) -> list[ServerPiece]:
    return [piece for delta in deltas if delta.server is not None for piece in delta.server.pieces]


def citations(deltas: Iterable[Delta]) -> list[Any]:
    return [each for delta in deltas if delta.server is not None for each in delta.server.citations]


class TestSearches(unittest.TestCase):
    def test_an_item_that_only_began_is_taken_from_the_end_or_has_failed(self) -> None:
        item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}
        begun = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
        for output, status in (([item], "completed"), ([], "failed"), ([{"id": "ws_2"}, None], "failed")):
            last = {"type": "response.completed", "response": {"output": output}}
            deltas, events = read_pieces([event(begun), event(last)])
            with self.subTest(output):
                self.assertTrue(events.is_done)
                self.assertEqual([status], [piece.item["status"] for piece in pieces(deltas) if piece.is_whole])


class TestCountedSearches(unittest.TestCase):
    def test_searches_that_succeeded_are_counted_and_pages_are_not(self) -> None:
        for answer, count in zip(SEARCHES, (1, 1, 1, 1, 1), strict=True):
            for deltas in read_both_ways(answer)[:2]:
                self.assertEqual({"web_search_requests": count}, reply(deltas)[2]["server_tool_use"])
        self.assertNotIn("server_tool_use", reply(read_both_ways(Answer(searches=(FAILED,)))[0])[2])

    def test_a_number_of_deepseeks_own_wins(self) -> None:
        counted = {"input_tokens": 1, "server_tool_use": {"web_search_requests": 7}}
        found = usage(counted, 2) or {}
        self.assertEqual({"web_search_requests": 7}, found["server_tool_use"])
        self.assertIsNone(usage(None, 2))


class TestSearchesInRequests(unittest.TestCase):
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
