import json
import random
import unittest
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT
from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.features.web_search.responses_api import RESPONSES
from tests.fake_deepseek import contract
from tests.fake_deepseek.completion import PrefixCache
from tests.fake_deepseek.contract import Refusal
from tests.fake_deepseek.endpoints import endpoint_at
from tests.support.histories import TOOLS, assistant, user
from tests.unit.features.web_search.test_responses_api import ANSWERS, CALL, IMAGE, REQUEST, history

TOOL_IMAGE = Message("tool", ({"type": "text", "text": "shot"}, IMAGE), tool_call_id="call_1")
IMAGES = (Message("user", (IMAGE,)), assistant("", CALL, reasoning="r"), TOOL_IMAGE, user("So?"))


def upstream_view(upstream_api: UpstreamApi, request: ChatRequest) -> dict[str, Any]:
    """The request as a strict DeepSeek reads it, in the form of chat completions, and whether it refuses it."""
    endpoint = endpoint_at(upstream_api.path)
    found = endpoint.read(upstream_api.encode(request, NO_CHAT))
    assert not isinstance(found, Refusal), found.message
    refusal = endpoint.refusal(found, contract.NEWEST_RULES)
    return {**found, "is refused": refusal is not None}


def read_reply(upstream_api: UpstreamApi, answer: Any, *, stream: bool) -> tuple[Message, str | None, Any]:
    """The reply that the proxy reads of an answer."""
    answer_writer = endpoint_at(upstream_api.path).writer(answer, REQUEST, PrefixCache(), "0", 1)
    if stream:
        batch = upstream_api.open_reader().read(b"".join(answer_writer.events())).batch
    else:
        assert upstream_api.read_answer is not None
        batch = list(upstream_api.read_answer(json.loads(answer_writer.body())))
    reply = Reply()
    for item in batch:
        assert isinstance(item, Delta)
        reply.add(item)
    return reply.message(), reply.finish_reason, reply.usage


class TestBothApis(unittest.TestCase):
    def test_both_upstream_apis_send_the_same_history(self) -> None:
        chats = [history(random.Random(seed)) for seed in range(60)] + [IMAGES]
        for number, messages in enumerate(chats):
            for model in ("deepseek-flash", "deepseek-v4-pro"):
                for thinking in (True, False):
                    with self.subTest(number, model=model, thinking=thinking):
                        params = {"max_tokens": 9, "temperature": 0.5, "user_id": "me"}
                        request = ChatRequest(model, model, messages, thinking=thinking, params=params)
                        chat, native = upstream_view(CHAT, request), upstream_view(RESPONSES, request)
                        for name in ("messages", "is refused"):
                            self.assertEqual(chat[name], native[name])
                        self.assertEqual(thinking, contract.is_thinking(native))
                        self.assertEqual(params, {name: native[name] for name in params})

    def test_both_upstream_apis_send_the_same_tools_and_choice(self) -> None:
        named = {"type": "function", "function": {"name": "read_file"}}
        for choice, thinking in ((None, True), ("auto", True), ("none", True), ("required", False), (named, False)):
            request = ChatRequest(
                "m", "deepseek-flash", (user("u"),), tuple(TOOLS), tool_choice=choice, thinking=thinking, stream=True
            )
            chat, native = upstream_view(CHAT, request), upstream_view(RESPONSES, request)
            for name in ("tools", "tool_choice", "stream"):
                self.assertEqual(chat.get(name), native.get(name))
            self.assertFalse(chat["is refused"] or native["is refused"])

    def test_both_upstream_apis_return_the_same_reply_streamed_and_whole(self) -> None:
        for answer in ANSWERS:
            expected = read_reply(CHAT, answer, stream=False)
            for upstream_api in (CHAT, RESPONSES):
                for stream in (True, False):
                    with self.subTest(answer, path=upstream_api.path, stream=stream):
                        self.assertEqual(expected, read_reply(upstream_api, answer, stream=stream))
