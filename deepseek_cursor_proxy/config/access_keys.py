"""Access keys, kept as digests only.

A key is digested where it is read, so nothing that prints, logs or compares settings can reveal it. The digest is plain
SHA-256, so that other tools can make one: `printf %s "$KEY" | sha256sum`. Who is served is decided in `access`.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from deepseek_cursor_proxy.errors import StartupError

# Visible ASCII: any other character could inject a header.
_CREDENTIAL = re.compile(r"[\x21-\x7e]{1,4096}")
_DIGEST = r"(?i)sha256:([0-9a-f]{64})"
# Words and dates are shorter; 16 random characters cannot be guessed by asking a server.
_GUESSABLE_LENGTH = 15
# A `y` is the answer to another question.
_SHORTEST_TYPED = 8


@dataclass(frozen=True)
class AccessKey:
    """A key by its digest; `is_guessable` when the key itself was given and is short."""

    digest: bytes = field(repr=False)
    is_guessable: bool = False

    # A client sends the same key with every request.
    @staticmethod
    @lru_cache(64)
    def of(credential: str) -> "AccessKey":
        # Imported late: it loads OpenSSL, which a proxy without access_keys does not need to start.
        import hashlib

        digest = hashlib.sha256(credential.encode()).digest()
        return AccessKey(digest, is_guessable=len(credential) <= _GUESSABLE_LENGTH)

    @property
    def line(self) -> str:
        """The digest as an entry of access_keys."""
        return f"sha256:{self.digest.hex()}"

    def __str__(self) -> str:
        """Enough of the digest to tell two keys apart."""
        return f"sha256:{self.digest.hex()[:12]}…"


# A client sends the same key with every request.
@lru_cache(64)
def is_credential(text: str) -> bool:
    return _CREDENTIAL.fullmatch(text) is not None


def is_anthropic_key(text: str) -> bool:
    """Whether a key is one of Anthropic's: it must not reach another company because a variable was left set."""
    # Files of variables may keep the quotes around a value.
    return text.lstrip("\"'")[:7].lower() == "sk-ant-"


def why_not_sendable(key: str) -> str:
    """Why a key is not sent to DeepSeek; empty if it may be."""
    if not is_credential(key):
        return "that is not a key: one line of visible ASCII without spaces"
    return "that is a key of Anthropic (sk-ant-…), which is never sent to DeepSeek" if is_anthropic_key(key) else ""


def why_not_plausible(key: str) -> str:
    """Why a typed text is probably no key; empty if it may be one."""
    return why_not_sendable(key) or ("that is too short for a key" if len(key) < _SHORTEST_TYPED else "")


def access_key(key: str, value: Any, origin: str) -> AccessKey:
    """Parse an entry of access_keys, a key or its digest. No error repeats it."""
    if isinstance(value, AccessKey):
        return value
    if not isinstance(value, str):
        raise StartupError(f"config: {key} has an entry that is not a text ({origin})")
    if not value.strip():
        raise StartupError(f"config: {key} has an empty entry, which would be no protection; remove it ({origin})")
    if digest := re.fullmatch(_DIGEST, value):
        return AccessKey(bytes.fromhex(digest[1]))
    if value.lower().startswith("sha256:"):
        allowed = "64 hexadecimal digits behind sha256:"
        raise StartupError(f"config: {key} has a digest without {allowed}; `access-key` makes one ({origin})")
    if not is_credential(value):
        why = "a key with a space or a character that is no visible ASCII, or a very long one"
        raise StartupError(f"config: {key} has {why} ({origin})")
    return AccessKey.of(value)


def new_key() -> str:
    """A new random key; some editors accept only keys that begin like OpenAI's."""
    import secrets

    return f"sk-{secrets.token_urlsafe(32)}"
