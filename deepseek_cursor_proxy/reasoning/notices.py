"""Notices of this program in the visible text: their wording, and how they are stripped when they come back.

A notice decides nothing: it goes neither upstream nor into the digest of a turn, and NOTICE in a history means only
that it need not be shown again.
"""

import re

_NAME = "[deepseek-cursor-proxy]"
NOTICE_LINE = "[deepseek-cursor-proxy] Refreshed reasoning_content history."
NOTICE = NOTICE_LINE + "\n\n"

# DeepSeek sometimes leaves its whole answer in the thinking; Cursor shows such a turn as nothing but a folded block.
NO_ANSWER = (
    "[deepseek-cursor-proxy] The model ended this turn without an answer; what it has to say is in its thinking."
)

_EARLY_ENDS = {
    "insufficient_system_resource": "it ran out of capacity. Ask it to go on, perhaps in a minute",
    "aborted": "it was interrupted. Ask it to go on",
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


def is_notice(text: str, start: int = 0) -> bool:
    """Whether our notice is at `start`; the line breaks after it may have been trimmed."""
    return text.startswith(NOTICE_LINE, start) and (
        text.startswith(NOTICE, start) or text[start:].rstrip() == NOTICE_LINE
    )


def strip(text: str, start: int = 0) -> str:
    """The text from `start` on without the notices at its two ends."""
    end = start
    if text.startswith(NOTICE, start):
        end = start + len(NOTICE)
    elif text.startswith("[", start) and (leading := _LEADING.match(text, start)):
        end = leading.end()
    # The last notice is short: only the end of a long text is searched.
    search_start = max(end, len(text) - 500)
    trailing = _TRAILING.search(text, search_start) if text.find(_NAME, search_start) >= 0 else None
    return text[end : trailing.start() if trailing else len(text)]
