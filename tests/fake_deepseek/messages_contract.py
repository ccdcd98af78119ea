"""What DeepSeek's Messages API refuses: as strict as chat completions, and which server tools and blocks it takes.

A body is translated to chat completions, `contract` judges that, and its refusal is translated back. What only this
API has is judged here. This translation shares nothing with the proxy's own, so that the two can disagree.

    rule                                                          seen
    web_search_20250305 runs                                      guide of 2026-08-27, DeepSeek's harness
    deepseek_web_search, deepseek_read_url run                    guide of web tools, 2026-10-17
    later dates of web_search                                     assumed
    server_tool_use and web_search_tool_result are taken back     guide of 2026-08-27
    other *_tool_result blocks are, if they answer a use          assumed: deepseek_read_url must have some
    documents, redacted thinking, code, MCP: not supported        guide of 2026-08-27; the 400 is assumed
    claude-opus* is V4-Pro, every other claude* Flash             create-message reference, October 2026
    thinking `adaptive` is thinking                               DeepSeek-V3#1464
    thinking has to come back                                     dyedd/lens#10, Reasonix#8902, 2026-08-14
    a tool forced by name while thinking is refused, `any` works  DeepSeek-V3#1376
    no effort with thinking switched off                          claude-code#65863
    roles alternate, no empty text, results come first,           assumed, from Anthropic's reference
    every server_tool_use has its result but in the last turn
    cache_control on the blocks of a search is refused            not seen: so that tests see what is left of it
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import contract, prompt
from tests.fake_deepseek.contract import (
    DESERIALIZE,
    FORCED_TOOL,
    MISSING_REASONING,
    VISION_MODELS,
    Refusal,
    Refused,
    Rules,
    check,
    fit,
)
from tests.fake_deepseek.prompt import V4_PRO

PATHS = ("/anthropic/v1/messages", "/anthropic/messages")
MISSING_THINKING = "The `content[].thinking` in the thinking mode must be passed back to the API."
_WORDS = {MISSING_REASONING: MISSING_THINKING}
_SERVER_TOOLS = re.compile(r"web_search_\d{8}|deepseek_web_search|deepseek_read_url")
_UNSUPPORTED_RESULTS = re.compile(r"(?:\w+_)?code_execution_tool_result|mcp_tool_result|tool_search_tool_result")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SAME_NAMES = ("model", "max_tokens", "stream", "temperature", "top_p", "thinking")

Json = Mapping[str, Any]


def read(body: bytes) -> dict[str, Any] | Refusal:
    """What a body asks for, as a body of chat completions, or the 400 that it earns as it is.

    What chat completions have no field for stays in fields of our own: `server_tools`, and `blocks` of a message.
    """
    return contract.read(body, _chat)


def refusal(payload: Mapping[str, Any], rules: Rules) -> Refusal | None:
    """The 400 that a body earns which `read` has put into the words of chat completions."""
    return contract.refusal_in_words(payload, rules, _WORDS)


def _chat(body: Json) -> dict[str, Any]:
    body = {**body, "model": _model(body.get("model"))}
    chat: dict[str, Any] = {name: body[name] for name in _SAME_NAMES if name in body}
    if (chat.get("thinking") or {}).get("type") == "adaptive":
        chat["thinking"] = {"type": "enabled"}
    fit(isinstance(body.get("messages"), list) and body["messages"], "messages: expected a sequence")
    chat["messages"] = [*_system(body.get("system")), *_messages(body["messages"], body.get("model"))]
    if (effort := (body.get("output_config") or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if (user := (body.get("metadata") or {}).get("user_id")) is not None:
        chat["user_id"] = user
    if body.get("stop_sequences") is not None:
        fit(isinstance(body["stop_sequences"], list), "stop_sequences: expected a sequence")
        chat["stop"] = body["stop_sequences"]
    chat |= _tools(body.get("tools") or [])
    if body.get("tool_choice") is not None:
        _choose(body["tool_choice"], body, chat)
    return chat


def _model(name: Any) -> Any:
    if not isinstance(name, str) or not name.startswith("claude"):
        return name
    return V4_PRO if name.startswith("claude-opus") else VISION_MODELS[0]


def _tools(tools: list[Any]) -> dict[str, Any]:
    functions, server_tools, names = [], [], []
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        fit(isinstance(tool.get("name"), str), f"tools[{index}]: missing field `name`")
        names.append(tool["name"])
        if kind is None:
            fit(isinstance(tool.get("input_schema"), dict), f"tools[{index}]: missing field `input_schema`")
            more = {"description": tool["description"]} if "description" in tool else {}
            function = {"name": tool["name"], **more, "parameters": tool["input_schema"]}
            functions.append({"type": "function", "function": function})
        else:
            # `custom`, which Anthropic takes for a function, is none of them (bifrost#3456).
            fit(_SERVER_TOOLS.fullmatch(kind), f"tools[{index}].type: unknown variant `{kind}`")
            server_tools.append(tool)
    check(len(set(names)) == len(names), "Tool names must be unique.")
    # The order counts: a change of it is another prompt.
    chat: dict[str, Any] = {"tools": functions} if functions else {}
    return {**chat, "server_tools": server_tools} if server_tools else chat


def _choose(choice: Json, body: Json, chat: dict[str, Any]) -> None:
    kind = str(choice.get("type"))
    fit(kind in _CHOICES or kind == "tool", f"tool_choice.type: unknown variant `{kind}`")
    is_thinking = prompt.is_thinking(chat)
    if kind == "tool":
        names = [tool["name"] for tool in body.get("tools") or ()]
        check(choice.get("name") in names, f"tool_choice: tool `{choice.get('name')}` not found")
        check(not is_thinking, FORCED_TOOL)
        is_function = any(tool["function"]["name"] == choice["name"] for tool in chat.get("tools", ()))
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if is_function else "auto"
    else:
        # Chat completions do not take "required" while thinking; this API does.
        chat["tool_choice"] = "auto" if kind == "any" and is_thinking else _CHOICES[kind]


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    if not isinstance(system, str):
        fit(all(block.get("type") == "text" for block in system), "system: unknown variant")
        system = "\n".join(block["text"] for block in system)
    return [{"role": "system", "content": system}]


def _messages(messages: list[Any], model: Any) -> Iterator[dict[str, Any]]:
    before = None
    for index, message in enumerate(messages):
        where, role, content = f"messages[{index}]", message.get("role"), message.get("content")
        fit(role in ("user", "assistant", "system"), f"{where}.role: unknown variant `{role}`")
        check(role != "system" or model in VISION_MODELS, f"{where}: {model} takes the system prompt in `system` only")
        check(role != before, f"{where}: roles must alternate, but found `{role}` twice in a row")
        before = role
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        fit(isinstance(blocks, list), f"{where}.content: expected a string or a sequence")
        check(blocks, f"{where}.content: must not be empty")
        for position, block in enumerate(blocks):
            _check_block(block, role, f"{where}.content[{position}]")
        if role == "assistant":
            _check_searches(blocks, where, is_last=index == len(messages) - 1)
            yield turn(blocks)
        elif role == "system":
            yield {"role": "system", "content": "\n".join(block["text"] for block in blocks)}
        else:
            yield from _user_messages(blocks, where)


_BLOCKS = {
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "tool_use", "server_tool_use"),
}
_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str}, "image": {"source": dict}, "thinking": {"thinking": str},
    "tool_use": {"id": str, "name": str, "input": dict}, "tool_result": {"tool_use_id": str},
    "server_tool_use": {"id": str, "name": str, "input": dict},
}  # fmt: skip


def _check_block(block: Json, role: str, where: str) -> None:
    kind = block.get("type")
    is_result = role == "assistant" and str(kind).endswith("_tool_result")
    fit(
        kind in _BLOCKS[role] or (is_result and not _UNSUPPORTED_RESULTS.fullmatch(str(kind))),
        f"{where}.type: unknown variant `{kind}`",
    )
    fit("cache_control" not in block or kind in ("text", "image", "tool_use", "tool_result"), f"{where}.cache_control")
    for name, shape in _FIELDS.get(str(kind), {"tool_use_id": str}).items():
        fit(isinstance(block.get(name), shape), f"{where}: missing field `{name}`")
    check(kind != "text" or block["text"], f"{where}: text content blocks must be non-empty")
    if kind == "web_search_tool_result":
        _check_results(block.get("content"), where)


def _check_results(content: Any, where: str) -> None:
    if isinstance(content, dict):
        fit(content.get("type") == "web_search_tool_result_error", f"{where}.content.type: unknown variant")
        fit(isinstance(content.get("error_code"), str), f"{where}.content: missing field `error_code`")
        return
    fit(isinstance(content, list), f"{where}.content: expected a sequence")
    for result in content:
        fit(result.get("type") == "web_search_result", f"{where}.content.type: unknown variant")
        for name in ("url", "title", "encrypted_content"):
            fit(isinstance(result.get(name), str), f"{where}.content: missing field `{name}`")


def _check_searches(blocks: list[Json], where: str, *, is_last: bool) -> None:
    open_uses: list[str] = []
    for block in blocks:
        if block["type"] == "server_tool_use":
            open_uses.append(block["id"])
        elif block["type"].endswith("_tool_result"):
            check(block["tool_use_id"] in open_uses, f"{where}: a result without its server_tool_use")
            open_uses.remove(block["tool_use_id"])
    check(not open_uses or is_last, f"{where}: a server_tool_use without its result")


def turn(blocks: Sequence[Json]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(blocks, "text")}
    if any(block["type"] == "thinking" for block in blocks):
        message["reasoning_content"] = _joined(blocks, "thinking")
    if calls := [_call(block) for block in blocks if block["type"] == "tool_use"]:
        message["tool_calls"] = calls
    if any(block["type"] not in ("text", "thinking", "tool_use") for block in blocks):
        message["blocks"] = [{name: value for name, value in block.items() if name != "signature"} for block in blocks]
    return message


def _joined(blocks: Sequence[Json], kind: str) -> str:
    return "".join(block[kind] for block in blocks if block["type"] == kind)


def _call(block: Json) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": encode_json(block["input"]).decode()}
    return {"id": block["id"], "type": "function", "function": function}


def _user_messages(blocks: list[Json], where: str) -> Iterator[dict[str, Any]]:
    results = [block for block in blocks if block["type"] == "tool_result"]
    check(blocks[: len(results)] == results, f"{where}: tool results have to come first")
    for block in results:
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result_text(block.get("content"))}
    parts = [_part(block) for block in blocks[len(results) :]]
    if parts and all(part["type"] == "text" for part in parts):
        yield {"role": "user", "content": "\n".join(part["text"] for part in parts)}
    elif parts:
        yield {"role": "user", "content": parts}


def _result_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    fit(all(block.get("type") == "text" for block in content), "tool_result.content: unknown variant")
    return "\n".join(block["text"] for block in content)


def _part(block: Json) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    match source.get("type"):
        case "base64":
            return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}
        case "url":
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        case "file":
            return {"type": "file", "file": {"file_id": source["file_id"]}}
        case kind:
            raise Refused(f"{DESERIALIZE}source.type: unknown variant `{kind}`")
