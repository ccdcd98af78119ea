"""Show the thinking inside the visible text, and take it out again when the client sends it back.

Writer and reader of the block live here together, so they cannot drift apart: what `mirror` writes, `leading_block`
reads back byte for byte, whatever the reasoning contains. There are two forms:

    <details>   clients render it as markdown; see markdown_escape for what keeps a thought inside it
    <think>     clients take it out by its tags and show its text by their own rules, so only its own tag is changed:
                one backslash after the `<`, which the reader takes out again

Thinking that goes on after the answer began gets a block of its own, two line breaks behind the words before it. Text
that merely looks like a block is left alone: callers take a block out only when they know that it shows the turn's
reasoning. Blocks of earlier versions, which had one backslash after the `<` in both forms, are read as well.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.repeated_chunks import split_run
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.reasoning import markdown_escape, notices


class ThoughtWriter(Protocol):
    """Writes the inside of one block, piece by piece."""

    def passes(self, text: str) -> bool:
        """Whether a piece is written as it is; then it counts as written."""
        ...

    def write(self, text: str) -> str: ...

    def end(self) -> str:
        """What is still to be written in front of the closing."""
        ...


@dataclass(frozen=True)
class Form:
    """One way to write a thinking block."""

    opening: str
    closing: str
    tag: str
    is_markdown: bool = False
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

    def writer(self) -> ThoughtWriter:
        return markdown_escape.Escaper() if self.is_markdown else _TagWriter(self)

    def escape(self, text: str) -> str:
        """A whole thought as it stands in a block."""
        return markdown_escape.escape(text) if self.is_markdown else self.escape_tag(text)

    def readings(self, body: str, *, is_open: bool = False) -> tuple[str, ...]:
        """What the inside of a block may stand for, likeliest first; earlier versions have written it otherwise."""
        whole = self.split_unfinished(body)[0] if is_open else body
        former = self._unescape.sub(r"<\1", whole) if "<" in whole else whole
        if not self.is_markdown:
            return (former,)
        if is_open:
            # The sign that these belong to may be missing.
            return tuple(dict.fromkeys((markdown_escape.unescape_open(body.rstrip("\\")), former)))
        read = markdown_escape.unescape(body)
        if read == former:
            return (read,)
        return (read, former) if markdown_escape.escape(read) == body else (former, read)

    def shows(self, body: str, reasoning: str) -> bool:
        """Whether this is how a block with this reasoning begins."""
        written = markdown_escape.escape_open(reasoning) if self.is_markdown else self.escape_tag(reasoning)
        return written.startswith(body)

    def find_end(self, text: str, inside: int, patience: "_Patience | None" = None) -> int:
        """Where the closing of a block begins whose inside begins at `inside`; -1 when it is open."""
        first = text.find(self.end, inside)
        if first < 0 or not self.is_markdown or (patience is not None and not patience.left):
            return first
        stop = markdown_escape.find_outside(self.end, text, inside)
        if stop >= 0:
            return stop
        if patience is not None:
            patience.left -= 1
        # Earlier versions left fences open.
        return first if text.startswith(self.closing, first) or not text[first + len(self.end) :].strip() else -1

    def escape_tag(self, text: str) -> str:
        return self._escape.sub(r"<\\\1", text) if "<" in text else text

    def split_unfinished(self, text: str) -> tuple[str, str]:
        """Text that may be escaped now, and a beginning of a tag that must wait for what follows."""
        last = text.rfind("<")
        if last >= 0 and self._unfinished.match(text, last):
            return text[:last], text[last:]
        return text, ""


class _TagWriter:
    """Writes a thought of which only the tag of its block is changed."""

    def __init__(self, form: Form) -> None:
        self._form = form
        # The beginning of a tag that waits for its rest, in pieces.
        self._unfinished: list[str] = []

    def passes(self, text: str) -> bool:
        return not self._unfinished and "<" not in text

    def write(self, text: str) -> str:
        if self._unfinished and self._unfinished[-1][-1] in "<\\" and not text.strip("\\"):
            # A model caught in a loop may go on with backslashes for ever; they are looked at once, at their end.
            self._unfinished.append(text)
            return ""
        whole, unfinished = self._form.split_unfinished("".join(self._unfinished) + text)
        self._unfinished = [unfinished] if unfinished else []
        return self._form.escape_tag(whole)

    def end(self) -> str:
        unfinished, self._unfinished = "".join(self._unfinished), []
        return self._form.escape_tag(unfinished)


COLLAPSIBLE = Form("<details>\n<summary>Thinking</summary>\n\n", "\n</details>\n\n", "details", is_markdown=True)
PLAIN = Form("<think>\n", "\n</think>\n\n", "think")
_FORMS = (COLLAPSIBLE, PLAIN)
# A block this long that begins like the reasoning is no accident.
_SHORTEST_BEGINNING = 16
_OPENINGS = tuple(form.opening for form in _FORMS)
_ENDS = tuple(form.end for form in _FORMS)
_LONGEST_END = max(map(len, _ENDS))
_BREAKS = re.compile(r"(?:\r?\n){2}")
_NOTHING_ELSE = re.compile(r"\s*\Z")
_LATER = re.compile("\n\n(" + "|".join(re.escape(form.opening) for form in _FORMS) + ")")
# What clients make of a text that they keep in HTML or in a file with other line ends.
_HTML_SIGNS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "#39": "'", "#x27": "'", "#34": '"'}
_IN_HTML = re.compile("&(" + "|".join(_HTML_SIGNS) + ");", re.IGNORECASE)


@dataclass(slots=True)
class _Patience:
    """How often the fences of one text are still followed to its end for nothing; then they are not looked at."""

    left: int = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A thinking block found in a text: what it says, where it begins and where the text after it does."""

    readings: tuple[str, ...]
    end: int
    start: int = 0
    # It shows how the reasoning begins: somebody pressed Stop, or the rest was thought behind a call.
    is_open: bool = False
    form: Form = COLLAPSIBLE
    body: str = ""

    @property
    def reasoning(self) -> str:
        return self.readings[0]

    def fits(self, reasoning: str) -> bool:
        """Whether it shows this reasoning, or the beginning of it if it is open."""
        if reasoning in self.readings:
            return True
        if not self.is_open:
            return False
        return any(map(reasoning.startswith, self.readings)) or self.form.shows(self.body, reasoning)


def as_written(text: str) -> str:
    """The text as it was before a client escaped its HTML or changed its line ends, if there is a block of ours in it.

    Both are done to a whole text: where a single < or line feed was left alone, it is the model that writes like this.
    """
    found = text
    if "&lt;" in found and "<" not in found:
        found = _IN_HTML.sub(lambda sign: _HTML_SIGNS[sign[1].lower()], found)
    if "\r\n" in found and found.count("\n") == found.count("\r\n"):
        found = found.replace("\r\n", "\n")
    return found if found is not text and any(form.opening in found for form in _FORMS) else text


def blocks(text: str) -> list[Block]:
    """Every block in a text, `as_written`: those at its very start, and later ones behind two line breaks."""
    text = as_written(text)
    found: list[Block] = []
    patience = _Patience()
    # White space before the first one is an edit that means nothing.
    at = len(text) - len(text.lstrip()) if text[:1].isspace() else 0
    while block := leading_block(text, at, patience=patience):
        found.append(block if found or not block.start else replace(block, start=0))
        at = block.end
    if not found:
        at = 0
    unclosed: set[str] = set()
    while opening := _LATER.search(text, at):
        form = next(each for each in _FORMS if each.opening == opening.group(1))
        block = (
            None
            if form.tag in unclosed
            else leading_block(text, opening.start(1), is_later=not found, patience=patience)
        )
        if block is not None:
            found.append(replace(block, start=opening.start()))
            at = block.end
            continue
        # Nothing that opens before this form's next closing can be a block of it either, and nothing at all when there
        # is none: a text full of openings must not be read to its end for each of them.
        stop = -1 if form.tag in unclosed else form.find_end(text, opening.end(), patience)
        if stop < 0:
            unclosed.add(form.tag)
        at = max(opening.end(), stop)
    return found


def cut(text: str, found: Sequence[Block]) -> str:
    """The text without these blocks, which stand in it one after another; without any it stays as it is."""
    if not found:
        return text
    text = as_written(text)
    if len(found) == 1 and found[0].start == 0:
        return text[found[0].end :]
    starts = [0, *(block.end for block in found)]
    ends = [*(block.start for block in found), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def ours(blocks: Sequence[Block], *reasonings: str | None) -> Sequence[Block]:
    """The blocks that show the turn's reasoning; those that say something else are the model's own text and stay."""
    if not blocks:
        return ()
    is_first = blocks[0].start == 0
    for reasoning in filter(None, reasonings):
        if is_first and reasoning in blocks[0].readings:
            # All of it: an empty block behind it is the model's own.
            return blocks[:1]
        # Spans of one turn, or turns that a client merged into one message.
        if any(_is_beginning("".join(each), reasoning, blocks[-1]) for each in _spans(blocks)):
            return blocks
        if reasoning in map("\n\n".join, _spans(blocks)):
            return blocks
        if is_first and fits(reasoning, blocks[0]):
            return blocks[:1]
    return ()


def _spans(blocks: Sequence[Block]) -> list[list[str]]:
    """What the blocks say, read as this version or as an earlier one has written them."""
    return [[block.readings[at] for block in blocks] for at in (0, -1)]


def _is_beginning(shown: str, reasoning: str, last: Block) -> bool:
    """Whether all of the reasoning was shown, or as much of it that it is no accident."""
    is_enough = last.is_open or len(shown) >= _SHORTEST_BEGINNING
    return reasoning == shown or (is_enough and reasoning.startswith(shown))


def is_single(blocks: Sequence[Block]) -> bool:
    """Whether exactly one block stands at the very start; what is quoted further on is text."""
    return bool(blocks) and blocks[0].start == 0 and (len(blocks) == 1 or blocks[1].start > blocks[0].end)


def fits(reasoning: str, block: Block) -> bool:
    # Thought on after the answer began: then the block shows how the reasoning begins.
    return block.fits(reasoning) or any(_is_beginning(each, reasoning, block) for each in block.readings)


def rejoined(parts: Sequence[str]) -> str | None:
    """The text that a client split into these parts, if it begins with a block of ours; None otherwise."""
    if len(parts) < 2:
        return None
    # What is settled, how that ends, and the white space behind it: a text may come in very many parts.
    pieces, ending, gap, is_checked = [""], "", "", True
    for part in parts:
        is_split = len(pieces) > 1 and as_written(part).startswith(_OPENINGS)
        if not is_split and not is_checked:
            # A block whose line breaks were trimmed.
            is_split = ending.endswith(_ENDS) and not _BREAKS.search(gap + part[:4])
            is_checked = True
        if is_split:
            pieces.append(gap.rstrip("\r\n"))
            gap = "\n\n"
        if said := part.rstrip():
            pieces += (gap, said)
            ending = (ending + gap[-_LONGEST_END:] + said[-_LONGEST_END:])[-_LONGEST_END:]
            gap, is_checked = part[len(said) :], False
        else:
            gap += part
    text = "".join(pieces) + gap
    return text if leading_block(as_written(text).lstrip()) is not None else None


def undone(text: str) -> str:
    """The text without any block or remark in it."""
    return notices.without(cut(text, blocks(text)))


def leading_block(
    text: str, start: int = 0, *, is_later: bool = False, patience: _Patience | None = None
) -> Block | None:
    """The block that begins exactly at `start`, if one does.

    The first block of a text, if it stands in the midst of it, has to be closed: people and models write about <think>.
    """
    for form in _FORMS:
        if not text.startswith(form.opening, start):
            if form.is_markdown and text[start : start + len(form.opening)] == form.opening.rstrip():
                # Stopped before anything could be seen in it, and trimmed. Of <think> alone people write as well.
                return Block(("",), len(text), start, is_open=True, form=form)
            continue
        inside = start + len(form.opening)
        stop = form.find_end(text, inside, patience)
        if stop < 0 and is_later and not form.is_markdown:
            return None
        if stop < 0:
            # Somebody pressed Stop while the model was thinking.
            body = text[inside:]
            return Block(form.readings(body, is_open=True), len(text), start, is_open=True, form=form, body=body)
        end = stop + len(form.closing)
        if not text.startswith(form.closing, stop):
            # Clients trim the text of a turn that has nothing after the block; anything else is not our writing.
            if not _NOTHING_ELSE.match(text, stop + len(form.end)):
                return None
            end = len(text)
        return Block(form.readings(text[inside:stop]), end, start, form=form)
    return None


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

    def shown(item: Delta | Heartbeat) -> Batch:
        if isinstance(item, Heartbeat) or (item.source is not None and not item.source.get("choices")):
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
        # Of the block that is open.
        self._writer: ThoughtWriter | None = None
        self._has_block = False
        self._has_spoken = False
        self._has_called = False

    def show_all(self, delta: Delta) -> Batch:
        """A run stays one where each of its chunks is to show just what it says."""
        if delta.run is None:
            return [self.show(delta)]
        if delta.reasoning and self._form is None:
            return [delta]
        if delta.reasoning and self._writer is not None and self._writer.passes(delta.reasoning):
            # Without _replace(), which takes three times as long: this is what nearly all thinking goes through.
            return [Delta(delta.choice, None, delta.reasoning, source=delta.source, run=delta.run)]
        if delta.text and self._has_spoken and not (self._writer or self._notice):
            return [delta]
        return [self.show(each) for each in split_run(delta)]

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
        opening = ""
        if self._writer is None:
            self._writer, self._has_block = self._form.writer(), True
            opening = "\n\n" + self._form.opening if self._has_spoken else self._form.opening
        return opening + self._writer.write(reasoning)

    def _close(self) -> str:
        if self._writer is None or self._form is None:
            return ""
        writer, self._writer = self._writer, None
        return writer.end() + self._form.closing

    def _last_word(self, finish_reason: str) -> str:
        if early := notices.early_end(finish_reason):
            return early if self._has_spoken else early.lstrip("\n")
        is_silent = self._has_block and not (self._has_spoken or self._has_called)
        return notices.SILENT if is_silent and finish_reason == "stop" else ""
