"""The APIs of DeepSeek, and of servers of others that have its models: what each reads, refuses and writes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fake_deepseek import contract, messages_contract, native, web_tools
from tests.fake_deepseek.completion import Completion
from tests.fake_deepseek.contract import Refusal, Rules
from tests.fake_deepseek.dialects import DIALECTS
from tests.fake_deepseek.messages_writer import MessageAnswer


@dataclass(frozen=True)
class Endpoint:
    """One of DeepSeek's APIs; `read` turns a body of any into the body of a chat."""

    paths: tuple[str, ...]
    read: Callable[[bytes], dict[str, Any] | Refusal]
    refusal: Callable[[dict[str, Any], Rules], Refusal | None]
    writer: Callable[..., Completion]


def versions(path: str) -> tuple[str, ...]:
    return path, f"/v1{path}", f"/beta{path}"


_CHAT = Endpoint(versions("/chat/completions"), web_tools.read, contract.refusal, Completion)
# A server of others that looks like DeepSeek: it refuses tools but functions.
_OTHER_SERVER = Endpoint(versions("/chat/completions"), contract.read, contract.refusal, Completion)
_RESPONSES = Endpoint(versions("/responses"), native.read, native.refusal, native.Response)
_MESSAGES = Endpoint(messages_contract.PATHS, messages_contract.read, messages_contract.refusal, MessageAnswer)


def chat_endpoint(host: str, *, has_chat_alone: bool) -> Endpoint:
    if host == "deepseek":
        return _OTHER_SERVER if has_chat_alone else _CHAT
    dialect = DIALECTS[host]
    return Endpoint(versions("/chat/completions"), dialect.read, dialect.refusal, dialect.writer)


def endpoint_at(path: str, chat: Endpoint = _CHAT) -> Endpoint:
    """The API of a path; an unknown path belongs to chats, which answer it with 404."""
    plain = path.partition("?")[0]
    return next((each for each in (_RESPONSES, _MESSAGES) if plain in each.paths), chat)
