"""Sealed reasoning: encrypted and authenticated, so that the client can store it for us but not read or change it.

Sealed text opens only for the same caller of the same installation; for anything else, a single changed character
included, `open` gives None. So a client that sends its sealed reasoning back restores its whole history, even if the
store is lost and only the installation's secret is left.

    dcp1.<base64 of: 16 bytes of HMAC, then the compressed text XORed with a key stream>

The HMAC is over the compressed text, and the key stream is derived from the HMAC: equal texts have equal sealed texts,
nothing random is needed, and data that we did not seal is refused before it is decompressed. Rows on an engine are
sealed alike, with keys of their own for each use. Each is bound to the place where it stands, which the HMAC covers: at
another place it does not open.
"""

import binascii
import hashlib
import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Lookup, Stage, json_size
from deepseek_cursor_proxy.errors import TooLarge
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.storage.table import compress

_VERSION = "dcp1."
_SEAL_BYTES = 16
_UNSEAL: Stage[Any, list[Any]] = Stage("unseal", is_of_json=True)


class Sealer:
    """Seals and opens for one caller and one use; what clients keep is sealed for the use without a name. Immutable."""

    def __init__(self, secret: bytes, caller: bytes, use: bytes = b"") -> None:
        # Equal for sealers that open the same texts.
        self.owner = caller, hashlib.sha256(secret).digest()
        self._seal_key = hmac.digest(secret, b"seal" + use + caller, "sha256")
        self._stream_key = hmac.digest(secret, b"stream" + use + caller, "sha256")

    def seal(self, reasoning: str) -> str:
        # A stopped answer may end with half of a surrogate pair.
        return _VERSION + urlsafe_b64encode(self.seal_bytes(reasoning.encode("utf-8", "surrogatepass"))).decode()

    def seal_bytes(self, data: bytes, place: bytes = b"") -> bytes:
        packed = compress(data)
        seal = self.tag(place, packed)
        return seal + self._xor_stream(packed, seal)

    def open(self, sealed: str, most: int) -> bytes | None:
        """The reasoning in UTF-8, cut one byte after `most`; None unless we sealed it for this caller."""
        if not sealed.startswith(_VERSION):
            return None
        try:
            encoded = sealed.removeprefix(_VERSION).encode("ascii")
            raw = urlsafe_b64decode(encoded)
        except (binascii.Error, UnicodeEncodeError):
            return None
        if urlsafe_b64encode(raw) != encoded:
            # Python skips characters that are not of the alphabet.
            return None
        return self.open_bytes(raw, most)

    def open_bytes(self, raw: bytes, most: int, place: bytes = b"") -> bytes | None:
        seal, packed = raw[:_SEAL_BYTES], self._xor_stream(raw[_SEAL_BYTES:], raw[:_SEAL_BYTES])
        if not hmac.compare_digest(seal, self.tag(place, packed)):
            return None
        return zlib.decompressobj().decompress(packed, most + 1)

    def tag(self, place: bytes, packed: bytes = b"") -> bytes:
        """The HMAC of a place and what stands there; the length keeps the two apart."""
        return hmac.digest(self._seal_key, len(place).to_bytes(4) + place + packed, "sha256")[:_SEAL_BYTES]

    def _xor_stream(self, data: bytes, seal: bytes) -> bytes:
        """Encrypt or decrypt."""
        stream = hashlib.shake_256(self._stream_key + seal).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


class Opener:
    """Opens the texts of one request, each once, up to a sum: kilobytes may hold megabytes. Used by one thread."""

    def __init__(self, sealer: Sealer, most_bytes: int) -> None:
        self.owner = sealer.owner
        self._sealer = sealer
        self._most = self._left = most_bytes
        # The opened texts, each with its size in bytes.
        self._known: dict[str, tuple[str, int]] = {}

    def open(self, sealed: str) -> str | None:
        """The reasoning; None unless we sealed it for this caller. Raises TooLarge if the sum is too large."""
        if sealed in self._known:
            text, size = self._known[sealed]
            self._spend(size)
            return text
        raw = self._sealer.open(sealed, self._left)
        if raw is None:
            return None
        self._spend(len(raw))
        text = raw.decode("utf-8", "surrogatepass")
        self._known[sealed] = text, len(raw)
        return text

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"The sealed reasoning in this request is larger than {self._most} bytes when it is opened. Start a "
                "new chat, or send every reasoning once."
            )


def unseal_each(
    values: Sequence[Any], unseal: Callable[[Any], Any], opener: Opener, memory: Chat = NO_CHAT
) -> list[Any]:
    """Each of the JSON values after `unseal`, which uses the opener and returns a value without a seal as it is.

    The last value of a request may come back in other bytes and mean the same, as Claude Code moves its marks. If it is
    unsealed to the same JSON, it is the same object as before: the stages that follow know the chat by its objects.
    """
    known = memory.entries.get(_UNSEAL)
    former: list[Any] = []
    count = size = 0
    if known is not None and known.conditions == opener.owner:
        former, count, size = known.result, known.count_same(values), known.size
    result = former[:count]
    for at, value in enumerate(values[count:], count):
        unsealed = unseal(value)
        size += json_size(unsealed)
        is_former = at < len(former) and encode_json(former[at]) == encode_json(unsealed)
        result.append(former[at] if is_former else unsealed)
    Lookup(memory, _UNSEAL, values, opener.owner).store(result, size)
    return result.copy()
