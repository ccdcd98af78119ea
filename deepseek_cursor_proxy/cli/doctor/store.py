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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, warning
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.sources import lacks_home
from deepseek_cursor_proxy.storage.engine.faults import Unusable
from deepseek_cursor_proxy.storage.engine.read_only import open_read_only

NAME, DISK = "store", "disk"
# A file of a gigabyte takes longer to read through; then the rest is not.
_READ_THROUGH_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 10_000
# SQLite needs some for its log, and a chat adds about a megabyte.
_LEAST_FREE = 50_000_000
_LITTLE_FREE = 500_000_000
_GRANT = "make it and its folder readable and writable for you"


@dataclass(frozen=True)
class StoreFacts:
    """The file, of which `reason` and `remedy` say why it cannot be used. `mode` is None where there is none."""

    path: Path
    exists: bool = False
    is_writable: bool = True
    mode: int | None = None
    reason: str = ""
    remedy: str = ""
    reasonings: int = 0
    bytes: int = 0
    free_bytes: int | None = None
    # Damaged files that the proxy has moved away.
    set_aside: tuple[str, ...] = ()


def look(config: ProxyConfig) -> StoreFacts:
    path = config.reasoning_content_path.expanduser().absolute()
    folder = next((each for each in path.parents if each.is_dir()), path.parent)
    free, aside = _free_bytes(folder), tuple(sorted(each.name for each in path.parent.glob(f"{path.name}.corrupt-*")))
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return StoreFacts(path, is_writable=_can_create(folder), free_bytes=free, set_aside=aside)
    except OSError as error:
        return StoreFacts(path, exists=True, reason=error.strerror or "it cannot be seen", remedy=_GRANT)
    reason, remedy, reasonings = "", "", 0
    try:
        reasonings = _read_through(path)
    except Unusable as fault:
        reason, remedy = fault.reason, fault.remedy
    return StoreFacts(
        path,
        exists=True,
        is_writable=_can_write(path) and _can_create(folder),
        mode=stat.S_IMODE(status.st_mode) if os.name != "nt" else None,
        reason=reason,
        remedy=remedy,
        reasonings=reasonings,
        bytes=status.st_size,
        free_bytes=free,
        set_aside=aside,
    )


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


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def judge(config: ProxyConfig, facts: StoreFacts, running_fault: str) -> list[Finding]:
    """The findings; `running_fault` is why a running proxy cannot use the store, if it says so."""
    findings = [_judge_file(config, facts, running_fault)]
    if facts.set_aside:
        text = f"damaged files were set aside ({len(facts.set_aside)}), the last as {facts.set_aside[-1]}"
        findings.append(warning(NAME, text, "delete them; if there will be more, check the disk"))
    return [*findings, *_judge_disk(facts)]


def _judge_file(config: ProxyConfig, facts: StoreFacts, running_fault: str) -> Finding:
    if facts.reason:
        return failed(NAME, f"{facts.path} cannot be used: {facts.reason}", facts.remedy)
    if not facts.is_writable:
        return failed(NAME, f"{facts.path} cannot be written: it or its folder is read-only", _GRANT)
    if running_fault:
        return failed(NAME, f"the running proxy cannot use it: {running_fault}", "restart the proxy once that is cured")
    if not facts.exists:
        return good(NAME, f"{facts.path} will be made with the first answer")
    if facts.mode is not None and facts.mode & 0o077:
        return warning(NAME, f"other users can read {facts.path}", f"chmod 600 {facts.path}")
    rows, most = facts.reasonings, config.reasoning_cache_max_rows
    amount = f"{facts.path}, {rows:,} of at most {most:,} reasonings, {facts.bytes / 1e6:,.1f} MB"
    if rows >= most or facts.bytes >= 2 * config.reasoning_cache_max_bytes:
        remedy = "raise reasoning_cache_max_rows and reasoning_cache_max_bytes if chats lose their reasoning"
        return warning(NAME, f"{amount}: full, so what is longest unused goes", remedy)
    return good(NAME, amount)


def _judge_disk(facts: StoreFacts) -> Iterator[Finding]:
    if facts.free_bytes is None:
        return
    text = f"{facts.free_bytes / 1e9:,.1f} GB free"
    if facts.free_bytes >= _LITTLE_FREE:
        yield good(DISK, text)
        return
    is_full = facts.free_bytes < _LEAST_FREE
    text = f"{facts.free_bytes / 1e6:,.0f} MB free on the disk of {facts.path}"
    yield (failed if is_full else warning)(DISK, text, "free some space, or choose another place for the store")


def judge_placeless(config: ProxyConfig) -> Finding | None:
    """The finding for a store that has no file; None if it has one."""
    if str(config.reasoning_content_path) == ":memory:":
        return good(NAME, "in memory, until the proxy stops")
    if lacks_home(config.reasoning_content_path):
        remedy = "set HOME, or choose a file with --reasoning-content-path"
        return warning(NAME, "there is no home directory, so reasoning is kept in memory only", remedy)
    return None
