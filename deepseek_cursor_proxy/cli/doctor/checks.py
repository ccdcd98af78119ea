"""The table of checks, and the runner: all at once, each on a thread of its own and within its time.

A check that takes too long, or that fails itself, is a finding like any other, so one never hides the rest. Findings
come in the order of the table.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from deepseek_cursor_proxy.cli.doctor import (
    clients,
    listeners,
    settings_file,
    store,
    this_machine,
    tool_round,
    tunnel,
    upstream_findings,
    upstreams,
)
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, skipped
from deepseek_cursor_proxy.cli.doctor.subject import Subject
from deepseek_cursor_proxy.cli.doctor.upstreams import Upstream
from deepseek_cursor_proxy.config.access_keys import new_key
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
    found = upstreams.list_upstreams(config, subject.key, subject.environment)
    if subject.settings.faults:
        # It could go to the wrong place.
        found = [each.without_keys("no key is sent anywhere while the settings have a mistake") for each in found]
    seconds = _LIVE_SECONDS if subject.is_live else _ROUND_SECONDS
    retry = "try again in a moment" if subject.is_live else _REPORT
    # fmt: off
    return [
        Check(this_machine.PYTHON, _check_python, 5.0, "the system", _REPORT),
        Check(this_machine.PACKAGE, _check_package, 10.0, "the files of the package", f"check {disk}"),
        Check(settings_file.NAME, _check_settings, 5.0, str(subject.config_path), f"check {disk}"),
        Check(listeners.PORT, _check_port, 8.0, f"port {config.port}", local),
        Check(listeners.DASHBOARD, _check_dashboard, 5.0, "admin.key", f"check {disk}"),
        Check(store.NAME, _check_store, 10.0, str(config.reasoning_content_path), f"check {disk}"),
        *(_upstream_row(each) for each in found),
        Check(tunnel.NAME, _check_tunnel, 15.0, "the public address", "check the network, and restart the tunnel"),
        Check(clients.NAME, _check_clients, 5.0, "the settings of clients", f"check {disk}"),
        Check(tool_round.NAME, _check_tool_round, seconds, "an answer through the proxy", retry),
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


def _check_python(subject: Subject) -> list[Finding]:
    return [this_machine.judge_python(this_machine.look_at_python())]


def _check_package(subject: Subject) -> list[Finding]:
    return [this_machine.judge_package(this_machine.look_at_package())]


def _check_settings(subject: Subject) -> list[Finding]:
    facts = settings_file.look_at_file(subject.config_path, subject.settings)
    return settings_file.judge(subject.settings, facts)


def _check_port(subject: Subject) -> list[Finding]:
    return [listeners.judge_port(listeners.look_at_port(subject.config), subject.config.port)]


def _check_dashboard(subject: Subject) -> list[Finding]:
    return [listeners.judge_dashboard(subject.config, subject.admin)]


def _check_store(subject: Subject) -> list[Finding]:
    if (placeless := store.judge_placeless(subject.config)) is not None:
        return [placeless]
    fault = subject.admin.proxy.store_fault if subject.admin.proxy is not None else ""
    return store.judge(subject.config, store.look(subject.config), fault)


def _upstream_row(upstream: Upstream) -> Check:
    name = f"{upstream_findings.UPSTREAM} {upstream.label}".rstrip()
    remedy = f"check network, DNS and {upstream.setting}"
    return Check(name, partial(_check_upstream, upstream), 15.0, upstream.origin.host, remedy)


def _check_upstream(upstream: Upstream, subject: Subject) -> list[Finding]:
    facts = upstreams.look(upstream, subject.config, subject.environment)
    return upstream_findings.judge(upstream, facts)


def _check_tunnel(subject: Subject) -> list[Finding]:
    proxy = subject.admin.proxy
    urls = tunnel.public_urls(subject.config, proxy.public_url if proxy is not None else None)
    if not urls:
        return [tunnel.judge_absent(is_running=proxy is not None)]
    return [tunnel.judge(tunnel.look(url, subject.config)) for url in urls]


def _check_clients(subject: Subject) -> list[Finding]:
    proxy = subject.admin.proxy
    root = proxy.base_url.removesuffix("/v1") if proxy is not None else listeners.local_url(subject.config)
    try:
        machine = clients.this_machine()
    except RuntimeError:
        return [skipped(clients.NAME, "there is no home directory to look for them in")]
    return clients.judge(clients.look(machine, root), root)


def _check_tool_round(subject: Subject) -> list[Finding]:
    if not subject.is_live:
        return [tool_round.judge(tool_round.play(subject.config), is_live=False)]
    if subject.settings.faults:
        return [skipped(tool_round.NAME, "no real upstream is asked while the settings have a mistake")]
    if (key := _live_key(subject)) is None:
        return [tool_round.judge_without_key()]
    return [tool_round.judge(tool_round.play_live(subject.config, key), is_live=True)]


def _live_key(subject: Subject) -> str | None:
    """The key to ask the proxy of the round with; any will do where every upstream has keys of its own."""
    if subject.key is not None and upstreams.is_usable(subject.key, subject.config):
        return subject.key.key
    tables = subject.config.upstreams.values()
    return new_key() if tables and all(each.key_env for each in tables) else None
