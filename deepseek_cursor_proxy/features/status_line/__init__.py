"""The status line of Claude Code: what its chat has used so far, as one line of text.

feature    sums of every chat, in memory since the start, and the endpoint that a client asks
script     what Claude Code runs; it asks the endpoint
"""

ROUTES = (("status line", "GET", "/v1/status-line/{}", "features.status_line.feature:StatusLineEndpoint.show"),)
