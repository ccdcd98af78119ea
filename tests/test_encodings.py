import gzip
import unittest
import zlib

from deepseek_cursor_proxy.encodings import TooMuch, Unpacker, is_known


class TestUnpacker(unittest.TestCase):
    def test_every_known_coding_is_undone_in_any_pieces(self) -> None:
        data = bytes(range(256)) * 50
        for coding, packed in {
            "": data,
            "identity": data,
            "gzip": gzip.compress(data),
            "x-gzip": gzip.compress(data),
            "deflate": zlib.compress(data),
        }.items():
            for step in (1, 7, len(packed)):
                with self.subTest(coding=coding, step=step):
                    unpack = Unpacker(coding, len(data))
                    pieces = [unpack.feed(packed[start : start + step]) for start in range(0, len(packed), step)]
                    self.assertEqual(data, b"".join(pieces))
                    self.assertTrue(unpack.is_complete)

    def test_a_bomb_is_stopped_at_the_limit(self) -> None:
        with self.assertRaises(TooMuch):
            Unpacker("gzip", 1000).feed(gzip.compress(b"\0" * 10_000_000))

    def test_plain_content_has_the_same_limit(self) -> None:
        with self.assertRaises(TooMuch):
            Unpacker("", 3).feed(b"four")

    def test_damage_is_an_error(self) -> None:
        with self.assertRaises(ValueError):
            Unpacker("gzip", 1000).feed(b"this is not gzip")

    def test_half_a_gzip_is_not_complete(self) -> None:
        unpack = Unpacker("gzip", 1000)
        unpack.feed(gzip.compress(b"hello")[:-4])
        self.assertFalse(unpack.is_complete)

    def test_unknown_codings_are_told_apart(self) -> None:
        self.assertTrue(is_known("gzip"))
        self.assertFalse(is_known("br"))
