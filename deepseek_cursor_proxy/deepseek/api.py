"""The one seam between the corridor and what DeepSeek is spoken to in.

Everything in the corridor is the canonical conversation, so a dialect is five things: where it is spoken, what a
request says in it and as which bytes, what a whole answer says, and who reads a stream. One is chosen when a request
comes in and goes with it; nobody asks again which it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import chat_api, request_json
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, StreamReader


@dataclass(frozen=True)
class UpstreamApi:
    """One of DeepSeek's APIs. What `answer` and the reader say of the same answer adds up to the same reply."""

    path: str
    payload: Callable[[ChatRequest], dict[str, Any]]
    encode: Callable[[ChatRequest, Mapping[str, Any]], bytes]
    read_answer: Callable[[Mapping[str, Any]], list[Delta]]
    open_reader: Callable[[], EventReader]


CHAT = UpstreamApi("/chat/completions", chat_api.payload, request_json.encode, chat_api.completion_deltas, StreamReader)
