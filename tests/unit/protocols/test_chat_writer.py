import json
import unittest
from collections.abc import Sequence
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.endpoint import write_events
from deepseek_cursor_proxy.conversation import Batches, ChatRequest, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek import chat_api, chat_stream
from deepseek_cursor_proxy.errors import UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter, CompletionWriter
from tests.support.histories import user

REQUEST = ChatRequest("asked", "deepseek-v4-pro", (user("hi"),), stream=True)
CHOICE = {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None, "logprobs": None}
CHUNK: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 5, "model": "deepseek-v4-pro"}
CHUNK |= {"system_fingerprint": "fp", "novelty": {"kept": True}, "choices": [CHOICE]}
DELTA = chat_api.chunk_delta(CHUNK)


def chunk_deltas(fields: dict[str, Any], finish: str | None = None, **more: Any) -> list[Delta | Heartbeat]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return [chat_api.chunk_delta({**CHUNK, "choices": [choice], **more})]


def source(*batches: list[Delta | Heartbeat], error: Exception | None = None) -> Batches:
    yield from batches
    if error is not None:
        raise error


def written(*batches: list[Delta | Heartbeat], error: Exception | None = None) -> list[bytes]:
    return list(write_events(mock.Mock(), source(*batches, error=error), ChunkWriter(REQUEST, 1234)))


def events(pieces: list[bytes]) -> list[Any]:
    found = sse.Parser().feed(b"".join(pieces))
    return [
        item.line if isinstance(item, sse.Comment) else item.data if item.data == "[DONE]" else json.loads(item.data)
        for item in found
    ]


def completion(request: ChatRequest, deltas: Sequence[Delta]) -> Any:
    writer = CompletionWriter(request)
    writer.write(list(deltas))
    return json.loads(writer.end())


class TestChatStream(unittest.TestCase):
    def test_a_chat_chunk_has_the_model_name_of_the_request(self) -> None:
        self.assertEqual([{**CHUNK, "model": "asked"}, "[DONE]"], events(written([DELTA])))

    def test_reasoning_moved_into_the_text_leaves_null_in_its_chunk(self) -> None:
        fields = {"content": None, "reasoning_content": "hm"}
        [delta] = chunk_deltas(fields)
        moved = delta._replace(text="hm", reasoning=None)  # type: ignore[union-attr]
        for changed, expected in ((moved, {"content": "hm", "reasoning_content": None}), (delta, fields)):
            self.assertEqual(expected, events(written([changed]))[0]["choices"][0]["delta"])

    def test_content_after_the_finish_reason_comes_after_what_closes_the_thinking(self) -> None:
        """It became a part of the thinking."""
        [finish] = chunk_deltas({"content": ""}, "stop")
        closing = finish._replace(text="</think>")  # type: ignore[union-attr]
        *chunks, _ = events(written([closing], chunk_deltas({"content": "Hi"})))
        found = [
            (chunk["choices"][0]["delta"].get("content"), chunk["choices"][0]["finish_reason"]) for chunk in chunks
        ]
        self.assertEqual([("</think>", None), ("Hi", None), (None, "stop")], found)

    def test_content_of_another_choice_does_not_divide_a_finish(self) -> None:
        [finish] = chunk_deltas({"content": "end"}, "stop")
        other = [chat_api.chunk_delta(CHUNK)._replace(choice=1)]
        *chunks, _ = events(written([finish], [*other]))
        found = [(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in chunks]
        self.assertEqual([(1, None), (0, "stop")], found)

    def test_usage_of_a_chat_stream_has_the_cached_tokens(self) -> None:
        deltas = chunk_deltas({"content": ""}, "stop", usage={"prompt_cache_hit_tokens": 3})
        with_usage = REQUEST._replace(include_usage=True)
        chunk = events(list(write_events(mock.Mock(), source(deltas), ChunkWriter(with_usage, 0))))[1]
        self.assertEqual([], chunk["choices"])
        self.assertEqual({"prompt_cache_hit_tokens": 3, "prompt_tokens_details": {"cached_tokens": 3}}, chunk["usage"])

    def test_upstream_comments_pass_and_silence_becomes_an_event(self) -> None:
        found = events(written([Heartbeat(": keep-alive"), Heartbeat()], [DELTA], [Heartbeat()]))
        self.assertEqual(": keep-alive", found[0])
        first = {"index": 0, "delta": {"content": ""}, "finish_reason": None}
        self.assertEqual(("asked", 1234, [first]), tuple(found[1][key] for key in ("model", "created", "choices")))
        fields = {key: CHUNK[key] for key in ("id", "object", "created", "system_fingerprint")}
        self.assertEqual({**fields, "model": "asked", "choices": [first]}, found[3])

    def test_a_failure_in_a_chat_stream_is_an_error_event_and_done(self) -> None:
        for error, code in ((UpstreamFailed("cut"), "upstream_error"), (UpstreamTimeout("silent"), "upstream_timeout")):
            found = events(written([Delta(text="half")], error=error))
            error_object = {"message": error.message, "type": "upstream_error", "param": None, "code": code}
            self.assertEqual([{"error": error_object}, "[DONE]"], found[1:])


def call_chunk(finish: str | None = None, **call: Any) -> list[Delta | Heartbeat]:
    return chunk_deltas({"tool_calls": [call]} if call else {"content": ""}, finish)


class TestCustomCalls(unittest.TestCase):
    CUSTOM = REQUEST._replace(custom_tools=frozenset({"ApplyPatch"}))

    def streamed(self, *batches: list[Delta | Heartbeat]) -> list[Any]:
        return events(list(write_events(mock.Mock(), source(*batches), ChunkWriter(self.CUSTOM, 0))))[:-1]

    def test_raw_text_of_a_custom_call_streams_chunk_by_chunk(self) -> None:
        first = {"index": 0, "id": "c", "type": "function", "function": {"name": "ApplyPatch", "arguments": ""}}
        pieces = ['{"input', '": "*** B', "egin\\", 'n"}']
        batches = [call_chunk(**first), *(call_chunk(index=0, function={"arguments": piece}) for piece in pieces)]
        found = self.streamed(*batches, call_chunk("tool_calls"))
        self.assertEqual(6, len(found))
        deltas = [event["choices"][0]["delta"] for event in found]
        self.assertEqual([first], deltas[0]["tool_calls"])
        fields = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[1:5]]
        self.assertEqual(["", "*** B", "egin", "\n"], fields)
        self.assertEqual({"content": ""}, deltas[5])

    def test_other_custom_call_arguments_come_unchanged_with_the_finish(self) -> None:
        first = {"index": 0, "id": "c", "type": "function", "function": {"name": "ApplyPatch", "arguments": "{}"}}
        last = self.streamed(call_chunk(**first), call_chunk("tool_calls"))[-1]["choices"][0]
        expected = {"content": "", "tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
        self.assertEqual(("tool_calls", expected), (last["finish_reason"], last["delta"]))

    def test_function_calls_in_a_chat_stream_stay_unchanged(self) -> None:
        for call in (
            {"index": 1, "id": "b", "type": "function", "function": {"name": "Read", "arguments": '{"input":"x"}'}},
            {"index": 0, "id": "b", "type": "function", "function": {"name": "Read", "arguments": None}},
            {"index": 0, "function": None},
        ):
            (found,) = self.streamed(call_chunk(**call))
            self.assertEqual([call], found["choices"][0]["delta"]["tool_calls"])

    def test_a_nested_custom_call_streams_in_openais_shape(self) -> None:
        nested = self.CUSTOM._replace(openai_custom_tools=frozenset({"ApplyPatch"}))
        first = {"index": 0, "id": "c", "type": "function", "function": {"name": "ApplyPatch", "arguments": ""}}
        other = {"index": 1, "id": "d", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
        pieces = ['{"input": "*** ', 'Begin"}']
        batches = [call_chunk(**first), *(call_chunk(index=0, function={"arguments": piece}) for piece in pieces)]
        found = events(list(write_events(mock.Mock(), source(*batches, call_chunk(**other)), ChunkWriter(nested, 0))))[
            :-1
        ]
        entries = [event["choices"][0]["delta"]["tool_calls"][0] for event in found]
        begun = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "ApplyPatch", "input": ""}}
        texts = [{"index": 0, "custom": {"input": text}} for text in ("*** ", "Begin")]
        self.assertEqual([begun, *texts, other], entries)

    def test_a_completion_has_the_raw_text_of_a_custom_call(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "ApplyPatch", "arguments": '{"input": "a\\nb"}'}}
        other = {"id": "d", "type": "function", "function": {"name": "Read", "arguments": '{"input": "a"}'}}
        body = {"choices": [{"index": 0, "message": {"content": None, "tool_calls": [call, other]}}]}
        reply = completion(self.CUSTOM, chat_stream.read_completion(body))
        raised = {**call, "function": {"name": "ApplyPatch", "arguments": "a\nb"}}
        self.assertEqual([raised, other], reply["choices"][0]["message"]["tool_calls"])


class TestCompletion(unittest.TestCase):
    def test_a_completion_keeps_reasoning_that_its_text_shows(self) -> None:
        message = {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}
        body = {**CHUNK, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        (delta,) = chat_stream.read_completion(body)
        shown = completion(REQUEST, [delta._replace(text="<think>hm</think>Hi", reasoning=None)])
        expected = {**message, "content": "<think>hm</think>Hi"}
        self.assertEqual(expected, shown["choices"][0]["message"])

    def test_a_completion_keeps_its_fields_and_its_reasoning(self) -> None:
        calls = [{"id": "a", "type": "function"}]
        fields = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}
        body = {"id": "1", "model": "x", "novelty": 1, "choices": [{"index": 0, "message": fields}], "usage": {}}
        (delta,) = chat_stream.read_completion(body)
        reply = completion(REQUEST, [delta._replace(text="shown")])
        self.assertEqual({**fields, "content": "shown"}, reply["choices"][0]["message"])
        self.assertEqual(("asked", 1, {}), (reply["model"], reply["novelty"], reply["usage"]))
