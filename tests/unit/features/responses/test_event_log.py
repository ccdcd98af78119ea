"""EventLog: the same bytes from any offset, while they are written and after, in little memory."""

import random
import unittest
from collections.abc import Iterable

from deepseek_cursor_proxy.features.responses.store import EventLog, unpack_events
from tests.support.traced_memory import traced_memory

DELTA = (
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,"item_id":'
    '"msg_0123456789abcdef0123456789abcdef_1","output_index":1,"content_index":0,"delta":"%s","logprobs":[]}\n\n'
)


def events(count: int) -> list[bytes]:
    draw = random.Random(4)
    return [(DELTA % (number, f"w{draw.randrange(10_000)} ")).encode() for number in range(count)]


def filled(pieces: Iterable[bytes]) -> EventLog:
    log = EventLog()
    for piece in pieces:
        log.append(piece)
    return log


class TestEventLog(unittest.TestCase):
    def test_appended_events_are_read_from_any_offset(self) -> None:
        pieces = (b"", *events(1000), b"x" * 200_000, b"\n\n", *events(3))
        log, whole = filled(pieces), b"".join(pieces)
        self.assertEqual(len(whole), len(log))
        for start in (0, 1, 65_536, 100_000, len(whole) - 1, len(whole)):
            found = b""
            while part := log.read(start + len(found)):
                found += part
            self.assertEqual(whole[start:], found)

    def test_unpack_yields_whole_events(self) -> None:
        *pieces, last = events(3000)
        found = list(unpack_events(filled(pieces).pack(last)))
        self.assertEqual(b"".join([*pieces, last]), b"".join(found))
        self.assertGreater(len(found), 1)
        self.assertTrue(all(part.endswith(b"}\n\n") for part in found))
        self.assertEqual([], list(unpack_events(EventLog().pack())))

    def test_unpack_raises_a_value_error_for_damaged_events(self) -> None:
        for damaged in (b"no zlib", b"\x78\x01" + b"\xff" * 50):
            with self.assertRaises(ValueError):
                list(unpack_events(damaged))

    def test_a_megabyte_of_text_in_small_deltas_takes_a_few_megabytes(self) -> None:
        packed = filled(events(50_000)).pack()
        self.assertLess(len(packed), 6 * 6 * 50_000)
        with traced_memory() as memory:
            for _ in unpack_events(packed):
                pass
            self.assertLess(memory.peak(), 2_000_000)
