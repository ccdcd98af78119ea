"""Show the thinking inside the visible text, and take it out again when the client sends it back.

Writer and reader of the block live here together, so they cannot drift apart: what `mirror` writes, `leading_block`
reads back byte for byte, whatever the reasoning contains. Tags inside the reasoning that would end or nest the block
get one backslash after their `<`; the reader takes it out again. Thinking that goes on after the answer began gets a
block of its own, two line breaks behind the words before it. Text that merely looks like a block is left alone: callers
take a block out only when they know that it shows the turn's reasoning.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from deepseek_cursor_proxy.conversation import Aside, Batch, Batches, Delta
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.reasoning import remarks
from deepseek_cursor_proxy.stencils import singles


@dataclass(frozen=True)
class Form:
    """One way to write a thinking block."""

    opening: str
    closing: str
    tag: str
    _escape: re.Pattern[str] = field(init=False)
    _unescape: re.Pattern[str] = field(init=False)
    _unfinished: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        # HTML ignores case, so any spelling of the tag would end the block for a reader's eyes.
        beginnings = "|".join(self.tag[:length] for length in range(len(self.tag)))
        for name, pattern in (
            ("_escape", rf"<(\\*/?{self.tag})"),
            ("_unescape", rf"<\\(\\*/?{self.tag})"),
            ("_unfinished", rf"<\\*/?(?:{beginnings})\Z"),
        ):
            object.__setattr__(self, name, re.compile(pattern, re.IGNORECASE))

    @property
    def end(self) -> str:
        """The closing without the line breaks behind it, which clients trim."""
        return self.closing.rstrip("\n")

    def escape(self, text: str) -> str:
        return self._escape.sub(r"<\\\1", text) if "<" in text else text

    def unescape(self, text: str) -> str:
        return self._unescape.sub(r"<\1", text) if "<" in text else text

    def split_unfinished(self, text: str) -> tuple[str, str]:
        """Text that may be escaped now, and a beginning of a tag that must wait for what follows."""
        last = text.rfind("<")
        if last >= 0 and self._unfinished.match(text, last):
            return text[:last], text[last:]
        return text, ""


COLLAPSIBLE = Form("<details>\n<summary>Thinking</summary>\n\n", "\n</details>\n\n", "details")
PLAIN = Form("<think>\n", "\n</think>\n\n", "think")
_FORMS = (COLLAPSIBLE, PLAIN)
_NOTHING_ELSE = re.compile(r"\s*\Z")
_LATER = re.compile("\n\n(" + "|".join(re.escape(form.opening) for form in _FORMS) + ")")


@dataclass(frozen=True, slots=True)
class Block:
    """A thinking block found in a text: what it says, where it begins and where the text after it does."""

    reasoning: str
    end: int
    start: int = 0
    # It never ended: somebody pressed Stop.
    is_open: bool = False


def blocks(text: str) -> list[Block]:
    """Every block in a text: those at its very start, and later ones behind two line breaks."""
    found: list[Block] = []
    # White space before the first one is an edit that means nothing.
    at = len(text) - len(text.lstrip()) if text[:1].isspace() else 0
    while block := leading_block(text, at):
        found.append(block if found or not block.start else replace(block, start=0))
        at = block.end
    if not found:
        at = 0
    unclosed: set[str] = set()
    while opening := _LATER.search(text, at):
        form = next(each for each in _FORMS if each.opening == opening.group(1))
        block = None if form.tag in unclosed else leading_block(text, opening.start(1))
        if block is not None:
            found.append(replace(block, start=opening.start()))
            at = block.end
            continue
        # Nothing that opens before this form's next closing can be a block of it either, and nothing at all when there
        # is none: a text full of openings must not be read to its end for each of them.
        stop = -1 if form.tag in unclosed else text.find(form.end, opening.end())
        if stop < 0:
            unclosed.add(form.tag)
        at = max(opening.end(), stop)
    return found


def cut(text: str, found: Sequence[Block]) -> str:
    """The text without these blocks, which stand in it one after another."""
    if not found:
        return text
    if len(found) == 1 and found[0].start == 0:
        return text[found[0].end :]
    starts = [0, *(block.end for block in found)]
    ends = [*(block.start for block in found), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def undone(text: str) -> str:
    """The text without any block or remark in it."""
    return remarks.without(cut(text, blocks(text)))


def leading_block(text: str, start: int = 0) -> Block | None:
    """The block that begins exactly at `start`, if one does."""
    for form in _FORMS:
        if not text.startswith(form.opening, start):
            continue
        inside = start + len(form.opening)
        stop = text.find(form.end, inside)
        if stop < 0:
            return _stopped(text, start) if form is COLLAPSIBLE else None
        end = stop + len(form.closing)
        if not text.startswith(form.closing, stop):
            # Clients trim the text of a turn that has nothing after the block; anything else is not our writing.
            if not _NOTHING_ELSE.match(text, stop + len(form.end)):
                return None
            end = len(text)
        return Block(form.unescape(text[inside:stop]), end, start)
    return None


def _stopped(text: str, start: int) -> Block:
    """A block that never ends: somebody pressed Stop while the model was thinking. Nothing else opens like ours."""
    whole, _ = COLLAPSIBLE.split_unfinished(text[start + len(COLLAPSIBLE.opening) :])
    return Block(COLLAPSIBLE.unescape(whole), len(text), start, is_open=True)


def mirror(
    batches: Batches,
    form: Form | None,
    notice: Callable[[int], str] = lambda choice: "",
    *,
    with_remarks: bool = True,
) -> Batches:
    """The same deltas with the reasoning (and a notice before the answer of a choice) moved into their text.

    Nobody is told the same thinking twice: a delta whose reasoning is in its text has none beside it. Without a form
    the reasoning stays where it is. Without remarks nothing is said at the end: that is for clients which are told
    otherwise how an answer ended. When the source fails, an open block is closed before the failure goes on, so the
    client never renders the error as part of the thinking.
    """
    mirrors: dict[int, _Mirror] = {}

    def shown(item: Delta | Aside) -> Batch:
        if isinstance(item, Aside) or (item.source is not None and not item.source.get("choices")):
            return [item]
        if item.choice not in mirrors:
            mirrors[item.choice] = _Mirror(form, notice(item.choice), with_remarks)
        return mirrors[item.choice].show_all(item)

    with closing(batches):
        try:
            for batch in batches:
                yield [each for item in batch for each in shown(item)]
        except ProxyError:
            endings = [ending for choice, each in mirrors.items() if (ending := each.abandon(choice))]
            if endings:
                yield list(endings)
            raise


class _Mirror:
    """The writing of one choice: before, inside or after its thinking block."""

    def __init__(self, form: Form | None, notice: str, has_remarks: bool) -> None:
        self._form = form
        self._notice = notice
        self._has_remarks = has_remarks
        self._is_open = False
        self._has_block = False
        self._has_spoken = False
        self._has_called = False
        # The beginning of a tag that waits for its rest, in pieces.
        self._unfinished: list[str] = []

    def show_all(self, delta: Delta) -> Batch:
        """A run stays one where each of its chunks is to show just what it says."""
        if delta.run is None:
            return [self.show(delta)]
        if delta.reasoning and self._form is None:
            return [delta]
        if delta.reasoning and self._is_open and not self._unfinished and "<" not in delta.reasoning:
            # Without _replace(), which takes three times as long: this is what nearly all thinking goes through.
            return [Delta(delta.choice, None, delta.reasoning, source=delta.source, run=delta.run)]
        if delta.text and self._has_spoken and not (self._is_open or self._notice):
            return [delta]
        return [self.show(each) for each in singles(delta)]

    def show(self, delta: Delta) -> Delta:
        before = self._thinking(delta.reasoning) if delta.reasoning and self._form else ""
        if delta.reasoning is not None and self._has_block:
            delta = delta._replace(reasoning=None)
        if delta.text or delta.calls or delta.finish_reason:
            before += self._close() + self._notice
            self._notice = ""
        self._has_spoken = self._has_spoken or bool(delta.text)
        self._has_called = self._has_called or bool(delta.calls)
        after = self._last_word(delta.finish_reason) if delta.finish_reason and self._has_remarks else ""
        return delta._replace(text=before + (delta.text or "") + after) if before or after else delta

    def abandon(self, choice: int) -> Delta | None:
        """The text that ends a block nobody will finish."""
        ending = self._close()
        return Delta(choice=choice, text=ending) if ending else None

    def _thinking(self, reasoning: str) -> str:
        assert self._form is not None
        if self._has_called:
            # Clients take text behind a call for the next turn's. If there is a block, this is not told at all: beside
            # the block it would come back as the whole reasoning, and DeepSeek would get a part for the whole.
            return ""
        opening = "" if self._is_open else self._form.opening
        if self._has_spoken and not self._is_open:
            opening = "\n\n" + opening
        self._is_open = self._has_block = True
        if self._unfinished and self._unfinished[-1][-1] in "<\\" and not reasoning.strip("\\"):
            # A model caught in a loop may go on with backslashes for ever; they are looked at once, at their end.
            self._unfinished.append(reasoning)
            return opening
        whole, unfinished = self._form.split_unfinished("".join(self._unfinished) + reasoning)
        self._unfinished = [unfinished] if unfinished else []
        return opening + self._form.escape(whole)

    def _close(self) -> str:
        if not self._is_open or self._form is None:
            return ""
        unfinished, self._unfinished = "".join(self._unfinished), []
        self._is_open = False
        return self._form.escape(unfinished) + self._form.closing

    def _last_word(self, finish_reason: str) -> str:
        if early := remarks.early_end(finish_reason):
            return early if self._has_spoken else early.lstrip("\n")
        is_silent = self._has_block and not (self._has_spoken or self._has_called)
        return remarks.SILENT if is_silent and finish_reason == "stop" else ""
