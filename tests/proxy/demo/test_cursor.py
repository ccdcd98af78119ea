"""The scripted Cursor: what it sends, what it echoes, what it reports, and the loop it plays with the fake."""

import unittest
from typing import Any

from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw, weather_responder
from tests.fake_deepseek.contract import MISSING_REASONING
from tests.support.cursor import WEATHER_TOOLS, ClientAnswer, CursorClient, echo

HI = {"role": "user", "content": "Hi"}
CALL = Call("call_00_abc", "get_location", '{"why": "weather"}')


class ClientCase(unittest.TestCase):
    def setUp(self) -> None:
        self.use()

    def use(self, **how: Any) -> None:
        self.fake = FakeDeepSeek(**how)
        self.addCleanup(self.fake.close)
        self.fake.start()

    def client(self, prefix: str = "", kind: type[CursorClient] = CursorClient, **how: Any) -> CursorClient:
        client = kind(self.fake.url + prefix, **how)
        self.addCleanup(client.close)
        return client


class TestRequests(ClientCase):
    def test_a_request_has_cursors_fields(self) -> None:
        for prefix in ("", "/v1", "/v1/"):
            self.client(prefix, tools=WEATHER_TOOLS, system="Be kind.").ask("Hi")
        paths = ["/chat/completions", "/v1/chat/completions", "/v1/chat/completions"]
        self.assertEqual([seen.path for seen in self.fake.seen], paths)
        payload = self.fake.accepted[0]
        self.assertEqual(sorted(payload), ["messages", "model", "stream", "stream_options", "tools", "user"])
        self.assertEqual(payload["messages"], [{"role": "system", "content": "Be kind."}, HI])
        self.assertEqual(self.fake.seen[0].headers["authorization"], "Bearer sk-test")

    def test_without_tools_or_streaming_those_fields_are_left_out(self) -> None:
        self.client(stream=False).post([HI])
        self.assertEqual(sorted(self.fake.accepted[0]), ["messages", "model", "stream", "user"])

    def test_all_requests_share_one_connection(self) -> None:
        client = self.client()
        for question in ("One?", "Two?", "Three?"):
            client.ask(question)
        client.stream = False
        client.ask("Four?")
        self.assertEqual(self.fake.connections, 1)


class TestAnswers(ClientCase):
    def test_a_streamed_answer_equals_the_whole_one(self) -> None:
        answer = Answer("Where?", "Looking.", (CALL, Call("call_01_def", "get_weather", "{}")), piece=3)
        self.fake.answer(answer, answer)
        streamed, whole = self.client().post([HI]), self.client(stream=False).post([HI])
        for seen in (streamed, whole):
            self.assertEqual((seen.content, seen.reasoning, seen.calls), ("Looking.", "Where?", answer.calls))
            self.assertEqual((seen.status, seen.finish_reason, seen.error), (200, "tool_calls", None))
            assert seen.usage is not None
            self.assertGreater(seen.usage["completion_tokens"], 0)
        self.assertTrue(streamed.done)
        self.assertGreater(len(streamed.events), len(whole.events))

    def test_comments_are_counted_and_blank_lines_ignored(self) -> None:
        self.fake.answer(Answer(content="Hi.", comments=3), Answer(content="Hi.", comments=3))
        self.assertEqual(self.client().post([HI]).comments, 3)
        self.assertEqual(self.client(stream=False).post([HI]).content, "Hi.")

    def test_a_refusal_is_an_answer_with_its_status_and_error(self) -> None:
        self.fake.answer(Failure(429, "Too many."), Failure(502, body=b"<html>"))
        client = self.client()
        turn = client.ask("Hi?")
        self.assertEqual((turn.final.status, turn.final.is_whole), (429, False))
        self.assertEqual((turn.final.error or {})["message"], "Too many.")
        self.assertEqual((client.post().error or {})["message"], "<html>")
        self.assertEqual([message["role"] for message in client.messages], ["system", "user"])

    def test_a_cut_answer_is_reported_not_raised_and_not_echoed(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.fake.answer(Answer("Thinking.", "Hi.", cut_after=2))
                client = self.client(stream=stream)
                turn = client.ask("Hi?")
                self.assertTrue(turn.final.cut)
                self.assertFalse(turn.final.done or turn.final.is_whole)
                self.assertEqual(client.messages[-1]["role"], "user")
                self.assertEqual(client.post().content, "Hello.")

    def test_an_error_inside_a_stream_is_the_answers_error(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        self.fake.answer(Raw(head + b'data: {"error":{"message":"Broken."}}\r\n\r\ndata: [DONE]\r\n\r\n'))
        turn = self.client().ask("Hi?")
        self.assertEqual((turn.final.error, turn.final.done), ({"message": "Broken."}, True))
        self.assertFalse(turn.final.is_whole)


class TestEchoes(unittest.TestCase):
    def test_cursor_echoes_what_it_showed_and_drops_the_reasoning(self) -> None:
        shown = "<details>\n<summary>Thinking</summary>\n\nHmm.\n</details>\n\nHi. "
        echoed = echo(ClientAnswer(200, content=shown, reasoning="Hmm."))
        self.assertEqual(echoed, {"role": "assistant", "content": shown})

    def test_cursor_echoes_calls_with_their_ids_and_null_when_there_was_no_text(self) -> None:
        function = {"name": "get_location", "arguments": '{"why": "weather"}'}
        calls = [{"id": "call_00_abc", "type": "function", "function": function}]
        echoed = echo(ClientAnswer(200, reasoning="Hmm.", calls=(CALL,)))
        self.assertEqual(echoed, {"role": "assistant", "content": None, "tool_calls": calls})


class TestWeatherLoop(ClientCase):
    def test_the_fake_refuses_cursors_stripped_history(self) -> None:
        """The bug this project exists for, played without the proxy."""
        self.use(responder=weather_responder)
        turn = self.client(tools=WEATHER_TOOLS).ask("Do I need an umbrella?")
        self.assertEqual([answer.status for answer in turn.answers], [200, 400])
        self.assertEqual((turn.final.error or {})["message"], MISSING_REASONING)

    def test_four_turns_are_played_when_the_reasoning_comes_back(self) -> None:
        self.use(responder=weather_responder)
        for stream in (True, False):
            with self.subTest(stream=stream):
                client = self.client(kind=Remembering, tools=WEATHER_TOOLS, stream=stream)
                answers = (*client.ask("Do I need an umbrella?").answers, *client.ask("Really?").answers)
                called = [[call.name for call in answer.calls] for answer in answers]
                self.assertEqual(called, [["get_location"], ["get_weather"], [], []])
                self.assertEqual([bool(answer.content) for answer in answers], [False, True, True, True])
                self.assertEqual(len({answer.reasoning for answer in answers}), 4)
                roles = "system user assistant tool assistant tool assistant user assistant"
                self.assertEqual([message["role"] for message in client.messages], roles.split())

    def test_a_history_with_its_reasoning_hits_more_of_the_cache_each_turn(self) -> None:
        self.use(responder=weather_responder)
        answers = self.client(kind=Remembering, tools=WEATHER_TOOLS).ask("Do I need an umbrella?").answers
        hits = [(answer.usage or {})["prompt_cache_hit_tokens"] for answer in answers]
        self.assertTrue(0 == hits[0] < hits[1] < hits[2], hits)

    def test_ids_look_like_deepseeks_and_follow_from_the_history(self) -> None:
        def first_call(question: str) -> Call:
            messages = [{"role": "user", "content": question}]
            return weather_responder({"messages": messages, "tools": list(WEATHER_TOOLS)}).calls[0]

        self.assertRegex(first_call("Rain?").id, r"\Acall_00_[0-9A-Za-z]{24}\Z")
        self.assertEqual(first_call("Rain?"), first_call("Rain?"))
        self.assertNotEqual(first_call("Rain?").id, first_call("Snow?").id)

    def test_a_request_without_tools_gets_a_plain_answer(self) -> None:
        self.assertEqual(weather_responder({"messages": [{"role": "user", "content": "Rain?"}]}).calls, ())

    def test_a_model_that_never_stops_calling_is_stopped(self) -> None:
        self.use(responder=lambda payload: Answer(" ", calls=(CALL,)))
        client = self.client(kind=Remembering, tools=WEATHER_TOOLS)
        self.assertEqual(len(client.ask("Rain?").answers), 20)


class Remembering(CursorClient):
    """A Cursor that keeps the reasoning, as the proxy makes it look to DeepSeek."""

    def __init__(self, base_url: str, **how: Any) -> None:
        super().__init__(base_url, **how)
        self.thoughts: dict[int, dict[str, str | None]] = {}

    def post(self, messages: Any = None) -> ClientAnswer:
        history = [{**message, **self.thoughts.get(at, {})} for at, message in enumerate(self.messages)]
        answer = super().post(history)
        self.thoughts[len(self.messages)] = {"reasoning_content": answer.reasoning}
        return answer
