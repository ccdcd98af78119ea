"""A local reverse proxy that makes DeepSeek's thinking models work in Cursor and other coding agents.

A request passes this list from the top, its reply from the bottom; no folder imports one above it:

    cli         commands; serve, signals; set-up, doctor, service, tunnel, demo
    admin       a second listener for the owner: dashboard, metrics, health
    server      accept connections, read requests, send replies
    api         routes and endpoints: chat completions, Responses, Messages, models, passthrough
    exchange    one generation: restore the reasoning, call DeepSeek, store the new reasoning, yield deltas
    sessions    trajectories, recorded and exported
    usage       the ledger of requests and costs; prices
    observers   events of a request; console, traces
    protocols   the JSON of clients <-> the canonical conversation
    reasoning   identify a turn, restore its reasoning, show it, take it out again; compare a chat with its last request
    upstream    calls to DeepSeek: connect, pool, limit, retry, read the response
    tokens      counting prompt tokens
    storage     one SQLite file: reasonings, responses, usage
    deepseek    what DeepSeek accepts and sends; errors, model names
    net, http1  waiting on sockets; HTTP as bytes
    config      every setting, declared once

Files that all of them may use: `conversation` has the values that travel (Message, ChatRequest, Delta), `access` says
who may use the proxy, `errors` what a client reads of a failure. `chat_memory` only saves time: a chat sends nearly all
of its messages again. tests/test_architecture.py says which folder imports which.
Reading order: conversation, reasoning/identity, reasoning/restore, exchange/exchange, api/routes; then what you need.
"""

__version__ = "0.1.0"
