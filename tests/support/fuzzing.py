"""Seeded mutations of bytes and of JSON values.

A case is its seed and its number, so any one can be run again alone. How many are run follows the width of the suite
(see `width`), and is exactly FUZZ_CASES where that is set; FUZZ_SEED changes all.
"""

import copy
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.width import width

# Bytes with a meaning in HTTP, and those that look like it.
_WORDS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b"\x00",
        b"\x0b",
        b":",
        b",",
        b";",
        b"0",
        b"-1",
        b"\xff",
        b"%00",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n"),
    *(b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"Expect: 100-continue\r\n", b"Host: y\r\n"),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"Connection: close\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"HEAD", b"OPTIONS", b"*", b"http://x/", b"#", b"Authorization: Bearer sk\r\n"),
)
# JSON that is wrong in nearly every place.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, 1e308, 2**63, 10**40, "", " ", "x", "\ud800", "\x00", "\u2028", "a" * 5000),
    *([], {}, [None], [[]], [{}], {"": ""}),
    *({"type": None}, {"type": "text"}, {"type": "text", "text": 7}, {"role": "user"}),
    *("tool", "assistant", "system", "user", "developer", "function", "tool_use", "tool_result", "function_call"),
    *("<details>\n<summary>Thinking</summary>\n\n", "</details>", "<think>", "data: [DONE]\n\n", '{"a":', "call_1"),
)


def cases(default: int) -> Iterator[tuple[str, random.Random]]:
    """The name of each case and its own random generator."""
    count = width(default // 5, default, default * 50)
    seed = os.environ.get("FUZZ_SEED", "0")
    for number in range(int(os.environ.get("FUZZ_CASES") or count)):
        name = f"FUZZ_SEED={seed} case {number}"
        yield name, random.Random(name)


# Bytes …


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds after one to four mutations."""
    data = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_MUTATIONS)(rng, data, seeds)
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    size = rng.choice((1, 2, 7, 64, 1000))
    cuts, at = [], 0
    while at < len(data):
        step = rng.randint(1, 2 * size)
        cuts.append(data[at : at + step])
        at += step
    return cuts


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _overwrite(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[:start] + data[end:] if rng.random() < 0.7 else data[:end]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_WORDS) * rng.choice((1, 1, 1, 2, 40)) + data[at:]


def _insert_a_line(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = data.find(b"\r\n", rng.randint(0, len(data))) + 2
    return data[:at] + rng.choice(_WORDS) + data[at:]


def _duplicate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[:end] + data[start:end] + data[end:]


def _splice(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _append(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return data + rng.choice(seeds)


_MUTATIONS = (_flip, _overwrite, _cut, _insert, _insert_a_line, _duplicate, _splice, _append)


# JSON …


def mutated_value(rng: random.Random, seeds: Sequence[Any]) -> Any:
    """One of the seeds with one to five of its parts replaced, removed, repeated, renamed or exchanged."""
    root = [copy.deepcopy(rng.choice(seeds))]
    for _ in range(rng.randint(1, 5)):
        places = list(_places(root))
        if not places:
            break
        container, key = rng.choice(places)
        rng.choice(_CHANGES)(rng, container, key, seeds)
    return root[0] if root else None


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a value, as its container and its key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(rng: random.Random, container: Any, key: Any, _: Sequence[Any]) -> None:
    container[key] = copy.deepcopy(rng.choice(_VALUES))


def _remove(rng: random.Random, container: Any, key: Any, _: Sequence[Any]) -> None:
    del container[key]


def _repeat(rng: random.Random, container: Any, key: Any, _: Sequence[Any]) -> None:
    if isinstance(container, list):
        container[key:key] = [copy.deepcopy(container[key])] * rng.choice((1, 2, 30))
    else:
        container[f"{key}_2"] = copy.deepcopy(container[key])


def _rename(rng: random.Random, container: Any, key: Any, _: Sequence[Any]) -> None:
    if isinstance(container, dict):
        container[rng.choice(("", "type", "content", "role", "input", "tools", "x" * 300))] = container.pop(key)
    else:
        rng.shuffle(container)


def _wrap(rng: random.Random, container: Any, key: Any, _: Sequence[Any]) -> None:
    container[key] = rng.choice((lambda it: [it], lambda it: {"type": it}, lambda it: [it, it], str))(container[key])


def _transplant(rng: random.Random, container: Any, key: Any, seeds: Sequence[Any]) -> None:
    other, place = rng.choice(list(_places([copy.deepcopy(rng.choice(seeds))])))
    container[key] = other[place]


_CHANGES = (_replace, _replace, _replace, _remove, _repeat, _rename, _wrap, _transplant)
