"""Answers of the Messages API, held strictly against the types of the official `anthropic` package (see typed).

A stream has to tell its story in order besides (`tests/support/messages_client.py`).
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
from tests.support.messages_client import add_up_events, blocks

# Documented, and not among the types.
OTHER_ERRORS = ("request_too_large",)


class Recorder(Recording, anthropic.DefaultHttpxClient):
    """A client of the package that keeps what it was answered."""


def check(answer: Answered) -> None:
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
    for event in events:
        if event["type"] == "error":
            _check_error(event)
        else:
            fit(_event_types()[event["type"]], event)
    is_broken = events[-1]["type"] == "error"
    try:
        _check_content({"content": blocks(events[1:-1]), "stop_reason": ""} if is_broken else add_up_events(events))
    except json.JSONDecodeError:
        # The arguments of a call that was cut off.
        assert is_broken or events[-2]["delta"]["stop_reason"] == "max_tokens", events
    # The last word on what it cost, all of it.
    assert is_broken or events[-2]["usage"].keys() == events[0]["message"]["usage"].keys()


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
