"""Answers of the Messages API, held strictly against the types of the official `anthropic` package (see typed).

A stream has to tell its story in order besides: one open block at a time, numbered from nought, each with deltas of its
own kind; thinking ends with its signature; what is said joins to what the block stands for; one end, at the end.
"""

import json
from functools import cache
from typing import Any, get_args

import anthropic
from anthropic import types
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from tests.fake_deepseek import Call
from tests.interop.command_line import KEY
from tests.interop.typed import SECONDS, Answered, Json, RecordedCase, Recording, check_names, fit

# Documented, and not among the types.
OTHER_ERRORS = ("request_too_large",)
# The kind of a block, and the deltas it may have.
DELTAS = {
    "thinking": ("thinking_delta", "signature_delta"),
    "text": ("text_delta", "citations_delta"),
    "tool_use": ("input_json_delta",),
    "server_tool_use": ("input_json_delta",),
    "web_search_tool_result": (),
}


class Recorder(Recording, anthropic.DefaultHttpxClient):
    """A client of the package that keeps what it was answered."""


def check(answer: Answered) -> None:
    """Raises what is wrong with an answer."""
    if answer.is_stream:
        check_names(answer)
        _check_story([event for event in answer.events if event != {"type": "ping"}])
        return
    body = json.loads(answer.body)
    if answer.status >= 400:
        _check_error(body)
    elif answer.path.endswith("/models"):
        # What the package makes of a list of models says nothing of what is in it, and a date in JSON is a string.
        for model in body["data"]:
            TypeAdapter(types.ModelInfo).validate_json(json.dumps(model), strict=True)
        assert body.keys() == {"data", "has_more", "first_id", "last_id"}, body
    else:
        fit(TypeAdapter(types.Message), body)
        _check_content(body)


def _check_error(body: Json) -> None:
    assert body["request_id"], body
    known = {**body["error"], "type": "api_error"} if body["error"]["type"] in OTHER_ERRORS else body["error"]
    fit(TypeAdapter(ErrorResponse), {**body, "error": known})
    assert body["error"]["message"], body


def _check_content(message: Json) -> None:
    """What clients want of a message beyond its types."""
    for block in message["content"]:
        # opencode drops thinking without a signature, and pi takes it for text.
        assert block["type"] != "thinking" or block["signature"], block
        # The real API refuses empty text that comes back.
        assert block["type"] != "text" or block["text"], block
    assert message["stop_reason"] is not None, message


@cache
def _event_types() -> dict[str, TypeAdapter[Any]]:
    union = get_args(types.RawMessageStreamEvent)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: TypeAdapter(each) for each in get_args(union)}


def _check_story(events: list[Json]) -> None:
    blocks = _Blocks()
    for place, event in enumerate(events):
        kind = event["type"]
        assert (kind == "message_start") == (place == 0), "one beginning, at the beginning"
        assert (kind in ("message_stop", "error")) == (place == len(events) - 1), "one end, at the end"
        if kind == "error":
            _check_error(event)
            continue
        fit(_event_types()[kind], event)
        blocks.take(event)
    assert blocks.open is None, "a block stays open"
    if events[-1]["type"] == "message_stop":
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        assert [event["type"] for event in events].count("message_delta") == 1
        assert events[-2]["delta"]["stop_reason"] is not None
        # The last word on what it cost, all of it.
        assert events[-2]["usage"].keys() == events[0]["message"]["usage"].keys()


class _Blocks:
    """The blocks of a stream, followed event by event."""

    def __init__(self) -> None:
        self.open: Json | None = None
        self._count = 0
        self._pieces: dict[str, str] = {}

    def take(self, event: Json) -> None:
        match event["type"]:
            case "message_start":
                assert event["message"]["content"] == [], event
                assert event["message"]["stop_reason"] is None, event
            case "content_block_start":
                assert self.open is None, "one open block at a time"
                assert event["index"] == self._count, "blocks are numbered in order"
                self.open, self._pieces = event["content_block"], {}
                assert not any(self.open.get(name) for name in ("thinking", "text", "signature", "input")), self.open
            case "content_block_delta":
                self._take_delta(event["delta"], DELTAS[self._opened(event)])
            case "content_block_stop":
                self._check_whole(self._opened(event))
                self.open = None
                self._count += 1
            case "message_delta":
                assert self.open is None, "the end comes after the last block"

    def _opened(self, event: Json) -> str:
        """The kind of the block that an event is about, which has to be the open one."""
        assert self.open is not None, event
        assert event["index"] == self._count, event
        return str(self.open["type"])

    def _take_delta(self, delta: Json, allowed: tuple[str, ...]) -> None:
        assert delta["type"] in allowed, (delta, self.open)
        assert "signature_delta" not in self._pieces, "a signature is the last of its block"
        [text] = [value for name, value in delta.items() if name != "type"]
        assert text, delta
        if delta["type"] == "citations_delta":
            assert "text_delta" in self._pieces, "a source of a text that has not begun"
            return
        self._pieces[delta["type"]] = self._pieces.get(delta["type"], "") + text

    def _check_whole(self, kind: str) -> None:
        assert kind != "thinking" or "signature_delta" in self._pieces, "thinking without a signature"
        assert kind != "text" or "text_delta" in self._pieces, "a text that says nothing"


# What the tests share: clients of the official package, and tools …

LIMIT = 4096
QUESTION = ({"role": "user", "content": "What is the weather?"},)
LOOK_UP = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather.", "input_schema": LOOK_UP}
LOCATION = {"name": "get_location", "description": "Where we are.", "input_schema": {"type": "object"}}
TOOLS = (WEATHER, LOCATION)


def calls(*wanted: tuple[str, Json], turn: int = 0) -> tuple[Call, ...]:
    # With spaces and escapes: what comes back are the same values in other bytes.
    return tuple(Call(f"call_{turn}{index}", name, json.dumps(given)) for index, (name, given) in enumerate(wanted))


class MessagesCase(RecordedCase):
    def check(self, answer: Answered) -> None:
        check(answer)

    def client(self, url: str) -> anthropic.Anthropic:
        self.recorders.append(Recorder())
        http: Any = self.recorders[-1]
        # No retries: a test wants to see the first answer.
        client = ThinkingClient(base_url=url, api_key=KEY, max_retries=0, timeout=SECONDS, http_client=http)
        return self.enterContext(client)


class ThinkingClient(anthropic.Anthropic):
    """The client of the package, which asks for thinking unless a request says otherwise; `None` asks for nothing."""

    def _prepare_options(self, options: Any) -> Any:
        body = options.json_data
        if options.url == "/v1/messages":
            body.setdefault("thinking", {"type": "adaptive"})
            if body["thinking"] is None:
                del body["thinking"]
        return super()._prepare_options(options)
