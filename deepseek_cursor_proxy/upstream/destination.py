"""Where a call goes, and how people are told about it when it fails."""

from typing import NamedTuple


class Destination(NamedTuple):
    """Where a call goes: its URL, what to call the other side in a message, and the setting to look at."""

    url: str
    name: str = "DeepSeek"
    setting: str = "--base-url"
