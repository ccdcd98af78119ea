"""Plan: the attempts of one generation, the first and those that follow failures.

A call that fails and an answer that breaks take the same way through `after`: the upstreams and keys that are left
(`targets`) and the table in `next_step` say what follows, and this file returns the attempt to send next or raises the
error that the client gets.
"""

from deepseek_cursor_proxy.deepseek.error_messages import explain, name_upstream
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.attempt import Attempt, AttemptContext
from deepseek_cursor_proxy.exchange.next_step import Next, Output, name_refusal
from deepseek_cursor_proxy.observers.events import Rerouted


class Plan:
    """Used by the thread that runs the generation."""

    def __init__(self, shared: AttemptContext) -> None:
        self._shared = shared
        # Upstreams that failed, so that another was asked.
        self.rerouted: list[str] = []

    def first(self) -> Attempt:
        return Attempt(self._shared)

    def after(self, attempt: Attempt, error: ProxyError, output: Output | None = None) -> Attempt:
        """The attempt that follows a failure, its pause being over; raises the final error if none follows.

        `output` is what the client has of an answer that broke; None if there was no answer.
        """
        # First, so that others can have the slot while this one pauses.
        attempt.close()
        targets = self._shared.targets
        if output is None:
            refuses_tools = attempt.is_refusal_of_tools(error)
        else:
            name_upstream(error, attempt.upstream.name)
            # Of several upstreams the next one is asked instead.
            refuses_tools = targets.is_only and attempt.is_refusal_in_answer(error)
        has = output or Output.NOTHING
        step = targets.after(error, has, is_transcript=attempt.is_transcript, refuses_tools=refuses_tools)
        if step is Next.GIVE_UP:
            final = self._final_error(attempt, error, has)
            try:
                raise final from None
            finally:
                # An error that a frame of its own traceback holds is freed by the collector only, with megabytes of a
                # broken answer.
                del error, final
        if step is Next.TRANSCRIPT:
            attempt.use_transcript()
        elif step is Next.WITHOUT_TOOLS:
            # If the call succeeds without them, they were the reason; after an error of a server that may be luck.
            is_luck = isinstance(error, UpstreamRefused) and error.status in (500, 502)
            attempt.leave_out_tools(is_reason=output is None and not is_luck)
        elif step is not Next.RETRY:
            failed, attempt = attempt.upstream.name, Attempt(self._shared)
            if attempt.upstream.name != failed:
                self.rerouted.append(failed)
                report, reason = self._shared.report, targets.failures[failed]
                report.emit(Rerouted(report.number, failed, reason, attempt.upstream.name))
        return attempt

    def _final_error(self, attempt: Attempt, error: ProxyError, output: Output) -> ProxyError:
        """The error that the client gets."""
        shared, error = self._shared, name_refusal(error)
        if isinstance(error, UpstreamRefused):
            if error.status == 401 and shared.context.is_held and shared.targets.current.lease is None:
                # As a 401 it would send people to look at a key that has nothing to do with it.
                error = UpstreamFailed(
                    "DeepSeek does not accept the key of this proxy. Its owner has to set DEEPSEEK_API_KEY anew and "
                    "start it again.",
                    code="held_key_refused",
                )
            else:
                error = explain(error, len(attempt.request.tools), attempt.upstream.name)
        return shared.targets.final_error(error) if output <= Output.HEARTBEATS else error
