"""Python with its libraries, and the files of the package against the list that the installer left."""

import base64
import csv
import hashlib
import platform
import sqlite3
import ssl
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import deepseek_cursor_proxy
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped

PYTHON, PACKAGE = "python", "package"
_DISTRIBUTION = "deepseek-cursor-proxy"
# As `__main__` has it.
OLDEST_PYTHON = (3, 11)
# The first with STRICT tables. Python uses that of the system, which may be much older.
_OLDEST_SQLITE = (3, 37)
_MOST_NAMES = 3


class PythonFacts(NamedTuple):
    version: tuple[int, ...]
    sqlite: tuple[int, ...]
    openssl: str
    system: str


def look_at_python() -> PythonFacts:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return PythonFacts(sys.version_info[:3], sqlite3.sqlite_version_info, ssl.OPENSSL_VERSION, system)


def judge_python(facts: PythonFacts) -> Finding:
    python, sqlite = _dotted(facts.version), _dotted(facts.sqlite)
    if facts.version < OLDEST_PYTHON:
        remedy = f"install Python {_dotted(OLDEST_PYTHON)} or newer, and start the proxy with that"
        return failed(PYTHON, f"Python {python} is too old", remedy)
    if facts.sqlite < _OLDEST_SQLITE:
        remedy = "use a Python that brings a newer SQLite, as those of python.org and uv do"
        return failed(PYTHON, f"Python {python} has SQLite {sqlite}; the store needs {_dotted(_OLDEST_SQLITE)}", remedy)
    return good(PYTHON, f"Python {python}, SQLite {sqlite}, {facts.openssl}, {facts.system}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class PackageFacts(NamedTuple):
    """How it is installed; of an installed one the number of files and those that are missing or changed."""

    kind: str
    files: int = 0
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def look_at_package() -> PackageFacts:
    folder = Path(deepseek_cursor_proxy.__file__).parent
    if not folder.is_dir():
        return PackageFacts("a zip archive")
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return PackageFacts("a checkout")
    return compare_files(distribution, folder)


def compare_files(distribution: metadata.Distribution, folder: Path) -> PackageFacts:
    """The files of this folder against those that were installed. An editable installation lists none of them."""
    missing, changed, count = [], [], 0
    for name, digest in _recorded_files(distribution):
        if PurePosixPath(name).parts[0] != folder.name or name.endswith(".pyc"):
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.is_relative_to(folder):
            # Another copy is installed, but this one runs.
            return PackageFacts("a checkout")
        count += 1
        try:
            data = path.read_bytes()
        except OSError:
            missing.append(name)
            continue
        if base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != digest:
            changed.append(name)
    return PackageFacts("installed" if count else "a checkout", count, tuple(missing), tuple(changed))


def _recorded_files(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of the files in RECORD; since Python 3.12 `files` leaves out those that are missing."""
    for name, digest, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        kind, _, value = digest.partition("=")
        if kind == "sha256":
            yield name, value


def judge_package(facts: PackageFacts) -> Finding:
    version = deepseek_cursor_proxy.__version__
    if facts.kind != "installed":
        return skipped(PACKAGE, f"{version}, {facts.kind}, whose files are not compared")
    lists = {"missing": facts.missing, "changed": facts.changed}
    problems = [f"{word}: {_few(names)}" for word, names in lists.items() if names]
    if problems:
        remedy = f"install it again: pip install --force-reinstall {_DISTRIBUTION}"
        return failed(PACKAGE, f"{version}, {facts.files} files; {'; '.join(problems)}", remedy)
    return good(PACKAGE, f"{version}, {facts.files} files as installed")


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
