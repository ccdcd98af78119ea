"""The HTTP server. Other folders, and programs outside, import DeepSeekProxyServer and DeepSeekProxyHandler from here.

    connection   one client, on one thread, from accept to close (`connections`)
    request      its head, and a body that is read when the app calls for it
    exchange     one generation, opened by the app (`exchange/`)
    attempt      one call of it to an upstream (`exchange/`, `upstream/`)
    answer       a reply: bytes, or a body that the connection's thread pulls through the generators of an exchange

The invariant: everything that is done for a client is done on the thread of its connection, in calls below `serve`.
That thread waits in `net/wait` and nowhere else, so it notices within moments that the client has left or that the
proxy stops; then the wait raises, and every caller releases what it has on the way up.
Exceptions: the answers of `n` > 1 and background responses have threads of their own, and what an answer leaves behind
is written by those of `storage`.
"""

from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer

__all__ = ["DeepSeekProxyHandler", "DeepSeekProxyServer"]
