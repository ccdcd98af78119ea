import random
import unittest
from typing import Any

from deepseek_cursor_proxy.errors import TooLarge
from deepseek_cursor_proxy.features.encryption import Opener, Sealer, unseal_each
from tests.support.histories import new_chat
from tests.support.traced_memory import traced_memory

SECRET = b"s" * 32
TEXTS = ("", " ", "Let me think.", "多" * 1000, "half \ud83d", "a\x00b", "x" * 100_000)


def opened(sealer: Sealer, sealed: str) -> str | None:
    return Opener(sealer, 1_000_000).open(sealed)


class TestSealer(unittest.TestCase):
    def setUp(self) -> None:
        self.sealer = Sealer(SECRET, b"caller")

    def test_a_sealed_text_opens_again(self) -> None:
        for text in TEXTS:
            self.assertEqual(text, opened(Sealer(SECRET, b"caller"), self.sealer.seal(text)), text[:20])

    def test_equal_texts_of_one_caller_have_equal_sealed_forms(self) -> None:
        self.assertEqual(self.sealer.seal("I think"), self.sealer.seal("I think"))
        self.assertNotEqual(self.sealer.seal("I think"), self.sealer.seal("I thank"))
        self.assertNotEqual(Sealer(SECRET, b"one").seal("I think")[30:], Sealer(SECRET, b"other").seal("I think")[30:])

    def test_a_sealed_text_opens_only_with_its_secret_and_namespace(self) -> None:
        sealed = self.sealer.seal("mine")
        self.assertIsNone(opened(Sealer(SECRET, b"another"), sealed))
        self.assertIsNone(opened(Sealer(b"t" * 32, b"caller"), sealed))

    def test_sealed_bytes_open_only_for_their_use_and_at_their_place(self) -> None:
        sealer = Sealer(SECRET, b"caller", b"use")
        sealed = sealer.seal_bytes(b"text", b"place")
        self.assertEqual(b"text", sealer.open_bytes(sealed, 100, b"place"))
        for other, place in (
            (sealer, b"plac"), (sealer, b"places"), (sealer, b""), (Sealer(SECRET, b"caller", b"uses"), b"place"),
            (Sealer(SECRET, b"caller"), b"place"), (Sealer(SECRET, b"callers", b"use"), b"place"),
        ):  # fmt: skip
            self.assertIsNone(other.open_bytes(sealed, 100, place))
        # What a client holds is no row, nor the other way round.
        self.assertIsNone(sealer.open_bytes(Sealer(SECRET, b"caller").seal_bytes(b"text"), 100))
        self.assertIsNone(Sealer(SECRET, b"caller").open_bytes(sealer.seal_bytes(b"text"), 100))

    def test_a_sealed_text_with_any_change_does_not_open(self) -> None:
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

    def test_text_that_was_never_sealed_does_not_open(self) -> None:
        for text in ("", "dcp1.", "dcp1.AAAA", "gAAAAABo", "dcp2." + self.sealer.seal("x")[5:], "dcp1.\ud800"):
            self.assertIsNone(opened(self.sealer, text), text)

    def test_a_repeated_sealed_text_is_opened_once_but_counts_every_time(self) -> None:
        sealed = self.sealer.seal("多" * 1000)
        opener = Opener(self.sealer, 9000)
        texts = [opener.open(sealed) for _ in range(3)]
        self.assertEqual(1, len({id(text) for text in texts}))
        with self.assertRaisesRegex(TooLarge, "larger than 9000 bytes"):
            opener.open(sealed)

    def test_a_sealed_text_that_is_too_large_is_not_inflated_to_its_end(self) -> None:
        sealed = self.sealer.seal("x" * 50_000_000)
        self.assertLess(len(sealed), 400_000)
        with traced_memory() as memory:
            with self.assertRaises(TooLarge):
                Opener(self.sealer, 100_000).open(sealed)
            self.assertLess(memory.peak(), 3_000_000)


class TestUnsealEach(unittest.TestCase):
    """Over the JSON values of a history, with the values of a known beginning as they were."""

    def setUp(self) -> None:
        self.memory = new_chat()
        self.calls: list[Any] = []

    def unseal(self, values: list[Any], text: str | None = None) -> list[Any]:
        def unseal(value: Any) -> Any:
            self.calls.append(value)
            return value if text is None else [text, value]

        return unseal_each(values, unseal, Opener(Sealer(SECRET, b"caller"), 1000), self.memory)

    def test_what_was_unsealed_for_one_caller_is_of_no_use_to_another_with_the_same_bytes(self) -> None:
        values = [Sealer(SECRET, b"caller").seal("secret")]
        for caller, found in ((b"caller", "secret"), (b"other", None), (b"caller", "secret")):
            opener = Opener(Sealer(SECRET, caller), 1000)
            self.assertEqual([found], unseal_each(values, opener.open, opener, self.memory))

    def test_unsealed_text_counts(self) -> None:
        """A sealed reasoning is small, and the reasoning may be large."""
        self.unseal([["sealed"]], "x" * 100_000)
        self.assertLess(100_000, self.memory.size)
