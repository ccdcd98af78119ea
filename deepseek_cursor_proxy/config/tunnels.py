"""The values of `tunnel` and `tunnel_url`."""

import re
from typing import Any

from deepseek_cursor_proxy.config.declaration import refusal
from deepseek_cursor_proxy.config.values import is_base_url, is_private

TUNNELS = ("on", "off", "ngrok", "cloudflared", "tailscale", "ssh", "ssh:HOST")
# A host as ssh takes it, perhaps with a user: no option, no blank.
_SSH_HOST = re.compile(r"ssh:(?!-)[A-Za-z0-9._%+-]+(?:@(?!-)[A-Za-z0-9._:\[\]-]+)?")


def tunnel_choice(key: str, value: Any, origin: str) -> str:
    """Check a value of `tunnel`: a program, ssh with a host, or `on` for the first that is installed."""
    text = str(value)
    if text not in TUNNELS[:-1] and not _SSH_HOST.fullmatch(text):
        raise refusal(key, value, f"is not one of {', '.join(TUNNELS)}", origin)
    return text


def tunnel_address(key: str, value: Any, origin: str) -> str:
    """Check a value of `tunnel_url`: an https address without a path; /v1 at its end is what people paste elsewhere."""
    url = str(value) if "://" in str(value) else f"https://{value}"
    url = url.rstrip("/").removesuffix("/v1")
    if not (is_base_url(url) and is_private(url) and url.count("/") == 2):
        raise refusal(key, value, "is not an https address such as https://proxy.example.com", origin)
    return url
