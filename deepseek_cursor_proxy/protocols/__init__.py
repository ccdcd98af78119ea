"""The APIs of clients: their JSON in, a ChatRequest out; deltas in, their JSON and events out. No I/O.

Every body, whatever its API, is read by `request`, which accepts any shape:

    request              the entrance; the plain fields of a body, whether to think and with which effort
    messages             chat messages, with the content of any API
    input_items          the items of the Responses API
    tools                tools of every shape, the names of those in namespaces, and calls that take free text

The files of an API rewrite its own fields for `request`, and write its answers with a Writer (begin, write, end, fail).
Those of two APIs never import each other:

    chat_writer          chat completions
    responses_envelope   Responses: the options of a request, and the response object around its answer
    responses_writer     its output items and its events
    anthropic_request    Messages: what only it has in a request
    anthropic_writer     its events; anthropic_errors its failures
"""
