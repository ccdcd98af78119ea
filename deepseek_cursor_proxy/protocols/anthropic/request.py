"""Anthropic Messages: a request as a conversation, and the whole message that answers it.

Messages and blocks are read like those that come inside a chat (see anthropic_blocks); here is what only this API has:
its fields and their names, the signatures of its thinking blocks, and how it counts and fails.

A thinking block of ours has its reasoning sealed in its signature. So a client may send it back whole, emptied, or not
at all: DeepSeek gets the same words. Signatures of others are ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek import model_names
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.memo import Mapped
from deepseek_cursor_proxy.protocols.anthropic.errors import THREADS
from deepseek_cursor_proxy.protocols.request import parse as chat_request
from deepseek_cursor_proxy.protocols.request.fields import (
    Json,
    bad_field,
    memory,
    optional,
    optional_name,
    optional_string,
)
from deepseek_cursor_proxy.reasoning.sealed import Opener, Sealer

# Names that mean the same here and in a chat.
_SAME = ("messages", "max_tokens", "temperature", "top_p", "stream", "tools", "tool_choice")


# Taken, because clients send them, and without effect on DeepSeek; a message is one answer, whatever n says.
_WITHOUT_EFFECT = frozenset(
    {"cache_control", "container", "context_management", "mcp_servers", "service_tier", "top_k", "inference_geo", "n"}
)


_READ_HERE = frozenset({"model", "system", "thinking", "output_config", "metadata", "stop_sequences"})


# The first line of Claude Code's system prompt differs from version to version, and says nothing to a model.
_BILLING = "x-anthropic-billing-header:"


# Claude Code's id of a user ends with that of the session, in JSON or after underscores. DeepSeek keeps a cache for
# each user, so that every new session would pay anew for the same long prompt.
_SESSION = re.compile(r'"session_id"\s*:\s*"[^"]*"|_session_[0-9a-fA-F-]+\Z')


_USER_ID = re.compile(r"[^a-zA-Z0-9_-]+")


_LONGEST_USER_ID = 512


@dataclass(frozen=True)
class MessageRequest:
    """A request, and what is only said in its answer."""

    request: ChatRequest
    # Whether the answer has thinking blocks: a client that sent no `thinking` expects none, and reads content[0].text.
    has_thinking: bool = True
    # Whether these are only signed, with no text in them.
    omits_thinking: bool = False
    stops: tuple[str, ...] = ()


def parse(body: Json, config: ProxyConfig, sealer: Sealer, *, needs_limit: bool = True) -> MessageRequest:
    """The request a body asks for; BadRequest names the field that is wrong."""
    if body.get("thread") is not None:
        # With this code the official packages send the whole chat themselves; ignored, all but its last turn is lost.
        raise BadRequest("Threads are not kept here. Send all messages, without thread.", param="thread", code=THREADS)
    if not isinstance(body.get("messages"), list):
        raise bad_field("messages", "a list")
    if needs_limit and body.get("max_tokens") is None:
        raise BadRequest("max_tokens is missing; say how long the answer may be.", param="max_tokens")
    asked = optional_name(body, "model") or config.upstream_model
    thinking = optional(body, "thinking", dict, "an object") or {}
    kind = optional_string(thinking, "type", "thinking")
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise bad_field("thinking.type", "enabled, adaptive or disabled")
    inside = _as_chat(body, kind, Opener(sealer, config.max_request_body_bytes))
    inside["model"] = model_names.resolve_claude(asked, config)
    chat = chat_request.parse(inside, config)
    chat = chat._replace(requested_model=asked, messages=_in_call_order(chat.messages))
    return MessageRequest(
        chat,
        has_thinking=kind in ("enabled", "adaptive") or (kind is None and config.messages_thinking == "always"),
        omits_thinking=thinking.get("display") == "omitted",
        stops=tuple(_stops(body)),
    )


def _as_chat(body: Json, thinking: str | None, opener: Opener) -> dict[str, Any]:
    """The body in the words of a chat; what nobody here knows stays, to be named as left out."""
    known = {*_SAME, *_READ_HERE, *_WITHOUT_EFFECT}
    inside = {name: value for name, value in body.items() if name not in known}
    inside |= {name: body[name] for name in _SAME if body.get(name) is not None}
    inside["messages"] = _unsealed_messages.of(
        body["messages"], lambda message: _unsealed(message, opener), opener.owner
    )
    if (system := _system(body.get("system"))) is not None:
        inside["system"] = system
    if (tools := optional(body, "tools", list, "a list")) is not None:
        inside["tools"] = _offered(tools, body)
    output = optional(body, "output_config", dict, "an object") or {}
    if (form := _form(output)) is not None:
        inside["response_format"] = form
    effort = optional_string(output, "effort", "output_config")
    if effort is not None:
        inside["reasoning_effort"] = effort
    if thinking is not None:
        inside["thinking"] = {"type": thinking}
    if (user := _user(body)) is not None:
        inside["user"] = user
    if stops := _stops(body):
        inside["stop"] = stops
    return inside


def _offered(tools: list[Any], body: Json) -> list[Any]:
    """The tools without those that are only announced, to be searched for; what was found, called or chosen counts.

    Claude Code announces the tools of MCP servers and some of its own, and searches by itself. A search that is left to
    the server cannot be done here, so then all of them are offered.
    """
    if not any(map(_is_deferred, tools)) or any(map(_is_search, tools)):
        return tools
    choice = body.get("tool_choice")
    found = {*_found(body["messages"]), str(choice.get("name")) if isinstance(choice, dict) else ""}
    return [tool for tool in tools if not _is_deferred(tool) or str(tool.get("name")) in found]


def _is_deferred(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("defer_loading") is True


def _is_search(tool: Any) -> bool:
    return isinstance(tool, dict) and str(tool.get("type")).startswith("tool_search_tool")


def _found(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        for block in _blocks(message):
            if block.get("type") == "tool_use":
                yield str(block.get("name"))
            elif block.get("type") == "tool_result":
                inner = _blocks(block)
                yield from (str(each.get("tool_name")) for each in inner if each.get("type") == "tool_reference")


def _blocks(holder: Any) -> list[Json]:
    content = holder.get("content") if isinstance(holder, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _system(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    return [
        block for block in system if not (isinstance(block, dict) and str(block.get("text", "")).startswith(_BILLING))
    ]


def _form(output: Json) -> Json | None:
    """The form an answer must have, in the words of a chat; one of another kind than a schema is none."""
    form = optional(output, "format", dict, "an object", "output_config.format") or {}
    if form.get("type") != "json_schema":
        return None
    schema = optional(form, "schema", dict, "an object", "output_config.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": schema or {}}}


def _user(body: Json) -> str | None:
    """Who asks, in the letters that DeepSeek takes: what tells one user from another, and no more."""
    metadata = optional(body, "metadata", dict, "an object") or {}
    user = _SESSION.sub("", optional_string(metadata, "user_id", "metadata") or "")
    return _USER_ID.sub("-", user).strip("-")[:_LONGEST_USER_ID] or None


def _stops(body: Json) -> list[str]:
    stops = optional(body, "stop_sequences", list, "a list of strings") or []
    if not all(isinstance(each, str) for each in stops):
        raise bad_field("stop_sequences", "a list of strings")
    return stops


def _in_call_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Results of parallel calls come as each of them ended; they are told in the order they were asked for.

    Right behind the calls, whatever else was said meanwhile: Claude Code has system messages in between.
    """
    found: list[Message] = []
    results: list[Message] = []
    others: list[Message] = []
    places: dict[str | None, int] = {}
    for message in messages:
        if message.role == "assistant":
            found += (*_placed(results, places), *others, message)
            results, others = [], []
            places = {call.id: place for place, call in enumerate(message.tool_calls)}
        else:
            (results if message.role == "tool" and message.tool_call_id in places else others).append(message)
    return (*found, *_placed(results, places), *others)


def _placed(results: list[Message], places: Mapping[str | None, int]) -> list[Message]:
    return sorted(results, key=lambda each: places[each.tool_call_id])


# Thinking that clients keep for us …


# A message of a chat that comes back is the very same object as before (see growing_json), and so is what it becomes.
_unsealed_messages: Mapped[Any, Any] = Mapped(16 * 1024 * 1024, memory, memory)


def _unsealed(message: Any, opener: Opener) -> Any:
    """A message with its thinking as it was, wherever a signature of ours tells that."""
    blocks = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    if not isinstance(blocks, list):
        return message
    opened = {at: text for at, block in enumerate(blocks) if (text := _opened(block, opener)) is not None}
    if not opened:
        whole = _rejoined(blocks)
        return message if whole is blocks else {**message, "content": whole}
    # All of it was one reasoning, however many blocks it was told in.
    first, thought = min(opened), "".join(opened.values())
    kept = [
        {"type": "thinking", "thinking": thought} if at == first else block
        for at, block in enumerate(blocks)
        if at == first or at not in opened
    ]
    return {**message, "content": _rejoined(kept)}


def _rejoined(blocks: list[Any]) -> list[Any]:
    """The blocks of an answer with its text in one, as the model said it.

    Text is cut in two by thinking or a call in the midst of it, also in the middle of a line, and nothing tells where
    once the client has dropped that thinking.
    """
    texts = [at for at, block in enumerate(blocks) if _is_text(block)]
    if len(texts) < 2:
        return blocks
    whole = {"type": "text", "text": "".join(blocks[at]["text"] for at in texts)}
    later = set(texts[1:])
    return [whole if at == texts[0] else block for at, block in enumerate(blocks) if at not in later]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _opened(block: Any, opener: Opener) -> str | None:
    is_thinking = isinstance(block, dict) and block.get("type") == "thinking"
    signature = block.get("signature") if is_thinking else None
    return opener.open(signature) if isinstance(signature, str) else None


# What is counted …


def usage(found: Mapping[str, Any] | None, estimate: int = 0) -> dict[str, int]:
    """DeepSeek's usage in the words of this API, where what was read from the cache is not part of the input."""
    if found is None:
        return _usage(estimate, 0, 0)
    details = found.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    return _usage(max(0, _count(found, "prompt_tokens") - cached), cached, _count(found, "completion_tokens"))


def _usage(fresh: int, cached: int, said: int) -> dict[str, int]:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": said,
    }


def _count(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) and value > 0 else 0
