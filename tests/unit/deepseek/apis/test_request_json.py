import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.json_codec import encode_json
from tests.support.histories import TOOLS, assistant, new_chat, result, system, user

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CHAT = (
    system("be … brief"),
    Message("user", 'say "hi"\n', name="me"),
    assistant("", ("call_1", "read_file", '{"a":1}'), reasoning="why not?"),
    result("call_1", "text\twith\x00 everything 😀"),
    assistant("done", reasoning=" ")._replace(prefix=True),
    Message("user", ({"type": "text", "text": "look"}, IMAGE)),
)
REQUEST = ChatRequest("m", "deepseek-v4-pro", CHAT, tuple(TOOLS), "auto", params={"temperature": 0.5})
TOOL_IMAGE = Message("tool", (IMAGE,), tool_call_id="call_1")
LONG, OWN_NAME = (*CHAT, *CHAT), {"logit_bias": {"tools": 0}}
FORM = {"type": "json_schema", "json_schema": {"name": "x"}}


class TestEncode(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = new_chat()

    def body(self, request: ChatRequest) -> bytes:
        return chat_api.encode(request, self.memory)

    def test_the_upstream_body_is_the_json_of_the_payload_every_time(self) -> None:
        for name, request in {
            "a chat": REQUEST,
            "without thinking": REQUEST._replace(thinking=False),
            "streamed": REQUEST._replace(stream=True),
            "nothing but a question": ChatRequest("m", "m", (user("hi"),)),
            "a model that sees": REQUEST._replace(model="deepseek-flash"),
            "what a tool returned": REQUEST._replace(model="deepseek-flash", messages=(*CHAT[:3], TOOL_IMAGE)),
            "a schema": REQUEST._replace(params={"response_format": FORM}),
            "names of its own fields": REQUEST._replace(model='"messages":0,"tools":0', params=OWN_NAME),
            "a longer chat": REQUEST._replace(messages=LONG),
            "the same, grown": REQUEST._replace(messages=(*LONG, user("go on"), assistant("why", reasoning="a"))),
            "the same without thinking": REQUEST._replace(messages=(*LONG, user("and on")), thinking=False),
        }.items():
            for when in ("first", "again"):
                with self.subTest(name, when=when):
                    self.assertEqual(encode_json(chat_api.payload(request)), self.body(request))

    def test_half_a_surrogate_pair_is_sent_unchanged(self) -> None:
        request = REQUEST._replace(messages=(user("half \ud800"), user("whole 😀")))
        for _ in range(2):
            self.assertEqual(chat_api.payload(request), json.loads(self.body(request)))

    def test_tools_that_differ_in_json_but_compare_equal_are_encoded_apart(self) -> None:
        def offering(parameters: dict[str, Any]) -> ChatRequest:
            tool = {"type": "function", "function": {"name": "a", "parameters": parameters}}
            return REQUEST._replace(tools=(tool,))

        for parameters in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}, {"a": True, "b": 2}):
            request = offering(parameters)
            self.assertEqual(encode_json(chat_api.payload(request)), self.body(request))
