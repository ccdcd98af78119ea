"""The values of flags that are no settings, for argparse: a text in, the value or an error of one line out."""

import argparse
import contextlib
from urllib.parse import urlsplit


def minutes(text: str) -> float:
    """A number of minutes up to a week; more is a typing error."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 7 * 24 * 60:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes, such as 10 or 0.5")


def moment(text: str) -> float:
    """A day or a time of this machine's clock."""
    from datetime import datetime

    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    raise argparse.ArgumentTypeError(f"{text!r} is no date, such as 2026-11-17 or 2026-11-17T08:00")


def named_url(text: str) -> tuple[str, str]:
    """A column of the table and its base URL, which is plain http."""
    name, _, url = text.partition("=")
    with contextlib.suppress(ValueError):
        address = urlsplit(url)
        if name.strip() and address.scheme == "http" and address.hostname and address.port != 0:
            return name.strip(), url
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as other=http://127.0.0.1:9001")


def port(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 < int(text) < 65536:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: a whole number from 1 to 65535")


def root_url(text: str) -> str:
    """The address of a proxy, without /v1 at its end."""
    with contextlib.suppress(ValueError):
        address = urlsplit(text)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0 and not address.query:
            return text.rstrip("/").removesuffix("/v1").rstrip("/")
    raise argparse.ArgumentTypeError(f"{text!r} is not the address of a proxy, such as http://127.0.0.1:9000")
