"""A strict client of the Responses API: it checks the laws of a stream on every stream it reads."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.harness import RawReply, RunningProxy, SocketTestCase, request_bytes
from tests.support.harness import events as events

Json = dict[str, Any]
PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}, "strict": False}]
_LAST = ("response.completed", "response.incomplete", "response.failed")
_CUSTOM = "response.custom_tool_call_input"
_SEARCH = "web_search_call"
_TEXTS = {
    "response.output_text": "text", "response.reasoning_text": "text", "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments", _CUSTOM: "input",
}  # fmt: skip


# A picture, or another text that only the server which wrote it can read.
OPAQUE = "iVBORw0KGgo" * 40
_HOSTED: dict[str, Json] = {
    "web_search_call": {"status": "completed", "action": {"type": "search", "query": "the weather"}},
    "file_search_call": {"status": "completed", "queries": ["the weather"], "results": [{"text": OPAQUE}]},
    "code_interpreter_call": {"status": "completed", "container_id": "c", "code": "1", "outputs": None},
    "image_generation_call": {"status": "completed", "result": OPAQUE},
    "computer_call": {"call_id": "c", "action": {"type": "screenshot"}, "status": "completed"},
    "computer_call_output": {"call_id": "c", "output": {"type": "computer_screenshot", "image_url": OPAQUE}},
    "local_shell_call": {"call_id": "c", "action": {"type": "exec", "command": ["ls"]}, "status": "completed"},
    "local_shell_call_output": {"output": "a.py"},
    "shell_call": {"call_id": "s", "action": {"commands": ["ls"]}, "status": "completed"},
    "shell_call_output": {"call_id": "s", "output": [{"stdout": "a.py"}]},
    "apply_patch_call": {"call_id": "p", "operation": {"type": "create_file", "diff": "+1"}, "status": "completed"},
    "apply_patch_call_output": {"call_id": "p", "status": "completed", "output": "done"},
    "mcp_list_tools": {"server_label": "m", "tools": [{"name": "f", "input_schema": {}}]},
    "mcp_approval_request": {"server_label": "m", "name": "f", "arguments": "{}"},
    "mcp_approval_response": {"approval_request_id": "x", "approve": True},
    "mcp_call": {"server_label": "m", "name": "f", "arguments": "{}", "output": OPAQUE},
    "tool_search_call": {"call_id": "t", "arguments": {}, "status": "completed"},
    "tool_search_output": {"call_id": "t", "tools": []},
    "compaction": {"encrypted_content": OPAQUE},
    "context_compaction": {"encrypted_content": OPAQUE},
    "program": {"call_id": "j", "code": "1", "fingerprint": OPAQUE},
    "program_output": {"call_id": "j", "result": "1", "status": "completed"},
    "an item of tomorrow": {"says": "the weather"},
}
# Items of tools that run on other servers, or elsewhere at the client.
HOSTED: list[Json] = [{"type": kind, "id": f"h_{kind}", **rest} for kind, rest in _HOSTED.items()]


class ClientReply(RawReply):
    @property
    def response(self) -> Json:
        return dict(self.events[-1]["response"] if self.is_stream else self.value)


# What the Open Responses specification requires of every response object, and what OpenAI sends besides.
_ALWAYS = (
    "id object created_at completed_at status incomplete_details model previous_response_id instructions output error "
    "tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs "
    "temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata "
    "safety_identifier prompt_cache_key billing"
)
_NUMBERS = ("created_at", "frequency_penalty", "presence_penalty", "temperature", "top_logprobs", "top_p")


def check_object(response: Json) -> None:
    assert not set(_ALWAYS.split()) - response.keys(), set(_ALWAYS.split()) - response.keys()
    assert all(type(response[name]) in (int, float) for name in _NUMBERS), response
    assert (response["object"], response["service_tier"]) == ("response", "default"), response
    # A time while it is completed, and nothing before or otherwise.
    assert type(response["completed_at"]) is (int if response["status"] == "completed" else type(None)), response
    assert response["completed_at"] is None or response["completed_at"] >= response["created_at"], response


def check_stream(found: Sequence[Json], first: int = 0) -> Json:
    """The laws of a whole stream; returns the response in its last event."""
    for event in found:
        if "response" in event:
            check_object(event["response"])
    assert [event["sequence_number"] for event in found] == list(range(first, first + len(found))), found
    assert [event["type"] for event in found if event["type"] in _LAST] == [found[-1]["type"]], found
    response = found[-1]["response"]
    assert {event["response"]["id"] for event in found if "response" in event} == {response["id"]}
    if first == 0:
        check_items(found, response["output"])
    return dict(response)


def check_items(found: Sequence[Json], output: Sequence[Json]) -> None:
    """Every item is added, streamed and done under one id and index, and equals the sum of its deltas."""
    added = {event["output_index"]: event["item"] for event in found if event["type"].endswith("output_item.added")}
    done = {event["output_index"]: event["item"] for event in found if event["type"].endswith("output_item.done")}
    assert list(added) == list(range(len(output))), found
    assert [done[index] for index in sorted(done)] == [output[index] for index in sorted(done)], found
    # An item in which the answer broke off is not done: clients would keep half a thought, and run half a call.
    halves = [item for index, item in enumerate(output) if index not in done]
    assert all(item["status"] == ("failed" if item["type"] == _SEARCH else "incomplete") for item in halves), found
    is_limited = found[-1]["response"]["incomplete_details"] is not None
    for item in done.values():
        # A summary has no status.
        is_exception = (is_limited and item["type"] == "message") or item["type"] == _SEARCH
        assert item.get("status", "completed") == "completed" or is_exception, found
    assert [item["id"] for item in added.values()] == [item["id"] for item in output]
    pending: dict[tuple[str, str], str] = {}
    for event in found:
        kind, _, phase = event["type"].rpartition(".")
        if phase == "delta":
            assert output[event["output_index"]]["id"] == event["item_id"]
            pending[kind, event["item_id"]] = join_utf16(pending.get((kind, event["item_id"]), ""), event["delta"])
        elif phase == "done" and kind in _TEXTS:
            assert pending.pop((kind, event["item_id"]), "") == event[_TEXTS[kind]], event
    assert {item_id for _, item_id in pending} <= {item["id"] for item in halves}, pending
    for item in halves:
        streamed = {text for (_, item_id), text in pending.items() if item_id == item["id"]}
        assert streamed == set(filter(None, texts(item)))
    check_parts(found)
    check_searches(found, output)


def check_parts(found: Sequence[Json]) -> None:
    """Every text is announced before its first piece: openai-node (5 to 7) adds nothing to a part it does not know."""
    parts: set[tuple[str, str, int]] = set()
    for event in found:
        for kind, index in (("content", "content_index"), ("reasoning_summary", "summary_index")):
            if index in event and event["type"] == f"response.{kind}_part.added":
                parts.add((event["item_id"], index, event[index]))
            elif index in event:
                assert (event["item_id"], index, event[index]) in parts, event


def check_searches(found: Sequence[Json], output: Sequence[Json]) -> None:
    """Every search has the events of its steps between added and done; every source of a text has one event."""
    assert len({item["id"] for item in output}) == len(output), output
    for index, item in enumerate(output):
        own = [event["type"] for event in found if event.get("output_index") == index]
        steps = [kind.rpartition(".")[2] for kind in own if kind.startswith(f"response.{_SEARCH}.")]
        all_steps = ["in_progress", "searching", "completed"]
        if item["type"] == _SEARCH:
            assert steps == all_steps[: len(steps)], own
            assert (steps == all_steps) == (item["status"] == "completed"), own
            assert own[0] == "response.output_item.added", own
        else:
            assert not steps, own
        kind = "response.output_text.annotation.added"
        cited = [event for event in found if event["type"] == kind and event["output_index"] == index]
        if item["type"] == "message" and item["content"]:
            assert [event["annotation"] for event in cited] == item["content"][0]["annotations"], item
        assert [event["annotation_index"] for event in cited] == list(range(len(cited))), cited


def texts(item: Json) -> list[str]:
    parts = [part["text"] for name in ("content", "summary") for part in item.get(name) or ()]
    return parts + [item[name] for name in ("arguments", "input") if name in item]


def join_utf16(*texts: str) -> str:
    """Join texts as most clients do, whose strings are UTF-16."""
    return "".join(texts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def question(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def output(call_id: str, text: str = "42") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def kinds(items: Sequence[Json]) -> list[str]:
    return [item["type"] for item in items]


class ResponsesTestCase(SocketTestCase):
    def send(self, proxy: RunningProxy, method: str, path: str, body: Any = b"", key: str = "sk-test") -> ClientReply:
        reply = ClientReply(*self.call(proxy, method, path, body, key=key))
        if reply.status == 200 and reply.body.startswith(b'{"id":"resp_') and reply.value["object"] == "response":
            check_object(reply.value)
        return reply

    def create(self, proxy: RunningProxy, input: Any, *, key: str = "sk-test", **body: Any) -> ClientReply:
        reply = self.send(proxy, "POST", PATH, {"input": input, **body}, key)
        if body.get("stream") and reply.status == 200:
            check_stream(reply.events)
        return reply

    def complete(self, proxy: RunningProxy, input: Any, **body: Any) -> Json:
        reply = self.create(proxy, input, **body)
        self.assertEqual(200, reply.status, reply.body)
        self.assertEqual("completed", reply.response["status"], reply.body)
        return reply.response

    def get(self, proxy: RunningProxy, response: Mapping[str, Any], rest: str = "", **details: Any) -> ClientReply:
        return self.send(proxy, "GET", f"{PATH}/{response['id']}{rest}", **details)

    def open_stream(self, proxy: RunningProxy, input: Any, **body: Any) -> socket.socket:
        """A connection on which a stream was requested and not read yet."""
        return self.connect(proxy, request_bytes({"input": input, "stream": True, **body}, path=PATH))
