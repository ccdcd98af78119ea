"""ThinkSplitter: takes the reasoning out of content that begins with <think>…</think>, piece by piece.

Only a leading tag counts: later ones are the model's own text. Whatever follows the closing tag is content, without the
white space before it. A block that is never closed is reasoning to its end.
"""

from deepseek_cursor_proxy.conversation import Delta, ForeignReasoning

OPENING, CLOSING = "<think>", "</think>"


def begins_with_block(content: str) -> bool:
    """Whether a whole content begins with a closed block."""
    return content.lstrip().startswith(OPENING) and CLOSING in content


class ThinkSplitter:
    """Splits the choices of one answer. Used by the thread that reads it."""

    def __init__(self) -> None:
        self._choices: dict[int, _Splitter] = {}

    def split(self, delta: Delta, part: str) -> Delta:
        """The delta with the reasoning in its content as reasoning; `part` is where its chunk has the content."""
        if not delta.text and not delta.finish_reason:
            return delta
        splitter = self._choices.setdefault(delta.choice, _Splitter())
        splitter.feed(delta.text or "")
        if delta.finish_reason or part == "message":
            splitter.end()
        reasoning, text = splitter.take()
        if not reasoning and text == (delta.text or ""):
            return delta
        foreign = delta.foreign
        if reasoning and foreign is None:
            foreign = ForeignReasoning("think", is_native=bool(delta.reasoning))
        reasoning = (delta.reasoning or "") + reasoning
        chunk = delta.chunk
        if chunk is not None:
            choice = chunk["choices"][0]
            fields = {**(choice.get(part) or {}), "content": text, "reasoning_content": reasoning or None}
            chunk = {**chunk, "choices": [{**choice, part: fields}]}
        return delta._replace(reasoning=reasoning or None, text=text, chunk=chunk, foreign=foreign)


class _Splitter:
    """One choice. What may yet become a tag is held back until the next piece, or the end."""

    def __init__(self) -> None:
        self._state = self._read_start
        self._held = ""
        self._reasoning = self._text = ""

    def feed(self, text: str) -> None:
        self._held += text
        # Each state leaves what it cannot decide yet, and is done when it changes nothing.
        before = None
        while self._held and before != (self._held, self._state):
            before = self._held, self._state
            self._state()

    def end(self) -> None:
        if self._state == self._read_reasoning:
            self._reasoning += self._held
        elif self._state != self._skip_space:
            self._text += self._held
        self._held = ""
        self._state = self._read_text

    def take(self) -> tuple[str, str]:
        """The reasoning and the text since the last call."""
        found = self._reasoning, self._text
        self._reasoning = self._text = ""
        return found

    def _read_start(self) -> None:
        begins = self._held.lstrip()
        if begins.startswith(OPENING):
            self._held = begins.removeprefix(OPENING)
            self._state = self._read_reasoning
        elif not OPENING.startswith(begins):
            self._state = self._read_text

    def _read_reasoning(self) -> None:
        reasoning, tag, rest = self._held.partition(CLOSING)
        if tag:
            self._reasoning += reasoning
            self._held, self._state = rest, self._skip_space
            return
        # The longest end that may be the beginning of the tag.
        sizes = range(min(len(CLOSING) - 1, len(reasoning)), 0, -1)
        size = next((size for size in sizes if reasoning.endswith(CLOSING[:size])), 0)
        cut = len(reasoning) - size
        self._reasoning += reasoning[:cut]
        self._held = reasoning[cut:]

    def _skip_space(self) -> None:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._read_text

    def _read_text(self) -> None:
        self._text += self._held
        self._held = ""
