"""The commands of the stand-in for a Redis or Valkey server: strings, hashes, lists, sets, sorted sets and streams.

Only what this project sends, with the replies and errors of Redis 7.0; `tests/interop/test_engine.py` runs the same
tests on a real server. Scripts are Lua on a server and Python here: a script without its twin is refused.
"""

import fnmatch
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from deepseek_cursor_proxy.storage.resp.client import Script
from deepseek_cursor_proxy.storage.resp.protocol import ReplyError

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


class SortedSet(dict[bytes, float]):
    def ordered(self) -> list[tuple[bytes, float]]:
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


class Stream(dict[tuple[int, int], list[bytes]]):
    """Entries by their ids, in order."""

    last = (0, 0)


@dataclass
class Entry:
    value: Any
    # On the server's clock; None if it stays.
    expires: float | None = None


@dataclass
class Database:
    """The keys of one database. Used under the server's lock."""

    clock: Callable[[], float] = time.time
    entries: dict[bytes, Entry] = field(default_factory=dict)
    loaded: set[bytes] = field(default_factory=set)

    def run(self, words: Sequence[bytes]) -> Any:
        """The reply; raises CommandError."""
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
        """The value; None if there is none."""
        entry = self.entries.get(key)
        if entry is not None and entry.expires is not None and entry.expires <= self.clock():
            del self.entries[key]
            entry = None
        if entry is None:
            return None
        # Sorted sets and streams are dicts, as hashes are.
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

    do_unlink = do_del

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.find(key, object) is not None for key in keys)

    def do_type(self, key: bytes) -> str:
        names: dict[type, str] = {bytes: "string", dict: "hash", list: "list", set: "set"}
        names |= {SortedSet: "zset", Stream: "stream"}
        value = self.find(key, object)
        return "none" if value is None else names[type(value)]

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        return self._expire(key, _integer(seconds))

    def do_pexpire(self, key: bytes, milliseconds: bytes) -> int:
        return self._expire(key, _integer(milliseconds) / 1000)

    def _expire(self, key: bytes, seconds: float) -> int:
        if self.find(key, object) is None:
            return 0
        self.entries[key].expires = self.clock() + seconds
        self.find(key, object)
        return 1

    def do_persist(self, key: bytes) -> int:
        if self.find(key, object) is None or self.entries[key].expires is None:
            return 0
        self.entries[key].expires = None
        return 1

    def do_pttl(self, key: bytes) -> int:
        if self.find(key, object) is None:
            return -2
        expires = self.entries[key].expires
        return -1 if expires is None else round((expires - self.clock()) * 1000)

    def do_ttl(self, key: bytes) -> int:
        left = self.do_pttl(key)
        return left if left < 0 else (left + 500) // 1000

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

    do_flushdb = do_flushall

    # Strings …

    def do_get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.find(key, bytes)
        return value

    def do_mget(self, *keys: bytes) -> list[bytes | None]:
        values = [self.find(key, object) for key in keys]
        return [value if isinstance(value, bytes) else None for value in values]

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        words = [word.upper() for word in options]
        old = self.find(key, object)
        before = self.find(key, bytes) if b"GET" in words else None
        if (b"NX" in words and old is not None) or (b"XX" in words and old is None):
            return before
        expires = self.entries[key].expires if b"KEEPTTL" in words and old is not None else None
        for name, unit in ((b"EX", 1), (b"PX", 1000)):
            if name in words:
                expires = self.clock() + _integer(options[words.index(name) + 1]) / unit
        self.entries[key] = Entry(value, expires)
        return before if b"GET" in words else "OK"

    def do_getdel(self, key: bytes) -> bytes | None:
        value: bytes | None = self.find(key, bytes)
        self.entries.pop(key, None)
        return value

    def do_incrby(self, key: bytes, amount: bytes) -> int:
        number = _integer(self.find(key, bytes) or b"0") + _integer(amount)
        expires = self.entries[key].expires if key in self.entries else None
        self.entries[key] = Entry(b"%d" % number, expires)
        return number

    def do_incr(self, key: bytes) -> int:
        return self.do_incrby(key, b"1")

    def do_decrby(self, key: bytes, amount: bytes) -> int:
        return self.do_incrby(key, b"%d" % -_integer(amount))

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

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return [*(self.find(key, dict) or {})]

    def do_hvals(self, key: bytes) -> list[bytes]:
        return [*(self.find(key, dict) or {}).values()]

    def do_hlen(self, key: bytes) -> int:
        return len(self.find(key, dict) or {})

    def do_hdel(self, key: bytes, *names: bytes) -> int:
        value = self.find(key, dict) or {}
        count = sum(value.pop(name, None) is not None for name in names)
        self.drop_if_empty(key)
        return count

    def do_hincrby(self, key: bytes, name: bytes, amount: bytes) -> int:
        value = self.make(key, dict)
        try:
            number = _integer(value.get(name, b"0")) + _integer(amount)
        except CommandError:
            self.drop_if_empty(key)
            raise CommandError("ERR hash value is not an integer") from None
        value[name] = b"%d" % number
        return number

    def do_hincrbyfloat(self, key: bytes, name: bytes, amount: bytes) -> bytes:
        _float(amount)
        value = self.make(key, dict)
        total = Decimal(value.get(name, b"0").decode()) + Decimal(amount.decode())
        text = f"{total:f}"
        value[name] = (text.rstrip("0").rstrip(".") if "." in text else text).encode()
        return bytes(value[name])

    def do_hscan(self, key: bytes, cursor: bytes, *options: bytes) -> list[Any]:
        _integer(cursor)
        value = self.find(key, dict) or {}
        names = _matching(value, _options(options).get(b"MATCH", b"*"))
        return [b"0", [word for name in names for word in (name, value[name])]]

    # Lists …

    def do_lpush(self, key: bytes, *values: bytes) -> int:
        self.make(key, list)[:0] = values[::-1]
        return self.do_llen(key)

    def do_rpush(self, key: bytes, *values: bytes) -> int:
        self.make(key, list).extend(values)
        return self.do_llen(key)

    def do_lpop(self, key: bytes) -> bytes | None:
        values = self.find(key, list)
        popped: bytes | None = values.pop(0) if values else None
        self.drop_if_empty(key)
        return popped

    def do_llen(self, key: bytes) -> int:
        return len(self.find(key, list) or [])

    def do_lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        return [*_range(self.find(key, list) or [], first, last)]

    def do_ltrim(self, key: bytes, first: bytes, last: bytes) -> str:
        values = self.find(key, list)
        if values is not None:
            values[:] = _range(values, first, last)
            self.drop_if_empty(key)
        return "OK"

    def do_lrem(self, key: bytes, count: bytes, value: bytes) -> int:
        values, number = self.find(key, list) or [], _integer(count)
        places = [place for place, each in enumerate(values) if each == value]
        chosen = places[number:] if number < 0 else places[: number or None]
        for place in reversed(chosen):
            del values[place]
        self.drop_if_empty(key)
        return len(chosen)

    # Sets …

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        value = self.make(key, set)
        before = len(value)
        value.update(members)
        return len(value) - before

    def do_srem(self, key: bytes, *members: bytes) -> int:
        value = self.find(key, set) or set()
        count = len(value & {*members})
        value -= {*members}
        self.drop_if_empty(key)
        return count

    def do_smembers(self, key: bytes) -> set[bytes]:
        return {*(self.find(key, set) or set())}

    def do_sismember(self, key: bytes, member: bytes) -> int:
        return int(member in (self.find(key, set) or set()))

    def do_scard(self, key: bytes) -> int:
        return len(self.find(key, set) or set())

    # Sorted sets …

    def do_zadd(self, key: bytes, *arguments: bytes) -> int:
        words = [*arguments]
        flags = set()
        while words and words[0].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
            flags.add(words.pop(0).upper())
        scores = [_float(score) for score in words[::2]]
        value, count = self.make(key, SortedSet), 0
        for score, member in zip(scores, words[1::2], strict=True):
            old = value.get(member)
            is_refused = (b"NX" in flags and old is not None) or (b"XX" in flags and old is None)
            is_refused |= old is not None and ((b"GT" in flags and score <= old) or (b"LT" in flags and score >= old))
            if not is_refused:
                value[member] = score
                count += old is None or (b"CH" in flags and old != score)
        self.drop_if_empty(key)
        return count

    def do_zincrby(self, key: bytes, amount: bytes, member: bytes) -> float:
        value = self.make(key, SortedSet)
        value[member] = value.get(member, 0.0) + _float(amount)
        return float(value[member])

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        value = self.find(key, SortedSet) or {}
        count = sum(value.pop(member, None) is not None for member in {*members})
        self.drop_if_empty(key)
        return count

    def do_zcard(self, key: bytes) -> int:
        return len(self.find(key, SortedSet) or {})

    def do_zscore(self, key: bytes, member: bytes) -> float | None:
        score: float | None = (self.find(key, SortedSet) or {}).get(member)
        return score

    def do_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[Any]:
        words = [option.upper() for option in options]
        if b"BYSCORE" in words:
            return self.do_zrangebyscore(key, first, last, *(option for option in options if option != b"BYSCORE"))
        ordered = (self.find(key, SortedSet) or SortedSet()).ordered()
        return _with_scores(_range(ordered[:: -1 if b"REV" in words else 1], first, last), b"WITHSCORES" in words)

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[Any]:
        chosen = self._between(key, low, high)
        words = [option.upper() for option in options]
        if b"LIMIT" in words:
            place = words.index(b"LIMIT")
            skipped, count = _integer(options[place + 1]), _integer(options[place + 2])
            chosen = chosen[skipped:] if count < 0 else chosen[skipped : skipped + count]
        return _with_scores(chosen, b"WITHSCORES" in words)

    def do_zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len(self._between(key, low, high))

    def do_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> int:
        return self.do_zrem(key, *(member for member, _ in self._between(key, low, high)))

    def do_zremrangebyrank(self, key: bytes, first: bytes, last: bytes) -> int:
        ordered = (self.find(key, SortedSet) or SortedSet()).ordered()
        return self.do_zrem(key, *(member for member, _ in _range(ordered, first, last)))

    def _between(self, key: bytes, low: bytes, high: bytes) -> list[tuple[bytes, float]]:
        least, most = _float(low.lstrip(b"(")), _float(high.lstrip(b"("))
        ordered = (self.find(key, SortedSet) or SortedSet()).ordered()
        return [
            (member, score)
            for member, score in ordered
            if (score > least if low[:1] == b"(" else score >= least)
            and (score < most if high[:1] == b"(" else score <= most)
        ]

    # Streams …

    def do_xadd(self, key: bytes, *arguments: bytes) -> bytes | None:
        words = [*arguments]
        limit = None
        while words and words[0].upper() in (b"NOMKSTREAM", b"MAXLEN", b"MINID"):
            option = words.pop(0).upper()
            if option == b"NOMKSTREAM" and self.find(key, Stream) is None:
                return None
            if option != b"NOMKSTREAM":
                words = words[1:] if words[0] in (b"~", b"=") else words
                limit = option, words.pop(0)
        stream, identity = self.make(key, Stream), words.pop(0)
        new = max((round(self.clock() * 1000), 0), (stream.last[0], stream.last[1] + 1))
        if identity != b"*":
            new = _identity(identity, 0)
            if new <= stream.last:
                text = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
                raise CommandError(text)
        stream[new], stream.last = words, new
        if limit is not None:
            self.do_xtrim(key, *limit)
        return b"%d-%d" % new

    def do_xlen(self, key: bytes) -> int:
        return len(self.find(key, Stream) or {})

    def do_xrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[Any]:
        least = (0, 0) if first == b"-" else _identity(first.lstrip(b"("), 0)
        most = (2**64, 0) if last == b"+" else _identity(last, 2**64)
        found = [
            [b"%d-%d" % identity, fields]
            for identity, fields in (self.find(key, Stream) or {}).items()
            if least <= identity <= most and not (first[:1] == b"(" and identity == least)
        ]
        return found[: _integer(options[1])] if options else found

    def do_xdel(self, key: bytes, *identities: bytes) -> int:
        stream = self.find(key, Stream) or {}
        return sum(stream.pop(_identity(each, 0), None) is not None for each in identities)

    def do_xtrim(self, key: bytes, option: bytes, *limit: bytes) -> int:
        stream, bound = self.find(key, Stream) or {}, limit[-1]
        gone = [each for each in stream if each < _identity(bound, 0)]
        if option.upper() == b"MAXLEN":
            gone = [*stream][: max(0, len(stream) - _integer(bound))]
        for identity in gone:
            del stream[identity]
        return len(gone)

    # The server …

    def do_ping(self, *message: bytes) -> bytes | str:
        return message[0] if message else "PONG"

    def do_time(self) -> list[bytes]:
        now = self.clock()
        return [b"%d" % int(now), b"%06d" % (now % 1 * 1e6)]

    def do_wait(self, replicas: bytes, milliseconds: bytes) -> int:
        _integer(replicas), _integer(milliseconds)
        return 0

    # Scripts …

    def do_script(self, action: bytes, *arguments: bytes) -> Any:
        if action.upper() == b"LOAD":
            self.loaded.add(sha := hashlib.sha1(arguments[0]).hexdigest().encode())
            return sha
        if action.upper() == b"EXISTS":
            return [int(sha in self.loaded) for sha in arguments]
        if action.upper() == b"FLUSH":
            self.loaded.clear()
            return "OK"
        raise CommandError("ERR unknown subcommand. Try SCRIPT HELP.")

    def do_eval(self, source: bytes, *arguments: bytes) -> Any:
        return self.do_evalsha(self.do_script(b"LOAD", source), *arguments)

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
    return score_text(reply) if isinstance(reply, float) else False if reply is None else reply


def _from_lua(value: Any) -> Any:
    """A number loses its fraction, true is 1, false is nil, and nil ends an array, as a server converts them."""
    if isinstance(value, list | tuple):
        kept = [*value]
        return [_from_lua(each) for each in (kept[: kept.index(None)] if None in kept else kept)]
    if isinstance(value, bool):
        return 1 if value else None
    return int(value) if isinstance(value, float) else value.encode() if isinstance(value, str) else value


def score_text(score: float) -> bytes:
    """A score as RESP2 has it."""
    return (f"{score:.17g}" if score % 1 or abs(score) >= 1e17 else f"{score:.0f}").encode()


def error_reply(error: CommandError) -> ReplyError:
    return ReplyError(str(error))


def _integer(text: bytes) -> int:
    if not re.fullmatch(rb"-?[0-9]{1,19}", text):
        raise CommandError(_NO_INTEGER)
    return int(text)


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError("ERR value is not a valid float") from None


def _identity(text: bytes, sequence: int) -> tuple[int, int]:
    milliseconds, _, number = text.partition(b"-")
    return _integer(milliseconds), _integer(number) if number else sequence


def _range(values: list[Any], first: bytes, last: bytes) -> list[Any]:
    start, end = _integer(first), _integer(last)
    start = max(0, start + len(values)) if start < 0 else start
    end = end + len(values) if end < 0 else end
    return values[start : end + 1]


def _options(words: Sequence[bytes]) -> dict[bytes, bytes]:
    return {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=False)}


def _matching(names: Iterable[bytes], pattern: bytes) -> list[bytes]:
    # A pattern of Redis is one of the shell, but for backslashes, which only escape.
    shell = re.sub(r"\\(.)", r"[\1]", pattern.decode("latin-1"))
    return [name for name in names if fnmatch.fnmatchcase(name.decode("latin-1"), shell)]


def _with_scores(items: Sequence[tuple[bytes, float]], has_scores: bool) -> list[Any]:
    """RESP3 pairs each member with its score; RESP2 does not, see `resp_server`."""
    return [[member, score] for member, score in items] if has_scores else [member for member, _ in items]
