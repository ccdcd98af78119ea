import random
import tracemalloc
import unittest

from deepseek_cursor_proxy.errors import TooLarge
from deepseek_cursor_proxy.reasoning.sealed import Opener, Sealer

SECRET = b"s" * 32
TEXTS = ("", " ", "Let me think.", "多" * 1000, "half \ud83d", "a\x00b", "x" * 100_000)


def opened(sealer: Sealer, sealed: str) -> str | None:
    return Opener(sealer, 1_000_000).open(sealed)


class TestSealing(unittest.TestCase):
    def setUp(self) -> None:
        self.sealer = Sealer(SECRET, b"caller")

    def test_what_is_sealed_opens_again(self) -> None:
        for text in TEXTS:
            with self.subTest(text[:20]):
                self.assertEqual(text, opened(Sealer(SECRET, b"caller"), self.sealer.seal(text)))

    def test_the_same_text_has_the_same_envelope(self) -> None:
        self.assertEqual(self.sealer.seal("I think"), self.sealer.seal("I think"))
        self.assertNotEqual(self.sealer.seal("I think"), self.sealer.seal("I thank"))

    def test_the_text_cannot_be_read_in_the_envelope(self) -> None:
        self.assertNotEqual(Sealer(SECRET, b"one").seal("I think")[30:], Sealer(SECRET, b"other").seal("I think")[30:])

    def test_nobody_else_opens_it(self) -> None:
        sealed = self.sealer.seal("mine")
        self.assertIsNone(opened(Sealer(SECRET, b"another"), sealed))
        self.assertIsNone(opened(Sealer(b"t" * 32, b"caller"), sealed))

    def test_every_change_is_found_out(self) -> None:
        sealed = self.sealer.seal("I think, therefore I am.")
        alphabet = "ABCabc012-_=.é \n"
        draw = random.Random(6)
        for _ in range(500):
            at, char = draw.randrange(len(sealed)), draw.choice(alphabet)
            head, tail = sealed[:at], sealed[at:]
            damaged = draw.choice((head + char + tail[1:], head, head + char + tail))
            with self.subTest(damaged):
                expected = "I think, therefore I am." if damaged == sealed else None
                self.assertEqual(expected, opened(self.sealer, damaged))

    def test_what_never_was_an_envelope_is_none(self) -> None:
        for text in ("", "dcp1.", "dcp1.AAAA", "gAAAAABo", "dcp2." + self.sealer.seal("x")[5:], "dcp1.\ud800"):
            with self.subTest(text):
                self.assertIsNone(opened(self.sealer, text))

    def test_an_envelope_that_comes_many_times_counts_every_time_and_is_opened_once(self) -> None:
        sealed = self.sealer.seal("多" * 1000)
        opener = Opener(self.sealer, 9000)
        texts = [opener.open(sealed) for _ in range(3)]
        self.assertEqual(1, len({id(text) for text in texts}))
        with self.assertRaisesRegex(TooLarge, "larger than 9000 bytes"):
            opener.open(sealed)

    def test_an_envelope_that_holds_too_much_is_not_opened_to_its_end(self) -> None:
        sealed = self.sealer.seal("x" * 50_000_000)
        self.assertLess(len(sealed), 400_000)
        tracemalloc.start()
        try:
            with self.assertRaises(TooLarge):
                Opener(self.sealer, 100_000).open(sealed)
            self.assertLess(tracemalloc.get_traced_memory()[1], 3_000_000)
        finally:
            tracemalloc.stop()
