"""The script of the status line: Claude Code's JSON in, one line out; nothing if no proxy answers.

Claude Code runs it after every message, so it stands alone and imports little. It asks the proxy that Claude Code uses,
with the same key: both are in its environment. That takes no settings and no store.
"""

import json
import os
import socket
import sys

# Claude Code waits for the line.
_SECONDS = 0.5


def main() -> None:
    try:
        chat = json.load(sys.stdin.buffer)["session_id"]
        scheme, _, address = os.environ["ANTHROPIC_BASE_URL"].rstrip("/").partition("://")
        host, _, port = address.partition(":")
        if scheme == "http" and chat.replace("-", "").isalnum():
            key = os.environ["ANTHROPIC_AUTH_TOKEN"]
            sys.stdout.buffer.write(_ask(host, int(port or 80), f"/v1/status-line/{chat}", key))
    except (KeyError, TypeError, AttributeError, ValueError, OSError):
        # Claude Code then shows no line.
        pass


def _ask(host: str, port: int, path: str, key: str) -> bytes:
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    reply = b""
    with socket.create_connection((host, port), _SECONDS) as connection:
        connection.sendall(request.encode("latin-1"))
        while piece := connection.recv(4096):
            reply += piece
    head, _, body = reply.partition(b"\r\n\r\n")
    return body if head.startswith(b"HTTP/1.1 200 ") else b""


if __name__ == "__main__":
    main()
