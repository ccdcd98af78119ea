"""DeepSeek's chat completions API: canonical request -> body, chunk or completion -> canonical deltas.

Reading is tolerant: a field of the wrong shape is left out, because one odd field is no reason to lose a stream.
Facts are as of November 2026. Thinking is on by default there, so `payload` always sends `thinking`. Other hosts of the
models have the same API with other fields for thinking (`hosts`) and other names of reasoning. Answers are read under
every name, because a gateway may pass on the dialect of the server behind it; `reasoning_content` is the name inside.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Memo, Message, OtherReasoning, Parts
from deepseek_cursor_proxy.deepseek import server_tools, tool_definitions
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK, Host, ReasoningForm
from deepseek_cursor_proxy.deepseek.images import attachments, placeholder
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import LONG_TEXT, as_list, as_object, as_text, encode_json, object_in

# More parallel calls than any model makes. A larger index is damaged data.
_MAX_INDEX = 128
# Lists of 40 tools of 1 kB: thirty in each generation of the memo.
MAX_BYTES_OF_TOOLS = 8 * 1024 * 1024

_ENCODE: Stage[Message, list[bytes]] = Stage("encode")
ToolsKey = tuple[bytes, ...]
_tools: Memo[ToolsKey, bytes] = Memo(MAX_BYTES_OF_TOOLS, lambda key, text: sum(map(len, key)) + len(text))


def payload(request: ChatRequest, host: Host = DEEPSEEK) -> dict[str, Any]:
    history = messages(request, host)
    body = frame(request, history, all_tools(request) if request.tools or request.server_tools else (), host)
    if (instruction := schema_instruction(body.get("response_format"))) is not None:
        # After the system prompt: this API has JSON mode, but no schemas.
        history.insert(count_prompts(history), {"role": "system", "content": instruction})
        body["response_format"] = {"type": "json_object"}
    return body


def encode(request: ChatRequest, memory: Chat = NO_CHAT, host: Host = DEEPSEEK) -> bytes:
    """The JSON of the payload. Messages that the chat memory knows, and known lists of tools, are not encoded again."""
    has_tools = bool(request.tools or request.server_tools)
    is_short = (
        memory is NO_CHAT and not has_tools and not any(len(each.content) > LONG_TEXT for each in request.messages)
    )
    if is_short or adds_messages(request):
        return encode_json(payload(request, host))
    # The first match is the placeholder: only strings precede it, and JSON escapes quotes
    # inside strings.
    before, name, after = encode_json(frame(request, [], 0, host)).partition(b'"messages":[')
    if has_tools:
        key = tools_key(request)
        encoded_tools = _tools.get(key)
        if encoded_tools is None:
            encoded_tools = encode_json(all_tools(request))
            _tools.put(key, encoded_tools)
        between, placeholder, after = after.partition(b'"tools":0')
        after = between + placeholder[:-1] + encoded_tools + after
    # Only what shapes a message: the host's options are not part of one.
    host_key = (host.name, host.form, host.requires_reasoning)
    names = tuple(request.sent_names.items())
    conditions = (request.thinking, can_see_images(request.model), names, bool(request.server_tools), host_key)
    messages = encode_each(_ENCODE, request, memory, conditions, partial(_encode_message, request=request, host=host))
    # One join: every copy of a megabyte counts.
    messages[0] = before + name + messages[0]
    messages[-1] += after
    return b",".join(messages)


def _encode_message(message: Message, request: ChatRequest, host: Host) -> bytes:
    """The JSON of its fields; that of a long text is made in slices."""
    fields = message_fields(message, request, host)
    content = fields["content"]
    if len(content) <= LONG_TEXT or not isinstance(content, str):
        return encode_json(fields)
    # The first match is the field itself: JSON escapes quotes inside strings.
    before, name, after = encode_json({**fields, "content": ""}).partition(b'"content":"')
    slices = [encode_json(content[at : at + LONG_TEXT])[1:-1] for at in range(0, len(content), LONG_TEXT)]
    return b"".join([before, name, *slices, after])


def encode_each(
    stage: Stage[Message, list[bytes]],
    request: ChatRequest,
    memory: Chat,
    conditions: tuple[Any, ...],
    encode_one: Callable[[Message], bytes],
) -> list[bytes]:
    """The JSON of each message; those that the chat memory knows under the same conditions are not encoded again."""
    lookup = memory.look_up(stage, request.messages, conditions)
    new = [encode_one(message) for message in request.messages[lookup.count :]]
    result = [*(lookup.result or ()), *new]
    lookup.store(result, lookup.size + sum(map(len, new)))
    return result.copy()


def tools_key(request: ChatRequest) -> ToolsKey:
    """A key that two requests share if, and only if, their tools are sent with the same bytes."""
    # Not joined: each part has its hash already, and is nearly always the same object as in the last request.
    names = encode_json(list(request.sent_names.items())) if request.sent_names else b""
    of_server = tool_definitions.outline_tools(request.server_tools).keys if request.server_tools else ()
    return (*tool_definitions.outline_tools(request.tools).keys, names, *of_server)


def frame(request: ChatRequest, messages: object, tools: object, host: Host = DEEPSEEK) -> dict[str, Any]:
    """The body around these messages and tools."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        **host.thinking_fields(request.thinking, request.effort),
    }
    if request.tools or request.server_tools:
        body["tools"] = tools
    if request.server_choice is not None:
        body["tool_choice"] = request.server_choice
    elif request.tool_choice is not None:
        body["tool_choice"] = tool_choice(request)
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if request.params:
        body.update(request.params)
        if not host.has_extensions and "user_id" in body:
            body["user"] = body.pop("user_id")
    if host.options:
        body.update(host.options)
    return body


def tools(request: ChatRequest) -> list[Mapping[str, Any]]:
    """The functions of a request with names and schemas that DeepSeek accepts."""
    names = request.sent_names
    renamed = [_rename(tool, names) for tool in request.tools] if names else request.tools
    return [tool_definitions.normalize_tool(tool) for tool in renamed]


def all_tools(request: ChatRequest) -> list[Mapping[str, Any]]:
    """The functions, then the tools that DeepSeek runs itself."""
    return [*tools(request), *request.server_tools]


def tool_choice(request: ChatRequest) -> str | Mapping[str, Any] | None:
    choice = request.tool_choice
    return choice if isinstance(choice, str) or choice is None else _rename(choice, request.sent_names)


def _rename(tool: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """A tool, or the choice of one, under the name that is sent."""
    function = tool["function"]
    name = names.get(function["name"])
    return tool if name is None else {**tool, "function": {**function, "name": name}}


def plain_text(content: str | Parts) -> str:
    """Content as text alone; an image or file becomes a placeholder with its digest."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else placeholder(part) for part in content)


def messages(request: ChatRequest, host: Host = DEEPSEEK) -> list[dict[str, Any]]:
    """The history for the body, with images where this model can see them."""
    sent = []
    # Only user messages may hold images, so we add a user message with those that tools returned right after the
    # results: in every later request as well, so that DeepSeek's prefix cache hits.
    pending: list[Mapping[str, Any]] = []
    for message in request.messages:
        if message.role != "tool" and pending:
            sent.append(_image_message(pending))
            pending = []
        if message.role == "tool" and can_see_images(request.model):
            pending += attachments(message)
        sent.append(message_fields(message, request, host))
    return [*sent, _image_message(pending)] if pending else sent


def adds_messages(request: ChatRequest) -> bool:
    """Whether the body gets messages that the client did not send: images that tools returned, or a JSON schema."""
    form = request.params.get("response_format")
    if form is not None and form.get("type") == "json_schema":
        return True
    if not can_see_images(request.model):
        return False
    return not all(isinstance(message.content, str) for message in request.messages if message.role == "tool")


def _image_message(images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lead = {"type": "text", "text": f"[pictures that tools returned: {', '.join(map(placeholder, images))}]"}
    return {"role": "user", "content": [lead, *images]}


def message_fields(message: Message, request: ChatRequest, host: Host = DEEPSEEK) -> dict[str, Any]:
    """One message of the history.

    It depends on `thinking`, the model and `sent_names` of the request, and on whether it has `server_tools`.
    """
    content = message.content
    if not isinstance(content, str):
        # Only a user's parts stay parts, if the model can see all of them.
        is_visible = all(part["type"] == "text" for part in content) or can_see_images(request.model)
        content = content if message.role == "user" and is_visible else plain_text(content)
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    sent: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        sent["name"] = message.name
    if message.role != "assistant":
        return sent
    if request.thinking and message.reasoning is not None:
        if host.requires_reasoning:
            sent["reasoning_content"] = message.reasoning
        else:
            sent.update(_reasoning_fields(message, content, host))
    if message.tool_calls:
        sent["tool_calls"] = []
        for id, name, arguments in message.tool_calls:
            name = request.sent_names.get(name) or tool_definitions.sent_name(name)
            function = {"name": name, "arguments": arguments}
            sent["tool_calls"].append({"id": id, "type": "function", "function": function})
    if message.prefix and host.has_extensions:
        sent["prefix"] = True
    if message.server_items is not None and request.server_tools:
        sent.update(server_tools.fields_to_send(message))
    return sent


def _reasoning_fields(message: Message, content: str | Parts, host: Host) -> dict[str, Any]:
    """The reasoning of a turn under the host's name for it; nothing where it is unknown."""
    reasoning = message.reasoning
    if host.form is ReasoningForm.NONE or reasoning == FILLER:
        return {}
    if host.form is ReasoningForm.DETAILS and message.details is not None:
        return {"reasoning_details": json.loads(message.details)}
    if host.form is ReasoningForm.THINK:
        return {"content": f"<think>{reasoning}</think>\n\n{content}"}
    return {"reasoning_content" if host.form is ReasoningForm.CONTENT else "reasoning": reasoning}


def schema_instruction(form: object) -> str | None:
    """The prompt for a JSON schema, for which DeepSeek has no field; None for any other response_format."""
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return None
    schema = json.dumps(form.get("json_schema"), ensure_ascii=False, separators=(",", ":"))
    return f"Answer with one JSON object that fits this JSON schema:\n{schema}"


def count_prompts(messages: Sequence[Mapping[str, Any]]) -> int:
    """The number of system messages that begin a history."""
    return next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))


def chunk_delta(body: Mapping[str, Any], part: str = "delta") -> Delta:
    """The delta of a chunk (or completion, with `part` "message") and its one choice: no call asks for more."""
    if body.get("error"):
        raise failure(body)
    if "error" in body:
        # Some gateways send `"error": null` in every chunk, and some clients test for the key alone.
        body = {name: value for name, value in body.items() if name != "error"}
    choices = body.get("choices")
    usage = _usage(body["usage"]) if body.get("usage") is not None else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return Delta(usage=usage, chunk={**body, "choices": []})
    choice, other = choices[0], None
    fields: Mapping[str, Any] = as_object(choice.get(part))
    if fields.get("reasoning") is not None or fields.get("reasoning_details"):
        fields, other = read_reasoning(fields)
        choice = {**choice, part: fields}
        body = {**body, "choices": [choice]}
    reasoning, content, entries = fields.get("reasoning_content"), fields.get("content"), fields.get("tool_calls")
    delta = Delta(
        0,
        reasoning if isinstance(reasoning, str) else None,
        content if isinstance(content, str) or content is None else _parts_text(content),
        tuple([_piece(at, as_object(call)) for at, call in enumerate(as_list(entries))]) if entries else (),
        # Some gateways send "" with every chunk.
        as_text(choice.get("finish_reason")) or None,
        usage,
        body,
    )
    return delta if other is None else delta._replace(other_reasoning=other)


def with_reasoning(delta: Delta) -> Delta:
    """A whole answer with its reasoning in its completion too, which keeps it when a thinking block shows it."""
    if delta.chunk is None:
        return delta
    (choice,) = delta.chunk["choices"]
    message = {**choice["message"], "reasoning_content": delta.reasoning}
    return delta._replace(chunk={**delta.chunk, "choices": [{**choice, "message": message}]})


def failure(body: Mapping[str, Any], code: str | None = None) -> UpstreamFailed:
    """The failure that an error body or error event of Responses and Messages means."""
    message = error_message(body) or as_text(body.get("message")) or "no reason given"
    return UpstreamFailed(f"DeepSeek broke the answer off: {message}", code=code)


def error_message(body: Mapping[str, Any]) -> str:
    """The message of an error body: `{"error": {"message": …}}` or `{"error": "…"}`."""
    error = body.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


def _piece(position: int, call: Mapping[str, Any]) -> CallPiece:
    """One entry of `tool_calls`."""
    index, function = call.get("index"), as_object(call.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        # Some hosts send the arguments as an object, not as JSON text.
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    index = index if isinstance(index, int) and 0 <= index < _MAX_INDEX else position
    return CallPiece(index, as_text(call.get("id")), as_text(function.get("name")), as_text(arguments))


def _parts_text(content: object) -> str | None:
    """The text of content that a host sends as parts; None if there is none."""
    parts = [part.get("text") if isinstance(part, dict) else part for part in as_list(content)]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else None


def _usage(usage: object) -> dict[str, Any] | None:
    """Usage with the cached tokens under OpenAI's name as well as DeepSeek's."""
    if not isinstance(usage, dict):
        return None
    details = as_object(usage.get("prompt_tokens_details"))
    for cached in (details.get("cached_tokens"), usage.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")):
        if isinstance(cached, int):
            return {**usage, "prompt_tokens_details": {**details, "cached_tokens": cached}}
    return usage


def read_reasoning(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], OtherReasoning]:
    """A message or delta with its reasoning as `reasoning_content` alone, and what it had under other names.

    The first of the names that has text counts: most hosts that send two send the same text twice.
    """
    details = tuple(detail for detail in as_list(fields.get("reasoning_details")) if isinstance(detail, dict))
    own, other = as_text(fields.get("reasoning_content")), as_text(fields.get("reasoning"))
    text = own or other or details_text(details)
    known = {name: value for name, value in fields.items() if name not in ("reasoning", "reasoning_details")}
    if text or isinstance(fields.get("reasoning"), str):
        known["reasoning_content"] = text
    name = "reasoning_details" if details else "reasoning"
    return known, OtherReasoning(name, details, is_native=bool(own))


def details_text(details: Sequence[Mapping[str, Any]]) -> str:
    return "".join(as_text(detail.get("text")) or as_text(detail.get("summary")) for detail in details)


def new_call_id() -> str:
    """A random id, for a call to which the upstream gave none."""
    return f"call_{secrets.token_hex(12)}"


class AnswerCalls:
    """Completes the calls of one answer for clients. Used by the thread that reads it.

    Clients tell calls apart by the index, send the id back, and run the calls because of the finish_reason. DeepSeek's
    own answers pass unchanged. Other hosts may

        send several calls under one index   a piece with a name begins a call if it has another id, or no id and
                                             another name, or if the arguments so far are whole; others continue a call
        leave the index out                  the piece continues the call that has its id, else the last one
        leave the id out                     the call gets a random one with its name; a later id is dropped
        end with `stop` in spite of calls    the finish_reason becomes `tool_calls`
    """

    def __init__(self) -> None:
        # By index of the host: the call that began last there.
        self._calls: dict[int, _Call] = {}
        # In the order they began.
        self._begun: list[_Call] = []

    def repair(self, delta: Delta, part: str) -> Delta:
        """The delta as clients need it; `part` is where its chunk has the calls."""
        if delta.calls:
            entries = delta.chunk["choices"][0][part]["tool_calls"] if delta.chunk is not None else ()
            # Only a stream needs the index.
            has_index = part == "message" or None not in [as_object(entry).get("index") for entry in entries]
            if not (has_index and all(map(self._is_plain, delta.calls))):
                has_index = has_index or len(delta.calls) > 1
                calls = tuple([self._find(piece, has_index).add(piece) for piece in delta.calls])
                delta = delta if calls == delta.calls else delta._replace(calls=calls)
        if delta.finish_reason == "stop" and [call for call in self._begun if call.name]:
            return delta._replace(finish_reason="tool_calls")
        return delta

    def _is_plain(self, piece: CallPiece) -> bool:
        """Whether a piece continues a call that lacks nothing, as nearly all do."""
        known = self._calls.get(piece.index)
        if known is None or piece.name or piece.id:
            return False
        return known.id == known.host_id and known.index == piece.index

    def _find(self, piece: CallPiece, has_index: bool) -> "_Call":
        """The call that a piece belongs to, which may begin with it."""
        begun = self._begun
        if has_index:
            known = self._calls.get(piece.index)
        else:
            same = [call for call in begun if piece.id and piece.id == call.host_id]
            known = next(iter((same or begun)[-1:]), None)
        if known is None or not known.is_continued_by(piece):
            used = [call.index for call in begun]
            known = self._calls[piece.index] = _Call(piece.index if piece.index not in used else max(used) + 1)
            begun.append(known)
        return known


class _Call:
    """One call so far. `id` is what the client gets, `host_id` what the host sent."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = self.host_id = self.name = ""
        # Kept only if we made the id: then they decide whether the next piece begins another call.
        self._arguments: list[str] = []

    def is_continued_by(self, piece: CallPiece) -> bool:
        """Whether a piece in the same place belongs to this call."""
        if not piece.name or not self.name:
            return True
        if piece.id and self.host_id:
            return piece.id == self.host_id
        return piece.name == self.name and object_in("".join(self._arguments)) is None

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is part of this call."""
        self.name = self.name or piece.name
        self.host_id = self.host_id or piece.id
        is_unknown = not self.id
        if is_unknown:
            self.id = piece.id or (new_call_id() if self.name else "")
        if self.id == self.host_id:
            return piece if self.index == piece.index else CallPiece(self.index, piece.id, piece.name, piece.arguments)
        self._arguments.append(piece.arguments)
        return CallPiece(self.index, self.id if is_unknown else "", piece.name, piece.arguments)
