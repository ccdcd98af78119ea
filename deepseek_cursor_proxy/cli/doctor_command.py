"""The command `doctor`: looks for the key, runs the checks and prints them. Exit code 0 if none failed, else 1."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.doctor import checks, privacy, upstreams
from deepseek_cursor_proxy.cli.doctor import finding as page
from deepseek_cursor_proxy.cli.doctor.finding import Finding
from deepseek_cursor_proxy.cli.doctor.subject import (
    NamedKey,
    Settings,
    Subject,
    file_status,
    find_admin,
    load_settings,
    own_key,
)
from deepseek_cursor_proxy.cli.settings_flags import config_path
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.redaction import safe_text

_FLAGS = ("live", "json", "report")
_TITLE = "Everything between your client and DeepSeek:"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="also ask the real upstream; costs a fraction of a cent")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--report", action="store_true", help="leave out all that is private, to paste into an issue")


def run(options: dict[str, Any]) -> int:
    """Check everything; the exit code."""
    path = config_path(options)
    settings = _load(path, options)
    # A key could go to the wrong place while the settings have a mistake.
    key = None if settings.faults else _key(settings.config)
    started = time.monotonic()
    subject = Subject(settings, path, os.environ, find_admin(settings.config), key, is_live=options["live"])
    printer = _Printer(subject, as_json=options["json"], is_report=options["report"])
    for findings in checks.run(checks.table(subject), subject, printer.show_wait):
        printer.show(findings)
    printer.end(time.monotonic() - started)
    return 0 if page.is_healthy(printer.findings) else 1


def _load(path: Path, options: Mapping[str, Any]) -> Settings:
    flags = {name: value for name, value in options.items() if name not in ("config", *_FLAGS)}
    settings = load_settings(path, os.environ, flags)
    if options.get("config") is None or file_status(path) is not None or settings.faults:
        return settings
    return settings._replace(faults=(f"{path} does not exist; write it, or leave --config out for the default",))


def _key(config: ProxyConfig) -> NamedKey | None:
    """The key of the environment, or one that is typed without echo; None if there is none."""
    held, named = os.environ.get(HELD_KEY, "").strip(), upstreams.key_hosts(config)
    # One that cannot be a key is reported with the others that are missing.
    key = None if why_not_sendable(held) else NamedKey(HELD_KEY, held)
    is_enough = key is not None and upstreams.is_usable(key, config)
    return key if is_enough or not named or not questions.can_ask() else _typed_key(named) or key


def _typed_key(named: Sequence[str]) -> NamedKey | None:
    key = questions.ask_secret(f"API key for {' and '.join(named)}, to check it too (Enter to go without): ")
    if key and (problem := why_not_sendable(key)):
        raise StartupError(problem)
    return NamedKey("", key) if key else None


class _Printer:
    """Prints findings as they come, or all at the end as JSON. Used by one thread."""

    def __init__(self, subject: Subject, *, as_json: bool, is_report: bool) -> None:
        self.findings: list[Finding] = []
        self._subject = subject
        self._as_json = as_json
        self._is_report = is_report
        self._is_terminal = sys.stdout.isatty() and not as_json and not is_report
        self._wait_text = ""
        self._style = self._choose_style()
        typed = subject.key.key if subject.key is not None else None
        self._hide_keys = privacy.hide_keys(subject, (own_key(subject.config), typed))
        self._privacy = privacy.Privacy(subject, privacy.identity()) if is_report else None
        if not as_json:
            print(f"```text\ndeepseek-cursor-proxy {__version__}" if is_report else _TITLE)

    def _choose_style(self) -> page.Style:
        is_colourful = self._is_terminal and has_colours() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size().columns if self._is_terminal else 0
        return page.Style(not page.can_show_signs(sys.stdout), is_colourful, width)

    def show_wait(self, check: checks.Check) -> None:
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
            self.findings.append(finding)
            if not self._as_json:
                print("\n".join(page.lines(finding, self._style)))
        sys.stdout.flush()

    def _clean(self, finding: Finding) -> Finding:
        text, remedy = (safe_text(self._hide_keys(each), 1000) for each in (finding.text, finding.remedy))
        finding = replace(finding, text=text, remedy=remedy)
        if self._privacy is not None:
            return self._privacy.clean(finding)
        return finding if self._as_json else replace(finding, text=privacy.shorten_home(text, os.path.expanduser("~")))

    def end(self, seconds: float) -> None:
        if self._as_json:
            result = page.as_json(self.findings, is_live=self._subject.is_live, seconds=seconds)
            print(json.dumps(result, indent=2, ensure_ascii=False))
            return
        print(f"\n{page.summary(self.findings)} ({seconds:.1f} s)")
        if self._is_report:
            print("```")
