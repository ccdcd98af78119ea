"""Failover: the attempts of one generation, the first and those that follow failures.

A failed call and a broken answer both go through `Failover.next_attempt`. It collects the facts, has the table of
`next_step` decide, waits if the step has a pause, and returns the attempt to send: the same one, perhaps in another
form, or one for another key or upstream. The first row that fits counts; nothing in the table sends, waits or changes
anything.

    failure                              if                                                     next
    history refused, reasoning missing   no content forwarded; not sent again for this yet       TRANSCRIPT
    any                                  a delta was forwarded; without tables: a heartbeat     GIVE_UP
    dropped, 429, 500, 502-504           without tables; budget left                            RETRY
    server tools refused                                                                        WITHOUT_TOOLS
    `cause_of` gives None                or without tables                                      GIVE_UP
    429, 402, 401                        another key of its `key_env` is ready                  OTHER_KEY
    any                                  an upstream was not asked yet                          OTHER_UPSTREAM
    any                                  an asked upstream may recover; budget left             NEW_ROUND
    any                                                                                         GIVE_UP

"Tables" are those of [upstreams]; without them the settings name the only upstream. There a heartbeat ends the retries,
because the call has waited for seconds and would wait again from the start; the next of several may answer at once.

`cause_of` says what a failure means for the upstream, where there are several:

    failure                                       cause           breaker              its key
    cannot be reached, is no API                  UNANSWERED     opens at once
    silent                                        UNANSWERED     opens after some
    connection or answer broke, 5xx               BROKEN          opens after some
    429                                           BUSY                                 is paused for seconds
    402, or 401 with a leased key                 UNPAID, KEY_REFUSED                  is set aside
    400 or 404 for a model it does not know;      OTHER
      any other 404; 403 with a leased key;
      the proxy's own queue is full; the
      history is refused even as a transcript
    any other refusal                             None: the client gets it

A failure affects other requests only if this request cannot have caused it. An error's text may quote the request, so
the status, the code and whole sentences decide.

Pauses grow exponentially, with jitter, until the seconds of the retry budget are used up: a busy DeepSeek or a broken
connection recovers in seconds, but Cursor stops its agent at the first error. A timeout is not retried: it has cost
minutes already. The second try on a new connection, after a pooled one turned out to be closed, does not count here
(`upstream/client`).
"""

import random
import time
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.error_messages import explain, is_unknown_model, name_upstream
from deepseek_cursor_proxy.errors import (
    ConnectionTimeout,
    ProxyError,
    QueueFull,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import ChatRoute, RoutedChat, Target, find_targets
from deepseek_cursor_proxy.net.wait import pause
from deepseek_cursor_proxy.observers.events import Rerouted, UpstreamChanged
from deepseek_cursor_proxy.reasoning.chats import ChatTracker
from deepseek_cursor_proxy.reasoning.restore import FoundTurns
from deepseek_cursor_proxy.redaction import hide_secret, safe_text

# The errors of a call that are due to the upstream, the network or the call limit.
CALL_ERRORS = (UpstreamRefused, UpstreamFailed, UpstreamTimeout, QueueFull)
_TEMPORARY = frozenset({429, 500, 502, 503, 504})
# Why a call was made again.
RETRY_REASONS = ("dropped", *(f"http_{status}" for status in sorted(_TEMPORARY)))
_REASONING_REFUSED = "reasoning_refused"

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# Clients that failed together should not retry together.
_JITTER = (0.1, 0.3)
# A key or account that its owner repairs is used again soon.
_REFUSED_SECONDS = 600.0
# For a busy account without Retry-After, and the longest Retry-After that counts: it may concern one model only.
_BUSY_SECONDS = 5.0
_LONGEST_BUSY_SECONDS = 60.0
# For clients; without a number some give up at once.
_RETRY_AFTER_SECONDS = 5


class Output(IntEnum):
    """What of an answer was forwarded; of a plain answer that is read as a stream, the client may have none of it."""

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

    UNANSWERED = "unanswered"
    BROKEN = "broken"
    BUSY = "busy"
    UNPAID = "unpaid"
    KEY_REFUSED = "key refused"
    # Says nothing about the upstream.
    OTHER = "other"

    @property
    def is_of_key(self) -> bool:
        """Whether a call with another key of the same upstream may succeed."""
        return self in (Cause.BUSY, Cause.UNPAID, Cause.KEY_REFUSED)


class Facts(NamedTuple):
    """What decides, besides the error, when a call or its answer fails."""

    output: Output = Output.NOTHING
    # Whether this upstream refused the history before, so that it was sent again, as a transcript.
    was_refused_for_reasoning: bool = False
    # Whether the failure may be due to the tools that DeepSeek runs itself.
    refuses_tools: bool = False
    # Whether the configuration has tables [upstreams]; without them there is one upstream, that of the settings.
    has_tables: bool = False
    # Whether the failure is temporary (with tables: that of any upstream), and the budget has room for a pause.
    can_pause: bool = False
    cause: Cause | None = None
    has_other_key: bool = False
    has_untried: bool = False


def next_step(error: ProxyError, facts: Facts) -> Next:
    if is_reasoning_refusal(error) and not facts.was_refused_for_reasoning and facts.output < Output.CONTENT:
        return Next.TRANSCRIPT
    if facts.output > (Output.HEARTBEATS if facts.has_tables else Output.NOTHING):
        return Next.GIVE_UP
    if facts.can_pause and not facts.has_tables:
        return Next.RETRY
    if facts.refuses_tools:
        return Next.WITHOUT_TOOLS
    if not facts.has_tables or facts.cause is None:
        return Next.GIVE_UP
    if facts.has_other_key and facts.cause.is_of_key:
        return Next.OTHER_KEY
    if facts.has_untried:
        return Next.OTHER_UPSTREAM
    return Next.NEW_ROUND if facts.can_pause else Next.GIVE_UP


def is_reasoning_refusal(error: ProxyError) -> bool:
    """Whether the upstream refused the history because reasoning is missing; an error inside a 200 counts as a 400."""
    status = error.status if isinstance(error, UpstreamRefused) else 400
    return rules.is_reasoning_refusal(status, error.message)


def cause_of(error: ProxyError, model: str, *, is_leased_key: bool) -> Cause | None:
    """Why to ask another upstream after a call for `model` failed; None if the client gets the error."""
    if isinstance(error, UpstreamTimeout):
        return Cause.UNANSWERED
    if isinstance(error, UpstreamDropped):
        return Cause.BROKEN
    if isinstance(error, QueueFull) or error.code == _REASONING_REFUSED or is_reasoning_refusal(error):
        return Cause.OTHER
    if isinstance(error, UpstreamFailed):
        return Cause.UNANSWERED
    if not isinstance(error, UpstreamRefused):
        return None
    if error.status >= 500:
        return Cause.BROKEN
    if is_unknown_model(error, model):
        return Cause.OTHER
    if error.status in (401, 403) and not is_leased_key:
        return None
    return _CAUSES.get(error.status)


_CAUSES = {429: Cause.BUSY, 402: Cause.UNPAID, 401: Cause.KEY_REFUSED, 403: Cause.OTHER, 404: Cause.OTHER}


def final_refusal(error: ProxyError) -> ProxyError:
    """The error for the client: a reasoning refusal that is final gets its own code."""
    if not is_reasoning_refusal(error):
        return error
    return UpstreamFailed(
        "DeepSeek keeps refusing this history, even with the unproven turns as a transcript. Start a new chat.",
        code=_REASONING_REFUSED,
    )


class Pause(NamedTuple):
    """The seconds before a retry, and the reason for it, one of RETRY_REASONS."""

    seconds: float
    reason: str


def pause_wanted(error: ProxyError) -> Pause | None:
    """The pause that the upstream wants, after which the same call may succeed; None if the failure is permanent.

    This is kept for a later round, and not the error, whose traceback holds the request and its body.
    """
    if isinstance(error, UpstreamDropped):
        return Pause(error.retry_after or 0, "dropped")
    if isinstance(error, UpstreamRefused) and error.status in _TEMPORARY:
        return Pause(error.retry_after or 0, f"http_{error.status}")
    return None


class Retries:
    """The pauses of one request within its budget; `reasons` are those of its retries, each of RETRY_REASONS."""

    def __init__(
        self,
        budget: float,
        pause: Callable[[float], None],
        *,
        now: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.reasons: list[str] = []
        self._pause = pause
        self._now = now
        self._uniform = uniform
        self._deadline = now() + budget

    def pause_after(self, wanted: Pause | None) -> Pause | None:
        """The pause before the next call; None if the failure is permanent, or the budget has no room for it."""
        if wanted is None:
            return None
        seconds = _FIRST_PAUSE_SECONDS * 2 ** min(len(self.reasons), 16)
        seconds = min(seconds, _LONGEST_PAUSE_SECONDS) * (1 - self._uniform(*_JITTER))
        # When DeepSeek asks for a longer wait than the budget, the client gets the error at once and can decide.
        seconds = max(seconds, wanted.seconds)
        return Pause(seconds, wanted.reason) if self._now() + seconds <= self._deadline else None

    def wait(self, pause: Pause) -> None:
        """Wait, then count the retry that follows."""
        self._pause(pause.seconds)
        self.reasons.append(pause.reason)


class Failover:
    """The upstreams and keys that one request may be sent to. Used by the thread that runs it; must be ended."""

    def __init__(self, client: ClientRequest, found: FoundTurns, tracker: ChatTracker, services: Services) -> None:
        """Raises a ProxyError if no upstream can serve the request."""
        self._client = client
        self._found = found
        self._tracker = tracker
        self._services = services
        self.retries = Retries(services.config.retry_budget, lambda seconds: pause(seconds, client.peer))
        # Those that were not asked yet in this round, in their order.
        self._untried: list[Target] = []
        # The upstreams that may succeed after a pause, each with the pause that it wants.
        self._waiting: list[tuple[Target, Pause]] = []
        # Why each upstream failed, by its name; the last failure comes last.
        self._failures: dict[str, str] = {}
        # Names of the upstreams this request moved away from.
        self.rerouted: list[str] = []
        # The chat and where it was answered last, with tables [upstreams].
        self._routed: RoutedChat | None = None
        self._route: ChatRoute | None = None
        upstreams = services.upstreams
        if upstreams.only is not None:
            self._use(Target(upstreams.only, client.chat.model))
        else:
            targets, self._routed = find_targets(client, found.history.conversation, upstreams)
            self._route = upstreams.route(self._routed.digest)
            self._untried = [target for target in targets if target.upstream.has_keys]
            self._use(self._untried.pop(0) if self._untried else targets[0])

    def new_attempt(self) -> Attempt:
        """An attempt at the current upstream with the current key."""
        return Attempt(self._client, self._found, self._tracker, self._target, self._services)

    def check_key(self) -> None:
        """Raise UpstreamFailed if no upstream has a key. Later targets have one: those without are never asked."""
        if self._target.lease is None and self._target.upstream.keys is not None:
            raise _no_key(self._target)

    def next_attempt(
        self, failed: Attempt, error: ProxyError, output: Output = Output.NOTHING, *, in_answer: bool = False
    ) -> Attempt:
        """Wait if needed, then return the attempt to send next; raises the final error if none follows.

        Also raises MissingReasoning if the setting `missing_reasoning_strategy` rejects transcripts. `in_answer`: the
        upstream accepted the call, and the error came in the answer; `output` is what of the answer was forwarded.
        """
        # First, so that others can have the slot while this request pauses.
        failed.close()
        if in_answer:
            name_upstream(error, self._target.upstream.name)
        wanted, has_tables = pause_wanted(error), self._routed is not None
        cause = cause_of(error, self._target.model, is_leased_key=self._target.lease is not None)
        waiting = [*self._waiting, *([(self._target, wanted)] if wanted is not None else [])]
        # With tables a pause begins a round, when the first of the upstreams may have recovered.
        waiting.sort(key=lambda each: each[1].seconds)
        next_pause = self.retries.pause_after(wanted if not has_tables else waiting[0][1] if waiting else None)
        facts = Facts(
            output=output,
            was_refused_for_reasoning=failed.was_refused_for_reasoning,
            # In an answer of one of several upstreams, the next one is asked instead.
            refuses_tools=failed.refuses_tools(error, in_answer=in_answer) and not (has_tables and in_answer),
            has_tables=has_tables,
            can_pause=next_pause is not None,
            cause=cause,
            has_other_key=self._has_other_key,
            has_untried=bool(self._untried),
        )
        next_one = failed
        match next_step(error, facts):
            case Next.RETRY:
                assert next_pause is not None
                self.retries.wait(next_pause)
            case Next.TRANSCRIPT:
                failed.use_transcript()
            case Next.WITHOUT_TOOLS:
                failed.leave_out_tools()
            case Next.GIVE_UP:
                self._leave(failed, error, cause)
                raise self._final_error(failed, error, cause, output) from None
            case Next.OTHER_KEY:
                self._leave(failed, error, cause)
                self._waiting = waiting
                next_one = self._move_to(self._target, failed)
            case Next.OTHER_UPSTREAM:
                self._leave(failed, error, cause)
                self._waiting = waiting
                next_one = self._move_to(self._untried.pop(0), failed)
            case Next.NEW_ROUND:
                assert next_pause is not None
                self._leave(failed, error, cause)
                self.retries.wait(next_pause)
                # Each once, also if several of its keys were busy.
                ready = [target for target, wanted in waiting if wanted.seconds <= next_pause.seconds]
                self._untried = [*{target.upstream.name: target for target in ready}.values()]
                self._waiting = [each for each in waiting if each[1].seconds > next_pause.seconds]
                next_one = self._move_to(self._untried.pop(0), failed)
        next_one.retries = len(self.retries.reasons)
        return next_one

    def _leave(self, failed: Attempt, error: ProxyError, cause: Cause | None) -> None:
        """Release the key, and record what the failure says about it or about the upstream."""
        self._release_key()
        if cause is None or self._routed is None:
            return
        upstream, model, lease = self._target
        assert upstream.breaker is not None
        self._failures.pop(upstream.name, None)
        self._failures[upstream.name] = reason = _short_reason(error, failed.credential)
        change = UpstreamChanged(upstream.name, False, reason)
        if cause in (Cause.UNANSWERED, Cause.BROKEN):
            # A missing or unreadable answer may be due to what was asked.
            is_sure = cause is Cause.UNANSWERED and isinstance(error, (ConnectionTimeout, UpstreamFailed))
            if upstream.breaker.record_failure(self._routed.digest, is_sure=is_sure and not self._is_accepted):
                self._services.observers.emit(change._replace(seconds=upstream.breaker.seconds_left))
        elif lease is None or upstream.keys is None:
            return
        elif cause is Cause.BUSY:
            # Too short to report.
            seconds = min(float(error.retry_after or _BUSY_SECONDS), _LONGEST_BUSY_SECONDS)
            upstream.keys.record_busy(lease.key, seconds)
        elif cause.is_of_key and upstream.keys.record_refusal(lease.key, self._routed.kind(model), _REFUSED_SECONDS):
            change = change._replace(seconds=_REFUSED_SECONDS, key=lease.key.digest, model=model)
            self._services.observers.emit(change)

    def _move_to(self, target: Target, failed: Attempt) -> Attempt:
        """An attempt at this upstream, perhaps the same one with another key."""
        before = self._target.upstream.name
        self._use(target)
        attempt = self.new_attempt()
        attempt.queue_seconds, attempt.started = failed.queue_seconds, failed.started
        if (name := target.upstream.name) != before:
            self.rerouted.append(before)
            report = self._client.report
            report.emit(Rerouted(report.number, before, self._failures[before], name))
        return attempt

    def record_acceptance(self) -> None:
        """Record that the current upstream accepted the call: the chat stays there."""
        if self._routed is None:
            return
        self._is_accepted = True
        upstream, model, lease = self._target
        if lease is not None and upstream.keys is not None:
            upstream.keys.record_acceptance(lease.key, self._routed.kind(model))
        if upstream.breaker is not None and upstream.breaker.record_acceptance():
            self._services.observers.emit(UpstreamChanged(upstream.name, is_ready=True))
        route = ChatRoute(upstream.name, lease.key.digest if lease is not None else None)
        self._services.upstreams.record_route(self._routed.digest, route)

    def end(self, *, was_complete: bool) -> None:
        """Release the key when the request is over; a complete answer closes the upstream's breaker."""
        self._release_key()
        if was_complete and self._target.upstream.breaker is not None:
            self._target.upstream.breaker.record_success()

    def _use(self, target: Target) -> None:
        """Use this upstream from now on, with a key of its `key_env` if it has one, else with the request's key."""
        upstream, lease = target.upstream, None
        if upstream.keys is not None and not upstream.keys.is_empty and self._routed is not None:
            is_own = self._route is not None and self._route.upstream == upstream.name
            digest = self._route.key_digest if self._route is not None and is_own else None
            lease = upstream.keys.take(self._routed.kind(target.model), digest)
        if upstream.breaker is not None and upstream.has_keys:
            upstream.breaker.begin_call()
        self._target = target if target.lease is lease else target._replace(lease=lease)
        # Whether the upstream has accepted the call.
        self._is_accepted = False

    def _release_key(self) -> None:
        if self._target.lease is not None:
            self._target.lease.release()

    @property
    def _has_other_key(self) -> bool:
        """Whether the current upstream is ready, and so is another key of its `key_env`."""
        upstream, model, lease = self._target
        if lease is None or self._routed is None or upstream.keys is None or upstream.breaker is None:
            return False
        return upstream.breaker.is_ready and upstream.keys.is_ready_for(self._routed.kind(model), besides=lease.key)

    def _final_error(self, attempt: Attempt, error: ProxyError, cause: Cause | None, output: Output) -> ProxyError:
        """The error that the client gets."""
        error = final_refusal(error)
        if isinstance(error, UpstreamRefused):
            if error.status == 401 and self._client.has_held_key and self._target.lease is None:
                # A 401 would make users check their own key.
                error = UpstreamFailed(
                    "DeepSeek does not accept the key of this proxy. The owner must set a valid DEEPSEEK_API_KEY, or "
                    "the variable that upstream_key_env names, and restart the proxy.",
                    code="held_key_refused",
                )
            else:
                error = explain(error, len(attempt.request.tools), self._target.upstream.name)
        return self._with_failures(error, cause) if output <= Output.HEARTBEATS else error

    def _with_failures(self, error: ProxyError, cause: Cause | None) -> ProxyError:
        """The last error with the upstreams asked before. Leased keys are the owner's: no client gets their 401."""
        failures = [f"{name} ({reason})" for name, reason in self._failures.items()]
        if cause is None or self._routed is None:
            return error
        has_remedy = cause in (Cause.UNANSWERED, Cause.BROKEN, Cause.BUSY) or error.code == _REASONING_REFUSED
        if len(failures) > 1 and not has_remedy:
            message = f"No upstream can answer: {', '.join(failures)}. Try again in a moment."
            return UpstreamFailed(message, retry_after=_RETRY_AFTER_SECONDS)
        if cause is Cause.KEY_REFUSED:
            return _no_key(self._target)
        if len(failures) > 1:
            error.add(f"Asked before: {', '.join(failures[:-1])}.")
        return error


def _no_key(target: Target) -> UpstreamFailed:
    table = target.upstream.table
    variables = " and ".join(table.key_env) if table is not None else ""
    return UpstreamFailed(
        f"The upstream {target.upstream.name} has no key that it accepts. The owner must set a valid key in "
        f"{variables or 'its key_env'} and restart the proxy.",
        code="held_key_refused",
    )


def _short_reason(error: ProxyError, credential: str) -> str:
    error = final_refusal(error)
    if isinstance(error, UpstreamRefused):
        return f"answered {error.status}"
    return safe_text(hide_secret(error.message, credential).partition(". ")[0].rstrip("."), 120)
