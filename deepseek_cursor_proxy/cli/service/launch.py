"""Launch: the command that starts this installation again, from a checkout, an environment or a zip archive.

An environment (pip, pipx, uv) is named by its own Python. What `uvx` and `pipx run` make is deleted some day, so no
service is made of it.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import deepseek_cursor_proxy
from deepseek_cursor_proxy.errors import StartupError

PACKAGE = "deepseek_cursor_proxy"
_INSTALLED = re.compile(r"(?:site|dist)-packages")
_CACHES = re.compile(
    r"[\\/](?:uv[\\/](?:cache[\\/])?(?:archive|environments)-v\d|pipx[\\/]\.cache|\.cache[\\/](?:uv|pipx))[\\/]"
)


class Launch(NamedTuple):
    """How the proxy is started: a Python, what it runs, and the folder to be in (empty for any)."""

    python: str
    arguments: tuple[str, ...]
    folder: str = ""

    @property
    def archive(self) -> str:
        """The zip archive that is run; empty if it is none."""
        return "" if self.arguments[0] == "-m" else self.arguments[0]


def find_launch(flags: Sequence[str], python: str = sys.executable, package: Path | None = None) -> Launch:
    """The launch of the running installation with these flags; StartupError for one that will not stay."""
    place = (package or Path(deepseek_cursor_proxy.__file__).parent).absolute().parent
    if _CACHES.search(str(place)):
        raise StartupError(
            f"this installation is temporary ({place}): install it first, with `uv tool install` or `pipx install`"
        )
    words = ("serve", *flags)
    if place.is_file():
        return Launch(python, (str(place), *words))
    is_installed = any(map(_INSTALLED.fullmatch, place.parts))
    return Launch(python, ("-m", PACKAGE, *words), "" if is_installed else str(place))
