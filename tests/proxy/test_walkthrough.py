"""Whole chats over real sockets: client says → DeepSeek must see → DeepSeek answers → client must see."""

import json
import threading
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents, StreamReader
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE
from deepseek_cursor_proxy.server.connections import ClientConnection
from deepseek_cursor_proxy.upstream import response
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw, Rules, weather_responder
from tests.support.cursor import WEATHER_TOOLS, CursorClient, run_weather_tool
from tests.support.harness import PATIENCE, SocketTestCase, chat_body, read_until
from tests.support.histories import CALLED, TOOLS, tool_calls
from tests.support.polling import eventually
from tests.support.raw_streams import EVENT_STREAM, raw_stream, streamed

WITH_TOOLS = chat_body(tools=TOOLS, stream=True)
CALL = Call("call_1", "read_file", '{"path": "a.py"}')
WORDS = "The `reasoning_content` in the thinking mode must be passed back to the API."
REFUSAL = Failure(400, WORDS, "invalid_request_error", "invalid_request_error")


def block(reasoning: str) -> str:
    return f"<details>\n<summary>Thinking</summary>\n\n{reasoning}\n</details>\n\n"


class TestChat(SocketTestCase):
    def test_the_weather_loop_keeps_its_prefix_and_every_reasoning_byte_for_byte(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream), FakeDeepSeek(responder=weather_responder) as fake:
                proxy = self.proxy(upstream_base_url=fake.url)
                client = CursorClient(proxy.url, tools=WEATHER_TOOLS, stream=stream, run_tool=run_weather_tool)
                with client:
                    turns = [client.ask("How is the weather here?"), client.ask("And tomorrow?")]
                shown = [thinking_blocks.block_at(answer.content) for turn in turns for answer in turn.answers]
                thought = [found.reasoning if found else None for found in shown]
                self.assertEqual(4, len(thought))
                self.assertEqual([], fake.refused)
                messages = fake.accepted[-1]["messages"]
                sent = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
                self.assertEqual(thought[:3], sent)
                self.assertFalse(any("<details>" in str(message["content"]) for message in messages))
                for before, after in zip(fake.accepted, fake.accepted[1:], strict=False):
                    self.assertEqual(before["messages"], after["messages"][: len(before["messages"])])
                    self.assertEqual(before["tools"], after["tools"])

    def test_the_client_sees_the_thinking_and_the_answer(self) -> None:
        self.fake.answer(Answer(reasoning="Hm.", content="Hello."), Answer(reasoning="Hm.", content="Hello."))
        for stream in (True, False):
            client = self.client(self.proxy(), stream=stream, model="my-model")
            answer = client.ask("hi").final
            self.assertEqual(block("Hm.") + "Hello.", answer.content)
            self.assertEqual("" if stream else "Hm.", answer.reasoning)
            self.assertEqual("stop", answer.finish_reason)
            if stream:
                self.assertTrue(answer.done)
                self.assertEqual({"my-model"}, {event["model"] for event in answer.events})

    def test_a_stream_has_the_reasoning_once(self) -> None:
        thought = "Is a < b? " * 40
        for is_shown in (True, False):
            # Whole runs at once, and chunk by chunk.
            for pause in (0.0, 0.002):
                self.fake.answer(Answer(reasoning=thought, content="Yes. " * 10, calls=(CALL,), pause=pause))
                answer = self.client(self.proxy(display_reasoning=is_shown)).post([{"role": "user", "content": "hi"}])
                with self.subTest(is_shown=is_shown, pause=pause):
                    self.assertEqual((block(thought) if is_shown else "") + "Yes. " * 10, answer.content)
                    self.assertEqual("" if is_shown else thought, answer.reasoning)
                    self.assertEqual((CALL,), answer.calls)

    def test_display_can_be_plain_or_off(self) -> None:
        for settings, shown in (
            ({"collapsible_reasoning": False}, "<think>\nHm.\n</think>\n\nHello."),
            ({"display_reasoning": False}, "Hello."),
        ):
            self.fake.answer(Answer(reasoning="Hm.", content="Hello."))
            client = self.client(self.proxy(**settings))
            self.assertEqual(shown, client.ask("hi").final.content)
            client.ask("again")
            self.assert_upstream_saw("Hm.")
            self.assertEqual("Hello.", self.fake.accepted[-1]["messages"][2]["content"])

    def test_the_key_goes_upstream_as_it_came_and_nothing_else_does(self) -> None:
        self.client(self.proxy(), key="sk-secret").ask("hi")
        headers = self.fake.seen[-1].headers
        self.assertEqual("Bearer sk-secret", headers["authorization"])
        self.assertEqual("identity", headers["accept-encoding"])
        self.assertNotIn("x-forwarded-for", headers)

    def test_a_proxy_with_an_empty_store_restores_from_the_thinking_block(self) -> None:
        self.fake.answer(Answer("Shown </details> once.", calls=(CALL,)), Answer("B.", "C."))
        client = self.client(self.proxy())
        client.ask("hi")
        fresh = self.client(self.proxy())
        fresh.messages = client.messages
        fresh.ask("go on")
        self.assert_upstream_saw("Shown </details> once.", "B.")


class TestMissingReasoning(SocketTestCase):
    HISTORY = (
        {"role": "system", "content": "S"}, {"role": "user", "content": "U"}, CALLED,
        {"role": "tool", "tool_call_id": "call_9", "content": "the result"}, {"role": "user", "content": "U2"},
    )  # fmt: skip

    def test_recover_replays_as_text_with_one_notice_and_keeps_the_prefix(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.fake.forget()
                client = self.client(self.proxy(), stream=stream)
                client.messages = [*self.HISTORY[:-1]]
                self.fake.answer(Answer(reasoning="R2.", content="A2."))
                first = client.ask("U2").final
                self.assertEqual(block("R2.") + NOTICE + "A2.", first.content)
                sent = self.fake.accepted[-1]["messages"]
                self.assertEqual(["system", "system", "user"], [message["role"] for message in sent])
                self.assertIn("the result", sent[1]["content"])
                second = client.ask("U3").final
                self.assertNotIn(NOTICE, second.content)
                self.assertEqual(sent, self.fake.accepted[-1]["messages"][:3])
                self.assert_upstream_saw("R2.")
                self.assertEqual([], self.fake.refused)

    def test_placeholder_fills_missing_reasoning(self) -> None:
        client = self.client(self.proxy(missing_reasoning_strategy="placeholder"))
        self.assertEqual(200, client.post(self.HISTORY).status)
        self.assert_upstream_saw(" ")
        self.assertEqual(5, len(self.fake.accepted[-1]["messages"]))

    def test_without_thinking_no_reasoning_is_restored_or_missing(self) -> None:
        client = self.client(self.proxy(thinking="disabled", missing_reasoning_strategy="reject"))
        answer = client.post([*self.HISTORY[:2], {"role": "assistant", "content": "x", "reasoning_content": "y"}])
        self.assertEqual(200, answer.status)
        sent = self.fake.accepted[-1]
        self.assertEqual({"type": "disabled"}, sent["thinking"])
        self.assertNotIn("reasoning_effort", sent)
        self.assertNotIn("reasoning_content", sent["messages"][-1])

    def test_a_forced_tool_is_sent_without_thinking(self) -> None:
        request = chat_body(tools=TOOLS, tool_choice="required")
        self.assertEqual(200, self.round_trip(self.proxy(), request).status)
        self.assertEqual("disabled", self.fake.accepted[-1]["thinking"]["type"])


class TestRefusals(SocketTestCase):
    def test_a_refusal_of_missing_reasoning_is_recovered_unseen_by_the_client(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.fake.forget()
                client = self.client(self.proxy(), stream=stream)
                client.messages += [{"role": "user", "content": "q"}, {"role": "assistant", "content": "plain"}]
                self.fake.answer(REFUSAL, Answer(reasoning="R.", content="Good."))
                answer = client.ask("next").final
                self.assertEqual((200, block("R.") + NOTICE + "Good."), (answer.status, answer.content))
                self.assertEqual([400, 200], [seen.status for seen in self.fake.seen])
                self.assertIn("plain", self.fake.accepted[-1]["messages"][1]["content"])

    def test_the_strictest_deepseek_still_gets_an_answer(self) -> None:
        """A V4-Pro that refuses empty reasoning takes the space that stands for it."""
        with FakeDeepSeek(rules=Rules(refuses_empty=True)) as fake:
            client = self.client(self.proxy(upstream_base_url=fake.url))
            answer = {"role": "assistant", "content": "plain", "reasoning_content": ""}
            client.messages += [{"role": "user", "content": "q"}, answer]
            self.assertEqual(200, client.ask("next").final.status)
            self.assertEqual([], fake.refused)

    def test_a_second_refusal_of_missing_reasoning_is_502(self) -> None:
        self.fake.answer(REFUSAL, REFUSAL)
        answer = self.client(self.proxy()).ask("hi").final
        self.assertEqual(502, answer.status)
        self.assertEqual(2, len(self.fake.seen))

    def test_with_reject_a_refusal_becomes_409(self) -> None:
        self.fake.answer(REFUSAL)
        client = self.client(self.proxy(missing_reasoning_strategy="reject"))
        client.messages += [{"role": "user", "content": "q"}, {"role": "assistant", "content": "plain"}]
        self.assertEqual(409, client.ask("next").final.status)

    def test_other_errors_pass_with_status_and_type_and_say_what_to_do(self) -> None:
        for failure, remedy in (
            (Failure(400, "no such thing", "invalid_request_error", "invalid_request_error"), ""),
            (Failure(401, "wrong key", "authentication_error", "invalid_request_error"), "Check the DeepSeek key"),
            (Failure(402, "Insufficient Balance"), "Top up the balance"),
            (Failure(429, "slow down", headers=(("Retry-After", "7"),)), "Wait 7 seconds"),
            (Failure(500, "sorry"), "Try again"),
        ):
            self.fake.answer(failure)
            answer = self.client(self.proxy()).ask("hi").final
            self.assertEqual(failure.status, answer.status)
            self.assertEqual((failure.type, failure.code), (answer.error["type"], answer.error["code"]))
            self.assertIn(failure.message, answer.error["message"])
            self.assertIn(remedy, answer.error["message"])

    def test_a_chat_that_is_too_long_has_the_words_that_make_cursor_summarise(self) -> None:
        said = "This model's maximum context length is 1048576 tokens. However, you requested 1200000 tokens."
        self.fake.answer(Failure(400, said, "invalid_request_error", "invalid_request_error"))
        answer = self.client(self.proxy()).ask("hi").final
        self.assertEqual((400, "context_length_exceeded"), (answer.status, answer.error["code"]))
        self.assertIn("resulted in 1200000 tokens", answer.error["message"])

    def test_a_refusal_is_recovered_on_every_path_or_explained(self) -> None:
        error = b"data: " + json.dumps({"error": {"message": REFUSAL.message}}).encode() + b"\n\n"
        head = EVENT_STREAM
        role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
        good = Answer(reasoning="R.", content="Good.")
        for name, steps, is_good in (
            ("dropped, then refused", (Raw(head), REFUSAL, good), True),
            ("a comment first", (Raw(head + b": keep-alive\n\n" + error), good), True),
            ("the role first", (Raw(head + role + error), good), True),
            ("refused, then inside the stream", (REFUSAL, Raw(head + error)), False),
            ("inside the stream twice", (Raw(head + error), Raw(head + error)), False),
        ):
            with self.subTest(name):
                self.fake.forget()
                self.fake.answer(*steps)
                answer = self.client(self.proxy(retry_budget=5)).ask("hi").final
                told = json.dumps([answer.content, answer.error])
                self.assertNotIn("must be passed back", told)
                self.assertEqual(is_good, answer.is_whole, told)

    def test_an_error_that_quotes_the_key_is_passed_on_without_it(self) -> None:
        for key, told in (("sk-very-secret-key", "*** is wrong."), ("is", "is is wrong.")):
            self.fake.answer(Failure(401, f"{key} is wrong"))
            error = self.client(self.running, key=key).ask("hi").final.error
            self.assertEqual(told, error["message"].partition(" Check")[0])


class TestEnds(SocketTestCase):
    def test_reasoning_is_stored_before_the_client_gets_a_whole_call_or_the_finish_reason(self) -> None:
        end = b'"finish_reason":"tool_calls"'
        for mark, pieces in ((b"a.py", {"stall_after": 4, "piece": 100}), (end, {"stall_after": 6})):
            with self.subTest(mark):
                proxy = self.proxy(display_reasoning=False)
                self.fake.forget()
                self.fake.answer(Answer(reasoning="Known early.", calls=(CALL,), **pieces))
                seen = read_until(self.connect(proxy, WITH_TOOLS), mark)
                self.assertEqual((mark == end, 1), (end in seen, proxy.store.stats().reasonings))
                self.fake.release.set()

    def test_json_output_has_no_thinking_block(self) -> None:
        request = {"messages": [{"role": "user", "content": "json"}], "response_format": {"type": "json_object"}}
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.fake.answer(Answer(reasoning="Think.", content='{"a": 1}'))
                body = self.round_trip(self.running, {**request, "stream": stream})[2]
                self.assertIn(rb"{\"a\": 1}", body)
                self.assertNotIn(b"<details>", body)

    def test_events_before_the_end_do_not_wait_for_the_disk(self) -> None:
        """Not even when DeepSeek says it all at once."""
        proxy = self.proxy(display_reasoning=False)
        self.fake.answer(streamed({"reasoning_content": "Hm."}, {"content": "Words."}))
        written, record = threading.Event(), proxy.store.record
        self.addCleanup(written.set)

        def slowly(*given: Any, **options: Any) -> None:
            written.wait(PATIENCE)
            record(*given, **options)

        with mock.patch.object(proxy.store, "record", slowly):
            sock = self.connect(proxy, chat_body(stream=True))
            self.assertNotIn(b'"stop"', read_until(sock, b"Words."))
            written.set()
            read_until(sock, b"[DONE]")

    def test_the_first_event_is_sent_before_anything_else_is_read_or_stored(self) -> None:
        """Neither for those that came with it, nor until it is noted that DeepSeek accepted the call."""
        proxy = self.proxy(display_reasoning=False)
        self.fake.answer(streamed({"role": "assistant", "content": ""}, {"content": "one "}, {"content": "two"}))
        has_begun, record_sent, read = threading.Event(), Attempt.record_sent, StreamReader.read
        self.addCleanup(has_begun.set)

        def record_later(attempt: Attempt) -> None:
            has_begun.wait(PATIENCE)
            record_sent(attempt)

        def read_later(reader: StreamReader, data: bytes) -> ParsedEvents:
            if b"one" in data:
                has_begun.wait(PATIENCE)
            return read(reader, data)

        with (
            mock.patch.object(Attempt, "record_sent", record_later),
            mock.patch.object(StreamReader, "read", read_later),
        ):
            sock = self.connect(proxy, chat_body(stream=True))
            self.assertNotIn(b"one", read_until(sock, b'"role"'))
            has_begun.set()
            read_until(sock, b"two")

    def test_an_answer_of_one_event_is_stored_before_that_is_sent(self) -> None:
        """From then on the chat may go on."""
        order: list[str] = []
        record_sent, send = Attempt.record_sent, ClientConnection.send

        def track(attempt: Attempt) -> None:
            record_sent(attempt)
            order.append("recorded")

        def sent(connection: ClientConnection, data: bytes, flags: int = 0) -> None:
            order.append("ended" if b'"stop"' in data else "sent")
            send(connection, data, flags)

        proxy = self.proxy()
        self.fake.answer(raw_stream({"delta": {"content": "All of it."}, "finish_reason": "stop"}))
        with mock.patch.object(Attempt, "record_sent", track), mock.patch.object(ClientConnection, "send", sent):
            self.assertIn(b"[DONE]", self.round_trip(proxy, chat_body(stream=True))[2])
        self.assertLess(order.index("recorded"), order.index("ended"))

    def test_a_turn_with_calls_is_stored_once(self) -> None:
        """It is known as soon as its calls are whole; that it ends then is no news."""
        self.fake.answer(Answer(reasoning="Look there.", calls=(CALL,)))
        with mock.patch.object(self.running.store, "record", wraps=self.running.store.record) as record:
            self.assertIn(b"[DONE]", self.round_trip(self.running, WITH_TOOLS).body)
        self.assertEqual(1, record.call_count)

    def test_twenty_parallel_calls_store_their_reasoning_once(self) -> None:
        calls = tuple(Call(f"call_{number:02}_AbCdEfGhIjKlMnOpQrSt", CALL.name, CALL.arguments) for number in range(20))
        for stream in (True, False):
            with self.subTest(stream=stream):
                proxy = self.proxy()
                self.fake.answer(Answer(reasoning="Look everywhere.", calls=calls, piece=1000))
                body = chat_body(model="deepseek-v4-pro", tools=TOOLS, stream=stream)
                with mock.patch.object(proxy.store, "record", wraps=proxy.store.record) as record:
                    self.assertEqual(200, self.round_trip(proxy, body).status)
                self.assertLessEqual(record.call_count, 2 if stream else 1)
                self.assertEqual(1, proxy.store.stats().reasonings)
                # All of them, or what was whole when somebody stopped the answer.
                for count in (20, 1, 3):
                    results = [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in calls[:count]]
                    turn = {"role": "assistant", "content": "", "tool_calls": tool_calls(calls[:count])}
                    again = {**body, "messages": [*body["messages"], turn, *results]}
                    self.assertEqual(200, self.round_trip(proxy, again).status)
                    self.assert_upstream_saw("Look everywhere.")

    def test_a_stopped_stream_still_stores_its_reasoning(self) -> None:
        self.fake.answer(Answer(reasoning="Half a thought, and more of it.", content="never said", stall_after=3))
        with self.connect(self.running, WITH_TOOLS) as sock:
            read_until(sock, b"thought")
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
        self.assertTrue(eventually(lambda: self.running.store.stats().reasonings == 1))

    def test_done_ends_the_answer_even_if_the_connection_stays_open(self) -> None:
        self.fake.answer(Answer(content="y", stall_after=4))
        answer = self.client(self.proxy()).ask("hi").final
        self.assertEqual((True, True), (answer.is_whole, answer.done))

    def test_a_finished_answer_without_done_is_ended_soon(self) -> None:
        self.enterContext(mock.patch.object(response, "_USAGE_SECONDS", 0.05))
        self.fake.answer(Answer(content="y", stall_after=3))
        answer = self.client(self.proxy()).ask("hi").final
        self.assertEqual(("stop", None, True), (answer.finish_reason, answer.error, answer.done))
