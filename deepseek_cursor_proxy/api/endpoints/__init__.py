"""The endpoints of the proxy, by API. `api/routes.py` has their paths, and imports each with its first request.

chat, messages      generations as chat completions and as Anthropic's messages
responses           generations as responses, and those that are stored
sessions            recorded sessions; GET /health
start_page          a page for browsers
"""
