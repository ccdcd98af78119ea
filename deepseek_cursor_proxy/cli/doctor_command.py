"""The command `doctor`: finds the key, runs the table of checks and prints them. Exit code 0 if none failed, else 1.

All checks run at once, each on a thread of its own. One that takes too long, or that fails itself, is a finding like
any other, so it never hides the rest. Findings come in the order of the table.
"""

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deepseek_cursor_proxy import __version__, proxy
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.doctor import privacy, this_machine, upstreams
from deepseek_cursor_proxy.cli.doctor.subject import (
    Finding,
    Level,
    NamedKey,
    Subject,
    failed,
    file_status,
    find_admin,
    follow,
    load_settings,
)
from deepseek_cursor_proxy.cli.parser import config_path, given_settings, program_name
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.redaction import safe_text

_TITLE = "Everything between your client and DeepSeek:"
# For each check; those that wait for the network have shorter times of their own.
_SECONDS = 20.0

Check = Callable[[Subject], Sequence[Finding]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", action="store_true", help="without anything private, to paste into an issue")


def run(options: dict[str, Any]) -> int:
    """Check everything; the exit code."""
    path = config_path(options)
    settings = load_settings(path, os.environ, given_settings(options))
    if options.get("config") is not None and file_status(path) is None and not settings.faults:
        settings = settings._replace(
            faults=(f"{path} does not exist; create it, or leave --config out to use the default",)
        )
    admin = find_admin(settings.config)
    settings = follow(settings, admin)
    # A key could go to the wrong place while the settings have a mistake.
    key = None if settings.faults else _find_key(settings.config)
    started = time.monotonic()
    subject = Subject(settings, path, os.environ, admin, key, program=program_name())
    printer = _Printer(subject, is_report=options["report"])
    for job in [_Job(name, check, subject) for name, check in table(subject)]:
        printer.show(job)
    return 0 if printer.end(time.monotonic() - started) else 1


def _find_key(config: ProxyConfig) -> NamedKey | None:
    """The key of the environment, or one that is typed without echo; None if there is none."""
    held, hosts = os.environ.get(HELD_KEY, "").strip(), upstreams.key_hosts(config)
    # One that cannot be a key is reported with the others that are missing.
    key = None if why_not_sendable(held) else NamedKey(HELD_KEY, held)
    is_enough = key is not None and upstreams.is_usable(key, config)
    if is_enough or not hosts or not questions.can_ask():
        return key
    typed = questions.ask_key(f"API key for {' and '.join(hosts)}, to check it too (Enter to skip): ")
    return NamedKey("", typed) if typed else key


def table(subject: Subject) -> list[tuple[str, Check]]:
    """The checks for this subject, by name: one for each upstream, and one for all else."""
    return [
        (this_machine.PYTHON, this_machine.check_python),
        (this_machine.SETTINGS_FILE, this_machine.check_settings),
        (this_machine.PORT, this_machine.check_port),
        (this_machine.DASHBOARD, this_machine.check_dashboard),
        (this_machine.STORE, this_machine.check_store),
        *_engine_checks(subject.config),
        *(
            (upstream.name(upstreams.UPSTREAM), partial(upstreams.check, upstream))
            for upstream in upstreams.list_upstreams(subject)
        ),
        (this_machine.TUNNEL, this_machine.check_tunnel),
        (this_machine.CLIENT_FILES, this_machine.check_clients),
    ]


def _engine_checks(config: ProxyConfig) -> list[tuple[str, Check]]:
    if config.store is None or not proxy.has("redis"):
        return []
    from deepseek_cursor_proxy.features.redis import doctor

    return [(doctor.ENGINE, doctor.check)]


class _Job:
    """A check on its thread. `_findings` is written by that thread before `_done` is set."""

    def __init__(self, name: str, check: Check, subject: Subject) -> None:
        self.name = name
        self._check = check
        self._subject = subject
        self._done = threading.Event()
        self._findings: Sequence[Finding] = ()
        # A daemon: one that hangs does not keep the command from ending.
        if start_thread(self._run, f"check {name}") is None:
            self._run()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def findings(self) -> Sequence[Finding]:
        """What it found, or that it takes too long."""
        if not self._done.wait(_SECONDS):
            remedy = "check the network, the disk and network drives, and what listens on the proxy's ports"
            return [failed(self.name, f"no result within {_SECONDS:.0f} s", remedy)]
        return self._findings

    def _run(self) -> None:
        try:
            self._findings = self._check(self._subject)
        except Exception as error:
            text = f"the check itself failed ({type(error).__name__}: {safe_text(error)})"
            self._findings = [failed(self.name, text, "report it, with doctor --report")]
        self._done.set()


# The page …

_SIGNS = dict(zip(Level, "✓!✗·", strict=True))
_ASCII_SIGNS = dict(zip(Level, "+!x-", strict=True))
_COLOURS = dict(zip(Level, ("\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"), strict=True))
_PLAIN = "\x1b[0m"
_WORDS = dict(zip(Level, ("fine", "warnings", "failed", "not checked"), strict=True))
_NAME_WIDTH = 10


class _Printer:
    """Prints findings as they come. Used by one thread."""

    def __init__(self, subject: Subject, *, is_report: bool) -> None:
        self._counts: Counter[Level] = Counter()
        self._is_report = is_report
        self._is_terminal = sys.stdout.isatty() and not is_report
        self._is_ascii = not can_show_signs(sys.stdout.encoding)
        self._is_colourful = self._is_terminal and has_colours() and not os.environ.get("NO_COLOR")
        typed = subject.key.key if subject.key is not None else None
        self._hide_keys = privacy.hide_keys(subject, (subject.admin.key, typed))
        self._privacy = privacy.Privacy() if is_report else None
        print(f"```text\ndeepseek-cursor-proxy {__version__}" if is_report else _TITLE)

    def show(self, job: _Job) -> None:
        wait_text = f"  checking: {safe_text(job.name, 40)} …" if self._is_terminal and not job.is_done else ""
        sys.stdout.write(wait_text)
        sys.stdout.flush()
        findings = job.findings()
        if wait_text:
            # Not every terminal understands an escape sequence that clears the line.
            sys.stdout.write(f"\r{' ' * len(wait_text)}\r")
        for finding in map(self._clean, findings):
            self._counts[finding.level] += 1
            print("\n".join(lines(finding, is_ascii=self._is_ascii, is_colourful=self._is_colourful)))
        sys.stdout.flush()

    def _clean(self, finding: Finding) -> Finding:
        text, remedy = (safe_text(self._hide_keys(part), 1000) for part in (finding.text, finding.remedy))
        if self._privacy is None:
            return replace(finding, text=privacy.shorten_home(text), remedy=remedy)
        clean = self._privacy.clean
        return replace(finding, name=clean(finding.name), text=clean(text), remedy=clean(remedy))

    def end(self, seconds: float) -> bool:
        """Print the summary; whether nothing failed."""
        summary = ", ".join(f"{self._counts[level]} {word}" for level, word in _WORDS.items() if self._counts[level])
        print(f"\n{summary}. ({seconds:.1f} s)")
        if self._is_report:
            print("```")
        return not self._counts[Level.FAILED]


def can_show_signs(encoding: str | None) -> bool:
    """Whether an encoding has the signs; that of an old terminal may not."""
    try:
        "".join((*_SIGNS.values(), "→")).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def lines(finding: Finding, *, is_ascii: bool = False, is_colourful: bool = False) -> Iterator[str]:
    """A finding, and below it the remedy."""
    signs, arrow = (_ASCII_SIGNS, "->") if is_ascii else (_SIGNS, "→")
    sign = signs[finding.level]
    if is_colourful:
        sign = f"{_COLOURS[finding.level]}{sign}{_PLAIN}"
    name = f"{finding.name:<{_NAME_WIDTH}}"
    yield f"{sign} {name} {finding.text}"
    if finding.remedy:
        yield f"{' ' * (3 + len(name))}{arrow} {finding.remedy}"
