"""`store copy`: reasonings and stored responses from a file or an engine to another.

A copy that ended half-way is run again: what the other side has already is recognised there. Each engine has its own
secret, with which its texts are opened and sealed. A file needs none.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.storage.entries import ReasoningEntry, ResponseChange, ResponseRow
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.resp.address import EngineAddress
from deepseek_cursor_proxy.storage.resp.client import Engine, Script
from deepseek_cursor_proxy.storage.resp.protocol import EngineDown, Reply, ReplyError
from deepseek_cursor_proxy.storage.responses import ResponseStore
from deepseek_cursor_proxy.storage.shared.reasonings import MOST_BYTES, entry_words
from deepseek_cursor_proxy.storage.shared.responses import change_words, read_row, response_key
from deepseek_cursor_proxy.storage.shared.scripts import CHANGE_RESPONSE, FIND_RESPONSE, RECORD_REASONINGS
from deepseek_cursor_proxy.storage.shared.state import Sealer, is_shared_with, owner, prefix

_SECONDS = 5.0
_BATCH = 100
# As long as a setting that is not changed keeps them.
_SECONDS_KEPT = b"%d" % (30 * 24 * 3600)


def copy(source: "Side", target: "Side", report: Callable[[str], None]) -> str:
    """Copy everything. Returns a line that says how much. Raises EngineDown or Unusable."""
    copied = orphans = 0
    for batch in _batches(source.reasonings()):
        owned = [entry for entry in batch if entry.caller]
        target.add_reasonings(owned)
        copied, orphans = copied + len(owned), orphans + len(batch) - len(owned)
        report(f"{copied:,} reasonings")
    responses = 0
    for row in source.responses():
        target.add_response(row)
        responses += 1
    line = f"Copied {copied:,} reasonings and {responses:,} responses."
    return (
        f"{line} {orphans:,} reasonings of older versions have no owner and stay where they are." if orphans else line
    )


class FileSide:
    def __init__(self, path: Path, resources: ExitStack) -> None:
        self._reasonings = resources.enter_context(closing(ReasoningStore(path, must_open=True)))
        self._responses = resources.enter_context(closing(ResponseStore(self._reasonings.database)))

    def reasonings(self) -> Iterator[ReasoningEntry]:
        return _pages(self._reasonings.rows.read_from)

    def responses(self) -> Iterator[ResponseRow]:
        return _pages(self._responses.rows.read_from)

    def add_reasonings(self, entries: Sequence[ReasoningEntry]) -> None:
        self._reasonings.rows.write(entries)

    def add_response(self, row: ResponseRow) -> None:
        self._responses.rows.write([ResponseChange(row.caller, row.id, row, may_insert=True)])


class EngineSide:
    def __init__(self, url: str, secret: bytes, sealer: Callable[[bytes, bytes], Sealer], resources: ExitStack) -> None:
        """Raises StartupError for a bad address, EngineDown for another secret."""
        self._engine = resources.enter_context(closing(Engine(EngineAddress.parse(url))))
        self._secret = secret
        self._sealer = sealer
        if not is_shared_with(self._engine, secret):
            raise EngineDown(f"{EngineAddress.parse(url)} is used with another installation secret")

    def reasonings(self) -> Iterator[ReasoningEntry]:
        # By row, its keys; each with the number of rows that it leads to.
        keys_of: dict[tuple[bytes, int], dict[bytes, int]] = {}
        for names in _batches(self._engine.scan(b"dcp:*}:k*", _SECONDS)):
            replies = self._run([(b"ZRANGE", name, b"0", b"-1") for name in names])
            for name, reply in zip(names, replies, strict=True):
                base, _, key = name.partition(b"}:k")
                ids = [int(id) for id in reply if isinstance(id, bytes)] if isinstance(reply, list) else []
                for id in ids:
                    keys_of.setdefault((base + b"}:", id), {})[key] = len(ids)
        for rows in _batches(sorted(keys_of)):
            texts = self._run([(b"HGET", base + b"r%d" % id, b"t") for base, id in rows])
            for row, sealed in zip(rows, texts, strict=True):
                caller = owner(row[0])
                text = self._open(caller).open_bytes(sealed, MOST_BYTES) if isinstance(sealed, bytes) else None
                if text is not None:
                    # The key of this turn alone comes first.
                    keys = sorted(keys_of[row], key=keys_of[row].__getitem__)
                    yield ReasoningEntry(tuple(keys), text, caller=caller)

    def responses(self) -> Iterator[ResponseRow]:
        for name in self._engine.scan(b"dcp:*}:s*", _SECONDS):
            base, _, id = name.partition(b"}:s")
            caller = owner(base)
            reply = self._script(FIND_RESPONSE, name, [b"1"])
            if (row := read_row(reply, caller, id.decode(), self._open(caller))) is not None and row.body:
                yield row

    def add_reasonings(self, entries: Sequence[ReasoningEntry]) -> None:
        for entry in entries:
            words = entry_words([entry], self._open(entry.caller))
            self._script(RECORD_REASONINGS, prefix(entry.caller), [os.urandom(8), _SECONDS_KEPT, *words])

    def add_response(self, row: ResponseRow) -> None:
        change = ResponseChange(row.caller, row.id, row, may_insert=True)
        words = change_words(change, _SECONDS_KEPT, self._open(row.caller))
        self._script(CHANGE_RESPONSE, response_key(row.caller, row.id), words)

    def _open(self, caller: bytes) -> Sealer:
        return self._sealer(self._secret, caller)

    def _script(self, script: Script, key: bytes, words: Sequence[bytes]) -> Reply:
        [reply] = _checked([self._engine.run_script(script, key, words, _SECONDS)])
        return reply

    def _run(self, commands: Sequence[tuple[bytes, ...]]) -> list[Reply]:
        return _checked(self._engine.run(commands, _SECONDS))


Side = FileSide | EngineSide


def _checked(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise EngineDown(reply.text)
    return replies


def _pages(read: Callable[[int, int], list[tuple[int, Any]]]) -> Iterator[Any]:
    """The entries of a table, page by page: `read` gets the number of the last row."""
    last = 0
    while page := read(last, _BATCH):
        yield from (entry for _, entry in page)
        last = page[-1][0]


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch
