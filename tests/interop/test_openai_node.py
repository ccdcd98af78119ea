"""The official `openai` package for JavaScript through the proxy, against the strict fake.

Its streaming helpers add events up strictly: an event about a part that was never added ends the stream with an error.
"""

from typing import Any

from tests.fake_deepseek import Answer, weather_responder
from tests.interop.command_line import AWKWARD, MODEL, Json, NodeCase
from tests.interop.test_openai_responses import VARIANTS
from tests.support.cursor import WEATHER_TOOLS

# Pinned: seen to run on Node 20 and 22, though it asks for 22.
OPENAI = "openai@7.53.0"

QUESTION: Json = {"model": MODEL, "messages": [{"role": "user", "content": "What is the weather here?"}]}


class OpenAINodeCase(NodeCase):
    needs = (OPENAI,)

    def ask(self, *requests: tuple[str, Json], **settings: Any) -> list[Json]:
        url = self.start_proxy(**settings)
        asked = [{"method": method, "body": body} for method, body in requests]
        outcomes: list[Json] = self.run_script("openai_node.mjs", baseURL=f"{url}/v1", requests=asked)
        self.assertEqual([one["error"] for one in outcomes if "error" in one], [], self.output)
        return outcomes


class ResponseStreamTest(OpenAINodeCase):
    def script(self, payload: Json) -> Answer:
        return list(VARIANTS.values())[len(self.said)].answer

    def test_every_kind_of_response_streams_to_the_object_that_is_stored(self) -> None:
        outcomes = self.ask(*(("responseStream", variant.body) for variant in VARIANTS.values()))
        for (name, variant), outcome in zip(VARIANTS.items(), outcomes, strict=True):
            with self.subTest(name):
                answer, final = variant.answer, outcome["final"]
                self.assertEqual(final["status"], variant.status)
                self.assertEqual(without_the_helpers_own(final), without_the_helpers_own(outcome["stored"]))
                thoughts = [search.reasoning for search in answer.searches] + [answer.reasoning or ""]
                texts = [search.text for search in answer.searches] + [answer.content or ""]
                self.assertEqual(outcome["told"]["reasoning"], "".join(thoughts))
                self.assertEqual(outcome["told"]["text"], "".join(texts))


def without_the_helpers_own(response: Any) -> Any:
    """A response without what the helper parsed out of it for its caller."""
    if isinstance(response, list):
        return [without_the_helpers_own(each) for each in response]
    if not isinstance(response, dict):
        return response
    own = ("parsed", "parsed_arguments", "output_parsed")
    return {name: without_the_helpers_own(value) for name, value in response.items() if name not in own}


class ChatStreamTest(OpenAINodeCase):
    said_content = "It is *raining*.\n"

    def script(self, payload: Json) -> Answer:
        return Answer(f"Rain?{AWKWARD}```sh\nrm -rf .\n", self.said_content)

    def test_the_thinking_of_a_stream_is_told_once_and_never_in_its_content(self) -> None:
        [reply] = self.ask(("chatChunks", QUESTION))
        self.assertEqual(reply["content"], self.said_content)
        self.assertEqual(reply["reasoning"], self.said[0].reasoning)
        self.assertEqual(reply["finish"], ["stop"])

    def test_a_stream_adds_up_to_the_plain_answer(self) -> None:
        [outcome] = self.ask(("chatStream", QUESTION))
        streamed, plain = outcome["final"], outcome["plain"]
        self.assertEqual(streamed["choices"][0]["message"]["content"], self.said_content)
        self.assertEqual(plain["choices"][0]["message"]["content"], self.said_content)
        self.assertEqual(streamed["choices"][0]["finish_reason"], plain["choices"][0]["finish_reason"])
        self.assertEqual(streamed["usage"]["completion_tokens"], plain["usage"]["completion_tokens"])


class ToolLoopTest(OpenAINodeCase):
    def script(self, payload: Json) -> Answer:
        return weather_responder(payload)

    def test_the_helper_that_runs_tools_completes_the_loop(self) -> None:
        for stream in (True, False):
            for display in ("auto", True, False):
                with self.subTest(stream=stream, display=display):
                    self.said.clear()
                    self.fake.forget()
                    body = {**QUESTION, "tools": WEATHER_TOOLS, "stream": stream}
                    [reply] = self.ask(("runTools", body), display_reasoning=display)
                    self.assertTrue(reply["content"].endswith("It is cloudy in Hangzhou, 7 degrees."), reply)
                    self.assertEqual(display is True, "<details>" in reply["content"])
                    self.assert_nothing_lost()
