"""Calls without ids, indexes or their finish_reason: every client can run them, and their turn is found again."""

import json
from typing import Any

from tests.fake_deepseek import Raw
from tests.support.harness import RawReply, SocketTestCase, request_bytes
from tests.support.histories import TOOLS
from tests.support.raw_streams import streamed

Json = dict[str, Any]
QUESTION = {"role": "user", "content": "What is in a and b?"}
CALLS = [{"function": {"name": "read_file", "arguments": json.dumps({"path": path})}} for path in ("a", "b")]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
BARE_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]


def from_host(stream: bool) -> Raw:
    """An answer with two calls, of which nothing but the order tells which is which; streamed, each in its chunk."""
    if stream:
        return streamed(
            {"role": "assistant", "reasoning_content": "Both."}, *({"tool_calls": [each]} for each in CALLS)
        )
    message = {"role": "assistant", "content": None, "reasoning_content": "Both.", "tool_calls": CALLS}
    body = json.dumps({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return Raw(
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )


class TestIncompleteCalls(SocketTestCase):
    def post(self, path: str, body: Json) -> RawReply:
        reply = self.round_trip(self.running, request_bytes({"model": "deepseek-v4-pro", **body}, path=path))
        self.assertEqual(200, reply.status, reply.body)
        return reply

    def assert_found_again(self, ids: list[str]) -> None:
        """The next request had the reasoning, and the calls with the ids that the client got."""
        self.assertEqual(2, len(set(ids) - {""}))
        self.assert_upstream_saw("Both.")
        calls = self.fake.accepted[-1]["messages"][1]["tool_calls"]
        self.assertEqual(
            [(id, json.dumps({"path": path})) for id, path in zip(ids, "ab", strict=True)],
            [(call["id"], call["function"]["arguments"]) for call in calls],
        )

    def test_a_chat_gets_ids_indexes_and_the_finish_reason(self) -> None:
        for stream in (True, False):
            self.fake.answer(from_host(stream))
            body = {"messages": [QUESTION], "tools": TOOLS, "stream": stream}
            reply = self.post("/v1/chat/completions", body)
            if stream:
                pieces = [each["choices"][0] for each in reply.chunks]
                calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", ())]
                self.assertEqual([0, 1], [call.pop("index") for call in calls])
                finish = pieces[-1]["finish_reason"]
            else:
                choice = reply.value["choices"][0]
                calls, finish = choice["message"]["tool_calls"], choice["finish_reason"]
            self.assertEqual(("tool_calls", ["function"] * 2), (finish, [call["type"] for call in calls]))
            ids = [call["id"] for call in calls]
            results = [{"role": "tool", "tool_call_id": id, "content": "1"} for id in ids]
            said = {"role": "assistant", "content": "", "tool_calls": calls}
            with self.subTest(stream=stream):
                self.post("/v1/chat/completions", {**body, "messages": [QUESTION, said, *results]})
                self.assert_found_again(ids)

    def test_a_response_gets_ids_that_lead_back_to_the_reasoning(self) -> None:
        for stream in (True, False):
            self.fake.answer(from_host(stream))
            body = {"input": [QUESTION], "tools": FLAT_TOOLS, "stream": stream, "store": False}
            reply = self.post("/v1/responses", body)
            response = reply.chunks[-1]["response"] if stream else reply.value
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            ids = [call["call_id"] for call in calls]
            results = [{"type": "function_call_output", "call_id": id, "output": "1"} for id in ids]
            with self.subTest(stream=stream):
                self.post("/v1/responses", {**body, "input": [QUESTION, *calls, *results]})
                self.assert_found_again(ids)

    def test_a_message_gets_ids_that_lead_back_to_the_reasoning(self) -> None:
        for stream in (True, False):
            self.fake.answer(from_host(stream=True))
            body = {"messages": [QUESTION], "tools": BARE_TOOLS, "stream": stream, "max_tokens": 2000}
            reply = self.post("/v1/messages", body)
            if stream:
                starts = [each["content_block"] for each in reply.chunks if each["type"] == "content_block_start"]
                calls = [{**block, "input": {"path": path}} for block, path in zip(starts, "ab", strict=True)]
                (stop,) = [each["delta"]["stop_reason"] for each in reply.chunks if each["type"] == "message_delta"]
            else:
                calls, stop = reply.value["content"], reply.value["stop_reason"]
            self.assertEqual("tool_use", stop)
            ids = [call["id"] for call in calls]
            results = [{"type": "tool_result", "tool_use_id": id, "content": "1"} for id in ids]
            history = [QUESTION, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
            with self.subTest(stream=stream):
                self.post("/v1/messages", {**body, "messages": history})
                self.assertEqual(2, len(set(ids)))
                self.assert_upstream_saw("Both.")
