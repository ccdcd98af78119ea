"""The values of flags that are no settings, for argparse: a text in, the value or an error of one line out."""

import argparse
import contextlib
from urllib.parse import urlsplit


def moment(text: str) -> float:
    """A day or a time of this machine's clock."""
    from datetime import datetime

    # The others are for years that the system does not know.
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    raise argparse.ArgumentTypeError(f"{text!r} is no date, such as 2026-11-17 or 2026-11-17T08:00")


def root_url(text: str) -> str:
    """The address of a proxy, without /v1 at its end."""
    with contextlib.suppress(ValueError):
        address = urlsplit(text)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0 and not address.query:
            return text.rstrip("/").removesuffix("/v1").rstrip("/")
    raise argparse.ArgumentTypeError(f"{text!r} is not the address of a proxy, such as http://127.0.0.1:9000")
