"""Where a call goes: the Destination of a request, and the Origin of the connection that carries it."""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class Destination(NamedTuple):
    """The URL and method of a call, the name of the other side in error messages, the setting that these point to."""

    url: str
    name: str = "DeepSeek"
    setting: str = "--base-url"
    method: str = "POST"

    @property
    def origin(self) -> Origin:
        return _origin(self.url)


@lru_cache(64)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Origin(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
