"""Thinking blocks, `<details>` and `<think>`, and notices in a text: how they are shown, found and stripped.

What a Form writes, `find_blocks` reads back byte for byte, whatever the reasoning contains. There are two forms:

    <details>   clients render it as markdown; markdown_escape keeps the reasoning inside it
    <think>     clients take it out by its tags, so only its own tag is escaped: one backslash after the `<`

Reasoning that comes after the beginning of the answer has a block of its own, two line breaks after the text before it.
Text that merely looks like a block stays: `restore` strips a block only if it shows the turn's reasoning. A notice
decides nothing: it goes neither upstream nor into the digest of a turn, and NOTICE in a history means only that it need
not be shown again. Warning: `identity` strips by the same functions as `restore`, so a change here changes the keys of
past turns.

`show_reasoning` writes the reasoning of a streamed answer into its text, before and between its paragraphs. One rule
for every delta of a choice: reasoning opens a block or continues the open one; text, a call or the end of the answer
closes it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta
from deepseek_cursor_proxy.deepseek.chat_stream import split_run
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.reasoning import markdown_escape


class Form:
    """One form of block; immutable."""

    def __init__(self, opening: str, closing: str, tag: str, *, is_markdown: bool = False) -> None:
        self.opening = opening
        self.closing = closing
        # Without the line breaks after it, which clients trim.
        self.end = closing.rstrip("\n")
        self.tag = tag
        self.is_markdown = is_markdown
        # HTML ignores case, so any spelling of the tag would end the block for a reader's eyes.
        beginnings = "|".join(tag[:length] for length in range(len(tag)))
        self._escape = re.compile(rf"<(\\*/?{tag})", re.IGNORECASE)
        self._unescape = re.compile(rf"<\\(\\*/?{tag})", re.IGNORECASE)
        self._unfinished = re.compile(rf"<\\*/?(?:{beginnings})\Z", re.IGNORECASE)

    def read(self, body: str, *, is_open: bool = False) -> str:
        """The reasoning that the inside of a block shows."""
        if self.is_markdown:
            # In an open block the character that a backslash escapes may be missing.
            return markdown_escape.unescape_open(body.rstrip("\\")) if is_open else markdown_escape.unescape(body)
        whole = self.split_unfinished(body)[0] if is_open else body
        return self._unescape.sub(r"<\1", whole) if "<" in whole else whole

    def begins_like(self, body: str, reasoning: str) -> bool:
        """Whether a block with this reasoning begins with this inside."""
        written = markdown_escape.escape_open(reasoning) if self.is_markdown else self.escape_tag(reasoning)
        return written.startswith(body)

    def find_end(self, text: str, inside: int) -> int:
        """The index of the closing tag of a block whose inside begins at `inside`; -1 if the block is open."""
        return markdown_escape.find_outside(self.end, text, inside) if self.is_markdown else text.find(self.end, inside)

    def escape_tag(self, text: str) -> str:
        return self._escape.sub(r"<\\\1", text) if "<" in text else text

    def split_unfinished(self, text: str) -> tuple[str, str]:
        """Text that can be escaped now, and the beginning of a tag that must wait for its rest."""
        last = text.rfind("<")
        if last >= 0 and self._unfinished.match(text, last):
            return text[:last], text[last:]
        return text, ""


class _TagWriter:
    """Writes reasoning with only the tag of its block escaped."""

    def __init__(self, form: Form) -> None:
        self._form = form
        # The beginning of a tag.
        self._unfinished = ""

    def write_plain(self, text: str) -> bool:
        return not self._unfinished and "<" not in text

    def write(self, text: str) -> str:
        whole, self._unfinished = self._form.split_unfinished(self._unfinished + text)
        return self._form.escape_tag(whole)

    def end(self) -> str:
        unfinished, self._unfinished = self._unfinished, ""
        return self._form.escape_tag(unfinished)


COLLAPSIBLE = Form("<details>\n<summary>Thinking</summary>\n\n", "\n</details>\n\n", "details", is_markdown=True)
PLAIN = Form("<think>\n", "\n</think>\n\n", "think")
_FORMS = (COLLAPSIBLE, PLAIN)
OPENINGS = tuple(form.opening for form in _FORMS)
# A text of nothing but notices would take time without end.
_MOST_QUOTES = 8
_NOTHING_ELSE = re.compile(r"\s*\Z")
_LATER = re.compile("\n\n(" + "|".join(re.escape(form.opening) for form in _FORMS) + ")")


class Block(NamedTuple):
    """A thinking block in a text: the reasoning it shows, the start of the text after it, and its own start."""

    reasoning: str
    end: int
    start: int = 0
    # It shows only how the reasoning begins: the user pressed Stop.
    is_open: bool = False
    form: Form = COLLAPSIBLE
    body: str = ""

    def matches(self, reasoning: str) -> bool:
        """Whether it shows this reasoning, or how it begins: the rest came after the answer began."""
        return _is_beginning(self.reasoning, reasoning, self) or (
            self.is_open and self.form.begins_like(self.body, reasoning)
        )


def find_blocks(text: str) -> list[Block]:
    """Every block at the start of a text or after two line breaks."""
    blocks: list[Block] = []
    # White space before the first block is a client's edit without meaning.
    at = len(text) - len(text.lstrip()) if text[:1].isspace() else 0
    while block := block_at(text, at):
        blocks.append(block if blocks or not block.start else block._replace(start=0))
        at = block.end
    if not blocks:
        at = 0
    unclosed: set[str] = set()
    while opening := _LATER.search(text, at):
        form = next(form for form in _FORMS if form.opening == opening.group(1))
        # The blocks of one answer have one form.
        is_first = not blocks or blocks[0].form is not form
        block = None if form.tag in unclosed else block_at(text, opening.start(1), is_later=is_first)
        if block is not None:
            blocks.append(block._replace(start=opening.start()))
            at = block.end
            continue
        # Skip to this form's next closing tag; if there is none, ignore the form from here on (keeps this linear).
        stop = -1 if form.tag in unclosed else form.find_end(text, opening.end())
        if stop < 0:
            unclosed.add(form.tag)
        at = max(opening.end(), stop)
    return blocks


def strip_blocks(text: str, blocks: Sequence[Block]) -> str:
    """Strip these blocks of `find_blocks` from a text."""
    if not blocks:
        return text
    if len(blocks) == 1 and blocks[0].start == 0:
        return text[blocks[0].end :]
    starts = [0, *(block.end for block in blocks)]
    ends = [*(block.start for block in blocks), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def blocks_that_show(blocks: Sequence[Block], reasonings: Iterable[str | None]) -> Sequence[Block]:
    """Those of a text's blocks that show the turn's reasoning; others are the model's own text."""
    is_first, shown = blocks[0].start == 0, [block.reasoning for block in blocks]
    for reasoning in filter(None, reasonings):
        if is_first and reasoning == shown[0]:
            # All of the reasoning: an empty block after it is the model's own.
            return blocks[:1]
        # Spans of one turn, or turns that a client merged into one message.
        if _is_beginning("".join(shown), reasoning, blocks[-1]) or reasoning == "\n\n".join(shown):
            return blocks
        if is_first and blocks[0].matches(reasoning):
            return blocks[:1]
    return ()


def _is_beginning(shown: str, reasoning: str, last: Block) -> bool:
    """Whether the shown text is all of the reasoning, or its beginning: the model went on thinking after a call."""
    return reasoning == shown or (bool(shown or last.is_open) and reasoning.startswith(shown))


def is_one_at_the_start(blocks: Sequence[Block]) -> bool:
    """Whether exactly one block is at the very start; blocks quoted further on are text."""
    return bool(blocks) and blocks[0].start == 0 and (len(blocks) == 1 or blocks[1].start > blocks[0].end)


def strip_display(text: str, blocks: Sequence[Block] | None = None) -> str:
    """Strip every block and notice from a text, and outer white space; `blocks` are those of the text, if known.

    Again, as long as there are any at its ends: a model that quotes them at the start of its answer writes the same
    text with ours before it and without.
    """
    for _ in range(_MOST_QUOTES):
        before, text = text, strip_notices(text.lstrip())
        if blocks is None or text != before:
            blocks = find_blocks(text) if "<" in text else ()
        text, blocks = strip_blocks(text, blocks), None
        if len(text) == len(before):
            break
    return text.strip()


def block_at(text: str, start: int = 0, *, is_later: bool = False) -> Block | None:
    """The block that begins exactly at `start`, if one does.

    With `is_later`, the first block of this form is not at the start of the text: a <think> must then be closed,
    because people and models write about that tag.
    """
    for form in _FORMS:
        if not text.startswith(form.opening, start):
            if form.is_markdown and text[start : start + len(form.opening)] == form.opening.rstrip():
                # Stopped before any reasoning came, and trimmed. A bare <think> may be a word of the text.
                return Block("", len(text), start, is_open=True, form=form)
            continue
        inside = start + len(form.opening)
        stop = form.find_end(text, inside)
        if stop < 0 and is_later and not form.is_markdown:
            return None
        if stop < 0:
            # The user pressed Stop while the model was thinking.
            body = text[inside:]
            return Block(form.read(body, is_open=True), len(text), start, is_open=True, form=form, body=body)
        end = stop + len(form.closing)
        if not text.startswith(form.closing, stop):
            # Clients trim a text that ends with the block; anything else was not written by us.
            if not _NOTHING_ELSE.match(text, stop + len(form.end)):
                return None
            end = len(text)
        return Block(form.read(text[inside:stop]), end, start, form=form)
    return None


_NAME = "[deepseek-cursor-proxy]"
NOTICE_LINE = "[deepseek-cursor-proxy] Refreshed reasoning_content history."
NOTICE = NOTICE_LINE + "\n\n"

# DeepSeek sometimes leaves its whole answer in the thinking; Cursor then shows nothing but a folded block.
NO_ANSWER = (
    "[deepseek-cursor-proxy] The model ended this turn without an answer; what it has to say is in its thinking."
)

_EARLY_ENDS = {
    "insufficient_system_resource": "it ran out of capacity. Ask it to continue, perhaps in a minute",
    "aborted": "it was interrupted. Ask it to continue",
}


def early_end_notice(finish_reason: str | None) -> str:
    """The notice for an answer that ended for a reason the user should know; "" for the usual ones."""
    why = _EARLY_ENDS.get(finish_reason or "")
    return f"\n\n[deepseek-cursor-proxy] DeepSeek ended this answer early ({finish_reason}): {why}." if why else ""


# Also notices of related programs, which old chats still carry. A whole line has to match, not just its beginning: a
# model can be made to say anything, and its own words must stay.
_LEADING = re.compile(
    r"(?:\[(?:deepseek-cursor-proxy|cursor-deepseek)\] "
    r"(?:Refreshed reasoning_content history\.|(?!Refreshed reasoning_content history\.)(?:Refreshed|Recovered)"
    r"(?=[^\n]{0,200}\b(?:reasoning|reasoning_content|history|chat|context|messages)\b)[^\n]{0,200})"
    r"|" + re.escape(NO_ANSWER) + r")[ \t]{0,2}(?:\n+|\Z)"
)
_TRAILING = re.compile(
    r"(?:\n\n|\A)(?:" + "|".join(re.escape(early_end_notice(reason).lstrip()) for reason in _EARLY_ENDS) + r")\s*\Z"
)


def is_notice(text: str) -> bool:
    """Whether a text begins with our notice; the line breaks after it may have been trimmed."""
    return text.startswith(NOTICE_LINE) and (text.startswith(NOTICE) or text.rstrip() == NOTICE_LINE)


def strip_notices(text: str) -> str:
    """The text without the notices at its two ends."""
    if text.startswith(NOTICE):
        text = text[len(NOTICE) :]
    elif text.startswith("[") and (leading := _LEADING.match(text)):
        text = text[leading.end() :]
    # The last notice is short: only the end of a long text is searched.
    search_start = max(0, len(text) - 500)
    trailing = _TRAILING.search(text, search_start) if text.find(_NAME, search_start) >= 0 else None
    return text[: trailing.start()] if trailing else text


def show_reasoning(
    batches: Batches,
    form: Form | None,
    notice: Callable[[int], str] = lambda choice: "",
    *,
    with_end_notices: bool = True,
) -> Batches:
    """The same deltas with the reasoning, and a notice before the answer of a choice, in their text.

    Reasoning that is written into the text leaves its own field. Without a form the reasoning stays where it is. End
    notices are for clients that have no other field for how an answer ended. When the source fails, an open block is
    closed before the error is raised, so that the client never renders the error as part of the reasoning.
    """
    displays: dict[int, _ChoiceDisplay] = {}

    try:
        for batch in batches:
            shown: Batch = []
            for item in batch:
                if not isinstance(item, Delta) or (item.chunk is not None and not item.chunk.get("choices")):
                    shown.append(item)
                    continue
                display = displays.get(item.choice)
                if display is None:
                    display = displays[item.choice] = _ChoiceDisplay(form, notice(item.choice), with_end_notices)
                shown += display.show_all(item)
            yield shown
    except ProxyError:
        endings = [ending for choice, display in displays.items() if (ending := display.close_block(choice))]
        if endings:
            yield list(endings)
        raise
    finally:
        batches.close()


class _ChoiceDisplay:
    """The display of one choice: before, inside or after its thinking block. Used by one thread."""

    def __init__(self, form: Form | None, notice: str, with_end_notices: bool) -> None:
        self._form = form
        self._notice = notice
        self._with_end_notices = with_end_notices
        # The writer of the open block: `write_plain` writes a piece only if it stays unchanged.
        self._writer: markdown_escape.Escaper | _TagWriter | None = None
        self._has_block = False
        self._has_text = False
        self._has_calls = False

    def show_all(self, delta: Delta) -> Batch:
        """A run stays one delta if each of its chunks is shown unchanged."""
        if delta.run is None:
            return [self.show(delta)]
        if delta.reasoning and self._form is None:
            return [delta]
        if delta.reasoning and self._writer is not None and self._writer.write_plain(delta.reasoning):
            # Without _replace(), which takes nine times as long: nearly all reasoning takes this path.
            fields = (delta.choice, None, delta.reasoning, (), None, None, delta.chunk, delta.run, None, None)
            return [tuple.__new__(Delta, fields)]
        if delta.text and self._has_text and not (self._writer or self._notice):
            return [delta]
        return [self.show(single) for single in split_run(delta)]

    def show(self, delta: Delta) -> Delta:
        before = self._write(delta.reasoning) if delta.reasoning and self._form else ""
        if delta.text or delta.calls or delta.finish_reason:
            before += self._close() + self._notice
            self._notice = ""
        self._has_text = self._has_text or bool(delta.text)
        self._has_calls = self._has_calls or bool(delta.calls)
        after = ""
        if delta.finish_reason and self._with_end_notices:
            after = early_end_notice(delta.finish_reason)
            after = after if self._has_text else after.lstrip("\n")
            is_silent = self._has_block and not (self._has_text or self._has_calls)
            if is_silent and delta.finish_reason == "stop":
                after = NO_ANSWER
        text = before + (delta.text or "") + after if before or after else delta.text
        reasoning = None if self._has_block else delta.reasoning
        if text is delta.text and reasoning is delta.reasoning:
            return delta
        return delta._replace(text=text, reasoning=reasoning)

    def close_block(self, choice: int) -> Delta | None:
        """The delta that closes an open block after a failure."""
        ending = self._close()
        return Delta(choice=choice, text=ending) if ending else None

    def _write(self, reasoning: str) -> str:
        assert self._form is not None
        if self._has_calls:
            # Clients take text after a call for the next turn's. With a block this reasoning is not shown at all: as
            # a field it would come back as the whole reasoning, and DeepSeek would get a part for the whole.
            return ""
        opening = ""
        if self._writer is None:
            self._writer = markdown_escape.Escaper() if self._form.is_markdown else _TagWriter(self._form)
            self._has_block = True
            opening = "\n\n" + self._form.opening if self._has_text else self._form.opening
        return opening + self._writer.write(reasoning)

    def _close(self) -> str:
        if self._writer is None or self._form is None:
            return ""
        writer, self._writer = self._writer, None
        return writer.end() + self._form.closing
