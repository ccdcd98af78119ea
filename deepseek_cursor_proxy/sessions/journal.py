"""Journal: turns that wait for the store, in files beside it, so that a process that is killed loses none.

A line of JSON for each turn; one that continues the last turn of its session in the same file has only its new
messages. Two files take turns: while the turns of one are written to the store, others go to the second. A process
locks its own; the store's `recover` reads those of processes that are gone. Each turn has a number, and the store has
the number up to which it has written, so that no turn is written twice.
"""

import glob
import json
import logging
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning.identity import digest_message
from deepseek_cursor_proxy.sessions.session_writer import encode
from deepseek_cursor_proxy.sessions.trajectory import Json, RecordedTurn, TurnOfSession, UnnamedSession
from deepseek_cursor_proxy.storage import private_files

_log = logging.getLogger(__name__)

_SUFFIX = "-turns-"
_NAME_BYTES = 8
# Of a turn that continues none of the file: its whole history, which all threads wait a few milliseconds for.
_MOST_BYTES = 1024 * 1024
# Beyond this many, writing it to the store costs less, if that has the turn before it.
_SHORT = 64 * 1024
# While the store cannot be written.
_MOST_BYTES_OF_FILE = 64 * 1024 * 1024
_MOST_SESSIONS_KNOWN = 64


class _Base(NamedTuple):
    """A turn in the file that another one may continue."""

    number: int
    messages: Sequence[Message]
    answer: bytes
    tools: Sequence[Json]

    def is_continued_by(self, turn: RecordedTurn) -> bool:
        count = len(self.messages)
        if len(turn.messages) <= count or turn.messages[:count] != self.messages or turn.tools != self.tools:
            return False
        return digest_message(turn.messages[count]).digest == self.answer


class _File:
    """One of the two files. `last` is the number of its last turn, 0 if it is empty."""

    def __init__(self, path: Path) -> None:
        private_files.make_directory(path.parent)
        private_files.create(path)
        self.path = path
        self._file = FileIO(path, "r+")
        self._size = 0
        self.last = 0
        if not private_files.try_lock(self._file) or not path.exists():
            # It stays: another process that has taken it for one that was left removes what has its name.
            self.close()
            raise OSError("another process has it, or there are no locks")

    def add(self, number: int, line: bytes) -> None:
        if self._size + len(line) > _MOST_BYTES_OF_FILE:
            raise OSError("it is long enough")
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full")
        except OSError:
            # Half a line would spoil the next one.
            self._file.seek(self._size)
            self._file.truncate()
            raise
        self._size += len(line)
        self.last = number

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._size = self.last = 0

    def close(self) -> None:
        self._file.close()


class Journal:
    """The files of this process. Not thread-safe: the recorder's lock guards it."""

    def __init__(self, store: Path) -> None:
        self.name = os.urandom(_NAME_BYTES).hex()
        # The number of the last turn.
        self.number = 0
        self._paths = _paths(_behind_links(store), self.name)
        self._files: list[_File] = []
        self._bases: dict[tuple[bytes, str | bytes], _Base] = {}
        # The number of messages of the last turn of each session.
        self._lengths: dict[tuple[bytes, str | bytes], int] = {}

    def add(self, turns: Sequence[TurnOfSession], *, is_store_idle: bool) -> bool:
        """Whether the turns are in the file now; not if they are too long, or the file cannot be written."""
        try:
            return all(self._add(turn, is_store_idle) for turn in turns)
        except Exception:
            # Whatever it is, the turns are written at once instead.
            return False

    def _add(self, turn_of_session: TurnOfSession, is_store_idle: bool) -> bool:
        caller, session, turn = turn_of_session
        self.number += 1
        key = caller, session if isinstance(session, str) else session.chat
        base = self._bases.pop(key, None)
        if base is not None and not base.is_continued_by(turn):
            base = None
        new = turn.messages[len(base.messages) + 1 :] if base is not None else turn.messages
        is_soon_written = self._has_grown(key, len(turn.messages)) and is_store_idle
        if turn.logprobs or _is_longer(new, _SHORT if is_soon_written else _MOST_BYTES):
            return False
        named = session if isinstance(session, str) else [session.chat.hex(), session.name, session.model]
        tools = turn.tools if base is None else ()
        head = [self.number, caller.hex(), named, base.number if base is not None else 0]
        line = encode([*head, new, tools, *turn[2:-1]]) + b"\n"
        self._open()
        self._files[0].add(self.number, line)
        self._bases[key] = _Base(self.number, turn.messages, digest_message(turn.answer).digest, turn.tools)
        return True

    def _has_grown(self, key: tuple[bytes, str | bytes], length: int) -> bool:
        """Whether a session's turn, by its length, continues the last one, so that the store writes little."""
        before = self._lengths.get(key, length)
        if len(self._lengths) >= _MOST_SESSIONS_KNOWN:
            self._lengths.clear()
        self._lengths[key] = length
        return length > before

    def _open(self) -> None:
        if len(self._files) < 2:
            for path in set(self._paths) - {file.path for file in self._files}:
                self._files.append(_File(path))

    def switch(self) -> None:
        """Add the next turns to the other file, if that is empty."""
        if len(self._files) == 2 and self._files[0].last and not self._files[1].last:
            self._files.reverse()
            self._bases.clear()

    def clear(self, number: int) -> None:
        """Empty the files whose turns up to this number are all that they have."""
        for file in tuple(self._files):
            if file.last and file.last <= number:
                if file is self._files[0]:
                    self._bases.clear()
                with suppress(OSError):
                    file.clear()
                if not file.path.exists():
                    # It was deleted: a new one is opened for the next turn.
                    self._files.remove(file)
                    file.close()

    @property
    def is_empty(self) -> bool:
        return not any(file.last for file in self._files)

    def close(self) -> None:
        """Leave the files to the next process, or remove them if they are empty."""
        is_empty = self.is_empty
        for file in self._files:
            file.close()
        self._files = []
        for path in self._paths if is_empty else ():
            with suppress(OSError):
                path.unlink()


class LeftJournal:
    """The journal of a process that is gone."""

    def __init__(self, name: str, files: Sequence[FileIO]) -> None:
        self.name = name
        self._files = files

    def turns(self) -> Sequence[tuple[int, TurnOfSession]]:
        """The turns with their numbers, in their order; a line that cannot be read is left out."""
        found: dict[int, TurnOfSession] = {}
        unreadable = 0
        for file in self._files:
            for line in file.readall().splitlines():
                try:
                    number, turn = _read(json.loads(line.decode("utf-8", "surrogatepass")), found)
                    found[number] = turn
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    unreadable += 1
        if unreadable:
            _log.warning("sessions: lines of the journal %s that cannot be read: %d", self.name, unreadable)
        return sorted(found.items())

    def clear(self) -> None:
        for file in self._files:
            file.truncate(0)


def find_left(store: Path) -> Generator[LeftJournal, None, None]:
    """The journals beside a store whose processes are gone, each locked until the next; empty ones are removed."""
    store = _behind_links(store)
    pattern = glob.escape(store.name) + _SUFFIX + "[0-9a-f]" * 2 * _NAME_BYTES + "-[01]"
    for name in sorted({path.name.split("-")[-2] for path in store.parent.glob(pattern)}):
        # A link could lead to any other file, and a pipe has no end.
        paths = [path for path in _paths(store, name) if path.is_file() and not path.is_symlink()]
        with ExitStack() as stack, suppress(OSError):
            files = [stack.enter_context(FileIO(path, "r+")) for path in paths]
            if not files or not all(map(private_files.try_lock, files)):
                continue
            yield LeftJournal(name, files)
            if any(os.fstat(file.fileno()).st_size for file in files):
                continue
            if sys.platform == "win32":
                # It removes no open file. Others do, and before the lock is gone: the file may be one that a process
                # has just begun.
                stack.close()
            for path in paths:
                path.unlink()


def _is_longer(messages: Iterable[Message], most: int) -> bool:
    for message in messages:
        most -= message.byte_size
        if most < 0:
            return True
    return False


def _behind_links(store: Path) -> Path:
    """Where SQLite has its side files, too."""
    return Path(os.path.realpath(store))


def _paths(store: Path, name: str) -> Sequence[Path]:
    return [store.with_name(f"{store.name}{_SUFFIX}{name}-{part}") for part in (0, 1)]


def _read(line: Any, found: dict[int, TurnOfSession]) -> tuple[int, TurnOfSession]:
    number, caller, session, after, new, tools, answer, *rest = line
    if type(number) is not int:
        raise TypeError("a turn without a number")
    messages = tuple(map(_message, new))
    if after:
        base = found[after].turn
        messages, tools = (*base.messages, base.answer, *messages), base.tools
    named = session if isinstance(session, str) else UnnamedSession(bytes.fromhex(session[0]), *session[1:])
    turn = RecordedTurn(messages, tuple(tools), _message(answer), *rest)
    return number, TurnOfSession(bytes.fromhex(caller), named, turn)


def _message(fields: Sequence[Any]) -> Message:
    role, content, reasoning, calls, *rest = fields
    text = content if isinstance(content, str) else tuple(content)
    return Message(role, text, reasoning, tuple(ToolCall(*call) for call in calls), *rest)
