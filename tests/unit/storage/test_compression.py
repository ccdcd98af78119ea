import random
import unittest
import zlib

from deepseek_cursor_proxy.storage.table import compress

WORDS = [b"the ", b"file ", b"reads ", b"and ", b"writes ", b"a ", b"line. "]


class TestCompress(unittest.TestCase):
    def test_zlib_reads_every_length(self) -> None:
        rng = random.Random(1)
        for size in (*range(70), 255, 256, 511, 512, 513, 32767, 32768, 40_000, 200_000):
            for data in (rng.randbytes(size), b"".join(rng.choices(WORDS, k=size))):
                self.assertEqual(data, zlib.decompress(compress(data)))

    def test_the_result_is_as_small_as_with_large_tables(self) -> None:
        rng = random.Random(2)
        for size in (10, 100, 1000, 10_000):
            data = b"".join(rng.choices(WORDS, k=size))
            self.assertLess(len(compress(data)), 1.1 * len(zlib.compress(data, 1)) + 10)

    def test_repetitions_are_found_in_the_whole_text(self) -> None:
        rng = random.Random(3)
        for size in (100, 255, 1000):
            data = rng.randbytes(size) * 2
            self.assertLess(len(compress(data)), 1.1 * size + 20)
