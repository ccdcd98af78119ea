"""Response streams: silence, breaks, disconnects, many at once; and encrypted content."""

import json
from dataclasses import replace

from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.fake_deepseek import Answer, Call, Failure, Raw
from tests.proxy.faults.test_client_disconnects import WAYS
from tests.proxy.features.responses.test_background import first_response
from tests.support.harness import PATIENCE, RunningProxy, read_until
from tests.support.polling import eventually
from tests.support.raw_streams import EVENT_STREAM, raw_stream
from tests.support.responses_client import PATH, TOOLS, Json, ResponsesTestCase, kinds, output, question

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
SEALED = "reasoning.encrypted_content"


class TestStreams(ResponsesTestCase):
    def test_the_events_of_a_response_come_in_order(self) -> None:
        self.fake.answer(Answer(reasoning="Hm.", content="Hi.", calls=(CALL,)))
        reply = self.create(self.proxy(), "q", stream=True, tools=TOOLS)
        part = ["response.output_item.added", "response.content_part.added", "response.output_text.delta"]
        part += ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
        thought = ["response.output_item.added", "response.content_part.added", "response.reasoning_text.delta"]
        thought += ["response.reasoning_text.done", "response.content_part.done"]
        call = ["response.output_item.added", "response.function_call_arguments.delta"]
        call += ["response.function_call_arguments.done", "response.output_item.done"]
        expected = ["response.created", "response.in_progress", *thought, "response.output_item.done", *part, *call]
        self.assertEqual([*expected, "response.completed"], kinds(reply.events))
        self.assertNotIn(b"[DONE]", reply.body)

    def test_a_requested_summary_is_streamed_alone(self) -> None:
        """Copilot sent reasoning with both, content and summary, back as the text of the answer."""
        self.fake.answer(Answer(reasoning="A longer thought than one piece.", content="Hi."))
        reply = self.create(self.proxy(), "q", stream=True, reasoning={"summary": "auto"})
        self.assertEqual([], [kind for kind in kinds(reply.events) if "reasoning_text" in kind])
        found = [kind for kind in kinds(reply.events) if "summary" in kind]
        self.assertEqual("response.reasoning_summary_part.added", found[0])
        self.assertEqual(["response.reasoning_summary_text.done", "response.reasoning_summary_part.done"], found[-2:])
        thought = reply.response["output"][0]
        expected = [{"type": "summary_text", "text": "A longer thought than one piece."}]
        self.assertEqual((expected, []), (thought["summary"], thought["content"]))
        # Sent back as it is, it is the reasoning, also if the proxy has lost its store.
        items = [{"role": "user", "content": "q"}, *reply.response["output"], {"role": "user", "content": "Go on."}]
        self.create(self.proxy(), items, tools=[{"type": "function", "name": "look"}])
        message = self.fake.accepted[-1]["messages"][1]
        self.assertEqual("A longer thought than one piece.", message["reasoning_content"])

    def test_the_item_in_which_a_response_breaks_is_never_done(self) -> None:
        """Codex keeps what is done in its history: half a thought stayed there."""
        answer = Answer("A long thought.", "A long text.", (CALL,), piece=4)
        for cut_after, kind in ((3, "reasoning"), (6, "message"), (9, "function_call")):
            with self.subTest(kind):
                self.fake.answer(replace(answer, cut_after=cut_after))
                reply = self.create(self.proxy(), "q", stream=True, tools=TOOLS)
                last = reply.response["output"][-1]
                self.assertEqual((kind, "incomplete"), (last["type"], last["status"]))
                done = [event for event in reply.events if event["type"].endswith(".done")]
                self.assertNotIn(last["id"], [event.get("item_id", event.get("item", {}).get("id")) for event in done])

    def test_a_plain_response_that_breaks_is_an_error_and_stores_nothing(self) -> None:
        self.fake.answer(Answer("Hm.", "Some text.", cut_after=20))
        self.assertEqual(502, self.create(self.running, "q").status)
        self.assertEqual(0, self.running.server.services().get(Responses).store.totals()[0])

    def test_a_disconnect_ends_the_call_and_the_response_is_stored_so_far(self) -> None:
        for leave in WAYS:
            with self.subTest(leave.__name__):
                self.fake.forget()
                proxy = self.proxy()
                self.fake.answer(Answer("A thought.", "Half of it.", piece=10, stall_after=3))
                with self.open_stream(proxy, "q") as sock:
                    response = first_response(read_until(sock, b"Half of it"))
                    leave(sock)
                    self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
                self.assertTrue(eventually(lambda: self.get(proxy, response).status == 200))  # noqa: B023
                found = self.get(proxy, response).value
                self.assertEqual("Half of it", found["output_text"])
                self.assertNotIn(found["status"], ("queued", "in_progress", "completed"))
                self.complete(proxy, "go on", tools=TOOLS, previous_response_id=response["id"])
                self.assert_upstream_saw("A thought.")

    def test_a_stop_fails_a_streamed_response_under_its_id(self) -> None:
        self.fake.answer(Answer("A thought.", "Half of it.", piece=10, stall_after=3))
        with self.open_stream(self.running, "q") as sock:
            seen = read_until(sock, b"Half of it")
            self.running.server.shutdown()
            self.running.server.drain(0)
            seen += read_until(sock, b"event: response.failed")
        self.assertIn(b"being stopped or restarted", seen)


OVERFLOW = "This model's maximum context length is 1048576 tokens. However, you requested 1100000 tokens."


class TestContextLength(ResponsesTestCase):
    """Codex says its own sentence when this code comes in an event, and quotes a 400 as it is."""

    def too_long(self) -> None:
        self.fake.answer(Failure(400, OVERFLOW, "invalid_request_error", "invalid_request_error"))

    def test_a_streamed_response_that_is_too_long_fails_with_the_code_of_codex(self) -> None:
        self.too_long()
        reply = self.create(self.running, "q", stream=True)
        self.assertEqual(200, reply.status)
        self.assertEqual(["response.created", "response.in_progress", "response.failed"], kinds(reply.events))
        error = reply.response["error"]
        self.assertEqual(("failed", "context_length_exceeded"), (reply.response["status"], error["code"]))
        self.assertIn("1048576 tokens", error["message"])
        self.assertEqual(reply.response, self.get(self.running, reply.response).value)

    def test_a_plain_response_that_is_too_long_is_refused_and_another_refusal_keeps_its_code(self) -> None:
        self.too_long()
        reply = self.create(self.proxy(), "q")
        self.assertEqual((400, "context_length_exceeded"), (reply.status, reply.error["code"]))
        self.fake.answer(Failure(400, "No.", "invalid_request_error", "invalid_request_error"))
        self.assertEqual(400, self.create(self.proxy(), "q", stream=True).status)

    def test_a_background_response_that_is_too_long_fails_with_the_code_of_codex(self) -> None:
        self.too_long()
        response = self.create(self.running, "q", background=True).value
        self.assertTrue(eventually(lambda: self.get(self.running, response).value["status"] == "failed"))
        self.assertEqual("context_length_exceeded", self.get(self.running, response).value["error"]["code"])

    def test_a_context_length_error_inside_the_stream_has_the_code_of_codex(self) -> None:
        event = b'data: {"error": {"message": "%b", "code": null}}\n\n' % OVERFLOW.encode()
        self.fake.answer(Raw(EVENT_STREAM + event))
        reply = self.create(self.proxy(), "q", stream=True)
        self.assertEqual("context_length_exceeded", reply.response["error"]["code"])


class TestUpgrades(ResponsesTestCase):
    def test_a_web_socket_upgrade_is_refused_as_codex_expects(self) -> None:
        headers = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGg=")
        for path in (PATH, "/responses", f"{PATH}/"):
            reply = self.call(self.running, "GET", path, headers=headers)
            self.assertEqual(426, reply.status, reply.body)
        self.assertEqual(200, self.create(self.running, "q").status)


class TestEncryptedContent(ResponsesTestCase):
    """Clients that drop the reasoning but keep its envelope, on a proxy that has lost its database."""

    def sealed(self, proxy: RunningProxy, **details: str) -> list[Json]:
        """A history as opencode sends it: no ids, no reasoning, only the envelope."""
        self.fake.answer(Answer("A sealed thought.", calls=(CALL,)))
        answer = self.complete(proxy, "q", tools=TOOLS, store=False, include=[SEALED], **details)
        thought, call = ({name: each[name] for name in each if name != "id"} for each in answer["output"])
        self.assertEqual(["reasoning", "function_call"], kinds(answer["output"]))
        return [question("q"), {**thought, "content": None}, call, output(CALL.id)]

    def test_encrypted_content_restores_the_reasoning(self) -> None:
        history = self.sealed(self.proxy_with_new_store())
        for stream in (True, False):
            self.complete(self.proxy_with_new_store(), history, tools=TOOLS, stream=stream)
            self.assert_upstream_saw("A sealed thought.")

    def test_encrypted_content_is_only_sent_when_requested(self) -> None:
        answer = self.complete(self.proxy(), "q", store=False)
        self.assertNotIn("encrypted_content", answer["output"][0])

    def test_foreign_encrypted_content_restores_nothing(self) -> None:
        history = self.sealed(self.proxy_with_new_store())
        envelope = history[1]["encrypted_content"]
        flipped = envelope[:40] + ("A" if envelope[40] != "A" else "B") + envelope[41:]
        others = self.sealed(self.proxy_with_new_store(), key="sk-other")[1]["encrypted_content"]
        for name, other in {
            "cut": envelope[:-4], "changed": flipped, "another caller's": others, "another secret's": envelope,
            "made up": "gAAAAABo", "empty": "", "not ASCII": "é" * 40,
        }.items():  # fmt: skip
            with self.subTest(name):
                self.fake.forget()
                proxy = self.proxy() if other is envelope else self.proxy_with_new_store()
                reply = self.create(proxy, [history[0], {**history[1], "encrypted_content": other}, *history[2:]])
                self.assertEqual(200, reply.status, reply.body)
                self.assertNotIn("A sealed thought.", str(self.fake.seen[-1].payload))
                self.assertEqual([], self.fake.refused)


class TestLogprobs(ResponsesTestCase):
    """DeepSeek tells them with its chunks; they were asked for, paid for and dropped."""

    FOUND: tuple[Json, ...] = (
        {"token": "R", "logprob": -0.5, "bytes": [82], "top_logprobs": [{"token": "S", "logprob": -1, "bytes": None}]},
        {"token": "雨", "logprob": -2.0, "bytes": None, "top_logprobs": []},
        {"token": 7, "logprob": -2.0},
        {"token": "x", "logprob": "high"},
    )
    REPORTED: tuple[Json, ...] = (
        {"token": "R", "logprob": -0.5, "bytes": [82], "top_logprobs": [{"token": "S", "logprob": -1, "bytes": [83]}]},
        {"token": "雨", "logprob": -2.0, "bytes": [233, 155, 168], "top_logprobs": []},
    )

    def answered(self, *, stream: bool) -> Raw:
        name = "delta" if stream else "message"
        pieces = [("R", self.FOUND[:1]), ("雨", self.FOUND[1:])] if stream else [("R雨", self.FOUND)]
        choices = [{name: {"content": text}, "logprobs": {"content": each}} for text, each in pieces]
        choices[-1]["finish_reason"] = "stop"
        if stream:
            return raw_stream(*choices)
        body = json.dumps({"choices": [{"index": 0, **choices[0]}]}).encode()
        return Raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body)

    def test_logprobs_come_with_the_text_and_its_deltas(self) -> None:
        for asked in ({"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}, {"logprobs": True}):
            for stream in (True, False):
                with self.subTest(asked, stream=stream):
                    self.fake.answer(self.answered(stream=stream))
                    reply = self.create(self.proxy(), "q", stream=stream, **asked)
                    [item] = reply.response["output"]
                    self.assertEqual(list(self.REPORTED), item["content"][0]["logprobs"])
                    self.assertEqual(asked.get("top_logprobs", 0), reply.response["top_logprobs"])
                    sent = self.fake.seen[-1].payload
                    self.assertEqual((True, asked.get("top_logprobs")), (sent["logprobs"], sent.get("top_logprobs")))
                    if stream:
                        pieces = [each["logprobs"] for each in reply.events if each["type"].endswith("text.delta")]
                        self.assertEqual([[self.REPORTED[0]], [self.REPORTED[1]]], pieces)

    def test_a_response_with_logprobs_can_be_continued(self) -> None:
        self.fake.answer(self.answered(stream=True))
        first = self.create(self.running, "q", stream=True, top_logprobs=2).response
        self.complete(self.running, "go on", previous_response_id=first["id"])
        self.assertEqual("R雨", self.fake.accepted[-1]["messages"][1]["content"])

    def test_more_logprobs_than_deepseek_has_are_refused(self) -> None:
        for wrong in (21, -1, "5", True):
            reply = self.create(self.proxy(), "q", top_logprobs=wrong)
            self.assertEqual((400, "top_logprobs"), (reply.status, reply.error["param"]), wrong)
