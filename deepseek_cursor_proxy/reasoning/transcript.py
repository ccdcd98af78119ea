"""A transcript replaces the turns whose reasoning is lost.

DeepSeek refuses a tool turn without its reasoning. Instead of dropping such turns, everything from the first message
after the system prompt up to the last lost turn becomes one system message: a transcript that the model can read.
The messages after it are sent natively. The transcript depends on nothing but the messages in it, so the next request
of the chat begins with the same bytes and DeepSeek's prefix cache goes on hitting.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek.apis.chat_api import plain_text

_PREAMBLE = (
    "Earlier tool-call turns of this conversation could not be replayed natively, because the reasoning that belongs "
    "to them is no longer available. They follow as a transcript, complete and in order. Everything in it really "
    "happened: the calls were made and the results are real. Continue from there; do not repeat finished work."
)


class Transcription(NamedTuple):
    messages: tuple[Message, ...]
    # How many messages the transcript replaces, and where native history begins in the client's numbering.
    transcript_count: int
    boundary: int


def transcribe(messages: Sequence[Message], last_lost: int, *, with_pictures: bool = False) -> Transcription | None:
    """The history with all up to `last_lost` and its results (and pictures) as a transcript; None without a user."""
    if not any(message.role == "user" for message in messages):
        return None
    prompt_count = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    boundary = last_lost + 1
    while boundary < len(messages) and messages[boundary].role == "tool":
        boundary += 1
    replaced = messages[prompt_count:boundary]
    sent = [*messages[:prompt_count], Message("system", _transcript(replaced))]
    parts = [part for message in replaced if not isinstance(message.content, str) for part in message.content]
    pictures = [part for part in parts if part["type"] != "text"]
    if with_pictures and pictures:
        lead = {"type": "text", "text": "[the pictures of the transcript, in order]"}
        sent.append(Message("user", (lead, *pictures)))
    if boundary == len(messages) or messages[boundary].role != "user":
        # The native part does not begin with a question: the last one again.
        sent += [message for message in messages[:boundary] if message.role == "user"][-1:]
    return Transcription((*sent, *messages[boundary:]), boundary - prompt_count, boundary)


def _transcript(messages: Sequence[Message]) -> str:
    entries = [_entry(message) for message in messages]
    # The transcript's digest is in every line that we add: a tool result cannot predict it, so it can neither forge a
    # role nor end the transcript; and the same transcript has the same lines in every later request.
    mark = hashlib.sha256("\0".join(text for _, text in entries).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    lines = [f"--- {mark} {role} ---\n{text}" for role, text in entries]
    return "\n\n".join([_PREAMBLE, f"--- {mark} transcript ---", *lines, f"--- {mark} end of transcript ---"])


def _entry(message: Message) -> tuple[str, str]:
    """The role of a message, and its text, reasoning and calls."""
    if message.role == "tool":
        return f"result of {message.tool_call_id}", plain_text(message.content)
    lines = []
    if message.reasoning and message.reasoning.strip():
        lines.append(f"(thinking) {message.reasoning}")
    if content := plain_text(message.content):
        lines.append(content)
    lines += [f"(calls {call.name}, id {call.id})\n{call.arguments}" for call in message.tool_calls]
    return f"{message.role} {message.name}" if message.name else message.role, "\n".join(lines)
