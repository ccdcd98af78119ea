"""HTTP requests to HTTP replies: the table of routes, and the steps that all endpoints share.

    routes        finds the endpoint of a request, and replies to errors
    endpoints     the endpoints of the core; imported with their first request
    endpoint      the base of all endpoints: admit the caller, decode the body, open an exchange, reply; Writer
    clients       which client sends a request, where it keeps its key

Other folders import routes; `server` also imports the chat endpoint, ahead of the first chat.
"""
