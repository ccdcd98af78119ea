"""TokenLogprobs: the log probabilities of an answer's tokens, as DeepSeek sends them with its chunks.

An entry is kept if it has a token, its bytes and a number; a damaged one ends the list, because what comes after it
could not be placed in the text any more.
"""

from typing import Any

from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.json_codec import as_list, as_object


class TokenLogprobs:
    """Adds up those of one answer. Used by the thread that runs the exchange."""

    def __init__(self) -> None:
        self.text: list[dict[str, Any]] = []
        self.reasoning: list[dict[str, Any]] = []
        self._is_damaged = False

    def add(self, delta: Delta) -> None:
        if delta.chunk is None or delta.choice:
            return
        choice = as_object(next(iter(as_list(delta.chunk.get("choices"))), None))
        found = as_object(choice.get("logprobs"))
        for name, entries in (("content", self.text), ("reasoning_content", self.reasoning)):
            for value in as_list(found.get(name)):
                entry = None if self._is_damaged else _entry(value)
                if entry is None:
                    self._is_damaged = True
                    return
                entries.append(entry)


def _entry(value: object) -> dict[str, Any] | None:
    fields = as_object(value)
    token, logprob, data = fields.get("token"), fields.get("logprob"), fields.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, (int, float)):
        return None
    if data is None:
        data = list(token.encode("utf-8", "replace"))
    if not isinstance(data, list) or not all(isinstance(each, int) and 0 <= each < 256 for each in data):
        return None
    return {"token": token, "logprob": logprob, "bytes": data}
