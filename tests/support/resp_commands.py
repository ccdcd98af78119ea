"""The commands of the stand-in for a Redis or Valkey server: strings, hashes, lists, sets, sorted sets and streams.

Only what this project sends, with the replies and errors of Redis 7.0; `tests/interop/engine` runs the same
tests on a real server. Scripts are Lua on a server and Python here: a script without its twin is refused.
"""

import fnmatch
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deepseek_cursor_proxy.features.redis.client import Script
from deepseek_cursor_proxy.features.redis.connection import ReplyError

Call: TypeAlias = Callable[..., Any]
Twin: TypeAlias = Callable[[Call, list[bytes], list[bytes]], Any]
# What a script does, by its digest: a function of `call` (redis.call), KEYS and ARGV.
_TWINS: dict[bytes, Twin] = {}

_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NO_INTEGER = "ERR value is not an integer or out of range"


def register_twin(script: Script, twin: Twin) -> None:
    """Have the stand-in run this function for the script."""
    _TWINS[script.sha] = twin


class CommandError(Exception):
    """An error reply."""


class SortedSet(dict[bytes, int]):
    """Members with their scores."""


@dataclass
class Entry:
    value: Any
    # On the server's clock; None if it stays.
    expires: float | None = None


@dataclass
class Database:
    clock: Callable[[], float] = time.time
    entries: dict[bytes, Entry] = field(default_factory=dict)
    loaded: set[bytes] = field(default_factory=set)

    def run(self, words: Sequence[bytes]) -> Any:
        name = words[0].decode("latin-1").lower()
        command = getattr(self, f"do_{name}", None)
        if command is None:
            raise CommandError(f"ERR unknown command '{name}', with args beginning with: ")
        try:
            return command(*words[1:])
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            raise CommandError(f"ERR wrong number of arguments for '{name}' command") from None

    def find(self, key: bytes, kind: type) -> Any:
        entry = self.entries.get(key)
        if entry is not None and entry.expires is not None and entry.expires <= self.clock():
            del self.entries[key]
            entry = None
        if entry is None:
            return None
        # A sorted set is a dict, as a hash is.
        if type(entry.value) is not kind and kind is not object:
            raise CommandError(_WRONG_TYPE)
        return entry.value

    def make(self, key: bytes, kind: type) -> Any:
        if self.find(key, kind) is None:
            self.entries[key] = Entry(kind())
        return self.entries[key].value

    def drop_if_empty(self, key: bytes) -> None:
        if key in self.entries and not self.entries[key].value:
            del self.entries[key]

    # Keys …

    def do_del(self, *keys: bytes) -> int:
        found = [key for key in keys if self.find(key, object) is not None]
        for key in {*found}:
            del self.entries[key]
        return len({*found})

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.find(key, object) is not None for key in keys)

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        if self.find(key, object) is None:
            return 0
        self.entries[key].expires = self.clock() + _integer(seconds)
        return 1

    def do_ttl(self, key: bytes) -> int:
        if self.find(key, object) is None:
            return -2
        expires = self.entries[key].expires
        return -1 if expires is None else round(expires - self.clock())

    def do_scan(self, cursor: bytes, *options: bytes) -> list[Any]:
        """All keys at once: a server may do that, too."""
        _integer(cursor)
        pattern = _options(options).get(b"MATCH", b"*")
        alive = [key for key in [*self.entries] if self.find(key, object) is not None]
        return [b"0", _matching(alive, pattern)]

    def do_dbsize(self) -> int:
        return self.do_exists(*self.entries)

    def do_flushall(self, *_mode: bytes) -> str:
        self.entries.clear()
        return "OK"

    # Strings …

    def do_get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.find(key, bytes)
        return value

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> str | None:
        if b"NX" in options and self.find(key, object) is not None:
            return None
        seconds = options[options.index(b"EX") + 1] if b"EX" in options else None
        self.entries[key] = Entry(value, None if seconds is None else self.clock() + _integer(seconds))
        return "OK"

    def do_incrby(self, key: bytes, amount: bytes) -> int:
        number = _integer(self.find(key, bytes) or b"0") + _integer(amount)
        expires = self.entries[key].expires if key in self.entries else None
        self.entries[key] = Entry(b"%d" % number, expires)
        return number

    # Hashes …

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        if not pairs or len(pairs) % 2:
            raise CommandError("ERR wrong number of arguments for 'hset' command")
        value = self.make(key, dict)
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(value) - before

    def do_hsetnx(self, key: bytes, name: bytes, value: bytes) -> int:
        fields = self.make(key, dict)
        is_new = name not in fields
        fields.setdefault(name, value)
        return int(is_new)

    def do_hget(self, key: bytes, name: bytes) -> bytes | None:
        value: bytes | None = (self.find(key, dict) or {}).get(name)
        return value

    def do_hmget(self, key: bytes, *names: bytes) -> list[bytes | None]:
        value = self.find(key, dict) or {}
        return [value.get(name) for name in names]

    def do_hgetall(self, key: bytes) -> dict[bytes, bytes]:
        return {**(self.find(key, dict) or {})}

    def do_hexists(self, key: bytes, name: bytes) -> int:
        return int(name in (self.find(key, dict) or {}))

    def do_hdel(self, key: bytes, *names: bytes) -> int:
        value = self.find(key, dict) or {}
        count = sum(value.pop(name, None) is not None for name in names)
        self.drop_if_empty(key)
        return count

    # Sets …

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        value = self.make(key, set)
        before = len(value)
        value.update(members)
        return len(value) - before

    def do_smembers(self, key: bytes) -> set[bytes]:
        return {*(self.find(key, set) or set())}

    # Sorted sets …

    def do_zadd(self, key: bytes, *words: bytes) -> int:
        is_new_alone = words[0] == b"NX"
        pairs = words[is_new_alone:]
        value = self.make(key, SortedSet)
        before = len(value)
        for score, member in zip(pairs[::2], pairs[1::2], strict=True):
            if not (is_new_alone and member in value):
                value[member] = _integer(score)
        return len(value) - before

    def do_zrange(self, key: bytes, _first: bytes, _last: bytes) -> list[bytes]:
        """All of them: nobody asks for less."""
        found: SortedSet = self.find(key, SortedSet) or SortedSet()
        return sorted(found, key=lambda member: (found[member], member))

    # The server …

    def do_ping(self, *message: bytes) -> bytes | str:
        return message[0] if message else "PONG"

    def do_time(self) -> list[bytes]:
        now = self.clock()
        return [b"%d" % int(now), b"%06d" % (now % 1 * 1e6)]

    # Scripts …

    def do_eval(self, source: bytes, *arguments: bytes) -> Any:
        self.loaded.add(sha := hashlib.sha1(source).hexdigest().encode())
        return self.do_evalsha(sha, *arguments)

    def do_evalsha(self, sha: bytes, count: bytes, *arguments: bytes) -> Any:
        if sha.lower() not in self.loaded:
            raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
        twin = _TWINS.get(sha.lower())
        if twin is None:
            raise CommandError("ERR this stand-in has no twin of the script; see register_twin")
        keys = _integer(count)
        return _from_lua(twin(self._call, [*arguments[:keys]], [*arguments[keys:]]))

    def _call(self, *words: "bytes | str | float") -> Any:
        """redis.call: a reply of RESP2, where nil is false, a map flat and a score text; raises CommandError."""
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        return _to_lua(self.run(encoded))


def _to_lua(reply: Any) -> Any:
    if isinstance(reply, dict):
        return [_to_lua(each) for pair in reply.items() for each in pair]
    if isinstance(reply, list | set):
        return [_to_lua(each) for each in reply]
    return False if reply is None else reply


def _from_lua(value: Any) -> Any:
    """A number loses its fraction, true is 1, false is nil, and nil ends an array, as a server converts them."""
    if isinstance(value, list | tuple):
        kept = [*value]
        return [_from_lua(each) for each in (kept[: kept.index(None)] if None in kept else kept)]
    return None if value is False else value


def error_reply(error: CommandError) -> ReplyError:
    return ReplyError(str(error))


def _integer(text: bytes) -> int:
    if not re.fullmatch(rb"-?[0-9]{1,19}", text):
        raise CommandError(_NO_INTEGER)
    return int(text)


def _options(words: Sequence[bytes]) -> dict[bytes, bytes]:
    return {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=False)}


def _matching(names: Iterable[bytes], pattern: bytes) -> list[bytes]:
    # A pattern of Redis is one of the shell, but for backslashes, which only escape.
    shell = re.sub(r"\\(.)", r"[\1]", pattern.decode("latin-1"))
    return [name for name in names if fnmatch.fnmatchcase(name.decode("latin-1"), shell)]
