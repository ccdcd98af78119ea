"""The scripted Cursor: what it sends, what it echoes, what it reports, and the loop it plays with the fake."""

import unittest
from typing import Any

from tests.fake_deepseek import Answer, Call, FakeDeepSeek, weather_responder
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
