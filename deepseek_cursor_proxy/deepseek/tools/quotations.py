"""Quotes: whether a text ends inside of a quotation, as Markdown has them.

Fences of backticks and tildes, backticks in a line, HTML comments and <details>. The text is read once, and only when
the question comes up. What is in doubt is a quotation: a fence that is never closed goes on to the end.
"""

import re
from collections.abc import Callable


class Quotes:
    """Used by the thread that reads the answer."""

    _BEGIN = re.compile(
        r"^[ \t>]*(?:[-*+][ \t]+|\d+[.)][ \t]+)?(?P<fence>`{3,}(?=[^`\n]*(?:\n|\Z))|~{3,})"
        r"|(?P<span>`+)|(?P<comment><!--)|(?P<details><details\b)",
        re.MULTILINE | re.IGNORECASE,
    )
    _DETAILS = re.compile(r"<(/?)details\b", re.IGNORECASE)
    # A span does not go on after a blank line.
    _SPAN = re.compile(r"`+|\n[ \t\r]*\n")

    def __init__(self) -> None:
        self._unread: list[str] = []
        # The character before it, which says whether a line begins there.
        self._last = "\n"
        self._state: Callable[[str, int], int] | None = None
        # The run that began the open fence or span; how many <details> are open.
        self._run = ""
        self._depth = 0

    def add(self, text: str) -> None:
        self._unread.append(text)

    def is_open(self) -> bool:
        text, at = self._last + "".join(self._unread), 1
        self._unread, self._last = [], text[-1]
        while 0 <= at < len(text):
            at = self._begin(text, at) if self._state is None else self._state(text, at)
        return self._state is not None

    def _begin(self, text: str, at: int) -> int:
        found = self._BEGIN.search(text, at)
        if found is None:
            return -1
        kind = str(found.lastgroup)
        self._state = {
            "fence": self._end_fence, "span": self._end_span, "comment": self._end_comment, "details": self._end_details
        }[kind]  # fmt: skip
        self._run, self._depth = found[kind], 1
        return found.end()

    def _end(self, end: int) -> int:
        if end >= 0:
            self._state = None
        return end

    def _end_fence(self, text: str, at: int) -> int:
        found = re.compile(rf"^[ \t>]*{self._run}{self._run[0]}*[ \t\r]*\n", re.MULTILINE).search(text, at)
        return self._end(found.end() if found is not None else -1)

    def _end_span(self, text: str, at: int) -> int:
        for found in self._SPAN.finditer(text, at):
            if found[0][0] == "\n" or found[0] == self._run:
                return self._end(found.end())
        return -1

    def _end_comment(self, text: str, at: int) -> int:
        end = text.find("-->", at)
        return self._end(end + 3 if end >= 0 else -1)

    def _end_details(self, text: str, at: int) -> int:
        for found in self._DETAILS.finditer(text, at):
            self._depth += -1 if found[1] else 1
            if not self._depth:
                return self._end(found.end())
        return -1
