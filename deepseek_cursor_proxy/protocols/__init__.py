"""The APIs of clients: their JSON in, a ChatRequest out; deltas in, their JSON and events out. No I/O.

Every body, whatever its API, is read by `request`, which accepts any shape:

    request              the entrance; the plain fields of a body, whether to think and with which effort
    messages             chat messages, with the content of any API
    input_items          the items of the Responses API
    tools                tools of every shape, the names of those in namespaces, and calls that take free text

Each API rewrites its own fields for `request`, and writes its answers with a Writer (begin, write, end, fail):
`chat_writer` that of chat completions, `features/responses` and `features/messages` those of the others.
"""
