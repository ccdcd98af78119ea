"""The command `doctor`: finds the key, runs the table of checks and prints them. Exit code 0 if none failed, else 1.

All checks run at once, each on a thread of its own and within its time. One that takes too long, or that fails itself,
is a finding like any other, so it never hides the rest. Findings come in the order of the table.
"""

import argparse
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.doctor import engine, listeners, privacy, this_machine, tool_round, upstreams
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
from deepseek_cursor_proxy.cli.parser import program_name
from deepseek_cursor_proxy.cli.settings_flags import config_path
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_plausible, why_not_sendable
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.redaction import safe_text

_FLAGS = ("live", "json", "report")
_TITLE = "Everything between your client and DeepSeek:"
_REPORT = "report it, with doctor --report"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="also ask the real upstream; costs a fraction of a cent")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--report", action="store_true", help="leave out everything private, to paste into an issue")


def run(options: dict[str, Any]) -> int:
    """Check everything; the exit code."""
    path = config_path(options)
    flags = {name: value for name, value in options.items() if name not in ("config", *_FLAGS)}
    settings = load_settings(path, os.environ, flags)
    if options.get("config") is not None and file_status(path) is None and not settings.faults:
        settings = settings._replace(
            faults=(f"{path} does not exist; create it, or leave --config out to use the default",)
        )
    admin = find_admin(settings.config)
    settings = follow(settings, admin)
    # A key could go to the wrong place while the settings have a mistake.
    key = None if settings.faults else _find_key(settings.config)
    started = time.monotonic()
    subject = Subject(settings, path, os.environ, admin, key, is_live=options["live"], program=program_name())
    printer = _Printer(subject, as_json=options["json"], is_report=options["report"])
    jobs = [_Job(check, subject) for check in table(subject)]
    for job in jobs:
        if not job.is_done:
            printer.show_wait(job.check)
        printer.show(job.findings())
    return 0 if printer.end(time.monotonic() - started) else 1


def _find_key(config: ProxyConfig) -> NamedKey | None:
    """The key of the environment, or one that is typed without echo; None if there is none."""
    held, hosts = os.environ.get(HELD_KEY, "").strip(), upstreams.key_hosts(config)
    # One that cannot be a key is reported with the others that are missing.
    key = None if why_not_sendable(held) else NamedKey(HELD_KEY, held)
    is_enough = key is not None and upstreams.is_usable(key, config)
    if is_enough or not hosts or not questions.can_ask():
        return key
    typed = questions.ask_secret(f"API key for {' and '.join(hosts)}, to check it too (Enter to skip): ")
    if typed and (problem := why_not_plausible(typed)):
        raise StartupError(problem)
    return NamedKey("", typed) if typed else key


# The checks …


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
    disk = "check the disk; unmount a network drive that does not answer, or choose another place"
    local = "stop what holds the port and does not answer"
    network = "check the network, and restart what does not answer"
    # The simulated DeepSeek answers at once, a real one may think, three times.
    seconds, retry = (120.0, "try again in a moment") if subject.is_live else (20.0, _REPORT)
    # fmt: off
    return [
        Check(this_machine.PYTHON, this_machine.check_python, 5.0, "the system", _REPORT),
        Check(this_machine.PACKAGE, this_machine.check_package, 10.0, "the files of the package", disk),
        Check(this_machine.SETTINGS_FILE, this_machine.check_settings, 5.0, str(subject.config_path), disk),
        Check(listeners.PORT, listeners.check_port, 8.0, f"port {config.port}", local),
        Check(listeners.DASHBOARD, listeners.check_dashboard, 5.0, "admin.key", disk),
        Check(this_machine.STORE, this_machine.check_store, 10.0, str(config.reasoning_content_path), disk),
        *([Check(engine.ENGINE, engine.check, 8.0, "the engine", network)] if config.store else ()),
        *(
            Check(
                upstream.name(upstreams.UPSTREAM), partial(upstreams.check, upstream), 15.0, upstream.origin.host,
                f"check network, DNS and {upstream.setting}",
            )
            for upstream in upstreams.list_upstreams(subject)
        ),
        Check(listeners.TUNNEL, listeners.check_tunnel, 15.0, "the public address", network),
        Check(this_machine.CLIENT_FILES, this_machine.check_clients, 5.0, "the settings of clients", disk),
        Check(tool_round.NAME, tool_round.check, seconds, "an answer through the proxy", retry),
    ]
    # fmt: on


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


# The page …

_SIGNS = dict(zip(Level, "✓!✗·", strict=True))
_ASCII_SIGNS = dict(zip(Level, "+!x-", strict=True))
_COLOURS = dict(zip(Level, ("\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m"), strict=True))
_PLAIN = "\x1b[0m"
_WORDS = dict(zip(Level, ("fine", "warnings", "failed", "not checked"), strict=True))
_NAME_WIDTH = 10
_LEAST_WIDTH = 60


class Style(NamedTuple):
    """What the reader's terminal can show; `width` 0 wraps nothing."""

    is_ascii: bool = False
    is_colourful: bool = False
    width: int = 0


class _Printer:
    """Prints findings as they come, or all at the end as JSON. Used by one thread."""

    def __init__(self, subject: Subject, *, as_json: bool, is_report: bool) -> None:
        self._findings: list[Finding] = []
        self._subject = subject
        self._as_json = as_json
        self._is_report = is_report
        self._is_terminal = sys.stdout.isatty() and not as_json and not is_report
        self._wait_text = ""
        is_colourful = self._is_terminal and has_colours() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size().columns if self._is_terminal else 0
        self._style = Style(not can_show_signs(sys.stdout.encoding), is_colourful, width)
        typed = subject.key.key if subject.key is not None else None
        self._hide_keys = privacy.hide_keys(subject, (subject.admin.key, typed))
        self._privacy = privacy.Privacy(subject, privacy.identity()) if is_report else None
        if not as_json:
            print(f"```text\ndeepseek-cursor-proxy {__version__}" if is_report else _TITLE)

    def show_wait(self, check: Check) -> None:
        if self._is_terminal:
            self._wait_text = f"  waiting for {safe_text(check.waits_for, 40)} ({check.seconds:.0f} s at most)"
            sys.stdout.write(self._wait_text)
            sys.stdout.flush()

    def show(self, findings: Sequence[Finding]) -> None:
        if self._wait_text:
            # Not every terminal understands an escape sequence that clears the line.
            sys.stdout.write(f"\r{' ' * len(self._wait_text)}\r")
            self._wait_text = ""
        for finding in map(self._clean, findings):
            self._findings.append(finding)
            if not self._as_json:
                print("\n".join(lines(finding, self._style)))
        sys.stdout.flush()

    def _clean(self, finding: Finding) -> Finding:
        text, remedy = (safe_text(self._hide_keys(part), 1000) for part in (finding.text, finding.remedy))
        finding = replace(finding, text=text, remedy=remedy)
        if self._privacy is not None:
            return self._privacy.clean(finding)
        return finding if self._as_json else replace(finding, text=privacy.shorten_home(text, os.path.expanduser("~")))

    def end(self, seconds: float) -> bool:
        """Print the summary; whether nothing failed."""
        counts = Counter(finding.level for finding in self._findings)
        is_healthy = not counts[Level.FAILED]
        if self._as_json:
            names = ("name", "level", "text", "remedy")
            rows = [
                (finding.name, finding.level.value, finding.text, finding.remedy or None) for finding in self._findings
            ]
            result = {
                "version": __version__,
                "ok": is_healthy,
                "live": self._subject.is_live,
                "seconds": round(seconds, 3),
                "checks": [dict(zip(names, row, strict=True)) for row in rows],
            }
            print(json.dumps(result, indent=2, ensure_ascii=False))
            return is_healthy
        summary = ", ".join(f"{counts[level]} {word}" for level, word in _WORDS.items() if counts[level])
        print(f"\n{summary}. ({seconds:.1f} s)")
        if self._is_report:
            print("```")
        return is_healthy


def can_show_signs(encoding: str | None) -> bool:
    """Whether an encoding has the signs; that of an old terminal may not."""
    try:
        "".join((*_SIGNS.values(), "→")).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def lines(finding: Finding, style: Style) -> Iterator[str]:
    """A finding, and below it the remedy."""
    signs, arrow = (_ASCII_SIGNS, "->") if style.is_ascii else (_SIGNS, "→")
    sign = signs[finding.level]
    if style.is_colourful:
        sign = f"{_COLOURS[finding.level]}{sign}{_PLAIN}"
    indent = " " * (3 + max(_NAME_WIDTH, len(finding.name)))
    first, *rest = _wrap(finding.text, style.width - len(indent))
    yield f"{sign} {finding.name:<{_NAME_WIDTH}} {first}"
    yield from (indent + line for line in rest)
    if finding.remedy:
        first, *rest = _wrap(finding.remedy, style.width - len(indent) - len(arrow) - 1)
        yield f"{indent}{arrow} {first}"
        yield from (indent + " " * (len(arrow) + 1) + line for line in rest)


def _wrap(text: str, width: int) -> list[str]:
    if width < _LEAST_WIDTH:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
