"""The endpoints of the proxy, by API. `api/routes.py` has their paths, and imports each with its first request.

chat, messages      generations as chat completions and as Anthropic's messages
responses           generations as responses; those that are stored (stored_responses)
sessions            recorded sessions; GET /health
start_page          a page for browsers
"""
