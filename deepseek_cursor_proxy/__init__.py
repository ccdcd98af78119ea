"""A local reverse proxy that makes DeepSeek's thinking models work in Cursor and other coding agents.

A request passes this list from the top, its reply from the bottom; no folder imports one above it:

    cli         commands; serve, signals; set-up, doctor, service, tunnel, demo
    proxy       puts core and features together
    features    Responses, Messages, web search, sessions, usage, named keys, Redis, dashboard, traces and others
    server      accept connections, read requests, send replies
    api         routes and endpoints: chat completions, models
    exchange    one generation: restore the reasoning, call DeepSeek, store the new reasoning, yield deltas
    observers   events of a request; console, request log
    protocols   the JSON of clients <-> the canonical conversation
    reasoning   identify a turn, restore its reasoning, show it, strip it again; compare a chat with its last request
    upstream    calls to DeepSeek: connect, pool, limit, read the response
    storage     one SQLite file: reasonings, learned values
    deepseek    what DeepSeek accepts and sends; errors, model names, prices
    net, http1  waiting on sockets; HTTP as bytes
    config      every setting, declared once

Files for all of them: `conversation` has the values that travel (Message, ChatRequest, Delta), `access` decides who may
use the proxy, `errors` has every failure with its status. `chat_memory` only saves time: a chat sends nearly all of its
messages again. tests/test_architecture.py says which folder imports which.
Read first: conversation, reasoning/identity, reasoning/restore, exchange/exchange, api/routes.
"""

__version__ = "0.1.0"
