"""Write the reasoning of a streamed answer into its visible text, as thinking blocks before and between its paragraphs.

One rule for every delta of a choice: reasoning opens a block or continues the open one; text, a call or the end of the
answer closes it. How a block is written and read again is in thinking_blocks, with the notices.
"""

from collections.abc import Callable

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.chat_stream import split_run
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import BlockWriter, Form


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
                if isinstance(item, Heartbeat) or (item.chunk is not None and not item.chunk.get("choices")):
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
        # The writer of the open block.
        self._writer: BlockWriter | None = None
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
            # Without _replace(), which takes three times as long: nearly all reasoning takes this path.
            return [Delta(delta.choice, None, delta.reasoning, (), None, None, delta.chunk, delta.run)]
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
            after = thinking_blocks.early_end_notice(delta.finish_reason)
            after = after if self._has_text else after.lstrip("\n")
            is_silent = self._has_block and not (self._has_text or self._has_calls)
            if is_silent and delta.finish_reason == "stop":
                after = thinking_blocks.NO_ANSWER
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
            self._writer, self._has_block = self._form.writer(), True
            opening = "\n\n" + self._form.opening if self._has_text else self._form.opening
        return opening + self._writer.write(reasoning)

    def _close(self) -> str:
        if self._writer is None or self._form is None:
            return ""
        writer, self._writer = self._writer, None
        return writer.end() + self._form.closing
