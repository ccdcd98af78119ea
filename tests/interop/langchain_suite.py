"""LangChain's standard tests for chat models, on its models for OpenAI, DeepSeek and Anthropic, through the proxy.

A suite for pytest, which langchain-tests needs; test_langchain runs it. The model behind the proxy is the strict fake:
it calls the tool that a request names with values that fit the tool's schema, and thinks before everything it says.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.interop.command_line import AWKWARD, KEY, MODEL, Json
from tests.support.harness import running_proxy

_numbers = itertools.count()


def respond(payload: Json) -> Answer:
    number = next(_numbers)
    thought = f"Thought {number}.{AWKWARD}"
    question = json.dumps([payload["messages"], payload.get("tool_choice")], ensure_ascii=False)
    if payload["messages"][-1]["role"] != "tool" and payload.get("tools") and payload.get("tool_choice") != "none":
        function = chosen(payload["tools"], question)
        arguments = example(function["parameters"], function["parameters"], question)
        return Answer(thought, None, (Call(f"call_00_{number:024}", function["name"], json.dumps(arguments)),))
    if (payload.get("response_format") or {}).get("type") == "json_object":
        return Answer(thought, json.dumps({"setup": "Cats?", "punchline": "Dogs."}))
    return Answer(thought, "Hello.")


def chosen(tools: list[Json], question: str) -> Json:
    functions = [tool["function"] for tool in tools]
    return next((function for function in functions if function["name"] in question), functions[0])


def example(schema: Json, root: Json, question: str) -> Any:
    """A value that a schema allows; a string is what stands in quotes in the question."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rpartition("/")[2]], root, question)
    if "anyOf" in schema:
        return example(schema["anyOf"][0], root, question)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: example(each, root, question) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [example(schema["items"], root, question)]
        case "integer" | "number":
            return 3
        case "boolean":
            return True
    quoted = re.search(r"'([^']+)'", question)
    return quoted[1] if quoted else "Rome"


@pytest.fixture(scope="session")
def fake() -> Iterator[FakeDeepSeek]:
    with FakeDeepSeek(responder=respond, keys={KEY}) as fake:
        yield fake


@pytest.fixture(scope="session")
def proxy_url(fake: FakeDeepSeek) -> Iterator[str]:
    with running_proxy(fake.url) as url:
        yield url


@pytest.fixture(autouse=True)
def nothing_is_refused(fake: FakeDeepSeek) -> Iterator[None]:
    fake.forget()
    yield
    assert [seen.refusal for seen in fake.refused] == []


class ProxiedModel(ChatModelIntegrationTests):
    details = ("reasoning_output", "cache_read_input")

    @pytest.fixture(autouse=True)
    def _at_the_proxy(self, proxy_url: str) -> None:
        type(self).url = proxy_url

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": list(self.details), "stream": list(self.details)}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self._answer(stream)

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        self._answer(stream)
        return self._answer(stream)

    def _answer(self, stream: bool) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        if not stream:
            return model.invoke("Hello?")
        first, *others = model.stream("Hello?")
        assert isinstance(first, AIMessageChunk)
        return first.__add__(others)  # type: ignore[arg-type]


class TestOpenAIChat(ProxiedModel):
    chat_model_class = ChatOpenAI
    supports_json_mode = True

    @property
    def chat_model_params(self) -> Json:
        # Asked for usage in streams: LangChain leaves it out where the address is not OpenAI's.
        return {"model": MODEL, "base_url": f"{self.url}/v1", "api_key": KEY, "stream_usage": True, "max_retries": 0}


class TestOpenAIResponses(ProxiedModel):
    chat_model_class = ChatOpenAI
    supports_json_mode = True

    @property
    def chat_model_params(self) -> Json:
        at = {"base_url": f"{self.url}/v1", "api_key": KEY, "max_retries": 0}
        return {"model": MODEL, "use_responses_api": True, **at}


class TestDeepSeek(ProxiedModel):
    chat_model_class = ChatDeepSeek
    supports_json_mode = True

    @property
    def chat_model_params(self) -> Json:
        # Without a word about usage in streams: DeepSeek's own have it, and this model counts on it.
        return {"model": MODEL, "api_base": f"{self.url}/v1", "api_key": KEY, "max_retries": 0}


class TestAnthropic(ProxiedModel):
    chat_model_class = ChatAnthropic
    # LangChain does not read how many tokens a message's thinking took.
    details = ("cache_read_input",)

    @property
    def chat_model_params(self) -> Json:
        return {"model": MODEL, "base_url": self.url, "api_key": KEY, "max_retries": 0}
