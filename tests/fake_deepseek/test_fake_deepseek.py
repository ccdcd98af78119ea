"""The fake itself: what it refuses, how it answers, how it fails, and that it leaves nothing behind."""

import http.client
import json
import socket
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw, Rules
from tests.fake_deepseek.contract import MISSING_REASONING, MODELS

Payload = dict[str, Any]

USER = {"role": "user", "content": "Hello?"}
TOOL = {"type": "function", "function": {"name": "look"}}
CALLS = (Call("call_a", "look", '{"at":"the sky"}'), Call("call_b", "look", "{}"))


def body(*messages: Payload, **fields: Any) -> Payload:
    return {"model": "deepseek-v4-pro", "messages": list(messages) or [USER], **fields}


def events(data: bytes) -> list[Any]:
    """The events of a stream without its comments; [DONE] stays a string."""
    texts = [block.removeprefix("data: ") for block in data.decode().split("\n\n") if block.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def deltas(data: bytes) -> list[Payload]:
    return [event["choices"][0]["delta"] for event in events(data)[:-1]]


class FakeCase(unittest.TestCase):
    fake: FakeDeepSeek

    def setUp(self) -> None:
        self.use()

    def use(self, **how: Any) -> FakeDeepSeek:
        self.fake = FakeDeepSeek(**how)
        self.addCleanup(self.fake.close)
        self.fake.start()
        self.connection = http.client.HTTPConnection(self.fake.url.removeprefix("http://"), timeout=5)
        self.addCleanup(self.connection.close)
        return self.fake

    def send(self, payload: Payload | bytes, path: str = "/chat/completions", key: str | None = "sk-test") -> Any:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.connection.request("POST", path, data, {"Authorization": f"Bearer {key}"} if key else {})
        return self.connection.getresponse()

    def ask(self, payload: Payload | bytes, **how: Any) -> Payload:
        value: Payload = json.loads(self.send(payload, **how).read())
        return value

    def stream(self, **fields: Any) -> bytes:
        data: bytes = self.send(body(stream=True, **fields)).read()
        return data


class TestRefusals(FakeCase):
    def test_a_refusal_has_deepseeks_envelope_and_spends_no_answer(self) -> None:
        self.fake.answer(Answer(content="Kept."))
        past = {"role": "assistant", "content": "Hi."}
        refused = self.send(body(USER, past, USER, tools=[TOOL]))
        self.assertEqual(refused.status, 400)
        kind = "invalid_request_error"
        error = {"message": MISSING_REASONING, "type": kind, "param": None, "code": kind}
        self.assertEqual(json.loads(refused.read()), {"error": error})
        self.assertEqual([seen.refusal for seen in self.fake.refused], [MISSING_REASONING])
        self.assertEqual(self.fake.accepted, [])
        self.assertEqual(self.ask(body())["choices"][0]["message"]["content"], "Kept.")

    def test_the_fake_keeps_the_rule_it_was_given(self) -> None:
        past = {"role": "assistant", "content": "Hi.", "reasoning_content": ""}
        self.use(rules=Rules("april"))
        self.assertEqual(self.send(body(USER, past | {"reasoning_content": None}, USER, tools=[TOOL])).status, 200)
        self.use(rules=Rules(refuses_empty=True))
        self.assertEqual(self.send(body(USER, past, USER, tools=[TOOL])).status, 400)

    def test_what_is_not_json_is_refused(self) -> None:
        for data in (b"", b"{", b"[]", b'{"a":NaN}', b"\xff"):
            with self.subTest(data):
                self.assertIn("Failed to deserialize the JSON body", self.ask(data)["error"]["message"])
        self.assertEqual({seen.status for seen in self.fake.seen}, {400})
        self.assertEqual(self.fake.seen[1].body, b"{")

    def test_a_wrong_key_is_named_by_its_last_four_characters(self) -> None:
        self.use(keys={"sk-good"})
        error = self.ask(body(), key="sk-bad-0000")["error"]
        self.assertEqual(error["message"], "Authentication Fails, Your api key: ****0000 is invalid")
        self.assertEqual((error["type"], error["code"]), ("authentication_error", "invalid_request_error"))
        missing = self.send(body(), key=None)
        self.assertEqual((missing.status, missing.read()[:9]), (401, b'{"error":'))
        self.assertEqual(self.send(body(), key="sk-good").status, 200)

    def test_the_messages_api_takes_a_key_in_a_header_of_its_own(self) -> None:
        self.use(keys={"sk-good"})
        for key, status in (("sk-good", 200), ("sk-bad", 401)):
            data = json.dumps({**body(), "max_tokens": 9}).encode()
            self.connection.request("POST", "/anthropic/v1/messages", data, {"x-api-key": key})
            response = self.connection.getresponse()
            response.read()
            self.assertEqual(status, response.status)

    def test_a_lenient_fake_refuses_nothing_but_what_deepseek_is_known_to_refuse(self) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        past = {"role": "assistant", "id": "a", "tool_calls": [call], "reasoning_content": "r"}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
        odd = body(USER, past, result, tools=[TOOL], user_id="{}")
        self.assertIn("error", self.ask(odd))
        self.use().is_lenient = True
        self.assertIn("choices", self.ask(odd))
        del past["reasoning_content"]
        self.assertIn("passed back", self.ask(body(USER, past, result, tools=[TOOL]))["error"]["message"])

    def test_only_the_known_paths_exist(self) -> None:
        for path, status in {"/v1/chat/completions?x=1": 200, "/beta/chat/completions": 200, "/v2/chat": 404}.items():
            with self.subTest(path):
                response = self.send(body(), path=path)
                response.read()
                self.assertEqual((response.status, self.fake.seen[-1].path), (status, path))

    def test_models_lists_the_two_official_ones(self) -> None:
        self.connection.request("GET", "/models", headers={"Authorization": "Bearer sk-test"})
        models = json.loads(self.connection.getresponse().read())
        self.assertEqual([model["id"] for model in models["data"]], ["deepseek-flash", "deepseek-v4-pro"])
        self.assertLessEqual({model["id"] for model in models["data"]}, set(MODELS))
        updates = {"anthropic_messages": {"system_prompt_update": "in-history"}}
        self.assertEqual([updates, {}], [model["api_capabilities"] for model in models["data"]])


class TestWholeAnswers(FakeCase):
    def test_an_answer_carries_everything_the_model_said(self) -> None:
        self.fake.answer(Answer("Hmm.", "Looking.", CALLS))
        answer = self.ask(body(tools=[TOOL]))
        choice = answer["choices"][0]
        message, calls = choice["message"], choice["message"]["tool_calls"]
        found = (choice["finish_reason"], message["reasoning_content"], message["content"])
        self.assertEqual(found, ("tool_calls", "Hmm.", "Looking."))
        self.assertEqual([call["id"] for call in calls], ["call_a", "call_b"])
        self.assertEqual(calls[0]["function"]["arguments"], '{"at":"the sky"}')
        self.assertEqual((answer["object"], answer["model"]), ("chat.completion", "deepseek-v4-pro"))

    def test_the_queue_comes_before_the_responder(self) -> None:
        self.use(responder=lambda payload: Answer(content=f"{len(payload['messages'])} messages"))
        self.fake.answer(Answer(content="first"), Answer(content="second"))
        said = [self.ask(body())["choices"][0]["message"]["content"] for _ in range(3)]
        self.assertEqual(said, ["first", "second", "1 messages"])

    def test_without_thinking_there_is_no_reasoning(self) -> None:
        message = self.ask(body(thinking={"type": "disabled"}))["choices"][0]["message"]
        self.assertEqual(message, {"role": "assistant", "content": "Hello."})

    def test_a_queued_answer_begins_with_blank_lines(self) -> None:
        self.fake.answer(Answer(content="Hi.", comments=3))
        data = self.send(body()).read()
        self.assertTrue(data.startswith(b'\n\n\n{"object"'))


class TestStreams(FakeCase):
    def test_a_stream_has_deepseeks_deltas_in_deepseeks_order(self) -> None:
        self.fake.answer(Answer("Think", "Text", CALLS[:1], piece=4))
        look = {"name": "look", "arguments": ""}
        arguments = ('{"at', '":"t', "he s", 'ky"}')
        pieces = [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in arguments]
        self.assertEqual(
            deltas(self.stream(tools=[TOOL])),
            [
                {"role": "assistant", "content": None, "reasoning_content": ""},
                {"content": None, "reasoning_content": "Thin"},
                {"content": None, "reasoning_content": "k"},
                {"content": "Text", "reasoning_content": None},
                {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": look}]},
                *pieces,
                {"content": "", "reasoning_content": None},
            ],
        )

    def test_a_stream_without_thinking_repeats_the_role_and_never_names_reasoning(self) -> None:
        self.fake.answer(Answer("Think", "Text", piece=2))
        *said, last = deltas(self.stream(thinking={"type": "disabled"}))
        self.assertEqual([{"role": "assistant", "content": text} for text in ("", "Te", "xt")], said)
        self.assertEqual({"role": None, "content": ""}, last)

    def test_an_answer_without_reasoning_has_only_the_empty_first_one(self) -> None:
        self.fake.answer(Answer(content="Hi."))
        thoughts = [delta.get("reasoning_content") for delta in deltas(self.stream())]
        self.assertEqual(thoughts, ["", None, None])

    def test_usage_is_in_the_last_chunk(self) -> None:
        for options, earlier in (({"include_usage": True}, {None}), (None, {"absent"})):
            with self.subTest(options):
                *chunks, last, done = events(self.stream(stream_options=options))
                self.assertEqual({chunk.get("usage", "absent") for chunk in chunks}, earlier)
                self.assertEqual(last["choices"][0]["finish_reason"], "stop")
                self.assertEqual(last["usage"]["total_tokens"], sum_of(last["usage"]))
                self.assertEqual(done, "[DONE]")

    def test_every_chunk_has_the_id_and_the_model(self) -> None:
        *chunks, _ = events(self.stream())
        for field in ("id", "created", "model", "system_fingerprint"):
            self.assertEqual(len({chunk[field] for chunk in chunks}), 1, field)
        self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})

    def test_keep_alives_come_before_the_first_event(self) -> None:
        self.fake.answer(Answer(content="Hi.", comments=2))
        self.assertTrue(self.stream().startswith(b": keep-alive\n\n: keep-alive\n\ndata: {"))

    def test_any_text_survives_the_stream(self) -> None:
        text = "naïve 😀 </details>\n\ndata: x\r\n\u2028\x00"
        self.fake.answer(Answer(text, text, piece=1))
        said = deltas(self.stream())
        self.assertEqual("".join(delta["content"] or "" for delta in said), text)
        self.assertEqual("".join(delta["reasoning_content"] or "" for delta in said), text)

    def test_a_finish_reason_can_be_scripted(self) -> None:
        self.fake.answer(Answer(content="Hi", finish_reason="insufficient_system_resource"))
        self.assertIn(b'"finish_reason":"insufficient_system_resource"', self.stream())


def sum_of(usage: Payload) -> int:
    hit, miss = usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]
    return int(hit + miss + usage["completion_tokens"])


class TestFaults(FakeCase):
    def test_a_failure_is_played_even_to_a_request_that_breaks_the_contract(self) -> None:
        self.fake.answer(Failure(503, "Busy.", headers=(("Retry-After", "7"),)))
        response = self.send(body(), key="sk-test")
        self.assertEqual((response.status, response.headers["Retry-After"]), (503, "7"))
        self.assertEqual(json.loads(response.read())["error"]["message"], "Busy.")
        self.fake.answer(Failure(529, headers=(("Content-Type", "text/html"),), body=b"<p>no</p>"))
        response = self.send({"model": "nobody"})
        self.assertEqual((response.status, response.headers["Content-Type"]), (529, "text/html"))
        self.assertEqual(response.read(), b"<p>no</p>")
        self.assertEqual([seen.status for seen in self.fake.seen], [503, 529])
        self.assertEqual(self.fake.refused, [])

    def test_raw_bytes_reach_the_client_as_they_are(self) -> None:
        self.fake.answer(Raw(b"nonsense\r\n\r\n"))
        with self.assertRaises(http.client.BadStatusLine):
            self.send(body())
        self.assertEqual(self.fake.seen[0].status, 0)

    def test_a_cut_stream_keeps_the_events_before_the_cut(self) -> None:
        self.fake.answer(Answer("Thinking", "Hi.", cut_after=2))
        with self.assertRaises(http.client.IncompleteRead) as cut:
            self.stream()
        self.assertEqual(cut.exception.partial.count(b"data: "), 2)

    def test_an_answer_that_was_cut_is_not_in_the_context_cache(self) -> None:
        past = {"role": "assistant", "content": "Hello.", "reasoning_content": "x"}
        self.fake.answer(Answer("x", "Hello.", cut_after=3))
        with self.assertRaises(http.client.IncompleteRead):
            self.stream(tools=[TOOL])
        self.connection.close()
        histories = ([USER], [USER, past, USER])
        hits = [self.ask(body(*each, tools=[TOOL]))["usage"]["prompt_cache_hit_tokens"] for each in histories]
        self.assertEqual(hits[0], hits[1])

    def test_a_cut_whole_answer_keeps_the_bytes_before_the_cut(self) -> None:
        self.fake.answer(Answer(content="Hi.", cut_after=20))
        with self.assertRaises(http.client.IncompleteRead) as cut:
            self.send(body()).read()
        self.assertEqual(len(cut.exception.partial), 20)

    def test_a_stalled_stream_goes_on_when_released(self) -> None:
        self.fake.answer(Answer(content="Hi.", stall_after=1))
        response = self.send(body(stream=True))
        self.assertIn(b'"role":"assistant"', response.readline())
        self.fake.release.set()
        self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
        self.assertFalse(self.fake.wait_for_hangup(0))

    def test_a_stream_can_stall_between_done_and_its_end(self) -> None:
        self.fake.answer(Answer(content="Hi.", stall_after=4))
        response = self.send(body(stream=True))
        while response.readline() != b"data: [DONE]\n":
            pass
        self.fake.release.set()
        self.assertEqual(response.read(), b"\n")

    def test_a_whole_answer_can_stall_too(self) -> None:
        self.fake.answer(Answer(content="Hi.", comments=2, stall_after=2))
        response = self.send(body())
        self.assertEqual(response.read(2), b"\n\n")
        self.fake.release.set()
        self.assertEqual(json.loads(response.read())["choices"][0]["message"]["content"], "Hi.")

    def test_a_client_that_disconnects_from_a_stalled_stream_is_noticed(self) -> None:
        self.fake.answer(Answer(content="Hi.", stall_after=1))
        self.send(body(stream=True)).close()
        self.connection.close()
        self.assertTrue(self.fake.wait_for_hangup())
        self.fake.forget()
        self.assertFalse(self.fake.wait_for_hangup(0))

    def test_raw_bytes_can_stall_before_there_is_an_answer(self) -> None:
        self.fake.answer(Raw(b"HTTP/1.1 2", then_stall=True))
        with self.assertRaises(TimeoutError):
            self.connection.timeout = 0.05
            self.send(body())
        began = self.fake.stalls.get(timeout=5)
        self.connection.close()
        self.assertGreater(self.fake.hang_ups.get(timeout=5), began)

    def test_a_paced_stream_pauses_after_each_event_and_ends_with_the_fake(self) -> None:
        fake = self.use()
        fake.answer(Answer(content="Hi.", pause=3600))
        response = self.send(body(stream=True))
        self.assertIn(b'"role":"assistant"', response.readline())
        fake.close()
        response.close()

    def test_a_client_that_disconnects_from_a_long_stream_is_noticed(self) -> None:
        # More than the buffers of both sides hold, so the fake is still writing when the client goes.
        self.fake.answer(Answer("x" * 20_000_000, piece=500_000))
        self.send(body(stream=True)).close()
        self.connection.close()
        self.assertTrue(self.fake.wait_for_hangup())


class TestRequests(FakeCase):
    def test_requests_share_a_connection_that_is_kept_alive(self) -> None:
        for stream in (True, False, True):
            self.send(body(stream=stream)).read()
        self.send(b"{").read()
        self.send(body()).read()
        self.assertEqual(self.fake.connections, 1)

    def test_what_was_sent_can_be_read_back(self) -> None:
        self.send(body(USER, temperature=1)).read()
        seen = self.fake.seen[0]
        self.assertEqual(seen.headers["authorization"], "Bearer sk-test")
        self.assertEqual((seen.status, seen.refusal, json.loads(seen.body)), (200, None, seen.payload))
        self.assertEqual(self.fake.accepted, [body(USER, temperature=1)])

    def test_forgetting_clears_what_was_seen_and_what_is_queued(self) -> None:
        self.fake.answer(Answer(content="stale"))
        self.send(b"{").read()
        self.fake.forget()
        self.assertEqual(self.fake.seen, [])
        self.assertEqual(self.ask(body())["choices"][0]["message"]["content"], "Hello.")

    def test_many_clients_at_once_all_get_their_answer(self) -> None:
        host = self.fake.url.removeprefix("http://")

        def once(number: int) -> int:
            connection = http.client.HTTPConnection(host, timeout=5)
            connection.request("POST", "/chat/completions", json.dumps(body()), {"Authorization": "Bearer sk-test"})
            status = connection.getresponse().status
            connection.close()
            return status

        with ThreadPoolExecutor(16) as pool:
            self.assertEqual(set(pool.map(once, range(64))), {200})
        self.assertEqual((len(self.fake.accepted), self.fake.connections), (64, 64))

    def test_closing_ends_idle_and_stalled_connections_and_their_threads(self) -> None:
        before = threading.active_count()
        fake = self.use()
        fake.answer(Answer(content="Hi.", stall_after=1))
        stalled = self.send(body(stream=True))
        stalled.readline()
        idle = socket.create_connection(("127.0.0.1", int(fake.url.rpartition(":")[2])))
        self.addCleanup(idle.close)
        began = time.monotonic()
        fake.close()
        self.assertLess(time.monotonic() - began, 1)
        self.assertEqual(threading.active_count(), before)
        self.assertFalse(fake.wait_for_hangup(0))
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(fake.url.rpartition(":")[2])))
        stalled.close()

    def test_closing_needs_no_start_and_may_be_repeated(self) -> None:
        fake = FakeDeepSeek()
        fake.close()
        fake.close()
