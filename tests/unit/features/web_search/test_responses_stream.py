"""ResponseReader gives the same deltas however the events of a response are cut, and whichever of them there are."""

import json
import unittest
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Heartbeat, Message, Reply
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents
from deepseek_cursor_proxy.deepseek.usage import read_logprobs
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.web_search.responses_api import ResponseReader
from tests.fake_deepseek.completion import Answer, Call, PrefixCache
from tests.fake_deepseek.native import Response

REQUEST = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
CALLS = (Call("call_a", "look", '{"at": "the \U0001f600"}'), Call("call_b", "look", "{}"))
ANSWERS = (
    Answer(reasoning="Let me think \U0001f600.", content='Hello, "you".\n', piece=3),
    Answer(reasoning="I need a tool.", content="Looking.", calls=CALLS, piece=2),
    Answer(calls=CALLS[:1], piece=1),
    Answer(content="Cut sho", finish_reason="length"),
    Answer(reasoning="", content=""),
)


def response(answer: Answer) -> Response:
    return Response(answer, REQUEST, PrefixCache(), "0", 1)


def event_objects(answer: Answer) -> list[dict[str, Any]]:
    """The events of an answer as objects."""
    return [json.loads(event.partition(b"data: ")[2]) for event in response(answer).events()]


def event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def read_pieces(pieces: Iterable[bytes]) -> tuple[list[Delta], ParsedEvents]:
    """The deltas of all pieces, and the last ParsedEvents."""
    reader, deltas, events = ResponseReader(), [], ParsedEvents()
    for piece in pieces:
        events = reader.read(piece)
        deltas += [item for item in events.batch if isinstance(item, Delta)]
        if events.is_over:
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
            data = b"".join(response(answer).events())
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
            deltas, events = read_pieces(list(response(ANSWERS[1]).events())[:count])
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

    def test_damaged_native_events_are_left_out(self) -> None:
        for chunk in (
            7, {}, {"type": 5}, {"type": "response.output_text.delta"},
            {"type": "response.output_text.delta", "delta": ["x"], "output_index": {}},
            {"type": "response.output_item.added", "item": "call"},
            {"type": "response.output_item.done", "item": None},
            {"type": "response.function_call_arguments.delta", "delta": "{", "output_index": 3},
            {"type": "response.something.new", "delta": "x"},
        ):  # fmt: skip
            with self.subTest(chunk):
                deltas, events = read_pieces([event(chunk)])
                self.assertEqual(([], None, False), (deltas, events.problem, events.is_progress))

    def test_an_in_progress_event_is_no_progress_but_a_piece_is(self) -> None:
        self.assertFalse(ResponseReader().read(event({"type": "response.in_progress", "response": {}})).is_progress)
        events = ResponseReader().read(event({"type": "response.output_text.delta", "delta": "a", "output_index": 0}))
        self.assertTrue(events.is_progress)
        self.assertEqual([Heartbeat(": keep-alive")], ResponseReader().read(b": keep-alive\n\n").batch)

    def test_a_native_call_that_may_be_complete_may_be_stored(self) -> None:
        reader, durable = ResponseReader(), []
        for each in response(Answer(calls=CALLS[1:], piece=1)).events():
            durable += [each] if reader.read(each).is_durable else []
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
