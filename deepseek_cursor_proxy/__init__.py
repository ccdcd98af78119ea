"""A local reverse proxy that makes DeepSeek's thinking models work in Cursor and other coding agents.

A request walks in from the top of this list and its reply walks back; no folder imports one above it:

    cli         commands; serve, signals, tunnel
    server      accept connections, read requests, send replies
    api         routes and endpoints: chat completions, Responses, Messages, models, passthrough
    exchange    one generation: prepare, call, remember, hand on
    observers   the events of an exchange; console and traces
    protocols   the JSON of clients <-> the canonical conversation
    chats       the request before this one: tool order, divergence
    reasoning   identify a turn, restore its reasoning, show it, take it out again
    upstream    calls to DeepSeek over kept connections
    tokens      counting
    storage     one SQLite file
    deepseek    what DeepSeek accepts, wants and says
    net, http1  waiting on sockets; HTTP as bytes
    config      every setting, declared once

`conversation` has the values that travel: Message, ChatRequest, Delta. `lab` has the made-up DeepSeek, the demo and
the benchmark. tests/test_architecture.py says which folder imports which.
Reading order: conversation, reasoning/identity, reasoning/restore, exchange/exchange, api/routes; then what you need.
"""

__version__ = "0.1.0"
