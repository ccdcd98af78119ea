"""Plan: the attempts of one generation, the first and those that follow failures.

A failed call and a broken answer both go through `after`. It calls `Targets.after`, which asks the table in `next_step`
and performs the step: pause, or turn to another key or upstream. Then it returns the attempt to send, in another form
if the step says so, or raises the error that the client gets.
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
        # Names of the upstreams this request moved away from.
        self.rerouted: list[str] = []

    def first(self) -> Attempt:
        return Attempt(self._shared)

    def after(
        self, attempt: Attempt, error: ProxyError, output: Output = Output.NOTHING, *, in_answer: bool = False
    ) -> Attempt:
        """Wait if needed, then return the next attempt; raises the final error if none follows.

        Also raises MissingReasoning if the setting `missing_reasoning_strategy` rejects transcripts. `in_answer`: the
        upstream accepted the call, and the error came in the answer; `output` is what of the answer was handed on.
        """
        # First, so that others can have the slot while this request pauses.
        attempt.close()
        targets = self._shared.targets
        if in_answer:
            name_upstream(error, attempt.upstream.name)
            # With several upstreams, the next one is asked instead.
            refuses_tools = targets.is_only and attempt.is_refusal_in_answer(error)
        else:
            refuses_tools = attempt.is_refusal_of_tools(error)
        is_transcript = attempt.is_transcript
        step = targets.after(error, output, is_transcript=is_transcript, refuses_tools=refuses_tools)
        if step is Next.GIVE_UP:
            try:
                raise self._final_error(attempt, error, output) from None
            finally:
                # The traceback holds this frame: with the error in it, only the collector would free the error and the
                # megabytes of a broken answer.
                del error
        if step is Next.TRANSCRIPT:
            attempt.use_transcript()
        elif step is Next.WITHOUT_TOOLS:
            # If the call succeeds without the tools, they were the reason; after a 500 or 502, by coincidence perhaps.
            may_be_coincidence = isinstance(error, UpstreamRefused) and error.status in (500, 502)
            attempt.leave_out_tools(is_reason=not in_answer and not may_be_coincidence)
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
                # A 401 would make users check their own key.
                error = UpstreamFailed(
                    "DeepSeek does not accept the key of this proxy. The owner must set a valid DEEPSEEK_API_KEY, or "
                    "the variable that upstream_key_env names, and restart the proxy.",
                    code="held_key_refused",
                )
            else:
                error = explain(error, len(attempt.request.tools), attempt.upstream.name)
        return shared.targets.final_error(error) if output <= Output.HEARTBEATS else error
