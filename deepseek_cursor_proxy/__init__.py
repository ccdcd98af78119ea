"""A local reverse proxy that makes DeepSeek's thinking models work in Cursor.

A request walks in through six doors, and the reply walks out through the same doors in reverse:

    server      bytes <-> HttpRequest / HttpReply (http1 reads the bytes)
    app         routes, keys, errors
    protocols   the client's dialect <-> the canonical conversation
    reasoning   identity -> restore -> recovery on the way in, record -> display on the way out
    deepseek    the canonical conversation <-> DeepSeek's dialect
    upstream    one call to DeepSeek, over a pool of kept-alive connections

`exchange` (with `calling`, its first half) is the corridor that calls them in this order; `observers` look on and never
steer. On the way in, `tool_history` repairs and `tool_order` sorts what goes to DeepSeek.
Reading order: conversation, reasoning/identity, reasoning/restore, exchange, app; then whatever you need.
"""

__version__ = "0.1.0"
