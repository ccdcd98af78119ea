"""Failover: one exchange at several upstreams, from the first that is asked to the one that answers.

As long as the client has nothing of an answer, a failed call is followed by one to the next upstream:

    failure                                     breaker              the upstream is asked again
    cannot be reached, is no API                opens at once        no
    silent                                      opens after some     no
    connection or answer broke, 5xx             opens after some     after a pause, if all others failed as well
    429                                         -                    the same; its key rests
    402, or 401 with a key of the owner         -                    no; its key is set aside for requests of this kind
    403 with a key of the owner, own queue full -                    no
    400 or 404 for a model it does not know     -                    no, nor by other chats for a time
    any other 404                               -                    no

Any other refusal is the answer. 401, 402 and 429 first lead to another key of the same upstream. A chat that has its
prefix cached where it is gets one retry there before it moves. Tools that DeepSeek runs itself are a reason to ask it
first. Nothing here sends; `upstream_call` does.

What one request met with changes nothing for others, unless it cannot be due to that request: the words of an error may
quote it, so status, code and whole sentences decide.
"""

import hashlib
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from deepseek_cursor_proxy.deepseek.error_messages import is_unknown_model
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.errors import (
    ConnectionTimeout,
    ProxyError,
    QueueFull,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams.upstreams import (
    MODEL_SECONDS,
    Candidate,
    ChatRoute,
    RoutedChat,
    Upstreams,
)
from deepseek_cursor_proxy.observers.events import Event, UpstreamChanged
from deepseek_cursor_proxy.reasoning.identity import identify
from deepseek_cursor_proxy.redaction import redact_keys, safe_text
from deepseek_cursor_proxy.upstream import retry
from deepseek_cursor_proxy.upstream.call_limit import CallLimit
from deepseek_cursor_proxy.upstream.key_pool import KeyLease, KeyPool

# A key or account that is put right meanwhile is found again soon.
_REFUSED_SECONDS = 600.0
# A busy account without a Retry-After of its own, and the longest that one may ask for: it may be for one model only.
_BUSY_SECONDS = 5.0
_LONGEST_BUSY_SECONDS = 60.0
# For clients; without a number some give up at once.
_RETRY_AFTER_SECONDS = 5
# A chat waits this long for the upstream that has its prefix cached.
_MOST_PATIENT_SECONDS = 1


class Cause(Enum):
    """Why an exchange moves to another upstream."""

    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    BUSY = "busy"
    UNPAID = "unpaid"
    KEY_REFUSED = "key refused"
    MODEL_REFUSED = "model refused"
    NOT_FOUND = "not found"
    # Nothing about the upstream as such.
    OTHER = "other"


def cause_of(error: ProxyError, model: str, *, is_owner_key: bool) -> Cause | None:
    """Why to ask another upstream after this error of a call for a model; None if the error is the answer."""
    if isinstance(error, UpstreamTimeout):
        return Cause.UNREACHABLE
    if isinstance(error, UpstreamDropped):
        return Cause.BROKEN
    if isinstance(error, UpstreamFailed):
        return Cause.OTHER if error.code == "reasoning_refused" else Cause.UNREACHABLE
    if isinstance(error, QueueFull):
        return Cause.OTHER
    if not isinstance(error, UpstreamRefused):
        return None
    if error.status >= 500:
        return Cause.BROKEN
    if is_unknown_model(error, model):
        return Cause.MODEL_REFUSED
    if error.status in (401, 403) and not is_owner_key:
        return None
    return _CAUSES.get(error.status)


_CAUSES = {
    429: Cause.BUSY,
    402: Cause.UNPAID,
    401: Cause.KEY_REFUSED,
    403: Cause.OTHER,
    404: Cause.NOT_FOUND,
}


class Attempt(NamedTuple):
    """An upstream that is asked, with a key of the owner or that of the request."""

    candidate: Candidate
    lease: KeyLease | None

    @property
    def name(self) -> str:
        return self.candidate.upstream.name

    def cause_of(self, error: ProxyError) -> Cause | None:
        return cause_of(error, self.candidate.model, is_owner_key=self.lease is not None)


class Failover:
    """The upstreams of one exchange. Used by the thread that runs it; must be released."""

    def __init__(
        self,
        upstreams: Upstreams,
        emit: Callable[[Event], None],
        chat: RoutedChat,
        candidates: list[Candidate],
        credential: str,
    ) -> None:
        """Turn to the first of the candidates that has a key; `credential` is that of the request."""
        self._upstreams = upstreams
        self._credential = credential
        self._emit = emit
        self._chat = chat
        self._route = upstreams.route(chat.digest)
        self._untried = list(candidates)
        # Those that may succeed after a pause, and how they failed.
        self._waiting: list[tuple[Candidate, ProxyError]] = []
        # By name of upstream, why it failed; the last one last.
        self.failures: dict[str, str] = {}
        self._has_stayed = False
        # Whether the current upstream has accepted the call.
        self._is_accepted = False
        self.current = self._next() or Attempt(candidates[0], None)

    def check_key(self) -> None:
        """Raise UpstreamFailed if there is no key for any upstream."""
        if self.current.lease is None and self.current.candidate.upstream.keys is not None:
            raise _no_key(self.current.candidate)

    def stays(self, error: ProxyError) -> bool:
        """Whether the upstream that has the chat's prefix is worth one retry, before another is asked."""
        is_own = self._route is not None and self._route.upstream == self.current.name
        is_soon = (error.retry_after or 0) <= _MOST_PATIENT_SECONDS
        stays = is_own and is_soon and bool(self._untried) and retry.is_temporary(error) and not self._has_stayed
        self._has_stayed |= stays
        return stays

    def move(self, error: ProxyError, pause: Callable[[ProxyError], bool]) -> bool:
        """Turn to the next upstream or key after a failure; False if there is none, or the failure is the answer.

        When all have failed, those that may recover are asked once more after the pause, if it grants one.
        """
        failed = self.current
        self.release()
        cause = self.record_failure(error)
        if cause is None:
            return False
        kind = self._chat.kind(failed.candidate.model)
        if cause in _OF_KEYS and failed.lease is not None and failed.candidate.upstream.is_ready_for(kind):
            self._untried.insert(0, failed.candidate)
        elif retry.is_temporary(error):
            self._waiting.append((failed.candidate, _without_traceback(error)))
        attempt = self._next() or (self._next() if self._start_again(pause) else None)
        if attempt is None:
            return False
        self.current, self._is_accepted = attempt, False
        return True

    def _start_again(self, pause: Callable[[ProxyError], bool]) -> bool:
        if not self._waiting:
            return False
        if not pause(min((error for _, error in self._waiting), key=lambda error: error.retry_after or 0)):
            return False
        self._untried, self._waiting = [candidate for candidate, _ in self._waiting], []
        return True

    def record_failure(self, error: ProxyError) -> Cause | None:
        """Record what a failure says about the current upstream, its key or its models."""
        attempt, upstream = self.current, self.current.candidate.upstream
        cause = attempt.cause_of(error)
        if cause is None:
            return None
        self.failures.pop(attempt.name, None)
        self.failures[attempt.name] = reason = self._words(error)
        if cause in (Cause.UNREACHABLE, Cause.BROKEN) and upstream.breaker is not None:
            # An answer that cannot be read, or that does not come, may be due to what was asked.
            is_sure = cause is Cause.UNREACHABLE and isinstance(error, (ConnectionTimeout, UpstreamFailed))
            is_sure = is_sure and not self._is_accepted
            if upstream.breaker.record_failure(self._chat.digest, is_sure=is_sure):
                self._emit(UpstreamChanged(attempt.name, False, reason, upstream.breaker.seconds_left))
        elif cause is Cause.MODEL_REFUSED:
            if self._upstreams.record_refused_model(attempt.candidate, self._chat):
                model = attempt.candidate.model
                self._emit(UpstreamChanged(attempt.name, False, reason, MODEL_SECONDS, model=model))
        elif cause in _OF_KEYS and attempt.lease is not None and upstream.keys is not None:
            self._record_refused_key(cause, error, attempt.lease, upstream.keys)
        return cause

    def _record_refused_key(self, cause: Cause, error: ProxyError, lease: KeyLease, keys: KeyPool) -> None:
        if cause is Cause.BUSY:
            # For seconds, which is no news.
            keys.record_busy(lease.key, min(float(error.retry_after or _BUSY_SECONDS), _LONGEST_BUSY_SECONDS))
            return
        model, digest = self.current.candidate.model, lease.key.digest
        if keys.record_refusal(lease.key, self._chat.kind(model), _REFUSED_SECONDS):
            reason = self.failures[self.current.name]
            self._emit(UpstreamChanged(self.current.name, False, reason, _REFUSED_SECONDS, digest, model))

    def record_acceptance(self) -> None:
        """The current upstream has accepted the call: the chat stays there."""
        self._is_accepted = True
        attempt = self.current
        breaker, lease = attempt.candidate.upstream.breaker, attempt.lease
        if lease is not None and (keys := attempt.candidate.upstream.keys) is not None:
            keys.record_acceptance(lease.key, self._chat.kind(attempt.candidate.model))
        if breaker is not None and breaker.record_acceptance():
            self._emit(UpstreamChanged(attempt.name, is_ready=True))
        route = ChatRoute(attempt.name, lease.key.digest if lease is not None else None)
        self._upstreams.record_route(self._chat.digest, route)

    def end(self, *, was_complete: bool) -> None:
        """The exchange is over."""
        self.release()
        breaker = self.current.candidate.upstream.breaker
        if was_complete and breaker is not None:
            breaker.record_success()

    def final_error(self, error: ProxyError) -> ProxyError:
        """The last error as the client gets it: with the upstreams asked before, and without blame for its own key."""
        failures = [f"{name} ({reason})" for name, reason in self.failures.items()]
        cause = self.current.cause_of(error)
        if cause is None:
            return error
        if len(failures) > 1 and cause not in (Cause.UNREACHABLE, Cause.BROKEN, Cause.BUSY):
            message = f"No upstream can answer: {', '.join(failures)}. Try again in a moment."
            return UpstreamFailed(message, retry_after=_RETRY_AFTER_SECONDS)
        if cause is Cause.KEY_REFUSED:
            # As a 401 it would send people to look at a key that has nothing to do with it.
            return _no_key(self.current.candidate)
        if len(failures) > 1:
            error.add(f"Asked before: {', '.join(failures[:-1])}.")
        return error

    def release(self) -> None:
        """The call is over. Idempotent."""
        if self.current.lease is not None:
            self.current.lease.release()

    def _next(self) -> Attempt | None:
        """An attempt at the next upstream that has a key; None if there is none."""
        while self._untried:
            if (attempt := self._attempt(self._untried.pop(0))) is not None:
                return attempt
        return None

    def _attempt(self, candidate: Candidate) -> Attempt | None:
        """An attempt there; None without a key for it."""
        upstream, lease = candidate.upstream, None
        if upstream.keys is not None:
            is_own = self._route is not None and self._route.upstream == upstream.name
            digest = self._route.key_digest if self._route is not None and is_own else None
            lease = upstream.keys.take(self._chat.kind(candidate.model), digest)
            if lease is None:
                return None
        if upstream.breaker is not None:
            upstream.breaker.begin_call()
        return Attempt(candidate, lease)

    def _words(self, error: ProxyError) -> str:
        if isinstance(error, UpstreamRefused):
            return f"answered {error.status}"
        lease = self.current.lease
        # Upstream's own words may quote the key it was called with.
        key = self._credential if lease is None else lease.key.credential
        text = error.message.replace(key, "***") if key else error.message
        return safe_text(redact_keys(text).partition(". ")[0].rstrip("."), 120)


def open_failover(context: CallContext, generation: GenerationRequest, services: Services) -> Failover:
    """The way of a request through several upstreams; raises a ProxyError if none is for it."""
    chat, found = _find_candidates(context, generation, services)
    return Failover(services.upstreams, services.observers.emit, chat, found, context.credential)


def first_limit(context: CallContext, generation: GenerationRequest, services: Services) -> CallLimit:
    """The limit of the upstream that is asked first; raises a ProxyError if none is for the request."""
    _, found = _find_candidates(context, generation, services)
    return services.upstreams.limit(found[0])


def _find_candidates(
    context: CallContext, generation: GenerationRequest, services: Services
) -> tuple[RoutedChat, list[Candidate]]:
    request, upstreams = generation.request, services.upstreams
    upstreams.check(request.model, context.spend_refusal)
    messages = request.messages if generation.client_messages is None else generation.client_messages
    history = identify(context.namespace, messages, request.conversation, services.memory)
    digest = hashlib.sha256(history.conversation + request.model.encode("utf-8", "surrogatepass")).digest()
    reserved = context.slot.limit if context.slot is not None else None
    max_tokens = request.params.get("max_tokens")
    chat = RoutedChat(digest, context.namespace, context.spend_refusal is None, reserved, max_tokens)
    found = upstreams.candidates(request.model, chat)
    if request.server_tools or server_tools.is_forced(request):
        found = _prefer_server_tools(found, generation, chat)
    return chat, found


def _prefer_server_tools(
    candidates: list[Candidate], generation: GenerationRequest, chat: RoutedChat
) -> list[Candidate]:
    """The candidates, those first that run the tools of DeepSeek in a request; these alone if it forces one.

    BadRequest if it does and none runs it.
    """

    def is_able(candidate: Candidate) -> bool:
        request = generation.request._replace(model=candidate.model)
        return candidate.upstream.host_choice.runs_server_tools(generation.upstream_api, request, chat.caller)

    able = list(filter(is_able, candidates))
    if server_tools.is_forced(generation.request):
        if not able:
            # It raises.
            server_tools.leave_out(generation.request)
        return able

    def rank(candidate: Candidate) -> tuple[bool, bool]:
        return not candidate.upstream.is_ready_for(chat.kind(candidate.model)), candidate not in able

    return sorted(candidates, key=rank)


_OF_KEYS = (Cause.BUSY, Cause.UNPAID, Cause.KEY_REFUSED)


def _without_traceback(error: ProxyError) -> ProxyError:
    """An error as temporary as this one, which holds no frames."""
    if isinstance(error, UpstreamRefused):
        return UpstreamRefused(error.status, "", None, error.retry_after)
    return UpstreamDropped("", retry_after=error.retry_after)


def _no_key(candidate: Candidate) -> UpstreamFailed:
    table = candidate.upstream.table
    variables = " and ".join(table.key_env) if table is not None else ""
    return UpstreamFailed(
        f"The upstream {candidate.upstream.name} has no key that it accepts. The owner of this proxy has to set "
        f"{variables or 'its key_env'} anew and start it again.",
        code="held_key_refused",
    )
