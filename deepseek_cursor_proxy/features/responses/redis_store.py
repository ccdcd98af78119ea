"""SharedResponses: stored responses and background jobs on the engine, sealed; a deleted one leaves its name.

Each part is sealed for its row, its status and its place there: a row that another one was copied to counts as none.

A job is leased by the proxy that runs it, which renews the lease every few seconds. An unfinished response whose lease
has expired belongs to a proxy that was killed or cut off, and is failed for all others. If that one finishes it all the
same, that counts.
"""

import contextlib
import math

from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.redis.connection import Reply
from deepseek_cursor_proxy.features.redis.scripts import CHANGE_RESPONSE, FIND_RESPONSE, RENEW_RESPONSE
from deepseek_cursor_proxy.features.redis.state import SharedState, prefix
from deepseek_cursor_proxy.features.responses.store import ResponseChange, ResponseRow, ResponseStore, failed_body
from deepseek_cursor_proxy.net.threads import BackgroundThread

DELETED = "deleted"
_USE = b"response"
_PARTS = ("body", "input", "events")
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
        self._thread = BackgroundThread("engine-leases")

    @property
    def has_backlog(self) -> bool:
        """Whether the file of this instance has changes that the engine has not got yet."""
        return bool(self._state.backlog)

    def change(self, change: ResponseChange) -> bool | None:
        """Make a change. True if a row was replaced, deleted or inserted; None if it waits for the engine."""
        arguments = change_arguments(change, self._seconds, self._state.sealer(change.caller, _USE))
        if change.row is not None and change.row.is_unfinished:
            self._thread.run(self._renew, _SECONDS_BETWEEN_RENEWALS)
        reply = self._state.write(CHANGE_RESPONSE, response_key(change.caller, change.id), arguments)
        return None if reply is None else reply == 1

    def find(self, caller: bytes, id: str, *, with_events: bool) -> ResponseRow | None:
        """The row, with the status DELETED if it was deleted; None if the engine has none or does not answer."""
        reply = self._state.read(FIND_RESPONSE, response_key(caller, id), [b"1" if with_events else b"0"])
        row = read_row(reply, caller, id, self._state.sealer(caller, _USE))
        if row is not None and isinstance(reply, list) and reply[-1] == 1 and (caller, id) not in self._in_work():
            row = row._replace(status="failed", body=failed_body(row.body))
        return row

    def close(self) -> None:
        self._thread.close()

    def _renew(self) -> float | None:
        for caller, id in self._in_work():
            self._state.read(RENEW_RESPONSE, response_key(caller, id), [b"%d" % _LEASE_SECONDS])
        return _SECONDS_BETWEEN_RENEWALS if self._in_work() else None


def response_key(caller: bytes, id: str) -> bytes:
    return prefix(caller) + b"s" + id.encode()


def change_arguments(change: ResponseChange, seconds: bytes, sealer: Sealer) -> list[bytes]:
    """The arguments of CHANGE_RESPONSE for a change."""
    row = change.row
    if row is None:
        return [b"delete", seconds]
    lease = _LEASE_SECONDS if row.is_unfinished else 0
    arguments = [b"put" if change.may_insert else b"update", seconds, b"%d" % lease, row.status.encode()]
    parts = zip((row.body, row.input, row.events), _places(row.id, arguments[-1]), strict=True)
    sealed = (sealer.seal_bytes(part, place) if part is not None else b"" for part, place in parts)
    return [*arguments, repr(row.created_at).encode(), *sealed]


def _places(id: str, status: bytes) -> list[bytes]:
    return [b"%b %b %b" % (part.encode(), status, id.encode()) for part in _PARTS]


def read_row(reply: Reply, caller: bytes, id: str, sealer: Sealer) -> ResponseRow | None:
    """The row in a reply to FIND_RESPONSE; None if there is none, or it is not as it was written."""
    match reply:
        case [b"deleted", *_]:
            return ResponseRow(caller, id, DELETED, 0.0, b"", b"", None)
        case [bytes(status), bytes(created), bytes(body), bytes(items), bytes(events), int()]:
            parts = zip((body, items, events), _places(id, status), strict=True)
            opened = [sealer.open_bytes(part, _MOST_BYTES, place) if part else None for part, place in parts]
            with contextlib.suppress(ValueError):
                created_at = float(created)
                if opened[0] and opened[1] and bool(opened[2]) == bool(events) and math.isfinite(created_at):
                    return ResponseRow(caller, id, status.decode(), created_at, opened[0], opened[1], opened[2])
    return None
