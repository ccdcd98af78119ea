"""This machine: Python with its libraries, the files of the package, the settings, and the clients with their settings.

The files of the package are compared with the list that the installer left. Files of clients are only read.
"""

import base64
import csv
import hashlib
import os
import platform
import sqlite3
import ssl
import stat
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

import deepseek_cursor_proxy
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped, warning
from deepseek_cursor_proxy.cli.doctor.subject import Subject, file_status
from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, Client, status
from deepseek_cursor_proxy.cli.setup.endpoint import Machine, ProxyEndpoint
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from deepseek_cursor_proxy.errors import StartupError

PYTHON, PACKAGE, SETTINGS_FILE, CLIENT_FILES = "python", "package", "settings", "clients"
_DISTRIBUTION = "deepseek-cursor-proxy"
# As `__main__` has it.
OLDEST_PYTHON = (3, 11)
_VERSION = sys.version_info[:3]
SYSTEM = f"{platform.system()} {platform.release()} {platform.machine()}"
# The first with STRICT tables. Python uses that of the system, which may be much older.
_OLDEST_SQLITE = (3, 37)
_MOST_NAMES = 3


def check_python(subject: Subject) -> list[Finding]:
    python, sqlite = _dotted(_VERSION), _dotted(sqlite3.sqlite_version_info)
    if _VERSION < OLDEST_PYTHON:
        remedy = f"install Python {_dotted(OLDEST_PYTHON)} or newer, and start the proxy with that"
        return [failed(PYTHON, f"Python {python} is too old", remedy)]
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        remedy = "use a Python that brings a newer SQLite, as those of python.org and uv do"
        text = f"Python {python} has SQLite {sqlite}; the store needs {_dotted(_OLDEST_SQLITE)}"
        return [failed(PYTHON, text, remedy)]
    return [good(PYTHON, f"Python {python}, SQLite {sqlite}, {ssl.OPENSSL_VERSION}, {SYSTEM}")]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_package(subject: Subject) -> list[Finding]:
    folder = Path(deepseek_cursor_proxy.__file__).parent
    if not folder.is_dir():
        return [_not_compared("a zip archive")]
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return [_not_compared("a checkout")]
    return [compare_files(distribution, folder)]


def compare_files(distribution: metadata.Distribution, folder: Path) -> Finding:
    """The files of this folder against those that were installed. An editable installation lists none of them."""
    missing, changed, count = [], [], 0
    for name, digest in _recorded_files(distribution):
        if PurePosixPath(name).parts[0] != folder.name or name.endswith(".pyc"):
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.is_relative_to(folder):
            # Another copy is installed, but this one runs.
            return _not_compared("a checkout")
        count += 1
        try:
            data = path.read_bytes()
        except OSError:
            missing.append(name)
            continue
        if base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != digest:
            changed.append(name)
    if not count:
        return _not_compared("a checkout")
    installed = f"{deepseek_cursor_proxy.__version__}, {count} files"
    problems = [f"{word}: {_few(names)}" for word, names in (("missing", missing), ("changed", changed)) if names]
    if problems:
        remedy = f"install it again: pip install --force-reinstall {_DISTRIBUTION}"
        return failed(PACKAGE, f"{installed}; {'; '.join(problems)}", remedy)
    return good(PACKAGE, f"{installed} as installed")


def _not_compared(kind: str) -> Finding:
    return skipped(PACKAGE, f"{deepseek_cursor_proxy.__version__}, {kind}, whose files are not compared")


def _recorded_files(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of the files in RECORD; since Python 3.12 `files` leaves out those that are missing."""
    for name, digest, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        kind, _, value = digest.partition("=")
        if kind == "sha256":
            yield name, value


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def check_settings(subject: Subject) -> list[Finding]:
    """Unknown keys and bad values from every source, and who else can read or change the file."""
    settings, path = subject.settings, subject.config_path
    if settings.faults:
        return [_settings_fault(fault) for fault in settings.faults]
    changed = sum(origin != "default" for origin in settings.origins.values())
    found = file_status(path)
    if found is None:
        return [good(SETTINGS_FILE, f"no file at {path}; changed settings: {changed}")]
    mode = stat.S_IMODE(found.st_mode) if os.name != "nt" else 0
    from_file = [name for name, origin in settings.origins.items() if origin == str(path)]
    has_keys = any(each.field in from_file for each in SETTINGS if each.is_secret)
    remedy = f"chmod 600 {path}"
    if mode & 0o022:
        return [warning(SETTINGS_FILE, f"other users can change {path}", remedy)]
    if mode & 0o044 and has_keys:
        return [warning(SETTINGS_FILE, f"{path} has keys, and other users can read it", remedy)]
    return [good(SETTINGS_FILE, f"{path}; changed settings: {changed}")]


def _settings_fault(fault: str) -> Finding:
    text, _, hint = fault.removeprefix("config: ").partition("; ")
    return failed(SETTINGS_FILE, text, hint or "correct or remove it; `serve --help` lists all settings")


def check_clients(subject: Subject) -> list[Finding]:
    """The clients that are found here, and which of them point to the proxy."""
    config, proxy, name = subject.config, subject.admin.proxy, CLIENT_FILES
    root = proxy.base_url.removesuffix("/v1") if proxy is not None else local_url(config.host, config.port)
    try:
        machine = Machine.here()
    except StartupError:
        return [skipped(name, "there is no home directory to look for them in")]
    here: list[Client] = []
    others: list[Client] = []
    unreadable: list[Finding] = []
    for client in CLIENTS.values():
        seen = status(client, machine, ProxyEndpoint(root))
        if seen.is_found and seen.points_here is None:
            text = f"the settings of {client.title} cannot be read: {seen.fault}"
            unreadable.append(warning(name, text, f"correct the file of {client.title}"))
        elif seen.is_found:
            (here if seen.points_here else others).append(client)
    elsewhere = f"; {', '.join(each.title for each in others)} elsewhere" if others else ""
    if here:
        return [good(name, f"{', '.join(each.title for each in here)} to {root}{elsewhere}"), *unreadable]
    if not others:
        return unreadable or [skipped(name, "none is found here whose settings can be read; Cursor's cannot")]
    remedy = f"`setup {others[0].name}` points one to {root}; Cursor's own settings cannot be read"
    return [skipped(name, f"none points to {root}{elsewhere}", remedy), *unreadable]
