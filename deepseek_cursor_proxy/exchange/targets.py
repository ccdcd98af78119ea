"""Targets: the upstreams and keys that one request may be sent to, and the step that follows each failure.

`after` collects the facts (retry budget, untried upstreams, ready keys, the chat's route), has `next_step` decide,
records what the failure says about the upstream in its breaker and key pool, waits if the step has a pause, and turns
to the next upstream or key. `attempt` sends.

A chat gets one retry at its home, the upstream that has its prefix cached, before it moves to another. A request with
tools that DeepSeek runs itself goes to DeepSeek first.
"""

from typing import NamedTuple

from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.errors import ConnectionTimeout, ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.next_step import Cause, Next, Output, Situation, cause_of, name_refusal, next_step
from deepseek_cursor_proxy.exchange.retries import Retries, TemporaryFailure, temporary_failure
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import MODEL_SECONDS, Candidate, ChatRoute, RoutedChat
from deepseek_cursor_proxy.net.wait import pause
from deepseek_cursor_proxy.observers.events import UpstreamChanged
from deepseek_cursor_proxy.reasoning.identity import identify
from deepseek_cursor_proxy.redaction import redact_keys, safe_text
from deepseek_cursor_proxy.upstream.call_limit import CallLimit
from deepseek_cursor_proxy.upstream.key_pool import KeyLease

# A key or account that its owner repairs is used again soon.
_REFUSED_SECONDS = 600.0
# For a busy account without Retry-After, and the longest Retry-After that counts: it may concern one model only.
_BUSY_SECONDS = 5.0
_LONGEST_BUSY_SECONDS = 60.0
# For clients; without a number some give up at once.
_RETRY_AFTER_SECONDS = 5
# A chat waits at most this long for its home, the upstream that has its prefix cached.
_MAX_HOME_WAIT_SECONDS = 1


class Target(NamedTuple):
    """An upstream to call; `lease` is a key of its `key_env`, None if the key comes with the request's context."""

    candidate: Candidate
    lease: KeyLease | None = None

    @property
    def name(self) -> str:
        return self.candidate.upstream.name

    def cause_of(self, error: ProxyError) -> Cause | None:
        return cause_of(error, self.candidate.model, is_leased_key=self.lease is not None)


class Targets:
    """Used by the thread that runs the request; must be ended."""

    def __init__(
        self, context: CallContext, services: Services, candidates: list[Candidate], chat: RoutedChat | None
    ) -> None:
        """Turn to the first of the candidates that has a key; there is no `chat` where there is one upstream."""
        self._context = context
        self._services = services
        self._chat = chat
        # Whether there is one upstream, that of the settings.
        self.is_only = chat is None
        self._route = services.upstreams.route(chat.digest) if chat is not None else None
        self.retries = Retries(services.config.retry_budget, lambda seconds: pause(seconds, context.peer))
        usable = [candidate for candidate in candidates if candidate.upstream.has_keys]
        self._untried = usable
        # The upstreams that may succeed after a pause, each with its failure.
        self._waiting: list[tuple[Candidate, TemporaryFailure]] = []
        # Why each upstream failed, by its name; the last failure comes last.
        self.failures: dict[str, str] = {}
        # Whether the chat's home has had its one retry.
        self._has_tried_home = False
        self._turn_to(usable.pop(0) if usable else candidates[0])

    def check_key(self) -> None:
        """Raise UpstreamFailed if there is no key for any upstream."""
        if self.current.lease is None and self.current.candidate.upstream.keys is not None:
            raise _no_key(self.current.candidate)

    def after(
        self,
        error: ProxyError,
        output: Output = Output.NOTHING,
        *,
        is_transcript: bool = False,
        refuses_tools: bool = False,
    ) -> Next:
        """Take the step after a failure. Pause if needed; afterwards `current` is the upstream and key to use."""
        failure = temporary_failure(error)
        retry_pause = self.retries.pause_after(failure)
        # The upstreams of the next round, which begins when the first of them may have recovered.
        waiting = [*self._waiting, *([(self.current.candidate, failure)] if failure is not None else [])]
        soonest = min([failure for _, failure in waiting], key=lambda failure: failure.retry_after, default=None)
        round_pause = self.retries.pause_after(soonest)
        situation = Situation(
            output=output,
            is_transcript=is_transcript,
            refuses_tools=refuses_tools,
            is_only=self.is_only,
            is_home=self._is_home(failure),
            can_retry=retry_pause is not None,
            cause=self.current.cause_of(error),
            has_other_key=self._has_other_key,
            has_untried=bool(self._untried),
            can_begin_again=round_pause is not None,
        )
        self._has_tried_home |= situation.is_home
        step = next_step(error, situation)
        if step is Next.RETRY:
            self.retries.wait(retry_pause)
        elif step not in (Next.TRANSCRIPT, Next.WITHOUT_TOOLS):
            if self.current.lease is not None:
                self.current.lease.release()
            self._record_failure(error, situation.cause)
            if step is Next.NEW_ROUND:
                self.retries.wait(round_pause)
            self._move_on(step, waiting)
        return step

    def _move_on(self, step: Next, waiting: list[tuple[Candidate, TemporaryFailure]]) -> None:
        """Turn to the key or upstream that the step names; `waiting` are the upstreams of the next round."""
        if step is Next.GIVE_UP:
            return
        if step is Next.OTHER_KEY:
            self._untried.insert(0, self.current.candidate)
        elif step is Next.OTHER_UPSTREAM:
            self._waiting = waiting
        else:
            self._untried, self._waiting = [candidate for candidate, _ in waiting], []
        self._turn_to(self._untried.pop(0))

    def _is_home(self, failure: TemporaryFailure | None) -> bool:
        """Whether the current upstream has the chat's prefix, and is worth one retry before another is asked."""
        if failure is None or self._route is None or self._route.upstream != self.current.name:
            return False
        is_short = failure.retry_after <= _MAX_HOME_WAIT_SECONDS
        return is_short and bool(self._untried) and not self._has_tried_home

    @property
    def _has_other_key(self) -> bool:
        """Whether the current upstream is ready, and so is another key of its `key_env`."""
        upstream, lease = self.current.candidate.upstream, self.current.lease
        if lease is None or self._chat is None or upstream.keys is None or upstream.breaker is None:
            return False
        kind = self._chat.kind(self.current.candidate.model)
        return upstream.breaker.is_ready and upstream.keys.is_ready_for(kind, besides=lease.key)

    def _record_failure(self, error: ProxyError, cause: Cause | None) -> None:
        """Record what a failure says about the current upstream, its key or its models."""
        if cause is None or self._chat is None:
            return
        target, upstream = self.current, self.current.candidate.upstream
        assert upstream.breaker is not None
        self.failures.pop(target.name, None)
        self.failures[target.name] = reason = self._words(error)
        change = UpstreamChanged(target.name, False, reason)
        if cause in (Cause.UNREACHABLE, Cause.BROKEN):
            # A missing or unreadable answer may be due to what was asked.
            is_sure = cause is Cause.UNREACHABLE and isinstance(error, (ConnectionTimeout, UpstreamFailed))
            if upstream.breaker.record_failure(self._chat.digest, is_sure=is_sure and not self._is_accepted):
                self._services.observers.emit(change._replace(seconds=upstream.breaker.seconds_left))
        elif cause is Cause.MODEL_REFUSED:
            if self._services.upstreams.record_refused_model(target.candidate, self._chat):
                model = target.candidate.model
                self._services.observers.emit(change._replace(seconds=MODEL_SECONDS, model=model))
        elif target.lease is None or upstream.keys is None:
            return
        elif cause is Cause.BUSY:
            # Too short to report.
            seconds = min(float(error.retry_after or _BUSY_SECONDS), _LONGEST_BUSY_SECONDS)
            upstream.keys.record_busy(target.lease.key, seconds)
        elif cause.is_of_key:
            model, key = target.candidate.model, target.lease.key
            if upstream.keys.record_refusal(key, self._chat.kind(model), _REFUSED_SECONDS):
                change = change._replace(seconds=_REFUSED_SECONDS, key=key.digest, model=model)
                self._services.observers.emit(change)

    def record_acceptance(self) -> None:
        """Record that the current upstream accepted the call: the chat stays there."""
        if self._chat is None:
            return
        self._is_accepted = True
        (upstream, model), lease = self.current
        if lease is not None and upstream.keys is not None:
            upstream.keys.record_acceptance(lease.key, self._chat.kind(model))
        if upstream.breaker is not None and upstream.breaker.record_acceptance():
            self._services.observers.emit(UpstreamChanged(upstream.name, is_ready=True))
        route = ChatRoute(upstream.name, lease.key.digest if lease is not None else None)
        self._services.upstreams.record_route(self._chat.digest, route)

    def end(self, *, was_complete: bool) -> None:
        """Release the key when the request is over."""
        if self.current.lease is not None:
            self.current.lease.release()
        breaker = self.current.candidate.upstream.breaker
        if was_complete and breaker is not None:
            breaker.record_success()

    def final_error(self, error: ProxyError) -> ProxyError:
        """The last error as the client gets it: it names the upstreams asked before, never blames the client's key."""
        failures = [f"{name} ({reason})" for name, reason in self.failures.items()]
        cause = self.current.cause_of(error)
        if cause is None or self.is_only:
            return error
        if len(failures) > 1 and cause not in (Cause.UNREACHABLE, Cause.BROKEN, Cause.BUSY):
            message = f"No upstream can answer: {', '.join(failures)}. Try again in a moment."
            return UpstreamFailed(message, retry_after=_RETRY_AFTER_SECONDS)
        if cause is Cause.KEY_REFUSED:
            # A 401 would make users check their own key.
            return _no_key(self.current.candidate)
        if len(failures) > 1:
            error.add(f"Asked before: {', '.join(failures[:-1])}.")
        return error

    def _turn_to(self, candidate: Candidate) -> None:
        """Use this upstream from now on, with a key of its `key_env` if it has one, else with the context's key."""
        upstream, lease = candidate.upstream, None
        if upstream.keys is not None and not upstream.keys.is_empty and self._chat is not None:
            is_own = self._route is not None and self._route.upstream == upstream.name
            digest = self._route.key_digest if self._route is not None and is_own else None
            lease = upstream.keys.take(self._chat.kind(candidate.model), digest)
        if upstream.breaker is not None and upstream.has_keys:
            upstream.breaker.begin_call()
        self.current = Target(candidate, lease)
        # The key to call the upstream with; whether it is the owner's (leased or held), which no client may see.
        self.credential = self._context.credential if lease is None else lease.key.credential
        self.has_owner_key = self._context.is_held or lease is not None
        # Whether the upstream has accepted the call.
        self._is_accepted = False

    def _words(self, error: ProxyError) -> str:
        error = name_refusal(error)
        if isinstance(error, UpstreamRefused):
            return f"answered {error.status}"
        # The upstream's text may quote the key it was called with.
        text = error.message.replace(self.credential, "***") if self.credential else error.message
        return safe_text(redact_keys(text).partition(". ")[0].rstrip("."), 120)


def open_targets(context: CallContext, generation: GenerationRequest, services: Services) -> Targets:
    """The targets of a request; raises a ProxyError if no upstream can serve it."""
    if (only := services.upstreams.only) is not None:
        return Targets(context, services, [Candidate(only, generation.request.model)], None)
    chat, found = _find_candidates(context, generation, services)
    return Targets(context, services, found, chat)


def first_limit(context: CallContext, generation: GenerationRequest, services: Services) -> CallLimit:
    """The limit of the upstream that is asked first; raises a ProxyError if no upstream can serve the request."""
    if services.upstreams.only is not None:
        return services.upstream.call_limits.of(generation.request.model)
    _, found = _find_candidates(context, generation, services)
    return services.upstreams.limit(found[0])


def _find_candidates(
    context: CallContext, generation: GenerationRequest, services: Services
) -> tuple[RoutedChat, list[Candidate]]:
    # Imported late: without tables nothing here needs OpenSSL.
    import hashlib

    request, upstreams = generation.request, services.upstreams
    upstreams.check(request.model, context.spend_refusal)
    history = identify(context.namespace, request.messages, request.conversation, context.memory)
    digest = hashlib.sha256(history.conversation + request.model.encode("utf-8", "surrogatepass")).digest()
    reserved = context.slot.limit if context.slot is not None else None
    max_tokens = request.params.get("max_tokens")
    chat = RoutedChat(digest, context.namespace, context.spend_refusal is None, reserved, max_tokens)
    if not (request.server_tools or server_tools.is_forced(request)):
        return chat, upstreams.candidates(request.model, chat)

    def is_able(candidate: Candidate) -> bool:
        sent = request._replace(model=candidate.model)
        return candidate.upstream.host_choice.runs_server_tools(generation.upstream_api, sent, chat.caller)

    found = upstreams.candidates(request.model, chat, is_able)
    if server_tools.is_forced(request):
        found = list(filter(is_able, found))
        if not found:
            # Raises BadRequest: the request forces a tool that no upstream runs.
            server_tools.leave_out(request)
    return chat, found


def _no_key(candidate: Candidate) -> UpstreamFailed:
    table = candidate.upstream.table
    variables = " and ".join(table.key_env) if table is not None else ""
    return UpstreamFailed(
        f"The upstream {candidate.upstream.name} has no key that it accepts. The owner must set a valid key in "
        f"{variables or 'its key_env'} and restart the proxy.",
        code="held_key_refused",
    )
