"""The endpoints of the core. `api/routes.py` has their paths, and imports each with its first request.

chat          generations as chat completions
start_page    a page for browsers
"""
