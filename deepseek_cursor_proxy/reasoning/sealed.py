"""Reasoning in an envelope that the client keeps for us: opaque to it, and proof against it.

What is sealed for one caller by one installation opens again there and nowhere else; anything else, a single changed
character included, opens as None and is ignored. So a client that keeps its envelopes brings its whole history to a
proxy that has lost everything but its secret.

    dcp1.<base64 of: 16 bytes of seal, then the packed text under a key stream>

The seal is an HMAC over the packed text, and the key stream is drawn from the seal: the same text gets the same
envelope, nothing random is needed, and what was not sealed here is found out before it is unpacked.
"""

import binascii
import hashlib
import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from deepseek_cursor_proxy.errors import TooLarge

_VERSION = "dcp1."
_SEAL_BYTES = 16


class Sealer:
    """Seals and opens for one caller. Holds nothing that changes."""

    def __init__(self, secret: bytes, caller: bytes) -> None:
        # The same for everybody who opens the same envelopes.
        self.owner = caller, hashlib.sha256(secret).digest()
        self._seal_key = hmac.digest(secret, b"seal" + caller, "sha256")
        self._stream_key = hmac.digest(secret, b"stream" + caller, "sha256")

    def sealed(self, reasoning: str) -> str:
        # Half of a character, as a stopped answer may end with, has to come back as well.
        packed = zlib.compress(reasoning.encode("utf-8", "surrogatepass"), 1)
        seal = self._seal(packed)
        return _VERSION + urlsafe_b64encode(seal + self._under_stream(packed, seal)).decode()

    def opened(self, sealed: str, most: int) -> bytes | None:
        """The reasoning in UTF-8, cut one byte behind `most`; None for what is not sealed by us for this caller."""
        if not sealed.startswith(_VERSION):
            return None
        try:
            written = sealed.removeprefix(_VERSION).encode("ascii")
            raw = urlsafe_b64decode(written)
        except (binascii.Error, UnicodeEncodeError):
            return None
        if urlsafe_b64encode(raw) != written:
            # Python reads over characters that have no business there.
            return None
        seal, packed = raw[:_SEAL_BYTES], self._under_stream(raw[_SEAL_BYTES:], raw[:_SEAL_BYTES])
        if not hmac.compare_digest(seal, self._seal(packed)):
            return None
        return zlib.decompressobj().decompress(packed, most + 1)

    def _seal(self, packed: bytes) -> bytes:
        return hmac.digest(self._seal_key, packed, "sha256")[:_SEAL_BYTES]

    def _under_stream(self, data: bytes, seal: bytes) -> bytes:
        """The data with the key stream laid over it, which also takes it off again."""
        stream = hashlib.shake_256(self._stream_key + seal).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


class Opener:
    """Opens the envelopes of one request, which may bring one envelope many times. Used by one thread.

    A few kilobytes may hold megabytes, so the sum of what is opened is bounded; each envelope is opened once.
    """

    def __init__(self, sealer: Sealer, most_bytes: int) -> None:
        self.owner = sealer.owner
        self._sealer = sealer
        self._most = self._left = most_bytes
        self._known: dict[str, _Opened | None] = {}

    def opened(self, sealed: str) -> str | None:
        """The reasoning; None for whatever is not sealed by us for this caller. TooLarge when it is too much."""
        if sealed not in self._known:
            self._known[sealed] = self._open(sealed)
        found = self._known[sealed]
        if found is None:
            return None
        self._left -= found.size
        if self._left < 0:
            raise self._too_large()
        return found.text

    def _open(self, sealed: str) -> "_Opened | None":
        raw = self._sealer.opened(sealed, self._left)
        if raw is None:
            return None
        if len(raw) > self._left:
            raise self._too_large()
        return _Opened(raw.decode("utf-8", "surrogatepass"), len(raw))

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"The sealed reasoning in this request is larger than {self._most} bytes when it is opened. Start a new "
            "chat, or send every reasoning once."
        )


class _Opened(NamedTuple):
    text: str
    size: int
