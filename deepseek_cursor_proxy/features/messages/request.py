"""Anthropic Messages: a request as a ChatRequest and the options of its message.

`request` reads messages and blocks of any shape; here is what only this API has: its fields, its deferred
tools, and the signatures of its thinking blocks.

A thinking block of ours has its reasoning sealed in its signature, so a client may send it back whole or emptied:
DeepSeek gets the same words. Other signatures are ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, ChatRequest, Message
from deepseek_cursor_proxy.deepseek import model_resolver
from deepseek_cursor_proxy.deepseek.server_tools import MESSAGES
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.features.encryption import Opener, Sealer, unseal_each
from deepseek_cursor_proxy.features.messages.errors import THREADS
from deepseek_cursor_proxy.json_codec import (
    Json,
    as_list,
    as_object,
    bad_field,
    optional,
    optional_name,
    optional_string,
)
from deepseek_cursor_proxy.protocols import request as chat_request
from deepseek_cursor_proxy.protocols.messages import has_server_blocks

# Clients send them; they have no effect on DeepSeek. A message is one answer, whatever n says.
_IGNORED_FIELDS = frozenset(
    {"cache_control", "container", "context_management", "mcp_servers", "service_tier", "top_k", "inference_geo", "n"}
)
_TRANSLATED_FIELDS = frozenset({"model", "system", "thinking", "output_config", "metadata", "stop_sequences"})

# The first line of Claude Code's system prompt differs from version to version, and says nothing to a model.
_BILLING = "x-anthropic-billing-header:"

# Claude Code's user id ends with the session id, in JSON or after underscores. DeepSeek keeps a cache for each user, so
# every new session would pay again for the same long prompt.
_SESSION = re.compile(r'"session_id"\s*:\s*"[^"]*"|_session_[0-9a-fA-F-]+\Z')
_USER_ID = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST_USER_ID = 512


@dataclass(frozen=True)
class MessageRequest:
    """A request, and the options of the message that answers it."""

    request: ChatRequest
    # A client that sent no `thinking` expects no thinking blocks, and reads content[0].text.
    has_thinking: bool = True
    # Thinking blocks have a signature and no text.
    omits_thinking: bool = False
    stops: tuple[str, ...] = ()


def parse(
    body: Json,
    config: ProxyConfig,
    sealer: Sealer,
    memory: Chat = NO_CHAT,
    name: ChatName = UNNAMED,
    *,
    needs_limit: bool = True,
) -> MessageRequest:
    """The request of a body; BadRequest names the field that is wrong."""
    if body.get("thread") is not None:
        # If it were ignored, all but the last turn of the chat would be lost.
        raise BadRequest("Threads are not kept here. Send all messages, without thread.", param="thread", code=THREADS)
    if needs_limit and body.get("safeguards"):
        # Claude Code 2.1.278 and later, in auto mode: asks the server to judge calls. Its contract for gateways wants
        # a 400 that names the field. Claude Code then asks without it, and some versions judge the calls themselves.
        raise BadRequest(
            "safeguards: DeepSeek does not check tool calls. With CLAUDE_CODE_AUTO_MODE_SERVER=0 Claude Code checks "
            "them itself, through this proxy.",
            param="safeguards",
        )
    if not isinstance(body.get("messages"), list):
        raise bad_field("messages", "a list")
    if needs_limit and body.get("max_tokens") is None:
        raise BadRequest("max_tokens is missing; say how long the answer may be.", param="max_tokens")
    model = optional_name(body, "model") or config.upstream_model
    thinking = optional(body, "thinking", dict, "an object") or {}
    kind = optional_string(thinking, "type", "thinking")
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise bad_field("thinking.type", "enabled, adaptive or disabled")
    opener = Opener(sealer, config.max_request_body_bytes)
    chat_body = _chat_body(body, kind)
    unseal = partial(_unseal, opener=opener)
    chat_body["messages"] = unseal_each(body["messages"], unseal, opener, memory)
    chat_body["model"] = model_resolver.resolve_claude(model, config)
    chat = chat_request.parse(chat_body, config, memory, MESSAGES, name)
    chat = chat._replace(requested_model=model, messages=_sort_results(chat.messages))
    return MessageRequest(
        chat,
        has_thinking=kind in ("enabled", "adaptive"),
        omits_thinking=thinking.get("display") == "omitted",
        stops=tuple(_stops(body)),
    )


def _chat_body(body: Json, thinking: str | None) -> dict[str, Any]:
    """The body in the fields of a chat. Those that mean the same stay, and unknown ones, to be reported as dropped."""
    chat = {name: value for name, value in body.items() if name not in _TRANSLATED_FIELDS | _IGNORED_FIELDS}
    system = body.get("system")
    if isinstance(system, list):
        system = [block for block in system if not str(as_object(block).get("text", "")).startswith(_BILLING)]
    if system is not None:
        chat["system"] = system
    if (tools := optional(body, "tools", list, "a list")) is not None:
        chat["tools"] = _available_tools(tools, body)
    output = optional(body, "output_config", dict, "an object") or {}
    form = optional(output, "format", dict, "an object", "output_config.format") or {}
    if form.get("type") == "json_schema":
        schema = optional(form, "schema", dict, "an object", "output_config.format.schema") or {}
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    effort = optional_string(output, "effort", "output_config")
    if effort is not None:
        chat["reasoning_effort"] = effort
    if thinking is not None:
        chat["thinking"] = {"type": thinking}
    metadata = optional(body, "metadata", dict, "an object") or {}
    user = _SESSION.sub("", optional_string(metadata, "user_id", "metadata") or "")
    # In the characters that DeepSeek takes.
    if user := _USER_ID.sub("-", user).strip("-")[:_LONGEST_USER_ID]:
        chat["user"] = user
    if stops := _stops(body):
        chat["stop"] = stops
    return chat


def _available_tools(tools: list[Any], body: Json) -> list[Any]:
    """The tools without those that are deferred until a search finds them; found, called and chosen ones are available.

    Claude Code defers the tools of MCP servers and some of its own, and searches by itself. The proxy can't do a search
    that is left to the server, so then all tools are available.
    """
    if not any(map(_is_deferred, tools)):
        return tools
    if any(str(as_object(tool).get("type")).startswith("tool_search_tool") for tool in tools):
        return tools
    choice = body.get("tool_choice")
    names = {*_found_names(body["messages"]), str(choice.get("name")) if isinstance(choice, dict) else ""}
    return [tool for tool in tools if not _is_deferred(tool) or str(tool.get("name")) in names]


def _is_deferred(tool: Any) -> bool:
    return as_object(tool).get("defer_loading") is True


def _found_names(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        for block in _blocks(message):
            if block.get("type") == "tool_use":
                yield str(block.get("name"))
            elif block.get("type") == "tool_result":
                inner = _blocks(block)
                yield from (str(block.get("tool_name")) for block in inner if block.get("type") == "tool_reference")


def _blocks(holder: Any) -> list[Json]:
    return [block for block in as_list(as_object(holder).get("content")) if isinstance(block, dict)]


def _stops(body: Json) -> list[str]:
    stops = optional(body, "stop_sequences", list, "a list of strings") or []
    if not all(isinstance(stop, str) for stop in stops):
        raise bad_field("stop_sequences", "a list of strings")
    return stops


def _sort_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with results right after their calls, in their order: Claude Code sends them as the calls end."""
    ordered: list[Message] = []
    results: list[Message] = []
    others: list[Message] = []
    positions: dict[str | None, int] = {}
    for message in messages:
        if message.role == "assistant":
            ordered += (*_in_order(results, positions), *others, message)
            results, others = [], []
            positions = {call.id: position for position, call in enumerate(message.tool_calls)}
        else:
            (results if message.role == "tool" and message.tool_call_id in positions else others).append(message)
    return (*ordered, *_in_order(results, positions), *others)


def _in_order(results: list[Message], positions: Mapping[str | None, int]) -> list[Message]:
    return sorted(results, key=lambda result: positions[result.tool_call_id])


def _unseal(message: Any, opener: Opener) -> Any:
    """A message without `cache_control`, with the thinking that its signatures of ours hold, and its texts as one.

    With blocks of tools that DeepSeek ran itself, all of them stay in their places.
    """
    if any("cache_control" in block for block in _blocks(message)):
        message = {**message, "content": list(map(_unmark, message["content"]))}
    blocks = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    if not isinstance(blocks, list):
        return message
    opened = {at: text for at, block in enumerate(blocks) if (text := _open_signature(block, opener)) is not None}
    is_server_turn = has_server_blocks(blocks)
    if len(opened) > 1 and not is_server_turn:
        # One reasoning was cut into several blocks.
        first, reasoning = min(opened), "".join(opened.values())
        blocks = [block for at, block in enumerate(blocks) if at == first or at not in opened]
        opened = {first: reasoning}
    kept = [{"type": "thinking", "thinking": opened[at]} if at in opened else block for at, block in enumerate(blocks)]
    kept = kept if is_server_turn else _join_texts(kept)
    return {**message, "content": kept} if kept != message["content"] else message


def _unmark(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    return {name: value for name, value in block.items() if name != "cache_control"}


def _join_texts(blocks: list[Any]) -> list[Any]:
    """The blocks of an answer with all of its text in the first text block, as the model wrote it.

    Thinking or a call cuts text in two, even in the middle of a line, and once a client has dropped that thinking
    nothing shows where.
    """
    fields = enumerate(map(as_object, blocks))
    texts = [at for at, block in fields if block.get("type") == "text" and isinstance(block.get("text"), str)]
    if len(texts) < 2:
        return blocks
    joined = {"type": "text", "text": "".join([blocks[at]["text"] for at in texts])}
    later = set(texts[1:])
    return [joined if at == texts[0] else block for at, block in enumerate(blocks) if at not in later]


def _open_signature(block: Any, opener: Opener) -> str | None:
    fields = as_object(block)
    signature = fields.get("signature") if fields.get("type") == "thinking" else None
    return opener.open(signature) if isinstance(signature, str) else None
