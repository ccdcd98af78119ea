"""This machine: Python, the settings, the store and its disk, the clients.

Files of clients are only read, and so is the store, past SQLite's locks if no process has it open. An empty file
without a name, or one that is deleted at once, shows whether its folder can be written.
"""

import os
import platform
import shutil
import sqlite3
import ssl
import tempfile
import time
from pathlib import Path

from deepseek_cursor_proxy.cli.doctor.subject import (
    Finding,
    Subject,
    failed,
    file_status,
    good,
    is_open_to,
    skipped,
    warning,
)
from deepseek_cursor_proxy.cli.setup.clients import (
    ACCESS_KEY_VARIABLE,
    CLIENTS,
    DEEPSEEK_KEY_VARIABLE,
    Client,
    Machine,
    ProxyEndpoint,
    missing_variable,
    status,
)
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from deepseek_cursor_proxy.config.values import lacks_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage.database import open_read_only
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

PYTHON, SETTINGS_FILE, CLIENT_FILES = "python", "settings", "clients"
STORE, DISK = "store", "disk"
SYSTEM = f"{platform.system()} {platform.release()} {platform.machine()}"
# The first with STRICT tables. Python uses that of the system, which may be much older.
_OLDEST_SQLITE = (3, 37)
# A file of a gigabyte takes longer to read through; then the rest is not.
_READ_THROUGH_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 10_000
# SQLite needs some for its log, and a chat adds about a megabyte.
_LEAST_FREE = 50_000_000
_LITTLE_FREE = 500_000_000
_GRANT = "make it and its folder readable and writable for you"


def check_python(subject: Subject) -> list[Finding]:
    """`__main__` has refused a Python that is too old, but not one with an old SQLite."""
    sqlite = sqlite3.sqlite_version_info
    versions = f"Python {platform.python_version()}, SQLite {'.'.join(map(str, sqlite))}"
    if sqlite < _OLDEST_SQLITE:
        text = f"{versions}; the store needs SQLite {'.'.join(map(str, _OLDEST_SQLITE))}"
        return [failed(PYTHON, text, "use a Python with a newer SQLite, such as those from python.org and uv")]
    return [good(PYTHON, f"{versions}, {ssl.OPENSSL_VERSION}, {SYSTEM}")]


def check_settings(subject: Subject) -> list[Finding]:
    """Unknown keys and bad values from every source, and who else can read or change the file."""
    settings, path = subject.settings, subject.config_path
    if settings.faults:
        parts = [fault.removeprefix("config: ").partition("; ") for fault in settings.faults]
        default = f"correct or remove it; `{subject.program} help serve` lists all settings"
        return [failed(SETTINGS_FILE, text, remedy or default) for text, _, remedy in parts]
    changed = sum(origin != "default" for origin in settings.origins.values())
    status = file_status(path)
    if status is None:
        return [good(SETTINGS_FILE, f"no file at {path}; changed settings: {changed}")]
    has_keys = any(settings.origins.get(setting.field) == str(path) for setting in SETTINGS if setting.is_secret)
    if is_open_to(status, 0o022):
        return [warning(SETTINGS_FILE, f"other users can change {path}", f"chmod 600 {path}")]
    if is_open_to(status, 0o044) and has_keys:
        return [warning(SETTINGS_FILE, f"{path} has keys, and other users can read it", f"chmod 600 {path}")]
    return [good(SETTINGS_FILE, f"{path}; changed settings: {changed}")]


def check_store(subject: Subject) -> list[Finding]:
    place = subject.config.reasoning_content_path
    if str(place) == ":memory:":
        return [good(STORE, "in memory, until the proxy stops")]
    if lacks_home(place):
        remedy = "set HOME, or choose a file with --reasoning-content-path"
        return [warning(STORE, "there is no home directory, so reasoning is kept in memory only", remedy)]
    path = place.expanduser().absolute()
    folder = next((parent for parent in path.parents if parent.is_dir()), path.parent)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except OSError as error:
        return [failed(STORE, f"{path} cannot be used: {error.strerror or error}", _GRANT)]
    findings = [_check_file(path, folder, status, subject)]
    # Damaged files that the proxy has moved away.
    if aside := sorted(file.name for file in path.parent.glob(f"{path.name}.corrupt-*")):
        text = f"damaged files were set aside ({len(aside)}), the last as {aside[-1]}"
        findings.append(warning(STORE, text, "delete them; check the disk if more appear"))
    return [*findings, *_check_disk(path, folder)]


def _check_file(path: Path, folder: Path, status: os.stat_result | None, subject: Subject) -> Finding:
    """The finding on the file; without a status there is none yet."""
    config, proxy = subject.config, subject.admin.proxy
    try:
        rows = _read_through(path) if status is not None else 0
    except Unusable as fault:
        return failed(STORE, f"{path} cannot be used: {fault.reason}", fault.remedy)
    if not _can_write(path, folder):
        return failed(STORE, f"{path} cannot be written: it or its folder is read-only", _GRANT)
    if proxy is not None and proxy.store_fault:
        text = f"the running proxy cannot use it: {proxy.store_fault}"
        return failed(STORE, text, "fix that, then restart the proxy")
    if status is None:
        return good(STORE, f"{path} will be created with the first answer")
    if is_open_to(status, 0o077):
        return warning(STORE, f"other users can read {path}", f"chmod 600 {path}")
    most, size = config.reasoning_cache_max_rows, status.st_size
    amount = f"{path}, {rows:,} of at most {most:,} reasonings, {size / 1e6:,.1f} MB"
    if rows >= most or size >= 2 * ReasoningStore.max_bytes:
        remedy = "raise reasoning_cache_max_rows if chats lose their reasoning"
        return warning(STORE, f"{amount}: full, so the least recently used are deleted", remedy)
    return good(STORE, amount)


def _read_through(path: Path) -> int:
    """Have SQLite check the file as far as time allows; the number of reasonings. Raises Unusable."""
    until = time.monotonic() + _READ_THROUGH_SECONDS
    with open_read_only(path) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        count = 0
        if "reasonings" in tables:
            count = int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])
        connection.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS_BETWEEN_LOOKS)
        try:
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            damage = "ok"
    if damage != "ok":
        raise Unusable(f"it is damaged ({damage})", "stop the proxy and move the file away; a new one is created")
    return count


def _can_write(path: Path, folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            if path.exists():
                os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def _check_disk(path: Path, folder: Path) -> list[Finding]:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return []
    if free >= _LITTLE_FREE:
        return [good(DISK, f"{free / 1e9:,.1f} GB free")]
    level = failed if free < _LEAST_FREE else warning
    text = f"{free / 1e6:,.0f} MB free on the disk of {path}"
    return [level(DISK, text, "free some space, or choose another place for the store")]


def check_clients(subject: Subject) -> list[Finding]:
    """The clients that are found here, and which of them point to the proxy."""
    config, proxy, name = subject.config, subject.admin.proxy, CLIENT_FILES
    root = proxy.base_url.removesuffix("/v1") if proxy is not None else local_url(config.host, config.port)
    try:
        machine = Machine.here()
    except StartupError:
        return [skipped(name, "there is no home directory to look for them in")]
    variable = ACCESS_KEY_VARIABLE if config.served_keys else DEEPSEEK_KEY_VARIABLE
    endpoint = ProxyEndpoint(root, variable)
    here: list[Client] = []
    others: list[Client] = []
    more: list[Finding] = []
    for client in CLIENTS.values():
        found = status(client, machine, endpoint)
        if found.points_here is None:
            text = f"the settings of {client.title} cannot be read: {found.fault}"
            more.append(warning(name, text, f"correct the file of {client.title}"))
        elif found.points_here:
            here.append(client)
            if found.is_installed and (missing := missing_variable(client, machine, endpoint)):
                text = f"{client.title} takes its key from {missing}, which is not set in this shell"
                more.append(warning(name, text, f"set {missing} to {endpoint.key_word} where you start {client.title}"))
        elif found.is_installed:
            others.append(client)
    elsewhere = f"; {', '.join(client.title for client in others)} elsewhere" if others else ""
    if here:
        return [good(name, f"{', '.join(client.title for client in here)} to {root}{elsewhere}"), *more]
    if not others:
        return more or [skipped(name, "none found; Cursor's settings cannot be read")]
    remedy = f"`{subject.program} setup {others[0].name}` points one to {root}; Cursor's own settings cannot be read"
    return [skipped(name, f"none points to {root}{elsewhere}", remedy), *more]
