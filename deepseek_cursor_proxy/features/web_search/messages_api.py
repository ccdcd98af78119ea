"""DeepSeek's own Messages API: canonical request -> body, the events of a message -> canonical deltas.

It is used for the tools that DeepSeek runs itself there: a turn for which it ran some goes back with the blocks that it
sent, in their order, with the reasoning in its places (see conversation.pack_items). Signatures are left out, because
DeepSeek takes thinking without. The same history has the same blocks in every request, so that its prefix cache hits.
Answers, always streamed, are read as tolerantly as in chat_api:

    thinking, text, tool_use     reasoning, text and calls, as in a chat
    every other block            an item of a tool that DeepSeek runs itself: whole, as it is, when it ends
    citations                    sources of the text block that is open
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Heartbeat, Message, unpack_items
from deepseek_cursor_proxy.deepseek import chat_api, server_tools
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.chat_api import new_call_id
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.json_codec import as_list, as_object, as_text, encode_json, json_text, object_in

Block = dict[str, Any]

_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
# This API requires a limit. These are DeepSeek's own for requests without one (reference of September 2026).
_MAX_TOKENS, _MAX_TOKENS_THINKING, _MAX_TOKENS_MAX_EFFORT = 8192, 65_536, 131_072


def payload(request: ChatRequest) -> dict[str, Any]:
    messages = chat_api.messages(request)
    prompt_count = chat_api.count_prompts(messages)
    default = _MAX_TOKENS_MAX_EFFORT if request.effort == "max" else _MAX_TOKENS_THINKING
    limit = request.params.get("max_tokens", default if request.thinking else _MAX_TOKENS)
    body: dict[str, Any] = {"model": request.model, "max_tokens": limit}
    prompts = [prompt["content"] for prompt in messages[:prompt_count]]
    instruction = chat_api.schema_instruction(request.params.get("response_format"))
    if system := "\n\n".join(filter(None, [*prompts, instruction])):
        body["system"] = system
    body["messages"] = _messages(request, messages[prompt_count:])
    body["thinking"] = {"type": "enabled" if request.thinking else "disabled"}
    if request.thinking:
        body["output_config"] = {"effort": request.effort}
    if tools := [*map(_tool, chat_api.tools(request)), *request.server_tools]:
        body["tools"] = tools
    if (choice := _tool_choice(request)) is not None:
        body["tool_choice"] = choice
    if request.stream:
        body["stream"] = True
    body |= {name: request.params[name] for name in ("temperature", "top_p") if name in request.params}
    if stop := request.params.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user := request.params.get("user_id"):
        body["metadata"] = {"user_id": user}
    return body


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], **described, "input_schema": schema}


def _tool_choice(request: ChatRequest) -> dict[str, Any] | None:
    if request.server_choice is not None:
        # It names a tool, as Messages do, or its type.
        kind = request.server_choice["type"]
        names = [tool.get("name") for tool in request.server_tools if tool["type"] == kind]
        name = request.server_choice.get("name") if kind == "tool" else names[0]
        return {"type": "tool", "name": name} if isinstance(name, str) else {"type": "any"}
    choice = chat_api.tool_choice(request)
    if choice is None:
        return None
    if isinstance(choice, str):
        return {"type": _CHOICES[choice]}
    return {"type": "tool", "name": choice["function"]["name"]}


def _messages(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages after the system prompt; consecutive messages of one role are merged."""
    # chat_api adds user messages only, so the assistant turns are the same.
    turns = (message for message in request.messages if message.role == "assistant")
    sent: list[dict[str, Any]] = []
    for fields in messages:
        is_turn = fields["role"] == "assistant"
        blocks = _turn_blocks(fields, next(turns)) if is_turn else _user_blocks(fields)
        role = "assistant" if is_turn else "user"
        if sent and sent[-1]["role"] == role:
            # One turn needs no more than one filler.
            sent[-1]["content"] += [block for block in blocks if block != _thinking(FILLER)]
        else:
            sent.append({"role": role, "content": blocks})
    return [_pair_searches(turn, is_last=turn is sent[-1]) if turn["role"] == "assistant" else turn for turn in sent]


def _pair_searches(turn: dict[str, Any], *, is_last: bool) -> dict[str, Any]:
    """The turn with a result after every search, as DeepSeek requires.

    A search whose answer broke off before the result is left out, unless the turn is to continue. A result alone
    becomes text.
    """
    paired: list[Block] = []
    answered: set[Any] = set()
    for block in reversed(turn["content"]):
        if block["type"] == "server_tool_use" and not (is_last or block["id"] in answered):
            continue
        if _is_result(block):
            answered.add(block.get("tool_use_id"))
        paired.append(block)
    paired.reverse()
    begun = {block["id"]: at for at, block in enumerate(paired) if block["type"] == "server_tool_use"}
    for at, block in enumerate(paired):
        if _is_result(block) and begun.pop(block.get("tool_use_id"), at) >= at:
            paired[at] = _text(encode_json(block).decode())
    return {**turn, "content": paired or [_text("")]}


def _is_result(block: Mapping[str, Any]) -> bool:
    kind: str = block["type"]
    return kind.endswith("_tool_result")


def _user_blocks(fields: Mapping[str, Any]) -> list[Block]:
    content = fields["content"]
    if fields["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": fields["tool_call_id"], "content": content}]
    if isinstance(content, str):
        # A system message in the middle as well: only Flash is known to take one there.
        return [_text(content)]
    return [_part(part) for part in content]


def _text(text: str) -> Block:
    # Anthropic's API refuses empty text.
    return {"type": "text", "text": text or FILLER}


def _part(part: Mapping[str, Any]) -> Block:
    if part["type"] == "image_url":
        url: str = part["image_url"]["url"]
        if not url.startswith("data:"):
            return {"type": "image", "source": {"type": "url", "url": url}}
        media, _, data = url.removeprefix("data:").partition(",")
        source = {"type": "base64", "media_type": media.partition(";")[0], "data": data}
        return {"type": "image", "source": source}
    if part["type"] == "file" and part["file"].get("file_id"):
        return {"type": "image", "source": {"type": "file", "file_id": part["file"]["file_id"]}}
    return _text(part["text"] if part["type"] == "text" else placeholder(part))


def _turn_blocks(fields: Mapping[str, Any], turn: Message) -> list[Block]:
    calls = [_call(call) for call in fields.get("tool_calls", ())]
    reasoning, text = fields.get("reasoning_content") or "", fields["content"]
    items = unpack_items(turn, server_tools.MESSAGES)
    thinking = [_thinking(reasoning)] if reasoning else []
    if not items:
        said = [_text(text)] if text or not (thinking or calls) else []
        return [*thinking, *said, *calls]
    if sum([item["length"] for item in items if item["type"] == "thinking"]) == len(reasoning):
        thinking = []
    else:
        # The lengths belong to another reasoning.
        items = [item for item in items if item["type"] != "thinking"]
    return [*thinking, *_item_blocks(items, reasoning, text, calls)]


def _item_blocks(items: Sequence[Block], reasoning: str, text: str, calls: Sequence[Block]) -> Iterator[Block]:
    """The blocks of a turn in the order of its items."""
    texts = "".join([item["text"] for item in items if item["type"] == "text"])
    # Our notice before the text is not part of the turn.
    surplus = len(texts) - len(text) if texts.endswith(text) else 0
    thoughts_at, rest = 0, iter(calls)
    for item in items:
        match item["type"]:
            case "thinking":
                yield _thinking(reasoning[thoughts_at : thoughts_at + item["length"]])
                thoughts_at += item["length"]
            case "text":
                if item["text"][surplus:]:
                    yield {**item, "text": item["text"][surplus:]}
                surplus = max(0, surplus - len(item["text"]))
            case "tool_use":
                yield from islice(rest, 1)
            case _:
                yield item
    yield from rest


def _thinking(text: str) -> Block:
    return {"type": "thinking", "thinking": text}


def _call(call: Mapping[str, Any]) -> Block:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _input(function["arguments"])}


def _input(text: str) -> dict[str, Any]:
    value = object_in(text) if text.strip() else {}
    return {"arguments": text} if value is None else value


_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    # The answer is not complete: the client sends it back, and DeepSeek continues.
    "pause_turn": "pause_turn",
}
# For a reason that is not in the table.
_UNKNOWN_END = "aborted"
_PLAIN_BLOCKS = ("thinking", "text", "tool_use")


@dataclass
class _OpenBlock:
    """A block as it began; `call` is the index of the call, if it is one, and `input` what came of its input since."""

    fields: dict[str, Any]
    call: int | None = None
    input: list[str] = field(default_factory=list)

    @property
    def kind(self) -> object:
        return self.fields.get("type")


class MessageStreamReader(EventReader):
    def __init__(self) -> None:
        super().__init__()
        # By their index.
        self._open: dict[int, _OpenBlock] = {}
        self._calls = 0
        # How many searches succeeded.
        self._searches = 0
        self._has_text = False
        self._usage: dict[str, Any] = {}
        # The type of the last event.
        self._kind: object = None
        self._has_pinged = False

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        self._kind = None
        deltas = super()._read_event(events, data)
        if self._kind == "ping":
            # A keep-alive, as the comments of a queue are. The first one comes with the beginning of every stream and
            # counts as nothing: the call can still be made again.
            events.batch += [Heartbeat("ping")] if self._has_pinged else []
            self._has_pinged = True
        events.is_done = events.is_done or self._kind == "message_stop"
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        self._kind, key = chunk.get("type"), count_of(chunk, "index")
        match self._kind:
            case "message_start":
                self._usage |= as_object(as_object(chunk.get("message")).get("usage"))
            case "content_block_start":
                return self._begin(key, dict(as_object(chunk.get("content_block"))))
            case "content_block_delta" if key in self._open:
                return self._add(self._open[key], as_object(chunk.get("delta")))
            case "content_block_stop":
                return self._end([key])
            case "message_delta":
                self._usage |= as_object(chunk.get("usage"))
                delta = as_object(chunk.get("delta"))
                if delta.get("stop_reason") is not None:
                    return [*self._end([*self._open]), _finish(delta, usage(self._usage or None, self._searches))]
            case kind if kind == "error" or chunk.get("error"):
                # Gateways send an error object without a type.
                is_busy = as_object(chunk.get("error")).get("type") == "overloaded_error"
                # The code of chat completions for the same, which clients of every API get in their own.
                raise chat_api.failure(chunk, "insufficient_system_resource" if is_busy else None)
        return []

    def _begin(self, key: int, fields: dict[str, Any]) -> list[Delta]:
        # Some gateways do not say that a block ends: an item of a tool ends where the next block begins.
        deltas = self._end([other for other, opened in self._open.items() if opened.kind not in _PLAIN_BLOCKS])
        opened = self._open[key] = _OpenBlock(fields)
        match opened.kind:
            case "thinking":
                deltas += _pieces(reasoning=fields.get("thinking"))
            case "text":
                deltas += [server_tools.BEGINS_TEXT] if self._has_text else []
                self._has_text = True
                deltas += _pieces(text=fields.get("text")) + server_tools.citation_deltas(
                    as_list(fields.get("citations"))
                )
            case "tool_use":
                opened.call = self._calls
                self._calls += 1
                call_id = as_text(fields.get("id")) or new_call_id()
                deltas.append(Delta(calls=(CallPiece(opened.call, call_id, as_text(fields.get("name"))),)))
            case "server_tool_use":
                deltas.append(server_tools.item_delta(key, dict(fields), "in_progress"))
        return deltas

    def _add(self, opened: _OpenBlock, delta: Mapping[str, Any]) -> list[Delta]:
        match opened.kind, delta.get("type"):
            case "thinking", "thinking_delta":
                return _pieces(reasoning=delta.get("thinking"))
            case "text", "text_delta":
                return _pieces(text=delta.get("text"))
            case "text", "citations_delta":
                return server_tools.citation_deltas([delta.get("citation")])
            case _, "input_json_delta" if text := as_text(delta.get("partial_json")):
                opened.input.append(text)
                return [] if opened.call is None else [Delta(calls=(CallPiece(opened.call, arguments=text),))]
        return []

    def _end(self, keys: Sequence[int]) -> list[Delta]:
        deltas: list[Delta] = []
        for key in keys:
            opened = self._open.pop(key, None)
            if opened is None or not isinstance(opened.kind, str) or opened.kind in ("thinking", "text"):
                continue
            fields = opened.fields
            if opened.call is None:
                if opened.input:
                    fields["input"] = _input("".join(opened.input))
                self._searches += opened.kind == "web_search_tool_result" and isinstance(fields.get("content"), list)
                deltas.append(server_tools.item_delta(key, fields))
            elif not opened.input:
                # There is no input, or the first event of the block had all of it, as some gateways send it.
                given = fields.get("input") or {}
                text = given if isinstance(given, str) else json_text(given)
                deltas.append(Delta(calls=(CallPiece(opened.call, arguments=text),)))
        return deltas


def _pieces(*, reasoning: object = None, text: object = None) -> list[Delta]:
    """A delta with the reasoning or text; no delta if that is empty or not a string."""
    delta = Delta(reasoning=as_text(reasoning) or None, text=as_text(text) or None)
    return [delta] if delta.reasoning or delta.text else []


def _finish(fields: Mapping[str, Any], counted: Mapping[str, Any] | None) -> Delta:
    reason = fields.get("stop_reason")
    finish = _FINISHES.get(reason if isinstance(reason, str) else "end_turn", _UNKNOWN_END)
    stop = fields.get("stop_sequence")
    # Hosts of chat completions have it there.
    chunk = {"choices": [{"stop_reason": stop}]} if isinstance(stop, str) else None
    return Delta(finish_reason=finish, usage=counted, chunk=chunk)


def usage(figures: object, searches: int = 0) -> dict[str, Any] | None:
    """Usage under its names in chat completions, where cached tokens are part of the prompt.

    The searches count where DeepSeek has not counted its tools.
    """
    if not isinstance(figures, dict):
        return None
    cached = count_of(figures, "cache_read_input_tokens")
    missed = count_of(figures, "input_tokens") + count_of(figures, "cache_creation_input_tokens")
    output = count_of(figures, "output_tokens")
    counted: dict[str, Any] = {
        "prompt_tokens": cached + missed,
        "completion_tokens": output,
        "total_tokens": cached + missed + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": missed,
    }
    runs = {name: count for name, count in as_object(figures.get("server_tool_use")).items() if isinstance(count, int)}
    if not runs and searches:
        runs = {"web_search_requests": searches}
    return {**counted, "server_tool_use": runs} if runs else counted


MESSAGES = UpstreamApi(
    "/anthropic/v1/messages",
    payload,
    lambda request, memory: encode_json(payload(request)),
    MessageStreamReader,
    runs_server_tools=True,
    is_unversioned=True,
)
