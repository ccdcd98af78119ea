"""Where a request left the path of the last one.

DeepSeek bills a prompt that begins like an earlier one at a fraction, so a client that changes what it has already sent
costs money. A Glance is what a request looked like, as digests; `diagnose` tells where two of one chat part, and
`nearest` which of a chat's last requests the new one goes on from: sub-agents, title makers and summarisers begin
with the same words.

Compared is what the client sent (whatever restoring and repairing do is the same every time), except for tools, which
are compared as they went out: an order that was put right is no drift. Pure and linear. No text is kept, and a Glance
never leaves the process: what identity has not digested already goes through Python's own keyed hash.
"""

import marshal
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.memo import Beginnings
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.redaction import safe_text

# Bytes of a digest: these are compared within one chat only, where eight do not collide and thousands are kept.
_SHORT = 8
# Names shown of tools that came or went.
_MOST_NAMES = 3

# The newest form of marshal's in which the same value has the same bytes; later ones mark what is shared in memory. It
# tells apart what JSON does, order included, in a fifth of the time: 40 tools of 1 kB in 0.1 instead of 0.5 ms.
_EXACT = 2


class Mark(NamedTuple):
    """One message: who speaks, what is said in all, and of that the calls and the ids."""

    role: str
    whole: bytes
    calls: int = 0
    ids: int = 0


# By digests: the very same object is only ever the digest of equal messages. Some 200 bytes each, and 30 chats of 200
# tool turns.
_known: Beginnings[bytes, tuple[Mark, ...]] = Beginnings(2 * 1024 * 1024, lambda digest: 200)


class RequestOutline(NamedTuple):
    """What a request looked like: the system messages in front, the tools by name in order, all other messages."""

    system: tuple[bytes, ...]
    tools: Mapping[str, int]
    marks: tuple[Mark, ...]

    def with_tools(self, names: Sequence[str]) -> "RequestOutline":
        """The same with its tools in another order."""
        if tuple(self.tools) == tuple(names):
            return self
        return self._replace(tools={name: self.tools[name] for name in names})

    @property
    def is_opening(self) -> bool:
        """Whether it holds nothing but a first question."""
        return len(self.marks) <= 1

    def common(self, other: "RequestOutline") -> int:
        """How many messages both begin with."""
        mine, its = self.marks, other.marks
        if its == mine[: len(its)]:
            # As ever, and compared without looking into what is the very same.
            return len(its)
        return sum(1 for _ in takewhile(lambda pair: pair[0].whole == pair[1].whole, zip(mine, its, strict=False)))

    def likeness(self, other: "RequestOutline") -> int:
        """How much of what an agent is made of is the same: its instructions, its set of tools."""
        return (self.system == other.system) + (self.tools.keys() == other.tools.keys())

    def replaces(self, other: "RequestOutline") -> bool:
        """Whether this is the other's agent, further on. First words are not replaced: others begin with them too."""
        is_further = self.common(other) == len(other.marks) and self.likeness(other) > 0
        return is_further and (self.is_opening or not other.is_opening)


@dataclass(frozen=True)
class Divergence:
    """Where a request parted from the last one; `message` counts as the client does."""

    system: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    reordered: bool = False
    message: int | None = None
    role: str = ""
    # What is different about the message: content, arguments, ids, or that it is removed, inserted or replaced.
    what: str = ""

    def words(self) -> str:
        """For people, in one line: `system, tools (added grep), message 12 (user content)`."""
        parts = ["system"] if self.system else []
        named = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        tools = [f"{verb} {_listed(names)}" for verb, names in named if names]
        tools += ["reordered"] if self.reordered else []
        parts += [f"tools ({', '.join(tools)})"] if tools else []
        parts += [f"message {self.message} ({self.role} {self.what})"] if self.message is not None else []
        return ", ".join(parts)


def outline(request: ChatRequest, history: History) -> RequestOutline:
    """What a client's request looks like."""
    messages = request.messages
    leading = sum(1 for _ in takewhile(lambda message: message.role == "system", messages))
    count, known = _known.longest(history.digests)
    new = [
        _mark(message, digest[:_SHORT])
        for message, digest in zip(messages[count:], history.digests[count:], strict=True)
    ]
    marks = (*(known or ()), *new)
    _known.keep(history.digests, marks)
    return RequestOutline(
        system=tuple(mark.whole for mark in marks[:leading]),
        tools={tool["function"]["name"]: hash(marshal.dumps(dict(tool), _EXACT)) for tool in request.tools},
        marks=marks[leading:],
    )


def nearest(known: Sequence[RequestOutline], now: RequestOutline) -> RequestOutline | None:
    """Which of a chat's last requests, newest first, this one goes on from or strayed from; None if from none.

    Best is one that it adds to; then one whose answers it repeats, so an edited chat is known again; then one that
    had not got beyond the first words. Two chats that begin alike and share no answer are not taken for each other.
    """
    answers = {mark.whole for mark in now.marks if mark.role == "assistant"}
    kin = [_Kin.of(each, now, answers) for each in known]
    found = max((each for each in kin if each.is_likely), key=lambda each: each.rank, default=None)
    return found.last if found is not None else None


class _Kin(NamedTuple):
    last: RequestOutline
    is_likely: bool
    rank: tuple[int, ...]

    @classmethod
    def of(cls, last: RequestOutline, now: RequestOutline, answers: Container[bytes]) -> "_Kin":
        common, likeness = now.common(last), now.likeness(last)
        goes_on = common == len(last.marks) and likeness > 0
        repeated = sum(mark.whole in answers for mark in last.marks if mark.role == "assistant")
        # With nothing but the first words in common it may as well be another's chat, or a title being made for it.
        is_likely = common > 1 or likeness >= (2 if now.is_opening else 1)
        return cls(last, is_likely, (goes_on and not last.is_opening, repeated, goes_on, common, likeness))


def diagnose(before: RequestOutline, now: RequestOutline) -> Divergence | None:
    """Where `now` parts from `before`; None when it only adds to it."""
    old, new = before.tools, now.tools
    if before.system == now.system and [*old.items()] == [*new.items()] and now.common(before) == len(before.marks):
        # Nearly always; the rest only finds words for what is different.
        return None
    stayed = [name for name in new if name in old]
    divergence = Divergence(
        system=before.system != now.system,
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in stayed if new[name] != old[name]),
        reordered=stayed != [name for name in old if name in new],
    )
    divergence = _with_message(divergence, before, now)
    return divergence if divergence != Divergence() else None


def _with_message(divergence: Divergence, before: RequestOutline, now: RequestOutline) -> Divergence:
    at = now.common(before)
    # A chat that is back at its first words is begun again; that costs nothing and is no news.
    if at == len(before.marks) or (at == len(now.marks) and now.is_opening):
        return divergence
    index = len(now.system) + at
    old = before.marks[at]
    if at == len(now.marks) or now.marks[at].whole in {mark.whole for mark in before.marks[at + 1 :]}:
        return replace(divergence, message=index, role=old.role, what="removed")
    new = now.marks[at]
    if old.whole in {mark.whole for mark in now.marks[at + 1 :]}:
        return replace(divergence, message=index, role=new.role, what="inserted")
    return replace(divergence, message=index, role=new.role, what=_difference(old, new))


def _difference(old: Mark, new: Mark) -> str:
    if old.role != new.role:
        return "replaced"
    parts = [name for name, differs in (("arguments", old.calls != new.calls), ("ids", old.ids != new.ids)) if differs]
    return " and ".join(parts) or "content"


def _mark(message: Message, whole: bytes) -> Mark:
    if message.tool_calls:
        said = hash(tuple([(call.name, call.arguments) for call in message.tool_calls]))
        return Mark(message.role, whole, said, hash(tuple([call.id for call in message.tool_calls])))
    return Mark(message.role, whole, ids=hash(message.tool_call_id))


def _listed(names: Sequence[str]) -> str:
    shown = [safe_text(name, 40) for name in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return " and ".join([", ".join(shown), *more]) if more else " and ".join(shown)
