"""zlib at its fastest level, with tables of about the size of the data: most texts that are stored are short.

`zlib.compress` sets up 256 kB of tables for every text; where the allocator has given them back to the system since the
last one, that costs five times as much as compressing a few hundred bytes. Any zlib reads the result.
"""

import zlib

_FASTEST = 1
_SMALLEST_WINDOW_BITS = 9
# What zlib keeps of a window for the bytes ahead: repetitions are found in the rest.
_BYTES_AHEAD = 262


def compress(data: bytes | bytearray) -> bytes:
    window_bits = min(max((len(data) + _BYTES_AHEAD).bit_length(), _SMALLEST_WINDOW_BITS), zlib.MAX_WBITS)
    # zlib's hash table has 2 ** (level + 7) entries.
    memory_level = window_bits - 7
    packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, window_bits, memory_level)
    return packer.compress(data) + packer.flush()
