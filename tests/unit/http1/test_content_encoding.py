import gzip
import random
import unittest
import zlib

from deepseek_cursor_proxy.http1.bodies import ContentDecoder, DecodedTooLarge, can_decode


class TestUnpacker(unittest.TestCase):
    def test_every_known_coding_is_decoded_in_any_pieces(self) -> None:
        data = bytes(range(256)) * 50
        zipped = gzip.compress(data)
        codings = {"": data, "identity": data, "gzip": zipped, "x-gzip": zipped, "deflate": zlib.compress(data)}
        for coding, packed in codings.items():
            for step in (1, 7, len(packed)):
                with self.subTest(coding=coding, step=step):
                    decoder = ContentDecoder(coding, len(data))
                    pieces = [decoder.decode(packed[start : start + step]) for start in range(0, len(packed), step)]
                    self.assertEqual(data, b"".join(pieces))
                    self.assertTrue(decoder.is_complete)

    def test_content_is_stopped_at_the_limit_encoded_or_not(self) -> None:
        with self.assertRaises(DecodedTooLarge):
            ContentDecoder("gzip", 1000).decode(gzip.compress(b"\0" * 10_000_000))
        with self.assertRaises(DecodedTooLarge):
            ContentDecoder("", 3).decode(b"four")

    def test_what_compresses_well_is_decoded_in_bounded_pieces(self) -> None:
        data = random.Random(1).randbytes(40) * 25_000
        decoder = ContentDecoder("gzip", len(data))
        pieces = list(decoder.decode_pieces(gzip.compress(data)))
        self.assertEqual(data, b"".join(pieces))
        self.assertLessEqual(max(map(len, pieces)), 64 * 1024)
        self.assertTrue(decoder.is_complete)

    def test_a_bomb_is_stopped_long_before_the_limit(self) -> None:
        """A gigabyte of empty lines, within the limit of a stream, would keep its reader busy for minutes."""
        bomb, decoder = gzip.compress(b"\n" * 20_000_000), ContentDecoder("gzip", 1024**3)
        given = 0
        with self.assertRaises(DecodedTooLarge):
            for piece in decoder.decode_pieces(bomb):
                given += len(piece)
        self.assertLess(given, 3_000_000)

    def test_text_that_compresses_as_text_does_is_no_bomb(self) -> None:
        chunk = '{"id":"5f3a","object":"chat.completion.chunk","model":"m","choices":[{"delta":{"content":"%d"}}]}'
        data = "".join(chunk % random.Random(at).randrange(10**5) for at in range(20_000)).encode()
        self.assertEqual(data, ContentDecoder("gzip", len(data)).decode(gzip.compress(data, 9)))

    def test_several_gzip_members_are_one_content(self) -> None:
        packed = gzip.compress(b"one ") + gzip.compress(b"two")
        for step in (1, len(packed)):
            decoder = ContentDecoder("gzip", 100)
            pieces = [decoder.decode(packed[start : start + step]) for start in range(0, len(packed), step)]
            self.assertEqual(b"one two", b"".join(pieces))

    def test_damaged_gzip_and_bytes_after_it_that_are_no_few_more_members_are_an_error(self) -> None:
        """A finished decompressor piles up whatever it is fed, at quadratic cost."""
        member = gzip.compress(b"{}")
        for data in (b"no gzip", member + b"\0" * 100, member + b"junk", member + gzip.compress(b"") * 100):
            with self.subTest(data[:30]), self.assertRaises(ValueError):
                ContentDecoder("gzip", 1000).decode(data)

    def test_half_a_gzip_is_not_complete(self) -> None:
        decoder = ContentDecoder("gzip", 1000)
        decoder.decode(gzip.compress(b"hello")[:-4])
        self.assertFalse(decoder.is_complete)

    def test_unknown_codings_cannot_be_decoded(self) -> None:
        self.assertTrue(can_decode("gzip"))
        self.assertFalse(can_decode("br"))
