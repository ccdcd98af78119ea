"""Answers of chat completions, held strictly against the types of the official `openai` package (see typed).

A stream has to tell its story in order besides: one answer's name on every chunk, the role first, one finish for every
choice, usage in a chunk of its own behind it, `[DONE]` at the end, and the thinking in one place only.
"""

import json
import re
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter

from tests.interop.typed import Answered, Json, Recording, fit

_DATA = re.compile(r"data: (.+)\n\n")
_COMPLETION, _CHUNK = TypeAdapter(ChatCompletion), TypeAdapter(ChatCompletionChunk)


class Recorder(Recording, openai.DefaultHttpxClient):
    """A client of the package that keeps what it was answered."""


def check(answer: Answered) -> None:
    if answer.is_stream:
        _check_stream(answer)
    elif answer.status >= 400:
        fit(TypeAdapter(ErrorObject), json.loads(answer.body)["error"])
    else:
        _check_object(json.loads(answer.body))


def chunks(answer: Answered) -> list[Json]:
    return [json.loads(data) for data in _DATA.findall(answer.body) if data != "[DONE]"]


def _check_object(body: Json) -> None:
    fit(_COMPLETION, body)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"]))), body
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"], body


def _check_stream(answer: Answered) -> None:
    assert _DATA.sub("", answer.body) == "", "a stream is data lines and nothing else"
    data, found = _DATA.findall(answer.body), chunks(answer)
    assert data.count("[DONE]") == 1, "one mark of the end"
    assert data[-1] == "[DONE]", "the mark of the end is at the end"
    is_broken = "error" in found[-1]
    if is_broken:
        fit(TypeAdapter(ErrorObject), found.pop()["error"])
    for chunk in found:
        fit(_CHUNK, chunk)
        _check_chunk(chunk)
    if is_broken:
        return
    for name in ("id", "created", "model", "object"):
        assert len({chunk[name] for chunk in found}) == 1, f"one {name} for all chunks"
    bills = [at for at, chunk in enumerate(found) if chunk.get("usage") is not None]
    assert bills == [len(found) - 1], "usage comes once, at the end"
    for index in {choice["index"] for chunk in found for choice in chunk["choices"]}:
        _check_choice([choice for chunk in found for choice in chunk["choices"] if choice["index"] == index])


def _check_chunk(chunk: Json) -> None:
    assert chunk["choices"] or chunk.get("usage"), "a chunk without choices has the usage"
    for choice in chunk["choices"]:
        delta = choice["delta"]
        assert not (delta.get("content") and delta.get("reasoning_content")), "the thinking is told once"


def _check_choice(choices: list[Json]) -> None:
    """The pieces of one choice, in order."""
    assert choices[0]["delta"]["role"] == "assistant", choices[0]
    assert [bool(choice["finish_reason"]) for choice in choices] == [False] * (len(choices) - 1) + [True], choices
    calls: dict[int, Any] = {}
    for piece in (piece for choice in choices for piece in choice["delta"].get("tool_calls") or ()):
        if piece["index"] not in calls:
            assert piece["index"] == len(calls), "calls are numbered in order"
            assert piece["id"], "a call begins with its id"
            assert piece["function"]["name"], "a call begins with its name"
            calls[piece["index"]] = piece
        else:
            assert piece.get("id") in (None, calls[piece["index"]]["id"]), "a call keeps its id"
