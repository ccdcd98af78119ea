"""The store: whether the file is ours, whole, private and writable, how full it is, and the disk that it is on.

The file is only read, past SQLite's locks if no process has it open. Whether the folder can be written is found out
with an empty file without a name, or one that is deleted at once.
"""

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from pathlib import Path

from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, warning
from deepseek_cursor_proxy.cli.doctor.subject import Subject
from deepseek_cursor_proxy.config.values import lacks_home
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite.read_only import open_read_only

NAME, DISK = "store", "disk"
# A file of a gigabyte takes longer to read through; then the rest is not.
_READ_THROUGH_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 10_000
# SQLite needs some for its log, and a chat adds about a megabyte.
_LEAST_FREE = 50_000_000
_LITTLE_FREE = 500_000_000
_GRANT = "make it and its folder readable and writable for you"


def check(subject: Subject) -> list[Finding]:
    place = subject.config.reasoning_content_path
    if str(place) == ":memory:":
        return [good(NAME, "in memory, until the proxy stops")]
    if lacks_home(place):
        remedy = "set HOME, or choose a file with --reasoning-content-path"
        return [warning(NAME, "there is no home directory, so reasoning is kept in memory only", remedy)]
    path = place.expanduser().absolute()
    folder = next((each for each in path.parents if each.is_dir()), path.parent)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except OSError as error:
        return [failed(NAME, f"{path} cannot be used: {error.strerror or 'it cannot be seen'}", _GRANT)]
    findings = [_check_file(path, folder, status, subject)]
    # Damaged files that the proxy has moved away.
    if aside := sorted(each.name for each in path.parent.glob(f"{path.name}.corrupt-*")):
        text = f"damaged files were set aside ({len(aside)}), the last as {aside[-1]}"
        findings.append(warning(NAME, text, "delete them; if there will be more, check the disk"))
    return [*findings, *_check_disk(path, folder)]


def _check_file(path: Path, folder: Path, status: os.stat_result | None, subject: Subject) -> Finding:
    """The finding on the file; without a status there is none yet."""
    config, proxy = subject.config, subject.admin.proxy
    try:
        rows = _read_through(path) if status is not None else 0
    except Unusable as fault:
        return failed(NAME, f"{path} cannot be used: {fault.reason}", fault.remedy)
    if not _can_create(folder) or (status is not None and not _can_write(path)):
        return failed(NAME, f"{path} cannot be written: it or its folder is read-only", _GRANT)
    if proxy is not None and proxy.store_fault:
        text = f"the running proxy cannot use it: {proxy.store_fault}"
        return failed(NAME, text, "restart the proxy once that is cured")
    if status is None:
        return good(NAME, f"{path} will be made with the first answer")
    if os.name != "nt" and stat.S_IMODE(status.st_mode) & 0o077:
        return warning(NAME, f"other users can read {path}", f"chmod 600 {path}")
    most, size = config.reasoning_cache_max_rows, status.st_size
    amount = f"{path}, {rows:,} of at most {most:,} reasonings, {size / 1e6:,.1f} MB"
    if rows >= most or size >= 2 * config.reasoning_cache_max_bytes:
        remedy = "raise reasoning_cache_max_rows and reasoning_cache_max_bytes if chats lose their reasoning"
        return warning(NAME, f"{amount}: full, so what is longest unused goes", remedy)
    return good(NAME, amount)


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
        raise Unusable(f"it is damaged ({damage})", "stop the proxy and move the file away; a new one is begun")
    return count


def _can_write(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def _can_create(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


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
