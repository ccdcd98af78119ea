"""The usage of streamed chats stands where OpenAI or DeepSeek has it, as the client wants, and nowhere else."""

import json
from typing import Any

from tests.fake_deepseek import Raw
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.raw_streams import EVENT_STREAM

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ASKED = {**BODY, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "x", "choices": choices, **more}


def played(*chunks: dict[str, Any]) -> Raw:
    events = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    return Raw(EVENT_STREAM + "".join([*events, "data: [DONE]\n\n"]).encode())


# As DeepSeek, its gateways and other hosts tell it.
UPSTREAM = {
    "on the finishing chunk": (
        chunk({"role": "assistant", "content": ""}, usage=None),
        chunk({"content": "Hi"}, usage=None),
        chunk({"content": ""}, "stop", usage=USAGE),
    ),
    "in a chunk of its own": (
        chunk({"role": "assistant", "content": "Hi"}),
        chunk({}, "stop"),
        chunk(None, usage=USAGE),
    ),
    "in both": (chunk({"content": "Hi"}), chunk({}, "stop", usage=USAGE), chunk(None, usage=USAGE)),
    "counting along": (
        chunk({"content": "H"}, usage={**USAGE, "completion_tokens": 1}),
        chunk({"content": "i"}, "stop", usage=USAGE),
    ),
    "before the finish": (chunk({"content": "Hi"}), chunk(None, usage=USAGE), chunk({}, "stop")),
}


class TestUsage(SocketTestCase):
    def chunks(self, proxy: RunningProxy, body: dict[str, Any]) -> list[Any]:
        reply = self.round_trip(proxy, body)
        self.assertEqual((200, True), (reply.status, reply.body.endswith(b"data: [DONE]\n\n")))
        return reply.chunks

    def test_a_stream_that_asks_for_no_usage_and_declines_none_ends_as_deepseeks_does(self) -> None:
        for name, upstream in UPSTREAM.items():
            for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": None}}):
                self.fake.answer(played(*upstream))
                with self.subTest(name, **options):
                    *found, last = self.chunks(self.running, {**BODY, **options})
                    self.assertEqual(("stop", USAGE), (last["choices"][0]["finish_reason"], last["usage"]))
                    self.assertFalse(any("usage" in each for each in found))
                    texts = [each["choices"][0]["delta"].get("content", "") for each in (*found, last)]
                    self.assertEqual("Hi", "".join(texts))

    def test_a_stream_without_usage_has_none_where_the_client_declines_it(self) -> None:
        for name, upstream in UPSTREAM.items():
            self.fake.answer(played(*upstream))
            with self.subTest(name):
                found = self.chunks(self.running, {**BODY, "stream_options": {"include_usage": False}})
                self.assertEqual("Hi", "".join(each["choices"][0]["delta"].get("content", "") for each in found))
                self.assertEqual("stop", found[-1]["choices"][0]["finish_reason"])
                self.assertFalse(any("usage" in each for each in found))

    def test_requested_usage_is_one_chunk_after_the_finish(self) -> None:
        for name, upstream in UPSTREAM.items():
            self.fake.answer(played(*upstream))
            with self.subTest(name):
                *found, last = self.chunks(self.running, ASKED)
                self.assertEqual(([], USAGE), (last["choices"], last["usage"]))
                self.assertEqual(("c", "chat.completion.chunk", "m"), (last["id"], last["object"], last["model"]))
                self.assertEqual([None] * len(found), [each["usage"] for each in found])
                self.assertEqual("stop", found[-1]["choices"][0]["finish_reason"])
                self.assertEqual("Hi", "".join(each["choices"][0]["delta"].get("content", "") for each in found))

    def test_no_usage_is_invented_for_a_host_without_it(self) -> None:
        for body in (ASKED, BODY):
            self.fake.answer(played(chunk({"content": "Hi"}), chunk({}, "stop")))
            found = self.chunks(self.running, body)
            self.assertEqual(
                ["Hi", "stop"], [found[0]["choices"][0]["delta"]["content"], found[1]["choices"][0]["finish_reason"]]
            )
            self.assertEqual([None, None], [each.get("usage") for each in found])

    def test_a_chunk_without_choices_becomes_a_heartbeat(self) -> None:
        self.fake.answer(played(chunk(None, prompt_filter_results=[]), chunk({"content": "Hi"}, "stop")))
        first, second = self.chunks(self.proxy(), BODY)
        self.assertEqual({"content": ""}, first["choices"][0]["delta"])
        self.assertEqual({"content": "Hi"}, second["choices"][0]["delta"])
