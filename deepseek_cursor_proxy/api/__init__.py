"""HTTP requests to HTTP replies: the table of routes, and the steps that all endpoints share.

    routes        finds the endpoint of a request, and replies to errors
    endpoint      the base of all endpoints: admit the caller, decode the body, open an exchange, reply; Writer
    chat          generations as chat completions; imported with the first of them
    start_page    a page for browsers
    clients       which client sends a request, where it keeps its key

Other folders import routes; `server` also imports the chat endpoint, ahead of the first chat.
"""
