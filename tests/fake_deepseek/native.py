"""DeepSeek's Responses API, as strict as its chat completions: the same contract and answers in other fields.

A body is translated to chat completions, `contract` judges that, and its refusal is translated back. Of a history only
what DeepSeek joins counts: items of unknown types are skipped, calls belong to the reasoning right before them, and
reasoning that is empty, summarised or encrypted counts as absent. Tools that DeepSeek runs itself (see `searches`) have
no field in chat completions: here they are `server_tools`, their choice is `server_choice`, and the searches of a turn
are its `steps`. This translation shares nothing with the proxy's own, so that the two can disagree. This file knows no
socket or script.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import contract, searches
from tests.fake_deepseek.completion import Answer, Completion, PrefixCache, pieces
from tests.fake_deepseek.contract import (
    FORCED_TOOL,
    MISSING_REASONING,
    UNANSWERED_CALLS,
    Refusal,
    Rules,
    fit,
    is_thinking,
)
from tests.fake_deepseek.searches import Search

MISSING_REASONING_TEXT = "The `reasoning_text` in the thinking mode must be passed back to the API."
NO_OUTPUT = "No tool output found for tool call"
_WORDS = {MISSING_REASONING: MISSING_REASONING_TEXT, UNANSWERED_CALLS: NO_OUTPUT}
_NAMES = {"max_output_tokens": "max_tokens", "user": "user_id"}
_SAME_NAMES = ("model", "stream", "temperature", "top_p", "top_logprobs")
_CALLS = ("function_call", "custom_tool_call")
_ENDS_OF_SEARCHES = ("message", *_CALLS, "function_call_output", "custom_tool_call_output")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def read(body: bytes) -> dict[str, Any] | Refusal:
    """What a body asks for, as a body of chat completions, or the 400 that it earns as it is."""
    return contract.read(body, _chat)


def refusal(payload: Mapping[str, Any], rules: Rules) -> Refusal | None:
    """The 400 that a body earns which `read` has put into the words of chat completions."""
    choice = payload.get("server_choice")
    if choice is not None and choice["type"] not in [tool["type"] for tool in payload.get("server_tools", ())]:
        return Refusal(f"tool_choice: {choice['type']} is not among the tools")
    if choice is not None and is_thinking(payload):
        return Refusal(FORCED_TOOL)
    return contract.refusal_in_words(payload, rules, _WORDS)


def _chat(body: Mapping[str, Any]) -> dict[str, Any]:
    effort = (body.get("reasoning") or {}).get("effort")
    chat: dict[str, Any] = {name: body[name] for name in _SAME_NAMES if name in body}
    chat |= {theirs: body[ours] for ours, theirs in _NAMES.items() if ours in body}
    chat["messages"] = _messages(body)
    if effort is not None:
        chat["reasoning_effort"] = effort
    if body.get("tools") is not None:
        chat["tools"] = [_tool(tool) for tool in body["tools"] if tool.get("type") in ("function", "custom")]
        chat["custom_tools"] = [tool["name"] for tool in body["tools"] if tool.get("type") == "custom"]
        if server_tools := [tool for tool in body["tools"] if searches.is_tool(tool)]:
            chat["server_tools"] = server_tools
    chat |= _choice(body.get("tool_choice"))
    form = (body.get("text") or {}).get("format")
    if form is not None:
        fit(form.get("type") in ("text", "json_object", "json_schema"), "text.format.type: unknown variant")
        fit(form["type"] != "json_schema" or isinstance(form.get("schema"), dict), "text.format: missing `schema`")
        chat["response_format"] = {"type": "text" if form["type"] == "text" else "json_object"}
    return chat


def _choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    if not isinstance(choice, str):
        if searches.is_tool(choice):
            return {"server_choice": choice}
        choice = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
    return {"tool_choice": choice}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    fit(isinstance(tool.get("name"), str), "tools: missing field `name`")
    if tool["type"] == "custom":
        fit(tool["name"] == "apply_patch", "tools: the only custom tool is apply_patch")
    function = {name: value for name, value in tool.items() if name not in ("type", "format")}
    return {"type": "function", "function": function}


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given_input, instructions = body.get("input"), body.get("instructions")
    fit(given_input is not None or instructions is not None, "one of `input` and `instructions` is needed")
    history = _History()
    if instructions is not None:
        history.messages.append({"role": "system", "content": instructions})
    items = [{"role": "user", "content": given_input}] if isinstance(given_input, str) else given_input or []
    fit(isinstance(items, list) and all(isinstance(item, dict) for item in items), "input: expected a sequence")
    for index, item in enumerate(items):
        history.take(item, f"input[{index}]")
    history.end_turn()
    return history.messages


class _History:
    """Items, put together to the messages that the model is shown."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        # The turn goes on after a search, with reasoning and one more text.
        self._is_after_search = False

    def take(self, item: Mapping[str, Any], where: str) -> None:
        self._take(item, where)
        if item.get("type") == searches.CALL:
            self._is_after_search = self._turn is not None
        elif item.get("type", "message") in _ENDS_OF_SEARCHES:
            self._is_after_search = False

    def _take(self, item: Mapping[str, Any], where: str) -> None:
        match item.get("type", "message"):
            case "reasoning":
                self._think(item, where)
            case "message" if item.get("role") == "assistant":
                content = _content(item.get("content"), where)
                self._end_if_spoken()
                self._open()["content"] += content
            case searches.CALL if "action" in item:
                fit(isinstance(item["action"], dict), f"{where}.action: expected a map")
                fit(item.get("id", "") is not None, f"{where}.id: invalid type: null, expected a string")
                turn = self._open()
                turn.setdefault("steps", []).append(_step(turn, item["action"]))
            case "message":
                self.end_turn()
                role = {"developer": "user"}.get(item.get("role", ""), item.get("role"))
                self.messages.append({"role": role, "content": _content(item.get("content"), where)})
            case "function_call" | "custom_tool_call" as kind:
                is_custom = kind == "custom_tool_call"
                text = item.get("input" if is_custom else "arguments")
                fit(all(isinstance(each, str) for each in (item.get("call_id"), item.get("name"), text)), where)
                function = {"name": item["name"], "arguments": json.dumps({"input": text}) if is_custom else text}
                call = {"id": item["call_id"], "type": "function", "function": function}
                self._open().setdefault("tool_calls", []).append(call)
            case "function_call_output" | "custom_tool_call_output":
                self.end_turn()
                result_message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
                self.messages.append(result_message)

    def end_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn)
        self._turn = None

    def _end_if_spoken(self) -> None:
        """Thoughts or text after the text or calls of a turn belong to the next turn."""
        if self._turn is None or self._is_after_search:
            return
        if self._turn["content"] or "tool_calls" in self._turn:
            self.end_turn()

    def _open(self) -> dict[str, Any]:
        if self._turn is None:
            self._turn = {"role": "assistant", "content": ""}
        return self._turn

    def _think(self, item: Mapping[str, Any], where: str) -> None:
        fit(isinstance(item.get("summary"), list), f"{where}: missing field `summary`")
        fit(item.get("encrypted_content", "") is not None, f"{where}: invalid type: null, expected a string")
        self._end_if_spoken()
        parts = item.get("content") or []
        text = "".join(part["text"] for part in parts if part.get("type") == "reasoning_text")
        turn = self._open()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text


def _step(turn: Mapping[str, Any], action: Mapping[str, Any]) -> dict[str, Any]:
    """A search of a turn, after so much of its reasoning and its text."""
    return {"reasoning": len(turn.get("reasoning_content", "")), "text": len(turn["content"]), "action": action}


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    fit(isinstance(content, list), f"{where}.content: expected a string or a sequence")
    parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    if part.get("type") in ("input_text", "output_text"):
        fit(isinstance(part.get("text"), str), f"{where}: missing field `text`")
        return {"type": "text", "text": part["text"]}
    fit(part.get("type") == "input_image", f"{where}.type: unknown variant")
    fit(("image_url" in part) != ("file_id" in part), f"{where}: needs exactly one of image_url and file_id")
    if "file_id" in part:
        return {"type": "file", "file": {"file_id": part["file_id"]}}
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


class Response(Completion):
    def __init__(self, answer: Answer, payload: Mapping[str, Any], cache: PrefixCache, id: str, created: int) -> None:
        forced = (Search(),) if payload.get("server_choice") and not answer.searches else ()
        can_search = payload.get("server_tools") and payload.get("tool_choice") != "none"
        self._searches = [(each, each.item()) for each in (answer.searches or forced) if can_search]
        self._custom = payload.get("custom_tools", ())
        super().__init__(answer, payload, cache, id, created)

    def body(self) -> bytes:
        self._cache.keep(self._prompt, self._message(), self._thinking)
        items = [item for item, _ in self._items()]
        return encode_json(self._object(self._status, items))

    def events(self) -> Iterator[bytes]:
        for number, event in enumerate(self._event_objects()):
            written = encode_json({**event, "sequence_number": number})
            yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), written)

    @property
    def _status(self) -> str:
        if self._finish in _INCOMPLETE:
            return "incomplete"
        return "completed" if self._finish in ("stop", "tool_calls") else "failed"

    def _event_objects(self) -> Iterator[dict[str, Any]]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._object("in_progress", [])}
        items = []
        for index, (item, text) in enumerate(self._items()):
            items.append(item)
            for event in _item_events(item, text, self._answer.piece):
                yield {**event, "output_index": index}
        self._cache.keep(self._prompt, self._message(), self._thinking)
        yield {"type": f"response.{self._status}", "response": self._object(self._status, items)}

    def _items(self) -> Iterator[tuple[dict[str, Any], str]]:
        answer = self._answer
        for search, item in self._searches:
            yield from self._words(search.reasoning, search.text, [])
            yield item, ""
        annotations = [citation.annotation() for citation in answer.citations]
        yield from self._words(answer.reasoning, answer.content, annotations)
        for call in answer.calls:
            kind, field, text = "function_call", "arguments", call.arguments
            if call.name in self._custom:
                kind, field, text = "custom_tool_call", "input", json.loads(call.arguments)["input"]
            yield self._item(kind, call_id=call.id, name=call.name, **{field: text}), text

    def _words(
        self, reasoning: str | None, text: str | None, annotations: list[dict[str, Any]]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        if self._thinking and reasoning:
            part = {"type": "reasoning_text", "text": reasoning}
            yield self._item("reasoning", summary=[], content=[part]), reasoning
        if text:
            written = {"type": "output_text", "text": text, "annotations": annotations}
            yield self._item("message", role="assistant", content=[written]), text

    def _message(self) -> dict[str, Any]:
        message = super()._message()
        if not self._searches:
            return message
        turn: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "steps": []}
        for search, item in self._searches:
            turn["reasoning_content"] += search.reasoning if self._thinking else ""
            turn["content"] += search.text
            if item["type"] == searches.CALL and "action" in item:
                turn["steps"].append(_step(turn, item["action"]))
        turn["reasoning_content"] += message.get("reasoning_content", "")
        turn["content"] += message["content"] or ""
        return {**message, **turn}

    def _item(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"id": str(uuid.uuid4()), "type": kind, "status": "completed", **fields}

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        reason = _INCOMPLETE.get(self._finish)
        error = {"code": "server_error", "message": f"The answer ended with {self._finish}."}
        return {
            "id": self._header["id"], "object": "response", "created_at": self._header["created"],
            "model": self._header["model"], "status": status, "error": error if status == "failed" else None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None, "output": output,
            "store": False, "usage": self._native_usage() if status != "in_progress" else None,
        }  # fmt: skip

    def _native_usage(self) -> dict[str, Any]:
        usage = self._usage()
        return {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"], "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip


_EVENT_PREFIXES = {
    "reasoning": "response.reasoning_text", "message": "response.output_text",
    "function_call": "response.function_call_arguments", "custom_tool_call": "response.custom_tool_call_input",
}  # fmt: skip


def _item_events(item: dict[str, Any], text: str, size: int) -> Iterator[dict[str, Any]]:
    if item["type"] not in _EVENT_PREFIXES:
        yield from searches.events(item)
        return
    is_call = item["type"] in _CALLS
    field = "input" if item["type"] == "custom_tool_call" else "arguments" if is_call else "text"
    nothing: dict[str, Any] = {field: ""} if is_call else {"content": []}
    yield {"type": "response.output_item.added", "item": {**item, **nothing, "status": "in_progress"}}
    at = {"item_id": item["id"]} if is_call else {"item_id": item["id"], "content_index": 0}
    part = {} if is_call else {"part": item["content"][0]}
    if not is_call:
        nothing = {"annotations": []} if "annotations" in part["part"] else {}
        yield {"type": "response.content_part.added", **at, "part": {**part["part"], **nothing, "text": ""}}
    prefix = _EVENT_PREFIXES[item["type"]]
    for piece in pieces(text, size):
        yield {"type": f"{prefix}.delta", **at, "delta": piece}
    for index, annotation in enumerate(part.get("part", {}).get("annotations", ())):
        kind = "response.output_text.annotation.added"
        yield {"type": kind, **at, "annotation_index": index, "annotation": annotation}
    yield {"type": f"{prefix}.done", **at, field: text}
    if not is_call:
        yield {"type": "response.content_part.done", **at, **part}
    yield {"type": "response.output_item.done", "item": item}
