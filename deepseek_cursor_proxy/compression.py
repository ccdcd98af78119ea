"""zlib at its fastest level, with tables no larger than the data: most of what is stored is a few hundred bytes long.

`zlib.compress` sets up 256 kB of tables for every text, which costs five times as much as compressing a short one. Any
zlib reads the result.
"""

import zlib

_FASTEST = 1
_SMALLEST_WINDOW_BITS = 9


def compress(data: bytes | bytearray) -> bytes:
    window_bits = min(max(len(data).bit_length(), _SMALLEST_WINDOW_BITS), zlib.MAX_WBITS)
    # zlib's hash table has 2 ** (level + 7) entries.
    memory_level = window_bits - 7
    packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, window_bits, memory_level)
    return packer.compress(data) + packer.flush()
