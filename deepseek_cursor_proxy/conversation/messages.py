"""ChatRequest, a client's request in DeepSeek's terms, with its Messages and ToolCalls.

Values that every request, or every message of it, creates are named tuples: these take a fifth of the time of frozen
dataclasses, and are hashed and compared in C. No caller changes what their fields hold.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation.memo import size_of

# The memory of a message or a call without its text: the tuple, its ids and names.
_BYTES_PER_MESSAGE = 400

# Content that is not plain text: parts in OpenAI's shape, `{"type": "text", "text": …}` and images or files.
Parts = tuple[Mapping[str, Any], ...]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    role: str
    content: str | Parts = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    # DeepSeek's beta "continue this text" mark; no part of the message's identity.
    prefix: bool = False
    # The JSON of the list that a host sent as `reasoning_details`, for a host that takes it back.
    details: str | None = None
    # An answer for which DeepSeek ran tools of its own, as the client's API has it: see `pack_items`. Its text is
    # `content` as well, its reasoning `reasoning`.
    server_items: str | None = None

    @property
    def byte_size(self) -> int:
        """About how many bytes it takes."""
        size = _BYTES_PER_MESSAGE + size_of(self.content) + len(self.reasoning or "") + len(self.details or "")
        size += len(self.server_items or "")
        if not isinstance(self.content, str):
            size += sum(len(repr(part)) for part in self.content)
        for call in self.tool_calls:
            size += _BYTES_PER_MESSAGE + len(call.arguments)
        return size


class ChatRequest(NamedTuple):
    """A client's request, in DeepSeek's terms; `requested_model` is the client's name of the model."""

    requested_model: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    stream: bool = False
    # Where a stream has its usage: True for a chunk of its own, False for nowhere; see protocols/chat.
    include_usage: bool | None = None
    # How many answers the client wants; each is an upstream call of its own.
    choices: int = 1
    thinking: bool = True
    effort: str = "high"
    params: Mapping[str, Any] = _NOTHING
    # The client's own name for the chat, if it gives one.
    conversation: str | None = None
    # What the client sent and DeepSeek has no field for, for the log.
    dropped: tuple[str, ...] = ()
    # Tools that take free text: their calls are functions with one field upstream, and bare text to the client.
    custom_tools: frozenset[str] = frozenset()
    # Tools of a namespace, by their names upstream: the namespace, and the name that the client knows.
    tool_namespaces: Mapping[str, tuple[str, str]] = _NOTHING
    # Tools whose names DeepSeek refuses: the names that it gets (see deepseek/tools/tool_definitions).
    sent_names: Mapping[str, str] = _NOTHING
    # The API that the client uses; see deepseek/tools/server_tools for its name.
    client_api: str = "chat"
    # Tools that DeepSeek runs itself, as the client declares them, and the choice of one that it forces.
    server_tools: tuple[Mapping[str, Any], ...] = ()
    server_choice: Mapping[str, Any] | None = None
    # Whether the client wants the response cache to be used, if it says so.
    cache: bool | None = None
    # The custom tools that the client declares as OpenAI's chat completions have them: their calls come back so.
    nested_tools: frozenset[str] = frozenset()


def pack_items(api: str, items: Sequence[Mapping[str, Any]]) -> str:
    """Message.server_items: the items or blocks of an answer in the form of an API, in their order.

    A reasoning among them is replaced by its length, because the client may not send it: {"type": "thinking",
    "length": 12} stands for the next 12 characters of `Message.reasoning`. In an answer, and in the form of APIs that
    have no more to say about a text, {"type": "text", "length": 12} stands for those of `Message.content`. In the form
    of Messages, {"type": "tool_use"} stands for the next one of `Message.tool_calls`.
    """
    return json.dumps({api: items}, ensure_ascii=False, separators=(",", ":"))


def unpack_items(message: Message, api: str) -> list[dict[str, Any]]:
    """The items of a message in the form of this API; none if it has them in the form of another."""
    found: list[dict[str, Any]] = json.loads(message.server_items).get(api, []) if message.server_items else []
    return found


# JavaScript trims the byte order mark as white space, and some clients write the space without width for nothing.
_INVISIBLE = "\ufeff\u200b"
_ASCII_SPACES = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"


def is_blank(reasoning: str | None) -> bool:
    """Whether a reasoning has no visible character; some clients write blanks where they have lost it."""
    begins = (reasoning or "").lstrip()
    return not begins or (begins[0] in _INVISIBLE and not remove_spaces(begins))


def remove_spaces(text: str) -> str:
    """The text without white space, for telling whether a client changed nothing else in it."""
    # The bytes first: most white space is ASCII, and dividing 100 kB into words takes 4 ms in place of 0.2.
    text = text.encode("utf-8", "surrogatepass").translate(None, _ASCII_SPACES).decode("utf-8", "surrogatepass")
    return text if text.isascii() else "".join(text.split()).replace("\ufeff", "").replace("\u200b", "")
