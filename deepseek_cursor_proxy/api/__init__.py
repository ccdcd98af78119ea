"""HTTP requests to HTTP replies: the table of routes, and the steps that all endpoints share.

    routes              finds the endpoint of a request, and answers what goes wrong
    endpoints           the endpoints, a file for each API; imported with their first request
    endpoint            their base: admit the caller, decode the body, open an exchange, reply
    incremental_json    the body as JSON
    reply               an answer as an HTTP reply, and what a protocol's Writer is
    described_exchange  an exchange whose pictures are put into words first
    passthrough         models of another upstream
    clients             which client sends a request, where it keeps its key
    error_reply         an error as an HTTP reply

Other folders import routes; `server` also imports the chat endpoint, ahead of the first chat.
"""
