"""What holds on every API: client says → DeepSeek must see → DeepSeek answers → client must see.

What an API has for itself is in the folders `chats`, `responses` and `messages`.
"""

import gc
import io
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.features.messages.writer import MessageWriter
from deepseek_cursor_proxy.features.responses.writer import ResponseWriter
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, Failure, Raw
from tests.proxy.faults.test_client_disconnects import WAYS
from tests.support.apis import CHAT, MESSAGES, RESPONSES, Api, ApiTestCase, Json, each_api, each_form
from tests.support.harness import PATIENCE, read_next_reply, read_until, request_bytes
from tests.support.hostile_requests import nested
from tests.support.polling import wait_until
from tests.support.raw_streams import EVENT_STREAM
from tests.support.resources import ResourceBaseline
from tests.support.skipped_time import SkippedTime
from tests.support.width import width

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py", "n": 1.0}')
OTHER_CALL = Call("call_01_k1L2m3N4o5P6q7R8s9T0", "read_file", '{"path": "b.py"}')
THOUGHT = "First look. \n\n\u2028 思 </details>"
CALLING = Answer(THOUGHT, "Looking.", (CALL, OTHER_CALL), piece=3)
DONE = Answer("Now I know.", "Done.")
KEY = "sk-a-rather-secret-key"
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        drop = ("id", "created_at", "completed_at", "usage", "signature")
        return {name: without_ids(inner) for name, inner in value.items() if name not in drop}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


class TestAnswers(ApiTestCase):
    @each_api()
    def test_a_streamed_answer_equals_the_plain_one(self, api: Api) -> None:
        self.fake.answer(CALLING, CALLING)
        replies = [self.ask(self.running, api, stream=stream) for stream in (True, False)]
        for reply in replies:
            said = reply.said
            self.assertEqual((THOUGHT, "Looking.", "tool_calls"), (said.reasoning, said.text, said.end))
            self.assertEqual([CALL.id, OTHER_CALL.id], [call.id for call in said.calls])
            self.assertEqual([json.loads(call.arguments) for call in CALLING.calls], [each for _, each in said.inputs])
            self.assertGreater(said.tokens, 10)
        self.assertEqual(*(without_ids(api.whole(reply)) for reply in replies))

    @each_form(chat="it has no parts")
    def test_an_answer_has_no_empty_parts(self, api: Api, stream: bool) -> None:
        kinds = {"reasoning": "thinking", "message": "text", "function_call": "tool_use"}
        for answer, expected in (
            (Answer(content="Hi."), ["text"]), (Answer(reasoning="Hm.", calls=(CALL,)), ["thinking", "tool_use"]),
            (Answer(calls=(CALL,)), ["tool_use"]), (Answer(reasoning="Hm."), ["thinking"]),
        ):  # fmt: skip
            self.fake.answer(answer)
            turn = self.ask(self.running, api, stream=stream).turn()
            parts = turn if api is RESPONSES else turn[0]["content"]
            self.assertEqual(expected, [kinds.get(part["type"], part["type"]) for part in parts])

    @each_form(chat="it gets DeepSeek's own")
    def test_finish_reasons_become_those_of_the_api(self, api: Api, stream: bool) -> None:
        for answer, expected in (
            (Answer(content="x", finish_reason="length"), "length"),
            (Answer(calls=(CALL,), finish_reason="stop"), "tool_calls"),
            (Answer(content="x", finish_reason="tool_calls"), "stop"),
            (Answer(content="x", finish_reason="content_filter"), "content_filter" if api is MESSAGES else "length"),
            (Answer(content="x", finish_reason="a reason of tomorrow"), "stop"),
            (Answer(calls=(CALL,), finish_reason="a reason of tomorrow"), "tool_calls"),
        ):
            self.fake.answer(answer)
            self.assertEqual(expected, self.ask(self.running, api, stream=stream).said.end, answer)

    @each_form()
    def test_a_request_decides_whether_the_model_thinks(self, api: Api, stream: bool) -> None:
        for setting, kind in (("enabled", "disabled"), ("disabled", "enabled")):
            self.ask(self.proxy(thinking=setting), api, stream=stream, thinking={"type": kind})
            sent = self.fake.accepted[-1]
            self.assertEqual(({"type": kind}, kind == "enabled"), (sent["thinking"], "reasoning_effort" in sent))

    @each_form(chat="it may have several")
    def test_one_answer_is_made_whatever_n_says(self, api: Api, stream: bool) -> None:
        self.assertEqual("Hello.", self.ask(self.running, api, n=3, stream=stream).said.text)
        self.assertEqual(1, len(self.fake.seen))


class TestHistories(ApiTestCase):
    @each_form()
    def test_a_tool_loop_keeps_every_reasoning_and_its_prefix(self, api: Api, stream: bool) -> None:
        for keeps_thinking in (True, False):
            with self.subTest(keeps_thinking=keeps_thinking):
                self.fake.forget()
                proxy, history = self.proxy(), [api.user("q")]
                self.fake.answer(CALLING, DONE)
                self.loop(proxy, api, history, keeps_thinking=keeps_thinking, stream=stream, system="Be brief.")
                history.append(api.user("And?"))
                self.ask(proxy, api, history, stream=stream, system="Be brief.")
                self.assert_upstream_saw(THOUGHT, "Now I know.")
                self.assertEqual([], self.fake.refused)
                roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
                self.assertEqual(roles, [message["role"] for message in self.fake.accepted[-1]["messages"]])
                for before, after in itertools.pairwise(self.fake.accepted):
                    self.assertEqual(before["messages"], after["messages"][: len(before["messages"])])
                    self.assertEqual(before["tools"], after["tools"])

    @each_api()
    def test_a_stored_chat_continues_after_a_restart(self, api: Api) -> None:
        path = self.folder / f"{api}.sqlite3"
        first, history = self.proxy(ReasoningStore(path)), [api.user("q")]
        self.fake.answer(CALLING, DONE)
        self.loop(first, api, history)
        first.close()
        self.ask(self.proxy(ReasoningStore(path)), api, [*history, api.user("go on")])
        self.assert_upstream_saw(THOUGHT, "Now I know.")

    @each_form()
    def test_a_call_without_reasoning_is_not_one_with_lost_reasoning(self, api: Api, stream: bool) -> None:
        self.fake.answer(Answer(calls=(CALL,)))
        self.loop(self.proxy(missing_reasoning_strategy="reject"), api, [api.user("q")], stream=stream)
        roles = [message["role"] for message in self.fake.accepted[-1]["messages"]]
        self.assertEqual((["user", "assistant", "tool"], []), (roles, self.fake.refused))

    @each_form()
    def test_lost_reasoning_is_a_409_where_the_setting_says_so(self, api: Api, stream: bool) -> None:
        history = [api.user("q"), *api.turn("", [CALL]), *api.results([(CALL.id, "42")])]
        reply = self.post(self.proxy(missing_reasoning_strategy="reject"), api, history, stream=stream)
        self.assertEqual(409, reply.status)
        self.assertIn("reasoning", reply.error["message"])
        # Libraries try a 409 again by themselves.
        self.assertEqual("false" if api is MESSAGES else None, reply.headers.get("x-should-retry"))
        self.assertEqual([], self.fake.seen)

    @each_form()
    def test_lone_surrogates_reach_deepseek(self, api: Api, stream: bool) -> None:
        history = [api.user("a\ud800b"), *api.turn("\udc00"), api.user("c")]
        self.ask(self.running, api, history, system="\ud83d", stream=stream)
        sent = [message["content"] for message in self.fake.accepted[-1]["messages"]]
        self.assertEqual(["\ud83d", "a\ud800b", "\udc00", "c"], sent)

    @each_api()
    def test_a_long_history_costs_no_more_than_its_length(self, api: Api) -> None:
        turns, began, history = width(500, 2500), time.process_time(), list[Json]()
        for number in range(turns):
            call = Call(f"call_{number}", "read_file", "{}")
            history += [api.user(f"question {number}"), *api.turn("", [call], api.thinking(f"thought {number}"))]
            history += api.results([(call.id, "42")])
        ids = [f"call_of_many_{number}" for number in range(turns)]
        calls = [Call(each, "read_file", "{}") for each in ids]
        history += [api.user("all"), *api.turn("", calls, api.thinking("All of them."))]
        history += api.results((each, "42") for each in ids)
        self.ask(self.running, api, [*history, api.user("x" * width(250_000, 10_000_000))])
        # Measured at a tenth of that on a slow machine; what grows with the square would take minutes.
        self.assertLess(time.process_time() - began, 30)
        self.assert_upstream_saw(*(f"thought {number}" for number in range(turns)), "All of them.")
        sent = [message.get("tool_call_id") for message in self.fake.accepted[-1]["messages"]]
        self.assertEqual(ids, sent[-turns - 1 : -1])


class TestRefusals(ApiTestCase):
    @each_form()
    def test_a_refusal_of_deepseek_has_the_shape_of_the_api(self, api: Api, stream: bool) -> None:
        kinds = {
            400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
            404: "not_found_error", 413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error",
            500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "api_error",
        }  # fmt: skip
        statuses = {502: 500, 503: 529, 504: 500} if api is MESSAGES else {}
        for status, kind in kinds.items():
            with self.subTest(status):
                self.fake.answer(Failure(status, f"words of {status}, {KEY}"))
                reply = self.post(self.running, api, key=KEY, stream=stream)
                self.assertEqual(statuses.get(status, status), reply.status, reply.body)
                self.assertIn(f"words of {status}, ***", reply.error["message"])
                if api is MESSAGES:
                    self.assertEqual(
                        (kind, reply.headers["request-id"]), (reply.error["type"], reply.value["request_id"])
                    )
                    self.assertEqual("false" if status < 429 else None, reply.headers.get("x-should-retry"))

    @each_form()
    def test_a_busy_deepseek_says_when_to_come_again(self, api: Api, stream: bool) -> None:
        """Codex gives up without."""
        for status in (429, 503):
            self.fake.answer(Failure(status, headers=(("Retry-After", "7"),)), Failure(status))
            found = [self.post(self.running, api, stream=stream).headers["retry-after"] for _ in range(2)]
            self.assertEqual("7", found[0])
            self.assertTrue(found[1].isdigit())

    @each_api()
    def test_deeply_nested_values_are_sent_or_refused(self, api: Api) -> None:
        for depth in (50, 90, 200, 900):
            deep = nested(depth)
            call = Call(CALL.id, "read_file", json.dumps({"x": deep}))
            for fields in (
                {"history": [api.user("q"), *api.turn("", [call]), *api.results([(CALL.id, "42")])]},
                {"history": [{**api.user("q"), "content": [{"type": "odd", "x": deep}]}]},
                {"history": [api.user("q"), *api.turn("", [CALL]), *api.results([(CALL.id, [deep])])]},
                {"tools": [api.tool("f", {"type": "object", "enum": deep})]},
                {"metadata": {"user_id": "x", "deep": deep}},
                {"response_format": {"type": "json_schema", "json_schema": {"schema": deep}}},
                {"odd": deep},
            ):
                with self.subTest(depth=depth, fields=str(fields)[:40]):
                    reply = self.post(self.running, api, **fields)
                    self.assertIn(reply.status, (200, 400), reply.body[:300])
                    self.assertTrue(reply.status == 200 or reply.error["message"])
        raw = b'{"odd": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        reply = self.send(self.running, api, request_bytes(raw, path=api.path))
        self.assertIn("nested too deeply", reply.error["message"])
        self.ask(self.running, api)

    @each_api()
    def test_a_wrong_method_names_the_allowed_ones(self, api: Api) -> None:
        for method in ("PUT", "DELETE"):
            reply = self.send(self.running, api, request_bytes(api.body(), method=method, path=api.path))
            self.assertEqual((405, "invalid_request_error"), (reply.status, reply.error["type"]))
            self.assertIn("POST", reply.headers["allow"])

    @each_form()
    def test_a_refusal_of_the_proxy_costs_no_call(self, api: Api, stream: bool) -> None:
        proxy = self.proxy(max_request_body_bytes=1000, access_keys=["sk-test"])
        for status, details in ((413, {"history": "x" * 2000}), (401, {"key": "sk-nobody"}), (400, {"tools": [7]})):
            reply = self.post(proxy, api, stream=stream, **details)
            self.assertEqual(status, reply.status)
            self.assertTrue(reply.error["message"])
        self.assertEqual([], self.fake.seen)


class TestBreaks(ApiTestCase):
    BROKEN: tuple[Answer | Raw, ...] = (
        Answer("Hm. " * 9, "Some text.", cut_after=3, piece=4),
        Answer("Hm.", "Some text.", cut_after=4, piece=4),
        Answer("Hm.", None, (CALL,), cut_after=5, piece=4),
        Answer("Hm.", "x", cut_after=0),
        Raw(EVENT_STREAM + PIECE + b'data: {"error": {"message": "Insufficient capacity"}}\n\n'),
        Raw(EVENT_STREAM + PIECE + b"data: {nope\n\n"),
    )
    # A chat says so in its text.
    UNFINISHED = tuple(
        Answer("Hm.", "x", finish_reason=reason) for reason in ("insufficient_system_resource", "aborted")
    )

    @each_api()
    def test_a_stream_that_breaks_ends_in_the_error_of_its_api(self, api: Api) -> None:
        for step in (*self.BROKEN, *(() if api is CHAT else self.UNFINISHED)):
            with self.subTest(step):
                self.fake.answer(step)
                reply = self.ask(self.running, api, stream=True)
                self.assertTrue(api.failure(reply.events)["message"])
                self.assertEqual(api is CHAT, reply.body.endswith(b"data: [DONE]\n\n"))

    @each_api()
    def test_a_plain_answer_that_breaks_is_an_error(self, api: Api) -> None:
        unfinished = self.UNFINISHED if api is MESSAGES else ()
        for step in (*self.BROKEN[:2], *unfinished, Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope")):
            with self.subTest(step):
                self.fake.answer(step)
                reply = self.post(self.running, api)
                self.assertIn(reply.status, (500, 529) if api is MESSAGES else (502, 503))
                self.assertTrue(reply.error["message"])
                self.assertIsNone(reply.headers.get("x-should-retry"))

    @each_api()
    def test_a_bug_ends_a_stream_with_an_error(self, api: Api) -> None:
        writer = {CHAT: ChunkWriter, RESPONSES: ResponseWriter, MESSAGES: MessageWriter}[api]
        broken = mock.patch.object(writer, "write", side_effect=ZeroDivisionError)
        with broken, self.assertLogs("deepseek_cursor_proxy", "ERROR") as logged:
            reply = self.ask(self.running, api, stream=True)
        self.assertIn("The proxy failed on this request", api.failure(reply.events)["message"])
        self.assertIn("ZeroDivisionError", logged.output[0])

    @each_api()
    def test_the_reasoning_before_a_break_is_stored(self, api: Api) -> None:
        self.fake.answer(Answer("A thought.", "Half of it.", piece=10, cut_after=3))
        self.ask(self.running, api, stream=True)
        self.ask(self.running, api, [api.user("q"), *api.turn("Half of it"), api.user("go on")])
        self.assert_upstream_saw("A thought.")

    @each_api()
    def test_a_busy_deepseek_is_called_again_before_the_first_event(self, api: Api) -> None:
        self.fake.answer(Failure(503, headers=(("Retry-After", "0"),)), DONE)
        self.assertEqual("Done.", self.ask(self.proxy(retry_budget=60), api, stream=True).said.text)
        self.assertEqual(2, len(self.fake.seen))


HEARTBEATS = {CHAT: b'"delta":{"content":""}', RESPONSES: b"event: response.in_progress", MESSAGES: b"event: ping"}


class TestStreams(ApiTestCase):
    @each_api()
    def test_a_silent_stream_gets_heartbeats_and_then_an_error(self, api: Api) -> None:
        self.fake.answer(Answer(content="y", stall_after=0))
        with SkippedTime() as time:
            proxy = self.proxy(heartbeat_interval=0.02, request_timeout=time.request_timeout)
            with self.connect(proxy, api.request(stream=True)) as sock, sock.makefile("rb") as file:
                lines = [file.readline()]
                while sum(HEARTBEATS[api] in line for line in lines) < 4:
                    lines.append(file.readline())
                time.skip(time.request_timeout)
                while lines[-2:] != [b"0\r\n", b"\r\n"]:
                    self.assertLess(len(lines), 2000)
                    lines.append(file.readline())
        reply = self.reply(api, read_next_reply(io.BytesIO(b"".join(lines))))
        self.assertGreater(api.beats(reply.events), 2)
        self.assertTrue(api.failure(reply.events)["message"])

    @each_api(chat="it forwards them")
    def test_comments_of_deepseek_are_no_events(self, api: Api) -> None:
        self.fake.answer(Answer(content="y", comments=50))
        reply = self.ask(self.running, api, stream=True)
        self.assertEqual(0, api.beats(reply.events))
        self.assertNotIn(b"keep-alive", reply.body)

    @each_form()
    def test_a_client_that_leaves_before_the_first_event_ends_the_call(self, api: Api, stream: bool) -> None:
        self.fake.answer(Answer(content="y", stall_after=0))
        with self.connect(self.running, api.request(stream=stream)):
            self.fake.stalls.get(timeout=PATIENCE)
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))

    @each_api()
    def test_a_disconnect_ends_the_call_and_stores_the_reasoning(self, api: Api) -> None:
        start_line = ResourceBaseline(self.running.address)
        for leave in WAYS:
            with self.subTest(leave.__name__):
                self.fake.forget()
                self.fake.answer(Answer(f"A thought {leave.__name__}.", "Half of it.", piece=100, stall_after=3))
                with self.connect(self.running, api.request(leave.__name__, stream=True)) as sock:
                    self.assertIn(b"A thought by_", read_until(sock, b"Half of it."))
                    leave(sock)
                    self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
                start_line.assert_restored(self)
        for leave in WAYS:
            history = [api.user(leave.__name__), *api.turn("Half of it."), api.user("go on")]
            self.ask(self.running, api, history)
            self.assert_upstream_saw(f"A thought {leave.__name__}.")

    @each_form()
    def test_a_request_is_forgotten_without_the_garbage_collector(self, api: Api, stream: bool) -> None:
        """A cycle would hold its history, perhaps of 28 MB, until the next full collection."""
        self.fake.answer(CALLING, DONE)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.loop(self.running, api, [api.user("Forget this.")], stream=stream)
        kept = lambda each: isinstance(each, ChatRequest) and "Forget this." in str(each.messages)  # noqa: E731
        wait_until(lambda: not any(map(kept, gc.get_objects())))

    @each_api()
    def test_a_bug_in_the_store_releases_the_slot(self, api: Api) -> None:
        self.fake.answer(Answer("A thought.", "Half of it.", piece=100, stall_after=3))
        bug = mock.patch.object(self.running.store, "record", side_effect=RuntimeError)
        with bug, self.assertLogs(level="ERROR") as logs:
            with self.connect(self.running, api.request(stream=True)) as sock:
                read_until(sock, b"Half of it.")
            self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
            wait_until(lambda: logs.output)
        limit = self.running.server.services().upstream_client.call_limits.of("deepseek-v4-pro")
        wait_until(lambda: limit.running_calls == 0)

    @each_api()
    def test_many_streams_at_once_are_not_mixed_up(self, api: Api) -> None:
        streams, start = width(8, 24), threading.Barrier(width(8, 24))

        def talk(number: int) -> None:
            start.wait(PATIENCE)
            said = self.ask(self.running, api, f"{number}", stream=True).said
            self.assertEqual((words(number), words(number), number), (said.text, said.reasoning, int(said.calls[0].id)))

        def words(number: int) -> str:
            return " ".join(f"word{number}-{at}" for at in range(width(30, 200)))

        def respond(payload: Json) -> Answer:
            number = int(payload["messages"][-1]["content"])
            call = Call(f"{number}", "read_file", "{}")
            return Answer(words(number), words(number), (call,), piece=7)

        self.running.server.services()
        with mock.patch.object(self.fake, "_responder", respond), ThreadPoolExecutor(streams) as pool:
            list(pool.map(talk, range(streams)))
