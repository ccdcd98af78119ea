"""Journal: turns that wait for the store, in a file beside it, so that a process that is killed loses none.

A line of JSON for each turn; one that continues the last turn of its session in the file has only its new messages. The
file is emptied when the store has all of its turns. A process locks its own file; the store's `recover` reads those of
processes that are gone. Each turn has a number, and the store has the number up to which it has written, so that no
turn is written twice.
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
from typing import Any

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning.identity import digest_message
from deepseek_cursor_proxy.sessions.session_writer import encode
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, TurnOfSession, UnnamedSession
from deepseek_cursor_proxy.storage import private_files

_log = logging.getLogger(__name__)

_SUFFIX = "-turns-"
_NAME_BYTES = 8
# Limit for a turn that continues none in the file: it has its whole history, which takes a few milliseconds to write.
_MOST_BYTES = 1024 * 1024
# A larger turn is written to the store for less, if the store has the turn before it.
_SHORT = 64 * 1024
# Limit while the store cannot be written.
_MOST_BYTES_OF_FILE = 64 * 1024 * 1024
_MOST_SESSIONS_KNOWN = 64


class Journal:
    """The file of this process. Not thread-safe: the recorder's lock guards it."""

    def __init__(self, store: Path) -> None:
        self.name = os.urandom(_NAME_BYTES).hex()
        self._path = _paths(_behind_links(store), self.name)[0]
        self._file: FileIO | None = None
        self._size = 0
        # Of the last turn that was added.
        self._number = 0
        # By session: the last turn in the file, and the number of messages of the last turn at all.
        self._bases: dict[tuple[bytes, str | bytes], TurnOfSession] = {}
        self._lengths: dict[tuple[bytes, str | bytes], int] = {}

    @property
    def is_empty(self) -> bool:
        return not self._size

    def add(self, turn: TurnOfSession, *, is_store_idle: bool) -> int:
        """Add a turn. Returns its number; 0 if it is too long, or the file cannot be written."""
        try:
            return self._add(turn, is_store_idle)
        except Exception:
            # Whatever it is, the turn is written to the store at once instead.
            return 0

    def _add(self, turn_of_session: TurnOfSession, is_store_idle: bool) -> int:
        caller, session, turn, _ = turn_of_session
        key, new, tools, after = turn_of_session.key, turn.messages, turn.tools, 0
        base = self._bases.pop(key, None)
        if base is not None and _is_continued(base.turn, turn):
            new, tools, after = new[len(base.turn.messages) + 1 :], (), base.number
        # If the session has grown, the store has the turn before this one, and little to write.
        has_grown = len(turn.messages) > self._lengths.get(key, len(turn.messages))
        if max(len(self._lengths), len(self._bases)) >= _MOST_SESSIONS_KNOWN:
            self._lengths.clear()
            self._bases.clear()
        self._lengths[key] = len(turn.messages)
        if turn.logprobs or _is_longer(new, _SHORT if has_grown and is_store_idle else _MOST_BYTES):
            return 0
        named = session if isinstance(session, str) else [session.chat.hex(), session.name, session.model]
        number = self._number + 1
        self._write(encode([number, caller.hex(), named, after, new, tools, *turn[2:-1]]) + b"\n")
        self._number = number
        self._bases[key] = turn_of_session._replace(number=number)
        return number

    def _write(self, line: bytes) -> None:
        file = self._file = self._file or self._open()
        if self._size + len(line) > _MOST_BYTES_OF_FILE:
            raise OSError("it is long enough")
        try:
            if file.write(line) != len(line):
                raise OSError("the disk is full")
        except OSError:
            # Half a line would spoil the next one.
            file.seek(self._size)
            file.truncate()
            raise
        self._size += len(line)

    def _open(self) -> FileIO:
        private_files.make_directory(self._path.parent)
        private_files.create(self._path)
        file = FileIO(self._path, "r+")
        if not private_files.try_lock(file) or not self._path.exists():
            # The file stays: the other process took it for an abandoned journal, and removes it by name.
            file.close()
            raise OSError("another process has it, or there are no locks")
        return file

    def clear(self, number: int) -> None:
        """Empty the file if it has no turn after this number."""
        if self._file is None or self.is_empty or number < self._number:
            return
        self._bases.clear()
        with suppress(OSError):
            self._file.seek(0)
            self._file.truncate()
            self._size = 0
        if not self._path.exists():
            # It was deleted: a new one is opened for the next turn.
            self._file.close()
            self._file, self._size = None, 0

    def close(self) -> None:
        """Leave the file to the next process, or remove it if it is empty."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.is_empty:
            with suppress(OSError):
                self._path.unlink()


class LeftJournal:
    """The journal of a dead process; earlier versions had two files each."""

    def __init__(self, name: str, files: Sequence[FileIO]) -> None:
        self.name = name
        self._files = files

    def turns(self) -> list[TurnOfSession]:
        """The turns in their order; a line that cannot be read is left out."""
        turns: dict[int, TurnOfSession] = {}
        unreadable = 0
        for file in self._files:
            for line in file.readall().splitlines():
                try:
                    turn = _read(json.loads(line.decode("utf-8", "surrogatepass")), turns)
                    turns[turn.number] = turn
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    unreadable += 1
        if unreadable:
            _log.warning("sessions: lines of the journal %s that cannot be read: %d", self.name, unreadable)
        return [turns[number] for number in sorted(turns)]

    def clear(self) -> None:
        for file in self._files:
            file.truncate(0)


def find_left(store: Path) -> Generator[LeftJournal, None, None]:
    """The journals of dead processes beside a store, each locked until the next; empty ones are removed."""
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
                # Windows removes no open file. Other systems do, while the lock is held: after that, another process
                # might have begun the file anew.
                stack.close()
            for path in paths:
                path.unlink()


def _is_continued(before: RecordedTurn, turn: RecordedTurn) -> bool:
    """Whether a turn has the tools, the messages and the answer of the one before it, and more messages."""
    count = len(before.messages)
    if len(turn.messages) <= count or turn.messages[:count] != before.messages or turn.tools != before.tools:
        return False
    return digest_message(turn.messages[count]).digest == digest_message(before.answer).digest


def _is_longer(messages: Iterable[Message], most: int) -> bool:
    for message in messages:
        most -= message.byte_size
        if most < 0:
            return True
    return False


def _behind_links(store: Path) -> Path:
    """The path behind any links, where SQLite keeps its side files, too."""
    return Path(os.path.realpath(store))


def _paths(store: Path, name: str) -> Sequence[Path]:
    return [store.with_name(f"{store.name}{_SUFFIX}{name}-{part}") for part in (0, 1)]


def _read(line: Any, turns: dict[int, TurnOfSession]) -> TurnOfSession:
    number, caller, session, after, new, tools, answer, *rest = line
    if type(number) is not int:
        raise TypeError("a turn without a number")
    messages = tuple(map(_message, new))
    if after:
        base = turns[after].turn
        messages, tools = (*base.messages, base.answer, *messages), base.tools
    named = session if isinstance(session, str) else UnnamedSession(bytes.fromhex(session[0]), *session[1:])
    turn = RecordedTurn(messages, tuple(tools), _message(answer), *rest)
    return TurnOfSession(bytes.fromhex(caller), named, turn, number)


def _message(fields: Sequence[Any]) -> Message:
    role, content, reasoning, calls, *rest = fields
    text = content if isinstance(content, str) else tuple(content)
    return Message(role, text, reasoning, tuple(ToolCall(*call) for call in calls), *rest)
