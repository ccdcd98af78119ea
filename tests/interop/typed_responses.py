"""Answers of the Responses API, held strictly against the types of the official `openai` package (see typed).

A stream has to tell its story in order besides (`tests/support/responses_client.py`).
"""

import json
from functools import cache
from typing import Any, get_args

import openai
from openai.types import responses
from openai.types.responses import response_item_list
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter

from tests.fake_deepseek import Call
from tests.interop.command_line import KEY
from tests.interop.typed import SECONDS, Answered, Json, RecordedCase, Recording, check_names, fit
from tests.support.responses_client import check_object, check_stream

# Codes of failed responses that the types do not have: ours for a restart, and two that Codex knows: it gives up at
# once, where it would try again for any other.
OTHER_CODES = ("server_restarted", "insufficient_quota", "context_length_exceeded")


class Recorder(Recording, openai.DefaultHttpxClient):
    """A client of the package that keeps what it was answered."""


def check(answer: Answered) -> None:
    if answer.is_stream:
        _check_stream(answer)
        return
    body = json.loads(answer.body)
    if answer.status >= 400:
        fit(TypeAdapter(ErrorObject), body["error"])
    elif answer.method == "DELETE":
        assert body == {"id": answer.path.rpartition("/")[2], "object": "response.deleted", "deleted": True}, body
    elif answer.path.endswith("/input_tokens"):
        fit(TypeAdapter(responses.InputTokenCountResponse), body)
    elif answer.path.endswith("/compact"):
        # The type of the output has no place for the user's messages, which its own description names.
        made = [item for item in body["output"] if item.get("role") != "user"]
        fit(TypeAdapter(responses.CompactedResponse), {**body, "output": made})
    elif answer.path.endswith("/input_items"):
        fit(TypeAdapter(response_item_list.ResponseItemList), body)
    else:
        _check_object(body)


def _check_object(body: Json) -> None:
    fit(TypeAdapter(responses.Response), _with_a_known_code(body))
    # The package's types allow nearly everything to be missing.
    check_object(body)


def _with_a_known_code(body: Json) -> Json:
    if (body.get("error") or {}).get("code") not in OTHER_CODES:
        return body
    return {**body, "error": {**body["error"], "code": "server_error"}}


@cache
def _event_types() -> dict[str, TypeAdapter[Any]]:
    union = get_args(responses.ResponseStreamEvent)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: TypeAdapter(each) for each in get_args(union)}


# Streams …


def _check_stream(answer: Answered) -> None:
    check_names(answer)
    events = answer.events
    for event in events:
        known = {**event, "response": _with_a_known_code(event["response"])} if "response" in event else event
        fit(_event_types()[event["type"]], known)
    check_stream(events, events[0]["sequence_number"])


# What the tests share: clients of the official package, and tools of every kind …

SEALED = "reasoning.encrypted_content"

LOOK_UP = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": LOOK_UP, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files.", "format": GRAMMAR}
SPAWN = {"type": "function", "name": "spawn", "description": "Starts an agent.", "parameters": LOOK_UP, "strict": False}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
SEARCH = {"type": "web_search"}
TOOLS = (WEATHER, PATCH, AGENTS, SEARCH)

PATCH_TEXT = '*** Begin Patch\n*** Add File: a "b".txt\n+Brötchen\t🌧\n*** End Patch\n'


def calls(*wanted: tuple[str, Json], turn: int = 0) -> tuple[Call, ...]:
    return tuple(Call(f"call_{turn}{index}", name, json.dumps(given)) for index, (name, given) in enumerate(wanted))


class ResponsesCase(RecordedCase):
    def check(self, answer: Answered) -> None:
        check(answer)

    def client(self, url: str, http: Any = None) -> openai.OpenAI:
        if http is None:
            http = Recorder()
            self.recorders.append(http)
        # No retries: a test wants to see the first answer.
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=SECONDS, http_client=http)
        return self.enterContext(client)
