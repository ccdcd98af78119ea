"""SharedState: the engine as the stores use it. The engine going away costs no answer and hangs none.

write    returns when the engine has acknowledged. If it cannot be used, or is late, the write goes to the backlog
         in the file of this instance, and so do all writes after it, until a thread has written them in order
read     is tried twice, and then returns None
secret   the engine has an HMAC of the secret of those who share it. An instance with another secret says so,
         works alone and neither reads nor writes there

SharedReasonings has the reasonings of callers there, sealed; the same digests lead to them as in the file. A text that
is not the one that was sealed for its row, and a key that was not tagged for its text, count as unknown.
"""

import functools
import hashlib
import hmac
import logging
import re
import sqlite3
import struct
from base64 import urlsafe_b64encode
from collections.abc import Collection, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.redis.client import RedisClient, Script, ScriptCall
from deepseek_cursor_proxy.features.redis.connection import Command, RedisAddress, RedisUnavailable, Reply, ReplyError
from deepseek_cursor_proxy.features.redis.scripts import FIND_REASONINGS, NAMES, RECORD_REASONINGS, WRITES
from deepseek_cursor_proxy.net.threads import BackgroundThread
from deepseek_cursor_proxy.storage.database import Database, Reopener
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.table import Table
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# A long response may take longer than other writes, …
_BYTES_PER_SECOND = 16 * 1024 * 1024
# … and no answer waits for the backlog.
_CATCH_UP_SECONDS = 2.0
# Within these an engine that is there has answered. A proxy starts without one that is not.
_START_SECONDS = 0.5
_CHECK_KEY = b"dcp:check"
_BATCH = 64
_BATCH_BYTES = 1024 * 1024
_OLDEST = """
SELECT id, used_at, script, key, arguments FROM backlog WHERE id IN (
  SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS sum FROM (
    SELECT id, length(arguments) AS size FROM backlog ORDER BY id LIMIT ?
  )) WHERE sum - size < ?
) ORDER BY id
"""
# Of a value of `set_if_absent`: a digest.
_MOST_NAME_BYTES = 64
# Error replies to a write that another try may not get: no memory, a full disk, too few replicas, no permission yet.
_LATER = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM")


def prefix(caller: bytes) -> bytes:
    """The beginning of all keys of a caller on the engine."""
    return b"dcp:{%s}:" % (urlsafe_b64encode(caller).rstrip(b"=") or b"-")


_TABLES = """
-- Oldest first, what an engine that several proxies share has not got.
CREATE TABLE backlog (
    id INTEGER PRIMARY KEY, script TEXT NOT NULL, key BLOB NOT NULL, arguments BLOB NOT NULL, used_at REAL NOT NULL
) STRICT;
CREATE INDEX backlog_by_use ON backlog (used_at);
"""


class BacklogEntry(NamedTuple):
    """A script that the engine has not run: its name, its key, and its arguments, packed."""

    script: str
    key: bytes
    arguments: bytes


class _WaitingEntries(WriteBehind[BacklogEntry]):
    """Entries that wait for the engine and for the file."""

    bound = 64 * 1024 * 1024
    batch = 1024 * 1024

    def size(self, entry: BacklogEntry) -> int:
        return 200 + len(entry.arguments)


class Backlog(Table[BacklogEntry]):
    """What the engine has not got, in the file, in order. Called by any thread.

    True while something waits that this process added, or found when it started.
    """

    name = "backlog"
    title = "backlog of the engine"
    statements = _TABLES
    waiting_type = _WaitingEntries
    size = "length(arguments)"
    max_rows = 100_000
    max_bytes = 1024**3

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._has_rows = True
        self._added = 0

    def __bool__(self) -> bool:
        return self._has_rows

    def add(self, script: Script, key: bytes, arguments: Sequence[bytes]) -> None:
        self._waiting.write([BacklogEntry(NAMES[script], key, _pack(arguments))])
        # Only now: `oldest` may have read the file just before.
        self._added += 1
        self._has_rows = True

    def oldest(self) -> list[tuple[tuple[int, float], BacklogEntry]]:
        """The oldest entries, each with its number and time. Raises Unusable."""
        added = self._added
        entries = [(row[:2], BacklogEntry(*row[2:])) for row in self.database.select(_OLDEST, _BATCH, _BATCH_BYTES)]
        if not entries and not self._waiting and added == self._added:
            self._has_rows = False
        return entries

    def delete(self, written: Sequence[tuple[int, float]]) -> None:
        """Delete entries by number and time: another process may have deleted one, and its number is used again."""
        with self.database.transaction() as connection:
            connection.executemany("DELETE FROM backlog WHERE id = ? AND used_at = ?", written)

    def _write_entry(self, connection: sqlite3.Connection, entry: BacklogEntry) -> None:
        row = (*entry, self.clock())
        connection.execute("INSERT INTO backlog (script, key, arguments, used_at) VALUES (?, ?, ?, ?)", row)


class SharedState:
    """Called by any thread. The engine and the backlog have locks of their own."""

    def __init__(self, url: str, secret: bytes, database: Database) -> None:
        """Raises StartupError for a bad address; the engine may be absent."""
        self.address = RedisAddress.parse(url)
        self.engine = RedisClient(self.address, on_change=self._on_change)
        self.backlog = Backlog(database)
        # Why this instance does not share, and why writes wait although the engine answers; empty if they do not.
        self.refusal = ""
        self.stalled = ""
        self._is_verified = False
        self._secret = secret
        self.sealer = functools.lru_cache(256)(functools.partial(Sealer, secret))
        self._thread = BackgroundThread("engine-catch-up")
        self._catcher = Reopener(self._catch_up, self._thread)

    def open(self) -> None:
        """Check the secret and write the backlog, or have both done when the engine can be used."""
        self._catcher.wake()
        self._thread.wait(_START_SECONDS)

    def close(self) -> None:
        """Idempotent. What waits for the engine stays in the file."""
        self._thread.close()
        self.engine.close()
        self.backlog.close()

    @property
    def fault(self) -> str:
        """Why the engine is not used at the moment; empty if it is."""
        # It may have gone while no call was made.
        self.engine.check_soon()
        if self.refusal or self.stalled or (self._is_verified and self.engine.is_available):
            return self.refusal or self.stalled
        return "it does not answer"

    def read(self, script: Script, key: bytes, arguments: Sequence[bytes]) -> Reply:
        """The reply of a script; None if the engine does not answer in time."""
        for _ in range(2 if self._is_verified else 0):
            try:
                return self.engine.run_scripts([ScriptCall(script, key, arguments)])[0]
            except RedisUnavailable:
                continue
        return None

    def write(self, script: Script, key: bytes, arguments: Sequence[bytes]) -> Reply:
        """The reply of a script, which the engine acknowledged; None if it waits in the backlog or is not shared."""
        if self.refusal:
            return None
        if self._is_verified and not self.backlog:
            try:
                [reply] = self._run([ScriptCall(script, key, arguments)])
                return None if isinstance(reply, ReplyError) else reply
            except RedisUnavailable as error:
                self._note_stall(error)
        self.backlog.add(script, key, arguments)
        self._catcher.wake()
        return None

    def set_if_absent(self, name: str, value: bytes) -> bytes | None:
        """The value under a name: the first that any instance gave; None if the engine does not answer."""
        key = b"dcp:first:" + hashlib.sha256(name.encode()).hexdigest().encode()
        if not self._is_verified:
            return None
        sealer, place = self.sealer(b"", b"first"), name.encode()
        try:
            sealed = sealer.seal_bytes(value, place)
            *_, found = self.engine.run([(b"SET", key, sealed, b"NX"), (b"GET", key)])
        except RedisUnavailable:
            return None
        return sealer.open_bytes(found, _MOST_NAME_BYTES, place) if isinstance(found, bytes) else None

    def _run(self, calls: Sequence[ScriptCall], seconds: float = 0.0) -> list[Reply]:
        """The replies of writes. Raises RedisUnavailable if all of them may or must be repeated."""
        seconds += sum(len(word) for call in calls for word in call.arguments) / _BYTES_PER_SECOND
        replies = self.engine.run_scripts(calls, seconds)
        errors = [reply for reply in replies if isinstance(reply, ReplyError)]
        for error in errors:
            if error.code in _LATER:
                raise _Stalled(error.text)
        for error in errors:
            _log.error("%s does not take a write, which is lost for the other proxies: %s", self.address, error.text)
        return replies

    # When the engine is back …

    def _on_change(self, text: str) -> None:
        # Called by the engine: no call to it from here. It may be another engine by now, or an empty one.
        self._is_verified = False
        _log.warning("%s", text)
        if self.engine.is_available:
            self._catcher.wake()

    def _note_stall(self, error: RedisUnavailable) -> None:
        if isinstance(error, _Stalled) and not self.stalled:
            self.stalled = str(error)
            _log.warning("%s takes no writes, which wait in the file: %s", self.address, error)

    def _catch_up(self) -> bool:
        """Check the secret, then write the backlog. True if nothing is left to do."""
        count = 0
        try:
            self._verify()
            while not self.refusal and (entries := self.backlog.oldest()):
                # In one round trip, or a distant engine would never catch up with a busy proxy.
                calls = [ScriptCall(WRITES[each.script], each.key, _unpack(each.arguments)) for _, each in entries]
                self._run(calls, _CATCH_UP_SECONDS)
                self.backlog.delete([number for number, _ in entries])
                count += len(entries)
        except RedisUnavailable as error:
            self._note_stall(error)
            # An engine that is down says when it is back.
            return not self.engine.is_available
        except Unusable:
            # The file cannot be read: the Store warns, and opens it again.
            return False
        if count or self.stalled:
            _log.warning("%s has what waited for it: %d writes", self.address, count)
        self.stalled = ""
        # Something may still wait for the file.
        return bool(self.refusal) or not self.backlog

    def _verify(self) -> None:
        """Compare the secret's check value, which the first instance writes. Raises RedisUnavailable."""
        if not is_shared_with(self.engine, self._secret):
            self.refusal = "another installation secret is in use there"
            _log.error(
                "%s is NOT shared: %s. Give every proxy the same secret (DEEPSEEK_CURSOR_PROXY_SECRET) and start it "
                "again; until then this one works alone",
                self.address,
                self.refusal,
            )
            return
        self._is_verified = True


def read_info(engine: RedisClient) -> dict[str, str]:
    """What a server says of itself, by name. Raises RedisUnavailable."""
    [info] = engine.run([(b"INFO", b"everything")])
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else ""
    return dict(re.findall(r"^(\w+):(\S+)", text, re.MULTILINE))


def version_of(info: dict[str, str]) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", info.get("redis_version", "0"))[:2]))


def is_shared_with(engine: RedisClient, secret: bytes, *, may_write: bool = True) -> bool:
    """Compare the check value on the engine, which the first instance writes. Raises RedisUnavailable."""
    value = hmac.digest(secret, b"check", "sha256").hex().encode()
    write: list[Command] = [(b"SET", _CHECK_KEY, value, b"NX")] if may_write else []
    for reply in (replies := engine.run([*write, (b"GET", _CHECK_KEY)])):
        if isinstance(reply, ReplyError):
            raise _Stalled(reply.text)
    return replies[-1] in (value, None)


class _Stalled(RedisUnavailable):
    """The engine answers and takes no writes."""


def _pack(arguments: Sequence[bytes]) -> bytes:
    return b"".join([struct.pack(">I", len(word)) + word for word in arguments])


def _unpack(packed: bytes) -> list[bytes]:
    words, at = [], 0
    while at < len(packed):
        end = at + 4 + int.from_bytes(packed[at : at + 4])
        words.append(packed[at + 4 : end])
        at = end
    return words


# Reasonings …

# No reasoning is longer (`storage.reasonings`).
MOST_BYTES = 16 * 1024 * 1024
_USE = b"reasoning"
_ID_BYTES = 16
# So few that the engine answers in time: some 10 ms for texts of 4 kB. A long chat that is new here takes several.
_KEYS_PER_CALL = 200


class SharedReasonings:
    """Called by any thread."""

    def __init__(self, state: SharedState, max_age_seconds: float) -> None:
        self._state = state
        self._seconds = b"%d" % max_age_seconds

    @property
    def has_backlog(self) -> bool:
        """Whether the file of this instance has entries that the engine has not got yet."""
        return bool(self._state.backlog)

    def record(self, caller: bytes, entries: Sequence[tuple[tuple[bytes, ...], bytes]]) -> bool:
        """Write keys and texts of a caller. True if the engine has them, False if they wait for it in the backlog."""
        sealer, words = self._state.sealer(caller, _USE), [self._seconds]
        for keys, text in entries:
            sealed = sealer.seal_bytes(text)
            words += [sealed, b"%d" % len(keys)]
            words += [word for key in keys for word in (key, sealer.tag(key + sealed[:_ID_BYTES]))]
        return self._state.write(RECORD_REASONINGS, prefix(caller), words) is not None

    def find(self, caller: bytes, keys: Collection[bytes]) -> list[tuple[bytes, bytes]] | None:
        """Key and text of what the engine has under these keys, oldest first for each; None if it does not answer."""
        names, sealer = list(keys), self._state.sealer(caller, _USE)
        found: list[tuple[bytes, bytes]] = []
        for start in range(0, len(names), _KEYS_PER_CALL):
            part = names[start : start + _KEYS_PER_CALL]
            reply = self._state.read(FIND_REASONINGS, prefix(caller), (self._seconds, *part))
            if not isinstance(reply, list):
                return None
            found += _read_texts(reply, part, sealer)
        return found


def _read_texts(reply: Sequence[Reply], keys: Sequence[bytes], sealer: Sealer) -> list[tuple[bytes, bytes]]:
    texts: dict[bytes, bytes | None] = {}
    found = []
    for row in zip(reply[::3], reply[1::3], reply[2::3], strict=False):
        match row:
            case int(at), bytes(link), bytes(sealed) if 0 <= at < len(keys):
                id = link[:_ID_BYTES]
                if sealed:
                    texts[id] = sealer.open_bytes(sealed, MOST_BYTES) if sealed.startswith(id) else None
                text = texts.get(id)
                if text is not None and hmac.compare_digest(link, id + sealer.tag(keys[at] + id)):
                    found.append((keys[at], text))
    return found
