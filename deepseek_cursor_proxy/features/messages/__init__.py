"""Anthropic's Messages API: Claude Code.

endpoints    the routes: create, count tokens
request      what only this API has in a request
writer       its answers and events
errors       its failures
"""

_ENDPOINT = "features.messages.endpoints:MessagesEndpoint."
ROUTES = (
    ("messages", "POST", "[/v1]/messages", _ENDPOINT + "create"),
    ("messages", "POST", "[/v1]/messages/count_tokens", _ENDPOINT + "count_tokens"),
)
REFUSALS = ("features.messages.errors:refuse",)
