"""The files of the dashboard: read when a browser asks, found again by their digest (ETag).

Only names that are in the folder are served, so no path leads out of it. They contain no data and need no key.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest

_INDEX = "/index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


class StaticFiles:
    """Called by connection threads; holds the names of files, which do not change."""

    def __init__(self, folder: Traversable | None = None) -> None:
        # By way of resources, because the package may be in a zip file.
        self._folder = folder or files("deepseek_cursor_proxy.admin") / "dashboard"

    @cached_property
    def _files(self) -> dict[str, Traversable]:
        found = dict(_walk(self._folder, ""))
        return {**found, "/": found[_INDEX]} if _INDEX in found else found

    def has(self, path: str) -> bool:
        return path in self._files

    def reply(self, request: HttpRequest) -> HttpReply:
        file = self._files[request.path]
        try:
            data = file.read_bytes()
        except OSError as error:
            raise Overloaded(f"A file of the dashboard cannot be read: {error.strerror}.", retry_after=1) from None
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        # no-cache: ask every time whether it is still the same, because the next version has the same names.
        headers: Headers = (("ETag", tag), ("Cache-Control", "no-cache"))
        if tag in (request.header("if-none-match") or ""):
            return HttpReply(304, headers=headers)
        return HttpReply(200, data, (("Content-Type", _type(file)), *headers))


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Every file below a folder that has a known type, under the path that leads to it."""
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_dir():
            yield from _walk(each, f"{path}/{each.name}")
        elif _type(each) and not each.name.startswith("."):
            yield f"{path}/{each.name}", each


def _type(file: Traversable) -> str:
    return _TYPES.get(PurePosixPath(file.name).suffix, "")
