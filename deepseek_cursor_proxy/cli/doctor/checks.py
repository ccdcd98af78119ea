"""The table of checks, and the runner: all at once, each on a thread of its own and within its time.

A check that takes too long, or that fails itself, is a finding like any other, so one never hides the rest. Findings
come in the order of the table.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from deepseek_cursor_proxy.cli.doctor import listeners, store, this_machine, tool_round, upstreams
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed
from deepseek_cursor_proxy.cli.doctor.subject import Subject
from deepseek_cursor_proxy.cli.doctor.upstreams import CheckedUpstream
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.redaction import safe_text

# A made-up DeepSeek answers at once, a real one may think, three times.
_ROUND_SECONDS = 20.0
_LIVE_SECONDS = 120.0
_REPORT = "report it, with doctor --report"


class Check(NamedTuple):
    """A row of the table; `waits_for` and `remedy` are for the case that it takes longer than `seconds`."""

    name: str
    run: Callable[[Subject], Sequence[Finding]]
    seconds: float
    waits_for: str
    remedy: str


def table(subject: Subject) -> list[Check]:
    """The checks for this subject: one for each upstream, and one for all else."""
    config = subject.config
    disk = "the disk; unmount a network drive that does not answer, or choose another place"
    local = "stop what holds the port and does not answer"
    network = "check the network, and restart the tunnel"
    found = upstreams.list_upstreams(config, subject.key, subject.environment)
    if subject.settings.faults:
        # It could go to the wrong place.
        found = [each.without_keys("no key is sent anywhere while the settings have a mistake") for each in found]
    seconds = _LIVE_SECONDS if subject.is_live else _ROUND_SECONDS
    retry = "try again in a moment" if subject.is_live else _REPORT
    # fmt: off
    return [
        Check(this_machine.PYTHON, this_machine.check_python, 5.0, "the system", _REPORT),
        Check(this_machine.PACKAGE, this_machine.check_package, 10.0, "the files of the package", f"check {disk}"),
        Check(this_machine.SETTINGS_FILE, this_machine.check_settings, 5.0, str(subject.config_path), f"check {disk}"),
        Check(listeners.PORT, listeners.check_port, 8.0, f"port {config.port}", local),
        Check(listeners.DASHBOARD, listeners.check_dashboard, 5.0, "admin.key", f"check {disk}"),
        Check(store.NAME, store.check, 10.0, str(config.reasoning_content_path), f"check {disk}"),
        *(_upstream_row(each) for each in found),
        Check(listeners.TUNNEL, listeners.check_tunnel, 15.0, "the public address", network),
        Check(this_machine.CLIENT_FILES, this_machine.check_clients, 5.0, "the settings of clients", f"check {disk}"),
        Check(tool_round.NAME, tool_round.check, seconds, "an answer through the proxy", retry),
    ]
    # fmt: on


def run(checks: Sequence[Check], subject: Subject, on_wait: Callable[[Check], None]) -> Iterator[Sequence[Finding]]:
    """Run all checks and yield what each found; `on_wait` is called before a wait for one. Called by one thread."""
    jobs = [_Job(check, subject) for check in checks]
    for job in jobs:
        if not job.is_done:
            on_wait(job.check)
        yield job.findings()


class _Job:
    """A check on its thread. `_findings` is written by that thread before `_done` is set."""

    def __init__(self, check: Check, subject: Subject) -> None:
        self.check = check
        self._subject = subject
        self._done = threading.Event()
        self._findings: Sequence[Finding] = ()
        self._started = time.monotonic()
        # A daemon: one that hangs does not keep the command from ending.
        if start_thread(self._run, f"check {check.name}") is None:
            self._run()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def findings(self) -> Sequence[Finding]:
        """What it found, or that it takes too long."""
        check = self.check
        if not self._done.wait(max(0.0, self._started + check.seconds - time.monotonic())):
            text = f"no result within {check.seconds:.0f} s: it waits for {check.waits_for}"
            return [failed(check.name, text, check.remedy)]
        return self._findings

    def _run(self) -> None:
        try:
            self._findings = self.check.run(self._subject)
        except Exception as error:
            text = f"the check itself failed ({type(error).__name__}: {safe_text(error)})"
            self._findings = [failed(self.check.name, text, _REPORT)]
        self._done.set()


def _upstream_row(upstream: CheckedUpstream) -> Check:
    name = f"{upstreams.UPSTREAM} {upstream.label}".rstrip()
    remedy = f"check network, DNS and {upstream.setting}"
    return Check(name, partial(upstreams.check, upstream), 15.0, upstream.origin.host, remedy)
