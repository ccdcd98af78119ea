"""Ports that a test names before anything listens there, or after it has: no other test gets them meanwhile.

A port that was free a moment ago may have another test's server by now.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections. On Linux a server may listen there in this block, again and again."""
    with socket.socket() as holder:
        if sys.platform == "linux":
            # There one that is bound and does not listen leaves the port to a server that names it.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@contextlib.contextmanager
def server_port() -> Iterator[int]:
    """A port for servers of this block, one after another. Only on Linux it is theirs alone."""
    with closed_port() as port:
        if sys.platform == "linux":
            yield port
    if sys.platform != "linux":
        yield port
