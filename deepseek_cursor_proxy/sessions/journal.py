"""Journal: turns that wait for the store, in files beside it, so that a process that is killed loses none.

A line of JSON for each turn; one that continues the last turn of its session in the same file has only its new
messages. Two files take turns: while the turns of one are written to the store, others go to the second. A process
locks its own; `recover` reads those of processes that are gone. Each turn has a number, and the store has the number up
to which it has written, so that no turn is written twice.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy import private_files
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning.message_digest import digest_message
from deepseek_cursor_proxy.sessions.rows import encode
from deepseek_cursor_proxy.sessions.trajectory import Json, RecordedTurn, TurnOfSession, UnnamedSession

_log = logging.getLogger(__name__)

_SUFFIX = "-turns-"
# Of a turn that continues none of the file: its whole history.
_MOST_BYTES = 4 * 1024 * 1024
# Beyond this many, writing it to the store costs less.
_SHORT = 64 * 1024


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
        private_files.create(path)
        self.path = path
        self._file = FileIO(path, "r+")
        self.last = 0
        if not private_files.try_lock(self._file) or not path.exists():
            self._file.close()
            raise OSError("another process has taken it for one that was left")

    def add(self, number: int, line: bytes) -> None:
        end = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full")
        except OSError:
            # Half a line would spoil the next one.
            self._file.truncate(end)
            self._file.seek(end)
            raise
        self.last = number

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.last = 0

    def close(self) -> None:
        self._file.close()


class Journal:
    """The files of this process. Not thread-safe: the recorder's lock guards it."""

    def __init__(self, store: Path) -> None:
        self.name = os.urandom(8).hex()
        # The number of the last turn.
        self.number = 0
        self._path = store
        self._files: list[_File] = []
        self._bases: dict[tuple[bytes, str | bytes], _Base] = {}

    def add(self, turns: Sequence[TurnOfSession], *, only_short: bool) -> bool:
        """Whether the turns are in the file now; not if they are too long, or the file cannot be written."""
        try:
            return all(self._add(turn, _SHORT if only_short else _MOST_BYTES) for turn in turns)
        except OSError:
            return False

    def _add(self, turn_of_session: TurnOfSession, most: int) -> bool:
        caller, session, turn = turn_of_session
        self.number += 1
        key = caller, session if isinstance(session, str) else session.chat
        base = self._bases.pop(key, None)
        if base is not None and not base.is_continued_by(turn):
            base = None
        new = turn.messages[len(base.messages) + 1 :] if base is not None else turn.messages
        if turn.logprobs or _is_longer(new, most):
            return False
        named = session if isinstance(session, str) else [session.chat.hex(), session.name, session.model]
        tools = turn.tools if base is None else ()
        head = [self.number, caller.hex(), named, base.number if base is not None else 0]
        line = encode([*head, new, tools, *turn[2:-1]]) + b"\n"
        self._open()
        self._files[0].add(self.number, line)
        self._bases[key] = _Base(self.number, turn.messages, digest_message(turn.answer).digest, turn.tools)
        return True

    def _open(self) -> None:
        if not self._files:
            self._files = [_File(_path(self._path, self.name, part)) for part in (0, 1)]

    def switch(self) -> None:
        """Add the next turns to the other file, if that is empty."""
        if self._files and self._files[0].last and not self._files[1].last:
            self._files.reverse()
            self._bases.clear()

    def clear(self, number: int) -> None:
        """Empty the files whose turns up to this number are all that they have."""
        for file in self._files:
            if file.last and file.last <= number:
                with suppress(OSError):
                    file.clear()
                if file is self._files[0]:
                    self._bases.clear()

    def close(self) -> bool:
        """Remove the files, if they are empty; whether they are."""
        is_empty = not any(file.last for file in self._files)
        for file in self._files:
            file.close()
            if is_empty:
                with suppress(OSError):
                    file.path.unlink()
        self._files = []
        return is_empty


class LeftJournal:
    """The journal of a process that is gone."""

    def __init__(self, name: str, files: Sequence[FileIO]) -> None:
        self.name = name
        self._files = files

    def turns(self) -> Sequence[tuple[int, TurnOfSession]]:
        """The turns with their numbers, in their order; a line that cannot be read is left out."""
        found: dict[int, TurnOfSession] = {}
        for file in self._files:
            for line in file.readall().splitlines():
                try:
                    number, turn = _read(json.loads(line.decode("utf-8", "surrogatepass")), found)
                except (ValueError, TypeError, KeyError, AttributeError):
                    _log.warning("sessions: a turn in the journal %s cannot be read", self.name)
                    continue
                found[number] = turn
        return sorted(found.items())

    def clear(self) -> None:
        for file in self._files:
            file.truncate(0)


def find_left(store: Path) -> Iterator[LeftJournal]:
    """The journals beside a store whose processes are gone, each locked until the next; empty ones are removed."""
    for name in sorted({path.name.rpartition("-")[0] for path in store.parent.glob(f"{store.name}{_SUFFIX}*-[01]")}):
        paths = [path for part in "01" if (path := store.with_name(f"{name}-{part}")).exists()]
        with ExitStack() as stack, suppress(OSError):
            files = [stack.enter_context(FileIO(path, "r+")) for path in paths]
            if not all(map(private_files.try_lock, files)):
                continue
            yield LeftJournal(name.rpartition(_SUFFIX)[2], files)
            is_empty = not any(os.fstat(file.fileno()).st_size for file in files)
            # Windows removes no open file.
            stack.close()
            for path in paths if is_empty else ():
                path.unlink()


def _is_longer(messages: Iterable[Message], most: int) -> bool:
    for message in messages:
        most -= message.byte_size
        if most < 0:
            return True
    return False


def _path(store: Path, name: str, part: int) -> Path:
    return store.with_name(f"{store.name}{_SUFFIX}{name}-{part}")


def _read(line: Any, found: dict[int, TurnOfSession]) -> tuple[int, TurnOfSession]:
    number, caller, session, after, new, tools, answer, *rest = line
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
