"""SharedResponses: stored responses and background jobs on the engine, sealed; a deleted one leaves its name.

A job is leased by the proxy that runs it, which renews the lease every few seconds. An unfinished response whose lease
has lapsed belongs to a proxy that was killed or cut off, and is failed for all others. If that one finishes it all the
same, that counts.
"""

from deepseek_cursor_proxy.net.threads import BackgroundTask
from deepseek_cursor_proxy.storage.resp.protocol import Reply
from deepseek_cursor_proxy.storage.responses import ResponseChange, ResponseRow, ResponseStore, failed_body
from deepseek_cursor_proxy.storage.shared.scripts import (
    CHANGE_RESPONSE,
    FIND_RESPONSE,
    RENEW_RESPONSE,
)
from deepseek_cursor_proxy.storage.shared.state import Sealer, SharedState, prefix

DELETED = "deleted"
_LEASE_SECONDS = 20
_SECONDS_BETWEEN_RENEWALS = 5.0
# Far above what a request can hold.
_MOST_BYTES = 1024**3


class SharedResponses:
    """Called by any thread."""

    def __init__(self, state: SharedState, store: ResponseStore) -> None:
        self._state = state
        self._seconds = b"%d" % store.max_age_seconds
        self._in_work = store.in_work
        self._renewer = BackgroundTask(self._renew, "engine-leases")

    @property
    def is_behind(self) -> bool:
        """Whether the file of this instance has changes that the engine has not got yet."""
        return bool(self._state.backlog)

    def change(self, change: ResponseChange) -> bool | None:
        """Make a change. True if a row was replaced, deleted or inserted; None if it waits for the engine."""
        words = change_words(change, self._seconds, self._state.sealer(change.caller))
        if change.row is not None and change.row.is_unfinished:
            self._renewer.wake()
        reply = self._state.write(CHANGE_RESPONSE, response_key(change.caller, change.id), words)
        return None if reply is None else reply == 1

    def find(self, caller: bytes, id: str, *, with_events: bool) -> ResponseRow | None:
        """The row, with the status DELETED if it was deleted; None if the engine has none or does not answer."""
        if not id.isascii():
            return None
        reply = self._state.read(FIND_RESPONSE, response_key(caller, id), [b"1" if with_events else b"0"])
        row = read_row(reply, caller, id, self._state.sealer(caller))
        if row is not None and isinstance(reply, list) and reply[-1] == 1 and (caller, id) not in self._in_work():
            row = row._replace(status="failed", body=failed_body(row.body))
        return row

    def close(self) -> None:
        self._renewer.close()

    def _renew(self) -> float | None:
        self._renewer.pause(_SECONDS_BETWEEN_RENEWALS)
        for caller, id in self._in_work():
            self._state.read(RENEW_RESPONSE, response_key(caller, id), [b"%d" % _LEASE_SECONDS])
        return 0.0 if self._in_work() else None


def response_key(caller: bytes, id: str) -> bytes:
    return prefix(caller) + b"s" + id.encode()


def change_words(change: ResponseChange, seconds: bytes, sealer: Sealer) -> list[bytes]:
    """A change as CHANGE_RESPONSE gets it."""
    row = change.row
    if row is None:
        return [b"delete", seconds]
    lease = _LEASE_SECONDS if row.is_unfinished else 0
    words = [b"put" if change.may_insert else b"update", seconds, b"%d" % lease, row.status.encode()]
    sealed = (sealer.seal_bytes(part) if part is not None else b"" for part in (row.body, row.input, row.events))
    return [*words, repr(row.created_at).encode(), *sealed]


def read_row(reply: Reply, caller: bytes, id: str, sealer: Sealer) -> ResponseRow | None:
    """The row in a reply to FIND_RESPONSE; None if there is none, or it cannot be opened."""
    match reply:
        case [bytes(status), bytes(created), bytes(body), bytes(items), bytes(events), int()]:
            parts = [sealer.open_bytes(part, _MOST_BYTES) if part else None for part in (body, items, events)]
            opened = (parts[0] or b"", parts[1] or b"", parts[2])
            row = ResponseRow(caller, id, status.decode(), float(created or 0), *opened)
            return row if row.status == DELETED or row.body else None
    return None
