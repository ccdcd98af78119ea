"""Four coding agents as clients: what each sends, and what it sends back of an answer.

Written after requests of the real programs that were recorded on loopback (Codex 0.166.0, Claude Code 2.1.325, opencode
1.18.33) and after public captures of Cursor: the fields, about as large prompts and tools, and the echo of a turn.

    client        API                 reasoning of earlier turns
    Codex         Responses           items as they came, with `encrypted_content`
    Claude Code   Messages            thinking blocks as they came, with their signature; `cache_control` moves along
    opencode      chat completions    `reasoning_content`; arguments are serialised again
    Cursor        chat completions    none; the text as it was shown. Once more with a switch of its mode and an elided
                                      result in mid-chat, which reports of its users tell of
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from tests.support import cursor

Json = dict[str, Any]

_MODEL = "deepseek-v4-pro"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_WORDS = _names("read write file path test build error value list index return class module line token result state")


class ToolCall(NamedTuple):
    """A call as the client understood it."""

    id: str
    name: str


def prose(rng: random.Random, size: int) -> str:
    # The shortest word has four letters.
    return " ".join(rng.choices(_WORDS, k=size // 4))[:size]


class AgentClient:
    """One chat of a client: `body` is the next request, `read` takes its answer, `add_result` what a tool returned."""

    name: ClassVar[str]
    path: ClassVar[str]
    # Characters of the prompt, and the tool that the model calls with the name of its argument.
    prompt_size: ClassVar[int]
    tools: ClassVar[Sequence[str]]
    argument: ClassVar[str]
    headers: ClassVar[Mapping[str, str]]

    def __init__(self, rng: random.Random) -> None:
        self._prompt = prose(rng, self.prompt_size)
        self._schemas = [
            (name, prose(rng, 700), _parameters(rng, self.argument if name == self.tools[0] else "value"))
            for name in self.tools
        ]
        self._session = "".join(rng.choices("0123456789abcdef", k=32))
        self.history: list[Json] = []

    def change(self, turn: int) -> None:
        """Edit the history before the question of this turn, as some clients do."""

    def ask(self, question: str) -> None:
        raise NotImplementedError

    def body(self) -> Json:
        raise NotImplementedError

    def read(self, events: Sequence[Json]) -> list[ToolCall]:
        """Append an answer to the history as this client sends it back; the calls in it."""
        raise NotImplementedError

    def add_result(self, call: ToolCall, text: str) -> None:
        raise NotImplementedError


def _parameters(rng: random.Random, argument: str) -> Json:
    fields = {name: {"type": "string", "description": prose(rng, 80)} for name in (argument, "reason")}
    return {"type": "object", "properties": fields, "required": [argument]}


class OpenCode(AgentClient):
    name = "opencode"
    path = "/v1/chat/completions"
    prompt_size = 12_000
    tools = ("bash", "read", "edit", "write", "glob", "grep", "list", "task", "todowrite", "webfetch")
    argument = "command"
    headers: ClassVar[Mapping[str, str]] = {"User-Agent": "opencode/1.18.33 ai-sdk/openai-compatible/1.0.0"}

    def ask(self, question: str) -> None:
        self.history.append({"role": "user", "content": question})

    def body(self) -> Json:
        tools = [
            {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
            for name, text, schema in self._schemas
        ]
        return {
            "model": _MODEL, "max_tokens": 8192,
            "messages": [{"role": "system", "content": self._prompt}, *self.history], "tools": tools,
            "tool_choice": "auto", "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip

    def read(self, events: Sequence[Json]) -> list[ToolCall]:
        answer = cursor.add_up(events)
        if answer.finish_reason is None:
            raise ValueError("no finish_reason")
        self.history.append(self.echo(answer))
        return [ToolCall(call.id, call.name) for call in answer.calls]

    def echo(self, answer: cursor.ClientAnswer) -> Json:
        # As JavaScript writes it.
        calls = tuple(replace(call, arguments=_dump(json.loads(call.arguments))) for call in answer.calls)
        return {**cursor.echo(replace(answer, calls=calls)), "reasoning_content": answer.reasoning}

    def add_result(self, call: ToolCall, text: str) -> None:
        self.history.append({"role": "tool", "tool_call_id": call.id, "content": text})


class Cursor(OpenCode):
    name = "Cursor-like"
    prompt_size = 20_000
    tools = _names("run_terminal_cmd read_file edit_file codebase_search grep list_dir file_search delete_file")
    headers: ClassVar[Mapping[str, str]] = {"User-Agent": "Cursor/3.17"}

    def body(self) -> Json:
        body = super().body()
        return {name: value for name, value in body.items() if name not in ("max_tokens", "tool_choice")} | {
            "user": "u"
        }

    def echo(self, answer: cursor.ClientAnswer) -> Json:
        return cursor.echo(answer)


class EditingCursor(Cursor):
    """In another mode from turn 10 on, with other instructions and one more tool; elides an old result at turn 20."""

    name = "Cursor-like, edited"

    def change(self, turn: int) -> None:
        if turn == 10:
            self._prompt = "Plan first. " + self._prompt
            self._schemas.append(("create_plan", "Write the plan.", {"type": "object", "properties": {}}))
        elif turn == 20:
            result = next(message for message in self.history if message["role"] == "tool")
            result["content"] = "[truncated]"


class Codex(AgentClient):
    name = "Codex"
    path = "/v1/responses"
    prompt_size = 22_000
    tools = _names("exec_command write_stdin request_user_input view_image get_goal create_goal update_goal")
    argument = "cmd"
    headers: ClassVar[Mapping[str, str]] = {"User-Agent": "codex_exec/0.166.0", "originator": "codex_exec"}

    def ask(self, question: str) -> None:
        self._add_message("user", question)

    def _add_message(self, role: str, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.history.append({"type": "message", "id": self._id("msg"), "role": role, "content": content})

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._session}{len(self.history):04x}"

    def body(self) -> Json:
        prompt = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": self._prompt}]}
        tools = [
            {"type": "function", "name": name, "description": text, "strict": False, "parameters": schema}
            for name, text, schema in self._schemas
        ]
        return {
            "model": _MODEL, "input": [prompt, *self.history], "tools": tools, "tool_choice": "auto",
            "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": self._session,
        }  # fmt: skip

    def read(self, events: Sequence[Json]) -> list[ToolCall]:
        if not any(event.get("type") == "response.completed" for event in events):
            raise ValueError("no response.completed")
        items = [event["item"] for event in events if event.get("type") == "response.output_item.done"]
        self.history += items
        return [ToolCall(item["call_id"], item["name"]) for item in items if item["type"] == "function_call"]

    def add_result(self, call: ToolCall, text: str) -> None:
        output = {"type": "function_call_output", "id": self._id("fco"), "call_id": call.id, "output": text}
        self.history.append(output)


class ClaudeCode(AgentClient):
    name = "Claude Code"
    path = "/v1/messages?beta=true"
    prompt_size = 18_000
    tools = _names("Bash Read Edit Write Glob Grep Agent TodoWrite ToolSearch Skill WebFetch NotebookEdit")
    argument = "command"
    headers: ClassVar[Mapping[str, str]] = {
        "User-Agent": "claude-cli/2.1.325 (external, sdk-cli)",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }

    def ask(self, question: str) -> None:
        # A question follows the results of the last turn in one message, if there are any.
        self._add_to_user({"type": "text", "text": question})
        reminder = {"type": "text", "text": f"# Environment\nFolder: {self._session}"}
        self.history.append({"role": "system", "content": [reminder]})

    def _add_to_user(self, block: Json) -> None:
        if not self.history or self.history[-1]["role"] != "user":
            self.history.append({"role": "user", "content": []})
        self.history[-1]["content"].append(block)

    def body(self) -> Json:
        cached = {"cache_control": {"type": "ephemeral"}}
        system = [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are an agent for the command line.", **cached},
            {"type": "text", "text": self._prompt, **cached},
        ]
        *before, last = self.history
        marked = {**last, "content": [*last["content"][:-1], {**last["content"][-1], **cached}]}
        tools = [{"name": name, "description": text, "input_schema": schema} for name, text, schema in self._schemas]
        return {
            "model": _MODEL, "messages": [*before, marked], "system": system, "tools": tools, "max_tokens": 32_000,
            "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"},
            "metadata": {"user_id": _dump({"session_id": self._session})}, "stream": True,
        }  # fmt: skip

    def read(self, events: Sequence[Json]) -> list[ToolCall]:
        blocks: dict[int, Json] = {}
        for event in events:
            if event.get("type") == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            elif event.get("type") == "content_block_delta":
                _add_delta(blocks[event["index"]], event["delta"])
        if not any(event.get("type") == "message_stop" for event in events):
            raise ValueError("no message_stop")
        content = []
        for block in blocks.values():
            written = block.pop("written", "")
            content.append({**block, "input": json.loads(written or "{}")} if block["type"] == "tool_use" else block)
        self.history.append({"role": "assistant", "content": content})
        return [ToolCall(block["id"], block["name"]) for block in content if block["type"] == "tool_use"]

    def add_result(self, call: ToolCall, text: str) -> None:
        self._add_to_user({"type": "tool_result", "tool_use_id": call.id, "content": text})


CLIENTS: tuple[type[AgentClient], ...] = (Codex, ClaudeCode, OpenCode, Cursor, EditingCursor)


def _add_delta(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "input_json_delta":
            block["written"] = block.get("written", "") + delta["partial_json"]


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
