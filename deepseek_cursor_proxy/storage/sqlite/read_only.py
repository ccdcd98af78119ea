"""A connection that only reads, for commands that look into the store whether the proxy runs or not.

It changes no file, and creates none beside one that no process has open: that is read past SQLite's locks, for which
SQLite would create its side files.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from deepseek_cursor_proxy.storage.faults import fault_of
from deepseek_cursor_proxy.storage.sqlite import file_check, schema
from deepseek_cursor_proxy.storage.sqlite.connection import StoreConnection, connect

# Writers never keep a reader waiting; only another program that holds the whole file does.
_BUSY_MILLISECONDS = 1000


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """The file of the store, of this version or an older one; FileNotFoundError without one, Unusable for a fault."""
    # Behind any links, where SQLite keeps its side files.
    path = Path(os.path.realpath(path.expanduser()))
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        # Before SQLite touches it: a file that is not ours stays as it is.
        claim = file_check.claim(path, schema.STORE, may_create=False)
        try:
            with closing(_connect(path)) as connection:
                yield connection
        finally:
            claim.release()
    except (sqlite3.Error, OSError) as error:
        if (fault := fault_of(error)) is None:
            raise
        raise fault from None


def _connect(path: Path) -> StoreConnection:
    if not any(Path(f"{path}{side}").exists() for side in file_check.SIDE_FILES):
        return connect(file_check.immutable_uri(path), uri=True)
    connection = connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    except BaseException:
        connection.close()
        raise
    return connection
