"""Any bytes are read alike, however they are split. Seeded and bounded, see fuzzing."""

import unittest
from collections.abc import Iterable

from deepseek_cursor_proxy.errors import ProtocolError, ProxyError
from deepseek_cursor_proxy.http1 import bodies, heads
from tests.support import hostile_requests as hostile
from tests.support.fuzzing import cases, mutated, pieces
from tests.support.request_heads import read_request_head
from tests.unit.http1.test_heads import pieces as slices
from tests.unit.http1.test_heads import splittings

LIMIT = 100_000
TABLES = (hostile.SERVED, hostile.SERVED, hostile.LINES, hostile.FIELDS, hostile.LENGTHS, hostile.CODINGS)
SEEDS = tuple(
    data
    for table in (*TABLES, hostile.CHUNKS, hostile.SMUGGLED)
    for data, _ in table
    # A mutation somewhere in a hundred kilobytes of the same byte is seldom one.
    if len(data) < 5000
)


def read_all(arriving: Iterable[bytes]) -> list[object]:
    """Every request that a connection carries, and how it ended: with a status, or for want of more bytes."""
    incoming, rest, read = iter(arriving), b"", []
    try:
        while True:
            head, rest = read_request_head(incoming, rest)
            heads.expects_continue(head)
            body, payload = bodies.body_decoder(head, LIMIT, ProtocolError), b""
            if body is not None:
                payload = body.feed(rest)
                while not body.is_complete:
                    if (more := next(incoming, None)) is None:
                        return [*read, head, "incomplete body"]
                    payload += body.feed(more)
                rest = body.rest
            read.append((head, payload))
    except heads.IncompleteHead as error:
        return [*read, "idle" if error.is_empty else "incomplete head"]
    except ProxyError as error:
        return [*read, error.status]


class TestReader(unittest.TestCase):
    def test_a_hostile_request_has_its_status_however_it_is_split(self) -> None:
        for table in (hostile.LINES, hostile.FIELDS, hostile.LENGTHS, hostile.CODINGS, hostile.CHUNKS):
            for data, status in table:
                with self.subTest(data[:100]):
                    # Large ones are not cut at every boundary.
                    cuts = (
                        splittings(data) if len(data) < 500 else (slices(data, size) for size in (len(data), 4096, 7))
                    )
                    self.assertEqual({status}, {read_all(arriving)[-1] for arriving in cuts})

    def test_any_split_of_any_bytes_is_read_alike(self) -> None:
        for name, rng in cases(1500):
            data = mutated(rng, SEEDS)
            whole = read_all([data])
            for _ in range(3):
                split = pieces(rng, data)
                self.assertEqual(whole, read_all(split), f"{name}: {data!r} as {split!r}")

    def test_a_parsed_head_is_never_ambiguous(self) -> None:
        for name, rng in cases(1500):
            data = mutated(rng, SEEDS)
            for each in read_all([data]):
                if isinstance(each, tuple):
                    head = each if isinstance(each, heads.RequestHead) else each[0]
                    text = "".join((head.method, head.target, *head.headers, *head.headers.values()))
                    self.assertFalse(set(text) & {"\r", "\n", "\0"}, f"{name}: {data!r}")
                    self.assertFalse({"content-length", "transfer-encoding"} <= set(head.headers), f"{name}: {data!r}")
