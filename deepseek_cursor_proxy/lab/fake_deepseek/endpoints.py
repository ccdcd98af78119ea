"""The two APIs of the fake DeepSeek: how each reads a body, refuses it and writes the answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.lab.fake_deepseek import contract, native
from deepseek_cursor_proxy.lab.fake_deepseek.completion import Completion
from deepseek_cursor_proxy.lab.fake_deepseek.contract import Refusal


@dataclass(frozen=True)
class Endpoint:
    """`read` turns a body of either API into the body of a chat."""

    path: str
    read: Callable[[bytes], dict[str, Any] | Refusal]
    refusal: Callable[..., Refusal | None]
    writer: type[Completion]


_CHAT = Endpoint("/chat/completions", contract.read, contract.refusal, Completion)
_RESPONSES = Endpoint("/responses", native.read, native.refusal, native.Response)


def at(path: str) -> Endpoint:
    """The API of a path; an unknown path belongs to chats, which answer it with 404."""
    return _RESPONSES if path.partition("?")[0].endswith(_RESPONSES.path) else _CHAT
