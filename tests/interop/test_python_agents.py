"""Agent frameworks for Python with their default settings, through the proxy, against the strict fake.

They take what is in `content` for the answer and act on it, so a thought there is an answer that the model has
discarded.
"""

import asyncio
from typing import Any

import smolagents
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.fake_deepseek import Answer
from tests.interop.command_line import KEY, MODEL, ClientCase, Json


class PydanticAiTest(ClientCase):
    """A question that takes a tool, then a second one in the same chat."""

    def setUp(self) -> None:
        super().setUp()
        self.url = self.start_proxy()
        self.cities: list[str] = []

    def agent(self, model: Any) -> Agent:
        agent = Agent(model)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather."""
            self.cities.append(city)
            return f"Rain in {city}."

        return agent

    def model(self, api: str) -> Any:
        if api == "messages":
            return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=self.url, api_key=KEY))
        kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
        return kind(MODEL, provider=OpenAIProvider(base_url=f"{self.url}/v1", api_key=KEY))

    async def streamed(self, agent: Agent, question: str, history: list[Any]) -> tuple[str, list[Any]]:
        async with agent.run_stream(question, message_history=history) as result:
            return await result.get_output(), result.all_messages()

    async def whole(self, agent: Agent, question: str, history: list[Any]) -> tuple[str, list[Any]]:
        result = await agent.run(question, message_history=history)
        return result.output, result.all_messages()

    def test_the_tool_runs_and_the_answer_is_the_answer(self) -> None:
        for api in ("chat", "responses", "messages"):
            for ask in (self.streamed, self.whole):
                with self.subTest(api, ask=ask.__name__):
                    self.said.clear()
                    self.cities.clear()
                    self.fake.forget()
                    asyncio.run(self.play(api, ask))
                    self.assert_nothing_lost()

    async def play(self, api: str, ask: Any) -> None:
        model = self.model(api)
        async with model.client:
            agent = self.agent(model)
            output, messages = await ask(agent, "What is the weather in Rome?", [])
            self.assertEqual((output, self.cities), ("Step 1 is done.", ["Rome"]))
            output, _ = await ask(agent, "And tomorrow?", messages)
            self.assertEqual(output, "Step 2 is done.")


CODE = '{}\n<code>\nfinal_answer("{}")\n</code>\n'


class SmolagentsTest(ClientCase):
    """CodeAgent runs the first code it finds in the content of an answer."""

    def script(self, payload: Json) -> Answer:
        thought = (
            CODE.format("Perhaps this? No, that is wrong.", "discarded") + "```py\nfinal_answer('discarded')\n```\n"
        )
        return Answer(thought, CODE.format("Here it is.", "answer"))

    def test_code_in_a_thought_does_not_run(self) -> None:
        for stream in (False, True):
            with self.subTest(stream=stream):
                url = f"{self.start_proxy()}/v1"
                model = smolagents.OpenAIModel(MODEL, api_base=url, api_key=KEY)
                agent = smolagents.CodeAgent(
                    tools=[], model=model, verbosity_level=0, stream_outputs=stream, max_steps=2
                )
                self.assertEqual(agent.run("What is the answer?"), "answer")
