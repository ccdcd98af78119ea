"""The command `doctor`: finds the key, runs the table of checks and prints them. Exit code 0 if none failed, else 1.

All checks run at once, each on a thread of its own. One that takes too long, or that fails itself, is a finding like
any other, so it never hides the rest. Findings come in the order of the table.

With --report the page has nothing private, so that it can be pasted into an issue: no key, no user, no name or address
of a network. Only what is known to be public is left: words that stand in our own program or in messages of the system,
numbers, and names of settings in quotes. A name or secret of the user is none of these, wherever it came from; should
the name of the user or the machine be such a word, it goes as well.
"""

import argparse
import contextlib
import errno
import os
import re
import socket
import ssl
import sys
import time
from calendar import month_abbr
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

from deepseek_cursor_proxy import __version__, proxy
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.doctor import this_machine, upstreams
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
from deepseek_cursor_proxy.cli.parser import config_path, given_settings, program_name, resolve
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS
from deepseek_cursor_proxy.config.values import ip_address
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
        settings = settings._replace(faults=(f"{path} does not exist; create it, or leave --config out",))
    admin = find_admin(settings.config)
    settings = follow(settings, admin)
    # A key could go to the wrong place while the settings have a mistake.
    key = None if settings.faults else _find_key(settings.config)
    started = time.monotonic()
    subject = Subject(settings, path, os.environ, admin, key, program=program_name())
    printer = _Printer(subject, is_report=options["report"])
    for name, findings in [(name, _begin(name, check, subject)) for name, check in table(subject)]:
        printer.show(name, findings)
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
    config = subject.config
    return [
        (this_machine.PYTHON, this_machine.check_python),
        (this_machine.SETTINGS_FILE, this_machine.check_settings),
        (this_machine.PORT, this_machine.check_port),
        (this_machine.DASHBOARD, this_machine.check_dashboard),
        (this_machine.STORE, this_machine.check_store),
        *((name, resolve(check)) for key, name, check in proxy.DOCTOR_CHECKS if getattr(config, key) is not None),
        *(
            (upstream.name(upstreams.UPSTREAM), partial(upstreams.check, upstream))
            for upstream in upstreams.list_upstreams(subject)
        ),
        (this_machine.TUNNEL, this_machine.check_tunnel),
        (this_machine.CLIENT_FILES, this_machine.check_clients),
    ]


def _begin(name: str, check: Check, subject: Subject) -> "Future[Sequence[Finding]]":
    """Run a check on a thread of its own."""
    findings: Future[Sequence[Finding]] = Future()

    def run() -> None:
        try:
            findings.set_result(check(subject))
        except Exception as error:
            text = f"the check itself failed ({type(error).__name__}: {safe_text(error)})"
            findings.set_result([failed(name, text, "report it, with doctor --report")])

    # A daemon: one that hangs does not keep the command from ending.
    if start_thread(run, f"check {name}") is None:
        run()
    return findings


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
        self._hide_keys = hide_keys(subject, (subject.admin.key, typed))
        self._privacy = Privacy() if is_report else None
        print(f"```text\ndeepseek-cursor-proxy {__version__}" if is_report else _TITLE)

    def show(self, name: str, findings: "Future[Sequence[Finding]]") -> None:
        """Print what a check found, or that it takes too long."""
        wait_text = f"  checking: {safe_text(name, 40)} …" if self._is_terminal and not findings.done() else ""
        sys.stdout.write(wait_text)
        sys.stdout.flush()
        try:
            found = findings.result(_SECONDS)
        except TimeoutError:
            remedy = "check the network, the disk and network drives, and what listens on the proxy's ports"
            found = [failed(name, f"no result within {_SECONDS:.0f} s", remedy)]
        if wait_text:
            # Not every terminal understands an escape sequence that clears the line.
            sys.stdout.write(f"\r{' ' * len(wait_text)}\r")
        for finding in map(self._clean, found):
            self._counts[finding.level] += 1
            print("\n".join(lines(finding, is_ascii=self._is_ascii, is_colourful=self._is_colourful)))
        sys.stdout.flush()

    def _clean(self, finding: Finding) -> Finding:
        text, remedy = (safe_text(self._hide_keys(part), 1000) for part in (finding.text, finding.remedy))
        if self._privacy is None:
            return replace(finding, text=shorten_home(text), remedy=remedy)
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


# The report …

# Shorter words stand in many others.
_SHORTEST_NAME = 3
# What is shorter is no key, and stands in many words.
_SHORTEST_KEY = 6
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME")
_ADDRESS = re.compile(r"(?<![\w.])[0-9A-Fa-f]*[:.][0-9A-Fa-f:.]*[0-9A-Fa-f](?![\w])")
_AMOUNT = re.compile(r"\b\d[\d.,]* (?=[A-Z]{3}\b)")
_QUOTED = re.compile(r"(?<!\w)([\"'])(.*?)\1(?!\w)")
_WORD = re.compile(r"[^\s./\\\"'`()<>\[\]{},;:=|…]+")
_NUMBER = re.compile(r"\d{1,7}(?:-\d{1,7})*%?")
_PACKAGE = __name__.partition(".")[0]
_SETTING_NAMES = frozenset(setting.key for setting in DECLARATIONS)


class Privacy:
    """Replaces every word of a text that is not known to be public."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        machine = socket.gethostname()
        users = [environment.get(name, "") for name in _USER_VARIABLES]
        names = (*users, os.path.basename(os.path.expanduser("~")), machine, machine.partition(".")[0])
        private = {name.lower() for name in names if len(name) >= _SHORTEST_NAME} - {"localhost"}
        self._public = _public_words() - private

    def clean(self, text: str) -> str:
        text = _AMOUNT.sub("… ", _ADDRESS.sub(_hide_address, shorten_home(text)))
        text = _QUOTED.sub(lambda found: found[0] if found[2] in _SETTING_NAMES else f"{found[1]}…{found[1]}", text)
        return _WORD.sub(lambda found: found[0] if self._is_public(found[0]) else "…", text)

    def _is_public(self, word: str) -> bool:
        word = word.strip("-~*!?").lower()
        return not word or word in self._public or _NUMBER.fullmatch(word) is not None


def _public_words() -> frozenset[str]:
    """The words in the texts of our own modules, as far as they are loaded, of the TOML parser and of the system."""
    texts = [os.strerror(code) for code in errno.errorcode]
    texts += [*month_abbr, ssl.OPENSSL_VERSION, this_machine.SYSTEM, __version__]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (_PACKAGE, "tomllib"):
            # A loader without code, or files that are gone: fewer words are known then.
            with contextlib.suppress(AttributeError, ImportError, OSError):
                texts += _texts(module.__spec__.loader.get_code(name))  # type: ignore[union-attr]
    return frozenset(word.strip("-~*!?").lower() for text in texts for word in _WORD.findall(text))


def _texts(code: CodeType | None) -> Iterator[str]:
    """The string constants of a module and of all that it defines."""
    for constant in code.co_consts if code is not None else ():
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (text for text in constant if isinstance(text, str))


def _hide_address(found: re.Match[str]) -> str:
    text = found[0]
    host = text.partition(":")[0] if text.count(":") == 1 else text
    address = ip_address(host)
    is_private = address is not None and not address.is_loopback and not address.is_unspecified
    return text.replace(host, "…") if is_private else text


def shorten_home(text: str) -> str:
    """Paths in the home directory begin with ~, as people know them."""
    home = os.path.expanduser("~")
    if len(home) < _SHORTEST_NAME:
        return text
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", text, flags=re.IGNORECASE if os.name == "nt" else 0)


def hide_keys(subject: Subject, more: Iterable[str | None]) -> Callable[[str], str]:
    """A function that takes every known key out of a text."""
    names = {HELD_KEY, *(name for table in subject.config.upstreams.values() for name in table.key_env)}
    values = {part.strip() for name in names for part in subject.environment.get(name, "").split(",")}
    values |= {key for key in more if key}
    found = sorted((key for key in values if len(key) >= _SHORTEST_KEY), key=len, reverse=True)

    def hide(text: str) -> str:
        for key in found:
            text = text.replace(key, "***")
        return text

    return hide
