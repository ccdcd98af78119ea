"""Findings without anything private, to paste into an issue: no key, no user, no name or address of a network.

First, what is known to be private by the settings and the machine gets a stand-in, and so does what looks like an
address or a value of a setting. Then only what is known to be public is left: words that stand in our own program or
in messages of the system, numbers, and names of settings in quotes. A name or secret of the user is none of these,
wherever it came from.
"""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import ssl
import sys
from calendar import month_abbr
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli.doctor import this_machine
from deepseek_cursor_proxy.cli.doctor.subject import Finding, Subject
from deepseek_cursor_proxy.config import https_proxy
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS
from deepseek_cursor_proxy.deepseek import hosts
from deepseek_cursor_proxy.errors import StartupError

# Hosts that everybody knows.
_PUBLIC_DOMAINS = tuple(domain for host in hosts.HOSTS for domain in host.domains)
_OWN_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
# Shorter words stand in many others.
_SHORTEST_NAME = 3
# What is shorter is no key, and stands in many words.
_SHORTEST_KEY = 6
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME")
_URL = re.compile(r"\b(https?://)(\[[^\]]*\]|[^\s/:,;)\"']+)")
_ADDRESS = re.compile(r"(?<![\w.])[0-9A-Fa-f]*[:.][0-9A-Fa-f:.]*[0-9A-Fa-f](?![\w])")
_TABLE = re.compile(r"\bupstreams\.(\"[^\"]*\"|[\w-]+)")
# A value of a setting, as errors quote it.
_VALUE = re.compile(r"(= |has )(\".*\"|[\[{].*[\]}])")
# In a report: what stands in quotes, and words of a text.
_QUOTED = re.compile(r"(?<!\w)([\"'])(.*?)\1(?!\w)")
_WORD = re.compile(r"[^\s./\\\"'`()<>\[\]{},;:=|…]+")
_NUMBER = re.compile(r"\d{1,7}(?:-\d{1,7})*%?")
_PACKAGE = __name__.partition(".")[0]
_SETTING_NAMES = frozenset(setting.key for setting in DECLARATIONS)
_AMOUNT = re.compile(r"\b\d[\d.,]* (?=[A-Z]{3}\b)")


class Identity(NamedTuple):
    """Whose machine it is."""

    home: str
    users: tuple[str, ...]
    machines: tuple[str, ...]


def identity(environment: Mapping[str, str] = os.environ) -> Identity:
    home = os.path.expanduser("~")
    named = [environment.get(name, "") for name in _USER_VARIABLES]
    users = {*named, Path(home).name} - {"", "~"}
    name = socket.gethostname()
    return Identity(home, tuple(users), tuple({name, name.partition(".")[0]} - {"", *_OWN_NAMES}))


class Privacy:
    """Replaces what is private in findings. Numbers the tables [upstreams] in the order in which they come."""

    def __init__(self, subject: Subject, who: Identity) -> None:
        self._who = who
        self._hosts = _word_pattern(_private_hosts(subject))
        self._names = [(_word_pattern(who.machines), "<machine>"), (_word_pattern(who.users), "<user>")]
        self._tables = {name: str(number) for number, name in enumerate(subject.config.upstreams, 1)}

    def clean(self, finding: Finding) -> Finding:
        word, _, label = finding.name.partition(" ")
        name = f"{word} {self._tables[label]}" if label in self._tables else _keep_public(finding.name)
        return Finding(name, finding.level, self.clean_text(finding.text), self.clean_text(finding.remedy))

    def clean_text(self, text: str) -> str:
        text = _VALUE.sub(r"\1…", text)
        text = _TABLE.sub(self._number_table, text)
        text = shorten_home(text, self._who.home)
        text = _URL.sub(lambda found: found[0] if _is_public(found[2]) else f"{found[1]}<host>", text)
        text = self._hosts.sub("<host>", text)
        for pattern, stand_in in self._names:
            text = pattern.sub(stand_in, text)
        return _keep_public(_AMOUNT.sub("… ", _ADDRESS.sub(_hide_address, text)))

    def _number_table(self, found: re.Match[str]) -> str:
        name = found[1].strip('"')
        return f"upstreams.{self._tables.setdefault(name, str(len(self._tables) + 1))}"


def _keep_public(text: str) -> str:
    """Replace every word that is not known to be public."""
    text = _QUOTED.sub(lambda found: found[0] if found[2] in _SETTING_NAMES else f"{found[1]}…{found[1]}", text)
    return _WORD.sub(lambda found: found[0] if _is_public_word(found[0]) else "…", text)


def _is_public_word(word: str) -> bool:
    word = word.strip("-~*!?").lower()
    return not word or word in _public_words() or _NUMBER.fullmatch(word) is not None


@cache
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


def shorten_home(text: str, home: str) -> str:
    """Paths in the home directory begin with ~, as people know them."""
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


def _private_hosts(subject: Subject) -> set[str]:
    config, proxy = subject.config, subject.admin.proxy
    found = {urlsplit(url).hostname or "" for url in (*config.base_urls, config.upstream_base_url)}
    found |= {host.removeprefix("*.") for host in config.public_hosts} | {config.host, config.admin_host}
    found |= {urlsplit(url).hostname or "" for url in (proxy.public_url or "", proxy.base_url)} if proxy else set()
    with contextlib.suppress(StartupError):
        proxy_used = https_proxy.from_environment(subject.environment)
        found |= {proxy_used.host} if proxy_used is not None else set()
    return {host for host in found if not _is_public(host)}


def _is_public(host: str) -> bool:
    name = host.lower().strip("[]")
    return name in ("", *_OWN_NAMES) or any(f".{name}".endswith(f".{domain}") for domain in _PUBLIC_DOMAINS)


def _word_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Any of these as a whole word; a pattern that matches nothing if there are none."""
    long = sorted((word for word in words if len(word) >= _SHORTEST_NAME), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, long)) or '(?!)'})(?![\w-])", re.IGNORECASE)


def _hide_address(found: re.Match[str]) -> str:
    text = found[0]
    host = text.partition(":")[0] if text.count(":") == 1 else text
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not address.is_loopback and not address.is_unspecified:
            return text.replace(host, "<address>")
    return text
