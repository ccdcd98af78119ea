"""UpstreamApi: what the exchange needs to know about one of DeepSeek's APIs, and CHAT, the one used by default.

The endpoint chooses an API when a request comes in. The exchange works on the canonical conversation and calls the
functions below; no other code depends on which API it is. `features/web_search` has the others, and `chat_api_for`
makes one for another host of the models.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import Chat
from deepseek_cursor_proxy.conversation import ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, StreamReader, read_completion
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK, Host, ReasoningForm
from deepseek_cursor_proxy.redaction import hide_texts


class UpstreamApi(NamedTuple):
    """One of DeepSeek's APIs. `read_answer` and the reader return deltas that add up to the same reply."""

    # Appended to the configured base URL.
    path: str
    payload: Callable[[ChatRequest], dict[str, Any]]
    encode: Callable[[ChatRequest, Chat], bytes]
    open_reader: Callable[[], EventReader]
    # None for an API that is only asked for streams.
    read_answer: Callable[[Mapping[str, Any]], list[Delta]] | None = None
    host: Host = DEEPSEEK
    # Whether it sends `server_tools` and reads the items that come of them.
    runs_server_tools: bool = False
    # Whether its path follows the host, also where the base URL ends in /v1 or /beta.
    is_unversioned: bool = False


CHAT = UpstreamApi("/chat/completions", chat_api.payload, chat_api.encode, StreamReader, read_completion)


def chat_api_for(host: Host) -> UpstreamApi:
    """The chat completions API as this host has it; CHAT for DeepSeek."""
    if host == DEEPSEEK:
        return CHAT
    splits_think = host.form is ReasoningForm.THINK
    # What traces and the log show of a body; the options may have keys in them.
    shown = host._replace(options=hide_texts(host.options))
    return UpstreamApi(
        CHAT.path,
        partial(chat_api.payload, host=shown),
        partial(chat_api.encode, host=host),
        partial(StreamReader, splits_think=splits_think),
        partial(read_completion, splits_think=splits_think),
        host,
    )


def with_server_tools(chat: UpstreamApi) -> UpstreamApi:
    """The same chat completions API, for a request with tools that DeepSeek runs itself."""
    open_reader = partial(StreamReader, has_server_tools=True)
    read_answer = partial(read_completion, has_server_tools=True)
    return chat._replace(open_reader=open_reader, read_answer=read_answer, runs_server_tools=True)
