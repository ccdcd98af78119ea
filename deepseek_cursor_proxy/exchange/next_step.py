"""The table of what follows a failed call or a broken answer: the error and the request's situation decide.

`next_step` goes down these rows and takes the first that fits. Nothing here sends, waits or changes anything.

    failure                              if                                                     next
    history refused, reasoning missing   no content handed on; not sent as a transcript yet     TRANSCRIPT
    any                                  a delta was handed on; one upstream: a heartbeat       GIVE_UP
    dropped, 429, 500, 502-504           only upstream, or the chat's home; budget left         RETRY
    server tools refused                                                                        WITHOUT_TOOLS
    `cause_of` gives None                or there is no other upstream                          GIVE_UP
    429, 402, 401                        another key of its `key_env` is ready                  OTHER_KEY
    any                                  an upstream was not asked yet                          OTHER_UPSTREAM
    any                                  an asked upstream may recover; budget left             NEW_ROUND
    any                                                                                         GIVE_UP

A heartbeat ends retries at a single upstream, because the call has waited there for seconds and would wait again from
the start; the next of several may answer at once. The chat's home is the upstream that answered it last. It gets one
retry if it asks for at most a second (Retry-After) and another upstream is still untried (`targets`).

`cause_of` says what a failure means for the upstream, where there are several:

    failure                                       cause           breaker              its key or model
    cannot be reached, is no API                  UNREACHABLE     opens at once
    silent                                        UNREACHABLE     opens after some
    connection or answer broke, 5xx               BROKEN          opens after some
    429                                           BUSY                                 the key rests for seconds
    402, or 401 with a key of `key_env`           UNPAID, KEY_REFUSED                  the key is set aside
    400 or 404 for a model it does not know       MODEL_REFUSED                        not asked for it for a time
    any other 404; 403 with a key of `key_env`;   OTHER
      the proxy's own queue is full; the
      history is refused even as a transcript
    any other refusal                             None: the client gets it

A failure affects other requests only if this request cannot have caused it. An error's text may quote the request, so
the status, the code and whole sentences decide.
"""

from enum import Enum, IntEnum
from typing import NamedTuple

from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.error_messages import is_unknown_model
from deepseek_cursor_proxy.errors import (
    ProxyError,
    QueueFull,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)

# The errors of a call that are due to the upstream, the network or the call limit.
CALL_ERRORS = (UpstreamRefused, UpstreamFailed, UpstreamTimeout, QueueFull)


class Output(IntEnum):
    """What of an answer was handed on; of a plain answer that is read as a stream, the client may have none of it."""

    NOTHING = 0
    HEARTBEATS = 1
    # Deltas without text, reasoning or calls, e.g. only the role.
    DELTAS = 2
    CONTENT = 3


class Next(Enum):
    """The call that follows a failure."""

    RETRY = "the same call, after a pause"
    TRANSCRIPT = "with the turns in doubt as a transcript"
    WITHOUT_TOOLS = "without the tools that DeepSeek runs itself"
    OTHER_KEY = "with another key of the upstream's key_env"
    OTHER_UPSTREAM = "to the next upstream"
    NEW_ROUND = "after a pause, to the upstreams that may have recovered"
    GIVE_UP = "none: the client gets the error"


class Cause(Enum):
    """Why another upstream is asked."""

    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    BUSY = "busy"
    UNPAID = "unpaid"
    KEY_REFUSED = "key refused"
    MODEL_REFUSED = "model refused"
    # Says nothing about the upstream.
    OTHER = "other"

    @property
    def is_of_key(self) -> bool:
        """Whether a call with another key of the same upstream may succeed."""
        return self in (Cause.BUSY, Cause.UNPAID, Cause.KEY_REFUSED)


class Situation(NamedTuple):
    """The facts about a request when a call or its answer fails."""

    output: Output = Output.NOTHING
    # Whether the history was sent as a transcript to this upstream.
    is_transcript: bool = False
    # Whether the failure may be due to the tools that DeepSeek runs itself.
    refuses_tools: bool = False
    # Whether there is one upstream: the configuration has no tables [upstreams].
    is_only: bool = True
    # Whether the upstream is the chat's home and is worth its one retry; see `Targets._is_home`.
    is_home: bool = False
    # Whether the failure is temporary, and `retry_budget` allows the pause before a retry.
    can_retry: bool = False
    cause: Cause | None = None
    has_other_key: bool = False
    has_untried: bool = False
    # Whether an upstream that failed may recover, and `retry_budget` allows the pause before it is asked again.
    can_begin_again: bool = False


def next_step(error: ProxyError, situation: Situation) -> Next:
    if is_reasoning_refusal(error) and not situation.is_transcript and situation.output < Output.CONTENT:
        return Next.TRANSCRIPT
    if situation.output > (Output.NOTHING if situation.is_only else Output.HEARTBEATS):
        return Next.GIVE_UP
    if situation.can_retry and (situation.is_only or situation.is_home):
        return Next.RETRY
    if situation.refuses_tools:
        return Next.WITHOUT_TOOLS
    if situation.is_only or situation.cause is None:
        return Next.GIVE_UP
    if situation.has_other_key and situation.cause.is_of_key:
        return Next.OTHER_KEY
    if situation.has_untried:
        return Next.OTHER_UPSTREAM
    return Next.NEW_ROUND if situation.can_begin_again else Next.GIVE_UP


def is_reasoning_refusal(error: ProxyError) -> bool:
    """Whether the upstream refused the history because reasoning is missing; an error inside a 200 counts as a 400."""
    status = error.status if isinstance(error, UpstreamRefused) else 400
    return rules.is_reasoning_refusal(status, error.message)


def cause_of(error: ProxyError, model: str, *, is_leased_key: bool) -> Cause | None:
    """Why to ask another upstream after a call for `model` failed; None if the client gets the error.

    `is_leased_key`: the call was made with a key of the upstream's `key_env`. The client's own key and the held
    DEEPSEEK_API_KEY are none.
    """
    if isinstance(error, UpstreamTimeout):
        return Cause.UNREACHABLE
    if isinstance(error, UpstreamDropped):
        return Cause.BROKEN
    if isinstance(error, QueueFull) or error.code == REASONING_REFUSED or is_reasoning_refusal(error):
        return Cause.OTHER
    if isinstance(error, UpstreamFailed):
        return Cause.UNREACHABLE
    if not isinstance(error, UpstreamRefused):
        return None
    if error.status >= 500:
        return Cause.BROKEN
    if is_unknown_model(error, model):
        return Cause.MODEL_REFUSED
    if error.status in (401, 403) and not is_leased_key:
        return None
    return _CAUSES.get(error.status)


_CAUSES = {
    429: Cause.BUSY,
    402: Cause.UNPAID,
    401: Cause.KEY_REFUSED,
    403: Cause.OTHER,
    404: Cause.OTHER,
}

REASONING_REFUSED = "reasoning_refused"


def name_refusal(error: ProxyError) -> ProxyError:
    """The error for the client: a reasoning refusal that is final gets its own code."""
    if not is_reasoning_refusal(error):
        return error
    return UpstreamFailed(
        "DeepSeek keeps refusing this history, even with the unproven turns as a transcript. Start a new chat.",
        code=REASONING_REFUSED,
    )
