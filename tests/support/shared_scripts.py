"""The scripts of `features/redis/scripts.py` in Python, for the stand-in of the engine.

Each is a function of `call` (redis.call), KEYS and ARGV. `tests/interop/engine/test_shared.py` runs the same tests on a
real server, where the scripts themselves run.
"""

import re
from typing import Any

from deepseek_cursor_proxy.features.redis import scripts
from tests.support.resp_commands import Call, CommandError, register_twin


def _find_reasonings(call: Call, keys: list[bytes], words: list[bytes]) -> list[Any]:
    base, seconds, reply, sent = keys[0], int(words[0]), [], set()

    def use(key: bytes) -> None:
        if call("TTL", key) < seconds - min(86400, seconds / 4):
            call("EXPIRE", key, seconds)

    for at, word in enumerate(words[1:]):
        key = base + b"k" + word
        for link in (links := call("ZRANGE", key, 0, -1)):
            id = link[:16]
            row = base + b"r" + id
            text = b"" if id in sent else call("GET", row)
            if text is not False:
                if id not in sent:
                    use(row)
                sent.add(id)
                reply += [at, link, text]
        if links:
            use(key)
    return reply


def _record_reasonings(call: Call, keys: list[bytes], words: list[bytes]) -> int:
    base, seconds, *rest = keys[0], *words
    while rest:
        text, count, *rest = rest
        own, rest = rest[: 2 * int(count)], rest[2 * int(count) :]
        id = text[:16]
        call("SET", base + b"r" + id, text, "EX", seconds)
        for key, tag in zip(own[::2], own[1::2], strict=True):
            texts = len(call("ZRANGE", base + b"k" + key, 0, -1))
            if texts < 16:
                call("ZADD", base + b"k" + key, "NX", texts, id + tag)
            call("EXPIRE", base + b"k" + key, seconds)
    return 1


def _change_response(call: Call, keys: list[bytes], words: list[bytes]) -> int:
    [key], is_there = keys, call("HEXISTS", keys[0], "b")
    if words[0] == b"delete":
        call("DEL", key)
        call("HSET", key, "status", "deleted")
        call("EXPIRE", key, words[1])
        return int(is_there)
    kind, seconds, lease, status, created, body, items, events = words
    if not is_there and kind == b"update":
        return 0
    call("HSET", key, "status", status, "b", body, "i", items, "e", events)
    call("HSETNX", key, "created_at", created)
    if not is_there:
        call("EXPIRE", key, seconds)
    if lease == b"0":
        call("HDEL", key, "u")
    else:
        call("HSET", key, "u", int(call("TIME")[0]) + int(lease))
    return 1


def _find_response(call: Call, keys: list[bytes], words: list[bytes]) -> list[Any]:
    *row, lease = call("HMGET", keys[0], "status", "created_at", "b", "i", "e" if words[0] == b"1" else "", "u")
    if row[0] is False:
        return []
    has_lapsed = lease is not False and int(lease) < int(call("TIME")[0])
    return [*(value or b"" for value in row), int(has_lapsed)]


def _renew_response(call: Call, keys: list[bytes], words: list[bytes]) -> int:
    lease, now = int(call("HGET", keys[0], "u") or 0), int(call("TIME")[0])
    if lease < now:
        return 0
    call("HSET", keys[0], "u", now + int(words[0]))
    return 1


class _Limits:
    """The counters of all keys and groups."""

    def __init__(self, call: Call, base: bytes) -> None:
        self.call, self.base = call, base
        self.raised = 0

    def counters(self, request: bytes) -> list[bytes]:
        return list(self.call("SMEMBERS", self.base + b"q" + request))

    def held(self, request: bytes, counter: bytes, now: float) -> bytes | None:
        amount, _, expires_at = (self.call("HGET", self.base + b"h" + counter, request) or b"").partition(b" ")
        return amount if amount and float(expires_at) > now else None

    def hold(self, request: bytes, counter: bytes, amount: bytes, expires_at: float) -> None:
        self.call("HSET", self.base + b"h" + counter, request, amount + b" %.6f" % expires_at)
        self.call("SADD", self.base + b"q" + request, counter)
        self.call("EXPIRE", self.base + b"h" + counter, 3600)
        self.call("EXPIRE", self.base + b"q" + request, 3600)

    def spent(self, counter: bytes, known: bytes, seconds: bytes) -> int:
        key = self.base + b"c" + counter
        try:
            amount = _amount(self.call("GET", key) or b"0")
        except CommandError:
            amount = None
        if amount is not None and amount >= int(known):
            return amount
        self.call("SET", key, known, "EX", seconds)
        self.raised += 1
        return int(known)

    def reserved(self, counter: bytes, now: float) -> int:
        key, sum = self.base + b"h" + counter, 0
        try:
            all = self.call("HGETALL", key)
        except CommandError:
            self.call("DEL", key)
            return 0
        for request, text in zip(all[::2], all[1::2], strict=True):
            found = re.fullmatch(rb"(\d+) (\d+\.\d+)", text)
            amount = _amount(found[1]) if found is not None and now < float(found[2]) < now + 3600 else None
            if amount is None:
                self.call("HDEL", key, request)
            sum += amount or 0
        return sum


def _amount(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"\d+", text) and int(text) < 2**53 else None


def _reserve_limits(call: Call, keys: list[bytes], words: list[bytes]) -> list[int]:
    limits, (request, time, lease, *rest) = _Limits(call, keys[0]), words
    now, holds = float(time), list(zip(*(rest[at::5] for at in range(5)), strict=True))
    if any(limits.held(request, counter, now) for counter in limits.counters(request)):
        return [0, 0, 0, 0]
    for number, (counter, known, seconds, amount, most) in enumerate(holds, 1):
        spent, reserved = limits.spent(counter, known, seconds), limits.reserved(counter, now)
        if spent + reserved > 0 and spent + reserved + int(amount) > int(most):
            return [number, spent, reserved, limits.raised]
    for counter, _, _, amount, _ in holds:
        limits.hold(request, counter, amount, now + int(lease))
    return [0, 0, 0, limits.raised]


def _settle_limits(call: Call, keys: list[bytes], words: list[bytes]) -> list[int] | int:
    limits, (request, seconds, *rest) = _Limits(call, keys[0]), words
    if not call("SET", keys[0] + b"d" + request, "", "EX", seconds, "NX"):
        return 0
    for counter in limits.counters(request):
        call("HDEL", keys[0] + b"h" + counter, request)
    call("DEL", keys[0] + b"q" + request)
    totals = []
    for counter, known, kept, amount in zip(*(rest[at::4] for at in range(4)), strict=True):
        limits.spent(counter, known, kept)
        totals.append(call("INCRBY", keys[0] + b"c" + counter, amount))
        call("EXPIRE", keys[0] + b"c" + counter, kept)
    return [*totals, limits.raised]


def _renew_limits(call: Call, keys: list[bytes], words: list[bytes]) -> list[int]:
    limits, now, lease = _Limits(call, keys[0]), float(words[0]), int(words[1])
    for request in words[2:]:
        for counter in limits.counters(request):
            if (amount := limits.held(request, counter, now)) is not None:
                limits.hold(request, counter, amount, now + lease)
    return [0]


def _used_limits(call: Call, keys: list[bytes], words: list[bytes]) -> list[int]:
    limits, now = _Limits(call, keys[0]), float(words[0])
    reply = []
    for counter, known, seconds in zip(words[1::3], words[2::3], words[3::3], strict=True):
        reply += [limits.spent(counter, known, seconds), limits.reserved(counter, now)]
    return [*reply, limits.raised]


register_twin(scripts.FIND_REASONINGS, _find_reasonings)
register_twin(scripts.RECORD_REASONINGS, _record_reasonings)
register_twin(scripts.CHANGE_RESPONSE, _change_response)
register_twin(scripts.FIND_RESPONSE, _find_response)
register_twin(scripts.RENEW_RESPONSE, _renew_response)
register_twin(scripts.RESERVE_LIMITS, _reserve_limits)
register_twin(scripts.SETTLE_LIMITS, _settle_limits)
register_twin(scripts.RENEW_LIMITS, _renew_limits)
register_twin(scripts.USED_LIMITS, _used_limits)
