"""HTTP requests to HTTP replies: the table of routes, and the steps that all endpoints share.

    routes        finds the endpoint of a request, and replies to errors
    endpoints     the endpoints, a file for each API; imported with their first request
    endpoint      their base: admit the caller, decode the body, open an exchange, reply
    reply         an answer as an HTTP reply, and what a protocol's Writer is
    passthrough   models of another upstream
    clients       which client sends a request, where it keeps its key

Other folders import routes; `server` also imports the chat endpoint, ahead of the first chat.
"""
