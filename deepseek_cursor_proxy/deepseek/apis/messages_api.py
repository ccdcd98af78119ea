"""DeepSeek's own Messages API: canonical request -> body. Its answers are read in messages_stream.

It is used for the tools that DeepSeek runs itself there: a turn for which it ran some goes back with the blocks that it
sent, in their order, with the reasoning in its places (see conversation.pack_items). Signatures are left out, because
DeepSeek takes thinking without. The same history has the same blocks in every request, so that its prefix cache hits.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.conversation import ChatRequest, Message, unpack_items
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.apis.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.apis.messages_stream import MessageStreamReader, message_deltas
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.json_codec import encode_json, object_in

Block = dict[str, Any]

# Names of plain fields in chat completions -> in this API. A field that is not here is left out.
_PARAMS = {"temperature": "temperature", "top_p": "top_p"}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
# This API wants a limit to be named: DeepSeek's own for requests without one (reference of September 2026).
_MAX_TOKENS, _MAX_TOKENS_THINKING, _MAX_TOKENS_MAX_EFFORT = 8192, 65_536, 131_072


def payload(request: ChatRequest) -> dict[str, Any]:
    messages = chat_api.messages(request)
    prompt_count = next((at for at, each in enumerate(messages) if each["role"] != "system"), len(messages))
    body: dict[str, Any] = {"model": request.model, "max_tokens": _max_tokens(request)}
    if system := _system(request, messages[:prompt_count]):
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
    body |= {theirs: request.params[name] for name, theirs in _PARAMS.items() if name in request.params}
    if stop := request.params.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user := request.params.get("user_id"):
        body["metadata"] = {"user_id": user}
    return body


def _max_tokens(request: ChatRequest) -> int:
    default = _MAX_TOKENS_MAX_EFFORT if request.effort == "max" else _MAX_TOKENS_THINKING
    limit: int = request.params.get("max_tokens", default if request.thinking else _MAX_TOKENS)
    return limit


def _system(request: ChatRequest, prompts: Sequence[Mapping[str, Any]]) -> str:
    texts = [*(each["content"] for each in prompts), chat_api.schema_instruction(request.params.get("response_format"))]
    return "\n\n".join(filter(None, texts))


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], **described, "input_schema": schema}


def _tool_choice(request: ChatRequest) -> dict[str, Any] | None:
    if request.server_choice is not None:
        return _forced_server_tool(request.server_choice, request.server_tools)
    choice = chat_api.tool_choice(request)
    if choice is None:
        return None
    if isinstance(choice, str):
        return {"type": _CHOICES[choice]}
    return {"type": "tool", "name": choice["function"]["name"]}


def _forced_server_tool(choice: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A choice that names a tool, as Messages do, or its type."""
    names = [tool.get("name") for tool in tools if tool["type"] == choice["type"]]
    name = choice.get("name") if choice["type"] == "tool" else names[0]
    return {"type": "tool", "name": name} if isinstance(name, str) else {"type": "any"}


def _messages(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages after the system prompt; those of one role that follow each other are one here."""
    # What chat completions add to a history are messages of the user, so the turns are the same.
    turns = (each for each in request.messages if each.role == "assistant")
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
    return [_pair_searches(each, is_last=each is sent[-1]) if each["role"] == "assistant" else each for each in sent]


def _pair_searches(turn: dict[str, Any], *, is_last: bool) -> dict[str, Any]:
    """A turn in which every search has its result after it, as DeepSeek requires it.

    A search whose answer broke off before the result is left out, unless the turn is to go on. A result alone becomes
    text.
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
    # Anthropic's API refuses empty text; where nothing is said, something has to stand.
    return {"type": "text", "text": text or FILLER}


def _part(part: Mapping[str, Any]) -> Block:
    if part["type"] == "image_url":
        return {"type": "image", "source": _image_source(part["image_url"]["url"])}
    if part["type"] == "file" and part["file"].get("file_id"):
        return {"type": "image", "source": {"type": "file", "file_id": part["file"]["file_id"]}}
    return _text(part["text"] if part["type"] == "text" else placeholder(part))


def _image_source(url: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media, _, data = url.removeprefix("data:").partition(",")
    return {"type": "base64", "media_type": media.partition(";")[0], "data": data}


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
        # Another reasoning than the one whose places these are.
        items = [item for item in items if item["type"] != "thinking"]
    return [*thinking, *_item_blocks(items, reasoning, text, calls)]


def _item_blocks(items: Sequence[Block], reasoning: str, text: str, calls: Sequence[Block]) -> Iterator[Block]:
    """The blocks of a turn in the order of its items."""
    texts = "".join([item["text"] for item in items if item["type"] == "text"])
    # A notice of ours before the text is not part of the turn.
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
    arguments = function["arguments"]
    value = object_in(arguments) if arguments.strip() else {}
    given = {"arguments": arguments} if value is None else value
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def _encode(request: ChatRequest, memory: ChatMemory) -> bytes:
    return encode_json(payload(request))


MESSAGES = UpstreamApi(
    "/anthropic/v1/messages",
    payload,
    _encode,
    message_deltas,
    MessageStreamReader,
    runs_server_tools=True,
    is_unversioned=True,
)
