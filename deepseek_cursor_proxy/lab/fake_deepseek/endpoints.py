"""The two APIs that the made-up DeepSeek answers: how a body is read, what is refused, and who writes the answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.lab.fake_deepseek import contract, native
from deepseek_cursor_proxy.lab.fake_deepseek.completion import Completion
from deepseek_cursor_proxy.lab.fake_deepseek.contract import Refusal


@dataclass(frozen=True)
class Endpoint:
    """What `read` makes of a body is that of a chat, whichever API it came by."""

    path: str
    read: Callable[[bytes], dict[str, Any] | Refusal]
    refusal: Callable[..., Refusal | None]
    writer: type[Completion]


_CHAT = Endpoint("/chat/completions", contract.read, contract.refusal, Completion)
_RESPONSES = Endpoint("/responses", native.read, native.refusal, native.Response)


def at(path: str) -> Endpoint:
    """The API that a path is for; any unknown one counts as that of chats, where nothing answers it."""
    return _RESPONSES if path.partition("?")[0].endswith(_RESPONSES.path) else _CHAT
