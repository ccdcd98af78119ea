import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.chat_stream import StreamReader, read_completion
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.exchange.attempt import read_stream, read_whole
from tests.unit.exchange.fakes import DONE, FakeResponse, Piece, event

ROLE = event(role="assistant", content="")


class TestStream(unittest.TestCase):
    def read(self, *pieces: Piece, has_input: bool = True) -> list[Any]:
        """A text for each delta, and `record_sent` where it runs."""
        self.response = FakeResponse(*pieces)
        self.response.has_input = has_input
        steps: list[Any] = []
        record_sent = lambda: steps.append("record_sent")  # noqa: E731
        for step in read_stream(self.response, StreamReader().read, record_sent):  # type: ignore[arg-type]
            steps.append([item.text if isinstance(item, Delta) else "heartbeat" for item in step.batch])
        return steps

    def test_the_call_is_recorded_after_the_first_event_was_forwarded(self) -> None:
        steps = self.read(ROLE, event(content="a") + event(content="b"))
        self.assertEqual([[""], "record_sent", ["a", "b"]], steps)

    def test_a_keep_alive_is_no_first_event(self) -> None:
        after = [["heartbeat"], "record_sent", ["heartbeat"], "record_sent", [""], "record_sent", ["a"]]
        self.assertEqual(after, self.read(b": keep-alive\n\n", b": wait\n\n", ROLE, event(content="a")))

    def test_the_call_is_recorded_while_there_is_nothing_to_hand_on(self) -> None:
        steps = self.read(Heartbeat(), ROLE, has_input=False)
        self.assertEqual(["record_sent", ["heartbeat"], [""], "record_sent"], steps)

    def test_cheap_events_go_before_those_that_are_stored(self) -> None:
        steps = self.read(ROLE, event(content="a") + event(content="b") + event("stop", content=""))
        self.assertEqual([["a", "b"], "record_sent", [""]], steps[2:])

    def test_the_call_is_recorded_before_events_that_are_stored_even_if_none_is_cheap(self) -> None:
        self.assertEqual(["record_sent", ["all"]], self.read(event("stop", content="all"))[:2])

    def test_a_call_that_may_be_complete_is_stored_as_well(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
        self.assertEqual(["record_sent", [None]], self.read(ROLE, event(tool_calls=[call]))[2:])

    def test_nothing_is_read_behind_the_end(self) -> None:
        self.assertEqual([["a"]], self.read(ROLE, event(content="a") + DONE, event(content="b"))[2:])

    def test_the_response_is_told_what_was_progress_and_what_a_keep_alive(self) -> None:
        self.read(b": keep-alive\n\n", b"\n", ROLE, b"data: half")
        self.assertEqual(["keep-alive", "keep-alive", "progress"], self.response.notes)


class TestWhole(unittest.TestCase):
    def read(self, *pieces: Piece) -> list[Any]:
        return list(read_whole(FakeResponse(*pieces), read_completion))  # type: ignore[arg-type]

    def test_a_whole_answer_is_one_batch_to_store_behind_its_heartbeats(self) -> None:
        body = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
        heartbeat, answer = self.read(Heartbeat(), json.dumps(body).encode())
        self.assertEqual(([Heartbeat()], False), (heartbeat.batch, heartbeat.must_store_first))
        self.assertEqual((["a"], True), ([item.text for item in answer.batch], answer.must_store_first))

    def test_an_answer_that_is_no_json_object_is_a_failure(self) -> None:
        for raw in (b"<html>", b"[]"):
            with self.subTest(raw), self.assertRaisesRegex(UpstreamFailed, "is not"):
                self.read(raw)
