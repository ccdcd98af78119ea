"""A request and the one before it in its chat: where they differ, and what the prompts cost.

DeepSeek bills a prompt that begins like an earlier one at a fraction, so a client that changes earlier messages costs
money. A RequestOutline is a request as digests; `diagnose` finds where two of one chat differ, and `nearest` which of a
chat's last requests the new one continues: sub-agents, title makers and summarisers begin with the same messages.

Messages are compared as the client sent them (restoring and repairing do the same every time), tools without their
order, as they are sent sorted by name. Linear. An outline has no text and never leaves the process: parts that identity
has not digested go through Python's own keyed hash. After a restart one request per chat goes undiagnosed.

A request that only leaves out the tools of the one before it, as Codex compacts a chat (0.166: `tools: []`), gets them
back with `tool_choice: "none"`: by DeepSeek's template they begin the prompt, and without tools past reasoning is left
out of it. So 8 % of a prompt would still be cached, in place of all.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest, Memo, count_prompts
from deepseek_cursor_proxy.deepseek import tool_definitions
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi
from deepseek_cursor_proxy.deepseek.rules import is_forced
from deepseek_cursor_proxy.json_codec import canonical_json
from deepseek_cursor_proxy.reasoning.identity import History, MessageOutline
from deepseek_cursor_proxy.redaction import safe_text

# Names shown of tools that came or went.
_MOST_NAMES = 3
# Beyond this many sub-agents under one first question, the one idle longest counts as new.
_AGENTS_PER_CHAT = 16
# Messages and tools, of all chats together; some 200 bytes each.
_MESSAGES_IN_MEMORY = 100_000
# The tools of the last chats, whole: 40 of 1 kB take 250 kB.
_BYTES_OF_TOOLS = 16 * 1024 * 1024


def sort_tools(request: ChatRequest) -> ChatRequest:
    """The request with its tools by name, in whatever order the client sends them.

    Tools are at the front of DeepSeek's prompt, so the same tools in another order make it read, and bill, the whole
    chat anew: measured hits fell from 99.9 % to 0. Some clients shuffle theirs from request to request.
    """
    tools = tool_definitions.outline_tools(request.tools).by_name if request.tools else request.tools
    server_tools = request.server_tools
    if len(server_tools) > 1:
        server_tools = tuple(sorted(server_tools, key=canonical_json))
    # Most requests are in order already.
    is_sorted = tools is request.tools and server_tools == request.server_tools
    return request if is_sorted else request._replace(tools=tools, server_tools=server_tools)


class RequestOutline(NamedTuple):
    """The system messages at the start of a request, its tools by name, and all other messages."""

    system: tuple[bytes, ...]
    tools: Mapping[str, int]
    messages: tuple[MessageOutline, ...]
    # Rendered before all of them, but for the model, which has a cache of its own.
    model: str = ""
    effort: str = ""
    thinking: str = "on"

    @property
    def is_opening(self) -> bool:
        """Whether it has nothing but a first question."""
        return len(self.messages) <= 1

    def common(self, other: "RequestOutline") -> int:
        """How many messages both begin with."""
        mine, its = self.messages, other.messages
        if its == mine[: len(its)]:
            # Nearly always, and compared in C.
            return len(its)
        return sum(1 for _ in takewhile(lambda pair: pair[0].digest == pair[1].digest, zip(mine, its, strict=False)))

    def likeness(self, other: "RequestOutline") -> int:
        """How many parts of an agent are the same: its instructions, its set of tools."""
        has_same_tools = self.tools is other.tools or self.tools.keys() == other.tools.keys()
        return (self.system == other.system) + has_same_tools

    def continues(self, other: "RequestOutline") -> bool:
        """Whether this is the same agent, further on."""
        return self.common(other) == len(other.messages) and self.likeness(other) > 0


# By their first word, which is the label of the metric.
CAUSES = {
    "model": "model changed",
    "effort": "effort changed",
    "thinking": "thinking switched",
    "tools": "tools changed",
    "system": "system prompt changed",
    "message": "message changed",
}


def cause_of(divergence: str) -> str:
    """The first cause in a divergence, without the part that differs from request to request."""
    return CAUSES.get(re.split("[ ,]", divergence)[0], divergence)


def outline(request: ChatRequest, history: History) -> RequestOutline:
    leading = count_prompts(request.messages)
    tools = tool_definitions.outline_tools(request.tools).digests if request.tools else {}
    if request.server_tools:
        tools = {**tools, **tool_definitions.outline_tools(request.server_tools).digests}
    outlines = history.outlines
    prompts = tuple([message.digest for message in outlines[:leading]])
    effort = request.effort if request.thinking else ""
    thinking = "on" if request.thinking else "off, a tool is forced" if is_forced(request.tool_choice) else "off"
    return RequestOutline(prompts, tools, tuple(outlines[leading:]), request.model, effort, thinking)


def nearest(known: Sequence[RequestOutline], now: RequestOutline) -> RequestOutline | None:
    """The one of a chat's last requests, newest first, that this one continues or diverges from; None if none.

    Best is one that it adds to; then one whose answers it repeats, so that an edited chat is found again; then one that
    has only a first question. Two chats that begin alike and share no answer are not taken for each other.
    """
    # With only the first question in common it may as well be another chat, or the request for a title; with another
    # first question it is one, and the client has one id for both.
    least = 2 if now.is_opening else 1
    shared = [(last, now.common(last)) for last in known]
    likely = [last for last, at in shared if at > 1 or (now.likeness(last) >= least and (at or not now.is_opening))]
    # Nearly always one, so that the answers of the others need not be compared.
    likely = [last for last in likely if not last.is_opening and now.continues(last)] or likely
    if len(likely) <= 1:
        return likely[0] if likely else None
    answers = {message.digest for message in now.messages if message.role == "assistant"}

    def rank(last: RequestOutline) -> tuple[int, ...]:
        repeated = sum(message.digest in answers for message in last.messages if message.role == "assistant")
        return repeated, now.continues(last), now.common(last), now.likeness(last)

    return max(likely, key=rank)


def diagnose(before: RequestOutline, now: RequestOutline) -> str | None:
    """What makes `now` lose the prefix of `before`, in the order of the prompt; None if it only adds to it.

    For example `tools changed (added grep), message 12 changed (user content)`, counted as the client does.
    """
    old, new, at = before.tools, now.tools, now.common(before)
    if before.system == now.system and before[3:] == now[3:] and old == new and at == len(before.messages):
        # Nearly always; the rest only describes the difference.
        return None
    fields = [("model changed", before.model, now.model), ("thinking switched", before.thinking, now.thinking)]
    if before.effort and now.effort:
        fields.insert(1, ("effort changed", before.effort, now.effort))
    causes = [f"{cause} ({safe_text(a, 40)} → {safe_text(b, 40)})" for cause, a, b in fields if a != b]
    names = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [name for name in new if new[name] != old.get(name, new[name])],
    }
    if tools := [f"{verb} {_join_names(names[verb])}" for verb in names if names[verb]]:
        causes.append(f"tools changed ({', '.join(tools)})")
    if before.system != now.system:
        causes.append("system prompt changed")
    # A chat that is back at its first question starts again: that costs nothing.
    if at < len(before.messages) and not (at == len(now.messages) and now.is_opening):
        difference = _difference(before.messages[at:], now.messages[at:])
        causes.append(f"message {len(now.system) + at} changed ({difference})")
    return ", ".join(causes) or None


def _difference(before: Sequence[MessageOutline], now: Sequence[MessageOutline]) -> str:
    """The role of the first message that differs, and how it does."""
    old = before[0]
    if not now or now[0].digest in {message.digest for message in before[1:]}:
        return f"{old.role} removed"
    new = now[0]
    if old.digest in {message.digest for message in now[1:]}:
        return f"{new.role} inserted"
    return f"{new.role} {'content' if old.role == new.role else 'replaced'}"


def _join_names(names: Sequence[str]) -> str:
    first_names = [safe_text(name, 40) for name in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return " and ".join([", ".join(first_names), *more]) if more else " and ".join(first_names)


class PromptTokens(NamedTuple):
    """The tokens of a prompt, how many were cached, and the upstream and model, each with a cache of its own."""

    total: int
    cached: int
    upstream: str = ""
    model: str = ""

    @property
    def share(self) -> float:
        return self.cached / self.total if self.total else 0.0


class ChatTools(NamedTuple):
    """The tools of a request: their digests, as in its outline, and what they are sent with."""

    digests: Mapping[str, int]
    tools: tool_definitions.Tools
    server_tools: tool_definitions.Tools
    sent_names: Mapping[str, str]
    api: UpstreamApi

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return tool_definitions.outline_tools(self.tools).size + tool_definitions.outline_tools(self.server_tools).size

    def restore(self, request: ChatRequest) -> ChatRequest:
        """The request with these tools, none of which may be called."""
        return request._replace(
            tools=self.tools, server_tools=self.server_tools, sent_names=self.sent_names, tool_choice="none"
        )


@dataclass(eq=False, slots=True)
class LastRequest:
    """The last request of one agent in a chat; its tokens are None until the thread of the answer records them."""

    outline: RequestOutline
    size: int
    tokens: PromptTokens | None = None


class Chats:
    """The last requests of each chat, by the digest of the chat (see identity.History.conversation).

    A chat has several, because sub-agents and other helpers of a client begin with the same messages. Called by any
    thread; the lock protects the first two fields.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Newest first; chats by last use.
        self._chats: OrderedDict[bytes, tuple[LastRequest, ...]] = OrderedDict()
        self._size = 0
        # By chat, those of its last request that had any.
        self.tools: Memo[bytes, ChatTools] = Memo(_BYTES_OF_TOOLS, lambda chat, tools: tools.size)

    def find(self, chat: bytes, now: RequestOutline) -> LastRequest | None:
        """The request that this one continues or diverges from; None if it begins a chat."""
        with self._lock:
            known = self._chats.get(chat, ())
        if not known:
            return None
        outlines = [each.outline for each in known]
        last = nearest(outlines, now)
        return known[outlines.index(last)] if last is not None else None

    def record(self, chat: bytes, found: LastRequest | None, now: RequestOutline) -> LastRequest:
        """Record a request that DeepSeek accepted; `found` is the result of `find`."""
        new = LastRequest(now, 1 + len(now.messages) + len(now.tools))
        # A first question stays: other agents begin with it, too.
        is_further = found is not None and (now.is_opening or not found.outline.is_opening)
        replaced = found if found is not None and is_further and now.continues(found.outline) else None
        with self._lock:
            known = self._chats.pop(chat, ())
            # Equal ones come from clients that ask the same at the same time: each found the one before.
            others = [each for each in known if each is not replaced and each.outline != now]
            kept = (new, *others[: _AGENTS_PER_CHAT - 1])
            self._chats[chat] = kept
            self._size += sum([each.size for each in kept]) - sum([each.size for each in known])
            while self._size > _MESSAGES_IN_MEMORY and len(self._chats) > 1:
                _, evicted = self._chats.popitem(last=False)
                self._size -= sum([each.size for each in evicted])
        return new


class ChatTracker:
    """One request in its chat. Used by the thread that runs the exchange."""

    def __init__(self, request: ChatRequest, history: History, chats: Chats, api: UpstreamApi = CHAT) -> None:
        self._request = request
        self._history = history
        self._api = api
        self._chats = chats
        self._chat = history.conversation
        self._outline: RequestOutline | None = None
        self._last: LastRequest | None = None
        self._own: LastRequest | None = None
        # Whether the tools are those of the last request, restored.
        self.has_old_tools = False
        self.divergence: str | None = None

    def compare(self) -> RequestOutline:
        """Find the last request of the chat, and where this one diverges from it; before anything is recorded."""
        if self._outline is None:
            self._outline = now = outline(self._request, self._history)
            self._last = last = self._chats.find(self._chat, now)
            self.divergence = diagnose(last.outline, now) if last is not None else None
        return self._outline

    @property
    def left_out(self) -> ChatTools | None:
        """The tools of the last request, if leaving out all of them is what this one changes of its prompt."""
        request, known = self._request, self._chats.tools.get(self._chat)
        if known is None or request.tools or request.server_tools:
            return None
        now, last = self.compare(), self._last
        # With only the first question in common it may as well be another chat.
        if last is None or last.outline.is_opening or known.digests != last.outline.tools:
            return None
        return known if diagnose(last.outline, now._replace(tools=last.outline.tools)) is None else None

    @property
    def last_prompt(self) -> PromptTokens | None:
        """The tokens of the last request of the chat, if they are known."""
        return self._last.tokens if self._last is not None else None

    def record(self) -> None:
        """Record that DeepSeek accepted it, before the client sees the end of the answer and sends the next one."""
        now = self.compare()
        self._own = self._chats.record(self._chat, self._last, now)
        request, digests, tools = self._request, now.tools, self._chats.tools
        if digests and ((known := tools.get(self._chat)) is None or known.digests != digests):
            new = ChatTools(digests, request.tools, request.server_tools, request.sent_names, self._api)
            tools.put(self._chat, new)

    def record_tokens(self, tokens: PromptTokens) -> None:
        """Record the tokens of this request, for the next one of the chat."""
        if self._own is not None:
            self._own.tokens = tokens
