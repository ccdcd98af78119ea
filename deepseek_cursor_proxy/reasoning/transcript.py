"""A transcript in place of the turns whose reasoning is lost.

DeepSeek refuses a tool turn without its reasoning. Instead of dropping such turns, everything from the first message
after the system prompt up to the last lost turn becomes one system message: a transcript that the model can read.
The messages after it are sent natively. The transcript depends on nothing but the messages in it, so the next request
of the chat begins with the same bytes and DeepSeek's prefix cache goes on hitting.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek.apis.chat_api import plain_text

_PREAMBLE = (
    "Earlier tool-call turns of this conversation could not be replayed natively, because the reasoning that belongs "
    "to them is no longer available. They follow as a transcript, complete and in order. Everything in it really "
    "happened: the calls were made and the results are real. Continue from there; do not repeat finished work."
)


@dataclass(frozen=True)
class Transcription:
    messages: tuple[Message, ...]
    # How many messages the transcript replaces, and where native history begins in the client's numbering.
    transcript_count: int
    boundary: int


def transcribe(messages: Sequence[Message], last_lost: int, *, with_pictures: bool = False) -> Transcription | None:
    """The history with all up to `last_lost` and its results (and pictures) as a transcript; None without a user."""
    if not any(message.role == "user" for message in messages):
        return None
    boundary = _after_results(messages, last_lost)
    prompt_count = _leading_systems(messages)
    transcript = Message("system", _transcript(messages[prompt_count:boundary]))
    question = _question_before(messages, boundary)
    pictures = _pictures(messages[prompt_count:boundary]) if with_pictures else ()
    messages_to_send = (*messages[:prompt_count], transcript, *pictures, *question, *messages[boundary:])
    return Transcription(messages_to_send, boundary - prompt_count, boundary)


def _after_results(messages: Sequence[Message], lost: int) -> int:
    end = lost + 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return end


def _question_before(messages: Sequence[Message], boundary: int) -> tuple[Message, ...]:
    """The last user message, unless the native part begins with one."""
    if boundary < len(messages) and messages[boundary].role == "user":
        return ()
    questions = [message for message in messages[:boundary] if message.role == "user"]
    return tuple(questions[-1:])


def _pictures(messages: Sequence[Message]) -> tuple[Message, ...]:
    parts = [part for each in messages if not isinstance(each.content, str) for part in each.content]
    pictures = [part for part in parts if part["type"] != "text"]
    lead = {"type": "text", "text": "[the pictures of the transcript, in order]"}
    return (Message("user", (lead, *pictures)),) if pictures else ()


def _leading_systems(messages: Sequence[Message]) -> int:
    count = 0
    while count < len(messages) and messages[count].role == "system":
        count += 1
    return count


def _transcript(messages: Sequence[Message]) -> str:
    entries = [_entry(message) for message in messages]
    # The transcript's digest is in every line of ours: a tool result cannot predict it, so it cannot forge another role
    # or end the transcript; and the same transcript has the same lines in every later request.
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
