import random
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import CallPiece, Delta, Heartbeat, ServerDelta, ServerPiece
from deepseek_cursor_proxy.deepseek import chat_stream
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, ProxyStopping, QueueFull, UpstreamFailed
from deepseek_cursor_proxy.features.responses.fields import error_object
from tests.support.generated_answers import FUNCTION, answer, batches, stream, writer
from tests.support.responses_client import Json, check_stream, events
from tests.support.width import width

OPTIONS: tuple[Json, ...] = (
    {}, {"reasoning": {"summary": "auto"}}, {"include": ["reasoning.encrypted_content"]},
    {"reasoning": {"summary": "detailed"}, "include": ["reasoning.encrypted_content"]},
)  # fmt: skip


def types(found: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def streamed(batch: list[Delta | Heartbeat]) -> Json:
    writing = writer()
    return check_stream(events(writing.begin() + writing.write(batch) + writing.end()))


class TestResponsesStream(unittest.TestCase):
    def test_response_events_add_up_to_the_response_however_they_are_cut(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            options = rng.choice(OPTIONS)
            writing = writer(**options)
            with self.subTest(seed=seed):
                chunks = batches(rng, stream(rng, answer(rng)))
                data = writing.begin() + b"".join(writing.write(batch) for batch in chunks) + writing.end()
                response = check_stream(events(data))
                self.assertEqual(writing.response, response)
                self.assertEqual({"completed"}, {item["status"] for item in response["output"]})
                self.assertEqual(("completed", 12), (response["status"], response["usage"]["total_tokens"]))

    def test_a_plain_response_equals_the_streamed_one(self) -> None:
        for seed in range(100):
            rng = random.Random(seed)
            chunks, options = answer(rng, is_orderly=True), rng.choice(OPTIONS)
            streamed, whole = writer(**options), writer(**options)
            streamed.begin()
            for batch in batches(rng, stream(rng, chunks)):
                streamed.write(batch)
            streamed.end()
            whole.write(list(chat_stream.read_completion(completion(chunks))))
            whole.end()
            self.assertEqual(streamed.response, whole.response, seed)

    def test_a_broken_response_stream_completes_its_items(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            data = stream(rng, answer(rng))
            writing = writer(**rng.choice(OPTIONS))
            sent = writing.begin() + b"".join(map(writing.write, batches(rng, data[: rng.randrange(len(data))])))
            sent += rng.choice((writing.cancel, lambda writing=writing: writing.fail(UpstreamFailed("broke"))))()
            with self.subTest(seed=seed):
                check_stream(events(sent))

    def test_a_response_is_completed_as_many_seconds_after_its_creation_as_it_took(self) -> None:
        writing = writer()
        with mock.patch.object(writing, "_now", return_value=7.9):
            writing.write([Delta(text="x", finish_reason="stop")])
            writing.end()
        assert writing.response is not None
        self.assertEqual(7, writing.response["completed_at"] - writing.response["created_at"])

    def test_a_search_item_has_all_its_steps_and_the_fields_that_are_required(self) -> None:
        bare = {"type": "web_search_call", "id": "ws_1"}
        queries = {**bare, "action": {"type": "search", "queries": ["rain", "sun"]}}
        page = {**bare, "status": "completed", "action": {"type": "open_page"}, "more": 1}
        search = {"type": "search", "query": ""}
        for item, steps, action in (
            (bare, ("completed",), search),
            (queries, ("in_progress", "searching", "completed"), {**queries["action"], "query": "rain"}),
            (page, ("in_progress", "in_progress", "odd", "completed", "completed"), page["action"]),
        ):
            deltas = [Delta(server=ServerDelta((ServerPiece(0, item, step),))) for step in steps]
            [found] = streamed([*deltas, Delta(finish_reason="stop")])["output"]
            self.assertEqual({**item, "status": "completed", "action": action}, found, item)

    def test_a_search_that_failed_or_broke_off_has_failed(self) -> None:
        item = {"type": "web_search_call", "id": "ws_1", "status": "failed"}
        for piece in (ServerPiece(0, item), ServerPiece(0, item, "in_progress"), ServerPiece(0, item, "searching")):
            [found] = streamed([Delta(server=ServerDelta((piece,)), finish_reason="stop")])["output"]
            self.assertEqual("failed", found["status"])

    def test_items_of_unknown_tools_stay_as_they_are(self) -> None:
        item = {"type": "odd_call", "id": "odd_1", "data": [1], "status": "completed"}
        whole, begun = ServerPiece(0, item), ServerPiece(0, item, "in_progress")
        [found] = streamed([Delta(server=ServerDelta((whole,)), finish_reason="stop")])["output"]
        self.assertEqual(item, found)
        [found] = streamed([Delta(server=ServerDelta((begun,)), finish_reason="stop")])["output"]
        self.assertEqual({**item, "status": "incomplete"}, found)

    def test_sources_are_of_the_text_that_is_open(self) -> None:
        cited: list[Json] = [{"type": "url_citation", "url": name} for name in "ab"]
        sources = [Delta(server=ServerDelta(citations=(each,))) for each in cited]
        search = Delta(server=ServerDelta((ServerPiece(0, {"type": "web_search_call", "id": "ws_1"}),)))
        # A source of no text is left out.
        deltas = [sources[0], Delta(text="a"), sources[0], search, sources[0], Delta(text="b"), sources[1], sources[0]]
        first, _, last = streamed([*deltas, Delta(finish_reason="stop")])["output"]
        self.assertEqual([cited[0]], first["content"][0]["annotations"])
        self.assertEqual([cited[1], cited[0]], last["content"][0]["annotations"])

    def test_a_call_item_begins_when_its_name_is_known(self) -> None:
        named = Delta(calls=(CallPiece(0, "", FUNCTION, ":1}"),), finish_reason="tool_calls")
        [call] = streamed([Delta(calls=(CallPiece(0, "a", "", '{"x"'),)), named])["output"]
        self.assertEqual(("a", FUNCTION, '{"x":1}'), (call["call_id"], call["name"], call["arguments"]))


class TestHeartbeats(unittest.TestCase):
    def test_upstream_silence_is_an_event_at_once_and_comments_are_rarely(self) -> None:
        clock = [0.0]
        writing = writer()
        writing._now = lambda: clock[0]
        writing.begin()
        self.assertEqual(["in_progress"], types(events(writing.write([Heartbeat()]))))
        self.assertEqual(b"", writing.write([Heartbeat("keep-alive")]))
        clock[0] = 10.0
        self.assertEqual(["in_progress"], types(events(writing.write([Heartbeat("keep-alive")] * 2))))

    def test_a_background_response_writes_fewer_heartbeats(self) -> None:
        clock = [0.0]
        writing = writer(background=True)
        writing._now = lambda: clock[0]
        writing.begin()
        clock[0] = 15.0
        self.assertEqual(b"", writing.write([Heartbeat(), Heartbeat("keep-alive")]))
        clock[0] = 60.0
        self.assertEqual(["in_progress"], types(events(writing.write([Heartbeat(), Heartbeat()]))))


class TestEnd(unittest.TestCase):
    def test_the_finish_reason_decides_the_status_of_a_response(self) -> None:
        for reason, status, details, code in (
            ("stop", "completed", None, None),
            ("tool_calls", "completed", None, None),
            ("length", "incomplete", "max_output_tokens", None),
            ("content_filter", "incomplete", "content_filter", None),
            ("insufficient_system_resource", "failed", None, "server_error"),
            ("aborted", "failed", None, "server_error"),
        ):
            with self.subTest(reason):
                response = streamed([Delta(text="x", finish_reason=reason)])
                found = (response["incomplete_details"] or {}).get("reason"), (response["error"] or {}).get("code")
                self.assertEqual((status, details, code), (response["status"], *found))
                whole = "completed" if status == "completed" else "incomplete"
                self.assertEqual([whole], [item["status"] for item in response["output"]])

    def test_a_cancelled_response_has_the_status_cancelled(self) -> None:
        writing = writer(background=True)
        sent = writing.begin_queued() + writing.start() + writing.write([Delta(text="x")]) + writing.cancel()
        self.assertEqual("cancelled", check_stream(events(sent))["status"])

    def test_a_failed_response_has_an_error_code_that_clients_know(self) -> None:
        too_long = BadRequest("too long", code="context_length_exceeded")
        errors: tuple[tuple[ProxyError, str], ...] = (
            (too_long, "context_length_exceeded"), (BadRequest("no"), "invalid_prompt"),
            (QueueFull("full"), "rate_limit_exceeded"), (ProxyStopping(), "server_error"),
            (UpstreamFailed("broke"), "server_error"),
        )  # fmt: skip
        for error, code in errors:
            self.assertEqual({"code": code, "message": error.message}, error_object(error))


def completion(chunks: Any) -> Json:
    body: Json = {"role": "assistant", "content": None}
    for piece in chunks:
        if piece.kind == "call":
            function = {"name": piece.name, "arguments": piece.text}
            body.setdefault("tool_calls", []).append({"id": f"call_{piece.call}", "function": function})
        else:
            body[piece.kind] = piece.text
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return {"choices": [{"index": 0, "message": body, "finish_reason": "stop"}], "usage": usage}
