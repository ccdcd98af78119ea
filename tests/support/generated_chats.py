"""Chats of real clients, generated from a seed: the model's answers, the client's echoes and edits.

A World holds several chats of one caller and one memory. Every step lets one chat edit its history (or not), send it
through the whole pure pipeline, and receive an answer. `World.step` checks the five laws on every request; the test
prints the seed and the smallest number of steps that fail.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.deepseek import chat_api, rules
from deepseek_cursor_proxy.deepseek.history_repair import use_template_roles
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK
from deepseek_cursor_proxy.json_codec import decode_json_object, encode_json
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.restore import FoundTurns, prepare
from tests.fake_deepseek import contract
from tests.support import histories
from tests.support.histories import TOOLS

CONFIG = ProxyConfig()
FORMS = (thinking_blocks.COLLAPSIBLE, thinking_blocks.PLAIN, None)
# In every chat, so that openings, questions and short answers are often identical.
COMMON = ("continue", "Please fix the failing test in the parser.", "thanks", "What does this file do?")


@dataclass
class Turn:
    """An assistant message of a history, and its reasoning (None: another program's model wrote it)."""

    message: dict[str, Any]
    reasoning: str | None
    # Whether the laws promise that its reasoning comes back, whatever happened around it.
    is_proven: bool


@dataclass
class Chat:
    has_unique_ids: bool
    form: thinking_blocks.Form | None
    history: list[Any] = field(default_factory=list)
    # The messages last sent, as long as the client has only appended since.
    sent: list[Any] = field(default_factory=list)

    def messages(self) -> list[dict[str, Any]]:
        return [each.message if isinstance(each, Turn) else each for each in self.history]


class World:
    def __init__(self, seed: int, chats: int = 3, *, forgets: bool = False, forms: Sequence[Any] = FORMS) -> None:
        self.rng = random.Random(seed)
        self.memory: dict[bytes, list[str]] = {}
        self.forgets = forgets
        self._forms = forms
        self._count = 0
        self.chats = [self._new_chat() for _ in range(chats)]

    def step(self) -> Chat:
        """One request of one chat, checked against the laws; returns the chat it was."""
        chat = self.rng.choice(self.chats)
        if self._ends_with_question(chat) or self.rng.random() < 0.3:
            self._edit(chat)
        if _role(chat.history[-1]) in ("assistant", "system"):
            chat.history.append({"role": "user", "content": self._question(chat)})
        answer = self._generate_answer(chat)
        payload = self.exchange(chat, answer)
        self._check(chat, payload)
        self._receive(chat, answer)
        return chat

    def exchange(self, chat: Chat, answer: Message) -> dict[str, Any]:
        """Send the chat's history through the pipeline and record the answer; the payload for DeepSeek."""
        body = encode_json({"messages": chat.messages(), "tools": TOOLS, "stream": True})
        request = parse(decode_json_object(body), CONFIG)
        history = identity.History(b"caller", request.messages)
        found = FoundTurns(request, history, {} if self.forgets else self.memory)
        prepared = prepare(request, found, "recover")
        for key in history.answer_keys(answer).record_keys():
            self.memory[key] = list(dict.fromkeys([*self.memory.get(key, ()), answer.reasoning or ""]))
        return chat_api.payload(use_template_roles(prepared.request, DEEPSEEK))

    def _generate_answer(self, chat: Chat) -> Message:
        calls = self._calls(chat)
        texts = ("", "Done.", self._words()) if calls else (self._words(), "Done. " * 5)
        text = self.rng.choice(texts)
        reasoning = self.rng.choice((f"Thought {self._next()}: </details> {self._words()}", self._words()))
        return Message("assistant", text, reasoning, tuple(ToolCall(*call) for call in calls))

    def _receive(self, chat: Chat, answer: Message) -> None:
        answers_unique = identity.is_unique_id(chat.history[-1].get("tool_call_id", ""))
        is_proven = (bool(answer.tool_calls) and chat.has_unique_ids) or answers_unique
        chat.history.append(Turn(self._echo(chat, answer), answer.reasoning, is_proven))
        for call in answer.tool_calls:
            chat.history.append({"role": "tool", "tool_call_id": call.id, "content": f"result {self._next()}"})

    def _echo(self, chat: Chat, answer: Message) -> dict[str, Any]:
        """The answer as a client sends it back: without its reasoning, and with insignificant edits."""
        displayed = self.display(chat, answer)
        forms = (displayed, displayed.strip(), displayed + "\n", [{"type": "text", "text": displayed}])
        content: Any = self.rng.choice(forms)
        if not displayed:
            content = self.rng.choice((None, [], ""))
        echoed: dict[str, Any] = {"role": "assistant", "content": content}
        if answer.tool_calls:
            echoed["tool_calls"] = [self._echo_call(call) for call in answer.tool_calls]
        return echoed

    def display(self, chat: Chat, answer: Message) -> str:
        """The text that the client got."""
        block = ""
        if chat.form is not None and answer.reasoning:
            block = histories.written_block(answer.reasoning, chat.form)
        return block + str(answer.content)

    def _echo_call(self, call: ToolCall) -> dict[str, Any]:
        written = self.rng.choice((call.arguments, json.dumps(json.loads(call.arguments), indent=1)))
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": written}}

    # Edits of clients …

    def _edit(self, chat: Chat) -> None:
        edits = (
            self._change_system, self._slip_in_reminder, self._render_question_again, self._elide_result, self._compact,
            self._let_another_model_answer, self._lose_result,
        )  # fmt: skip
        if self.rng.choice((True, False)):
            self.rng.choice(edits)(chat)

    def _change_system(self, chat: Chat) -> None:
        self._touch(chat, 0)
        chat.history[:1] = [{"role": "system", "content": f"You are agent {self._next()}."}]

    def _slip_in_reminder(self, chat: Chat) -> None:
        at = self._touch(chat, self.rng.randrange(1, len(chat.history) + 1))
        chat.history.insert(at, {"role": "system", "content": "Remember the rules."})

    def _render_question_again(self, chat: Chat) -> None:
        if at := self._pick(chat, "user"):
            chat.history[at] = {"role": "user", "content": f"<open_files/> {self._question(chat)}"}
            # The answer right behind it has lost the neighbour that proved it, unless an id does.
            self._unprove_plain(chat, at, self._next_question(chat, at))

    def _elide_result(self, chat: Chat) -> None:
        if at := self._pick(chat, "tool"):
            chat.history[at] = {**chat.history[at], "content": "[truncated]"}

    def _compact(self, chat: Chat) -> None:
        if at := self._pick(chat, "user"):
            summary = {"role": "user", "content": f"Summary {self._next()} of what happened."}
            chat.history[1:at] = [summary]
            self._unprove_plain(chat, 1, len(chat.history))

    def _let_another_model_answer(self, chat: Chat) -> None:
        calls = [{"id": "call_0", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}]
        foreign = {"role": "assistant", "content": "Done.", "tool_calls": calls}
        if self.rng.random() < 0.5:
            foreign = {"role": "assistant", "content": self.rng.choice(("Done.", self._words()))}
        # A question unlike any other: after the very same history these could be the words of either model.
        question = {"role": "user", "content": f"Question {self._next()} to another model."}
        chat.history += [question, Turn(foreign, None, False)]
        if "tool_calls" in foreign:
            # An unknown turn makes native turns a transcript: the only case in which a prefix may change.
            self._touch(chat, 0)
            chat.history.append({"role": "tool", "tool_call_id": "call_0", "content": "of another model"})

    def _lose_result(self, chat: Chat) -> None:
        if at := self._pick(chat, "tool"):
            del chat.history[at]
            # Whether the answer behind still follows a result that proves it depends on which one went.
            self._unprove_plain(chat, at, self._next_question(chat, at))

    def _unprove_plain(self, chat: Chat, start: int, stop: int) -> None:
        for each in chat.history[start:stop]:
            if isinstance(each, Turn) and not (each.message.get("tool_calls") and chat.has_unique_ids):
                each.is_proven = False

    def _next_question(self, chat: Chat, at: int) -> int:
        later = [index for index in range(at + 1, len(chat.history)) if _role(chat.history[index]) == "user"]
        return later[0] if later else len(chat.history)

    def _pick(self, chat: Chat, role: str) -> int | None:
        places = [index for index in range(2, len(chat.history)) if _role(chat.history[index]) == role]
        return self._touch(chat, self.rng.choice(places)) if places else None

    def _touch(self, chat: Chat, at: int) -> int:
        chat.sent = []
        return at

    # The laws …

    def _check(self, chat: Chat, payload: dict[str, Any]) -> None:
        refusal = contract.refusal(payload)
        assert refusal is None, f"law 3: DeepSeek would refuse this: {refusal}"
        self._check_nothing_is_lost(chat, payload)
        self._check_reasoning(chat, payload)
        assert payload["messages"][: len(chat.sent)] == chat.sent, "law 4: the prefix changed"
        chat.sent = payload["messages"]

    def _check_nothing_is_lost(self, chat: Chat, payload: dict[str, Any]) -> None:
        payload_text = "\n".join(
            part
            for message in payload["messages"]
            for part in (message["content"], *(call["function"]["arguments"] for call in message.get("tool_calls", ())))
        )
        for message in chat.messages():
            words = message["content"] if isinstance(message["content"], str) else ""
            block = thinking_blocks.block_at(words)
            visible = thinking_blocks.strip_notices(words[block.end if block else 0 :])
            assert visible.strip() in payload_text, f"law 3: lost {visible!r}"
            for call in message.get("tool_calls", ()):
                assert call["function"]["arguments"] in payload_text, f"law 3: lost the arguments {call}"

    def _check_reasoning(self, chat: Chat, payload: dict[str, Any]) -> None:
        sent = [message["reasoning_content"] for message in payload["messages"] if message["role"] == "assistant"]
        # Recovery puts the older ones into the transcript; the rest stands at the end, one for one.
        turns = [each for each in chat.history if isinstance(each, Turn) and not _says_nothing(each)]
        for turn, reasoning in zip(reversed(turns), reversed(sent), strict=False):
            own = turn.reasoning or rules.FILLER
            content = turn.message["content"]
            assert reasoning in (own, rules.FILLER), f"law 2: {content!r} got foreign reasoning {reasoning!r}"
            if (turn.is_proven and not self.forgets) or (chat.form is not None and turn.reasoning):
                assert reasoning == own, f"law {5 if self.forgets else 1}: {content!r} lost its reasoning"

    # Generation …

    def _new_chat(self) -> Chat:
        # A memory that forgets leaves only the blocks that the client shows.
        forms = [form for form in self._forms if form is not None or not self.forgets]
        chat = Chat(self.rng.random() < 0.7, self.rng.choice(forms))
        chat.history.append({"role": "system", "content": "You are a coding agent."})
        return chat

    def _calls(self, chat: Chat) -> Sequence[tuple[str, str, str]]:
        count = self.rng.choice((0, 0, 1, 1, 2, 3))
        return [(self._id(chat, n), "read_file", json.dumps({"path": self._words(), "n": 1.5})) for n in range(count)]

    def _question(self, chat: Chat) -> str:
        # Turns that are the same to the last byte since the answer before the last question share the oldest reasoning;
        # that is test_restore's. Here questions differ in one word, unless the client shows the reasoning.
        return self._words() if chat.form is not None else f"{self._words()} ({self._next()})"

    def _id(self, chat: Chat, number: int) -> str:
        if not chat.has_unique_ids:
            return f"call_{number}"
        return f"call_{number:02d}_" + "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyzABCDEF0123456789", k=24))

    def _words(self) -> str:
        return self.rng.choice((*COMMON, f"Sentence number {self._next()} of this world."))

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _ends_with_question(self, chat: Chat) -> bool:
        return len(chat.history) > 2 and self.rng.random() < 0.5


def _role(each: Any) -> str:
    return "assistant" if isinstance(each, Turn) else str(each["role"])


def _says_nothing(turn: Turn) -> bool:
    return turn.message["content"] in (None, [], "") and not turn.message.get("tool_calls") and not turn.reasoning
