"""Sessions as clients are given them: created with a key, read back as an export, compared with what DeepSeek saw."""

import json
import unittest
import urllib.request
from typing import Any

from tests.fake_deepseek import Answer
from tests.interop.command_line import KEY, RUN_SECONDS

Json = dict[str, Any]


def create(root: str) -> str:
    url: str = json.loads(_call("POST", f"{root}/sessions/create", b'{"name": "interop"}'))["base_url"]
    return url.removesuffix("/v1")


def export(session: str, form: str = "openai") -> list[Json]:
    return [json.loads(line) for line in raw_export(session, form).splitlines()]


def raw_export(session: str, form: str) -> bytes:
    return _call("GET", f"{session}/export?format={form}")


def assert_exported(test: unittest.TestCase, session: str, sent: list[Json], last: Answer) -> None:
    """The longest trajectory is the last request that DeepSeek accepted, and its answer."""
    longest = max(export(session), key=lambda line: len(line["messages"]))
    *history, answer = longest["messages"]
    test.assertEqual([_fields(message) for message in sent], [_fields(message) for message in history])
    test.assertEqual((last.content or "", last.reasoning), (answer["content"], answer.get("reasoning_content")))


def _fields(message: Json) -> Json:
    found = {name: message[name] for name in ("role", "content", "tool_call_id") if message.get(name)}
    # The model's own bytes are recorded; half of the clients serialise the arguments again.
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    found["calls"] = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls]
    # A filler in place of a reasoning that the model never had is not part of a trajectory.
    if (message.get("reasoning_content") or "").strip():
        found["reasoning_content"] = message["reasoning_content"]
    return found


def _call(method: str, url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {KEY}"}, method=method)
    with urllib.request.urlopen(request, timeout=RUN_SECONDS) as reply:
        found: bytes = reply.read()
    return found
