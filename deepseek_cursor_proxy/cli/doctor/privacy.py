"""Texts without anything private, to paste into an issue: no key, no user, no name or address of a network.

Only what is known to be public is left: words that stand in our own program or in messages of the system, numbers, and
names of settings in quotes. A name or secret of the user is none of these, wherever it came from; should the name of
the user or the machine be such a word, it goes as well.
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
from types import CodeType

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli.doctor import this_machine
from deepseek_cursor_proxy.cli.doctor.subject import Subject
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS

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
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not address.is_loopback and not address.is_unspecified:
            return text.replace(host, "…")
    return text


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
