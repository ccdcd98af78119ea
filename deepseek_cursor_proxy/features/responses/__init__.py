"""OpenAI's Responses API: Codex.

endpoints           the routes: create, stored responses, input tokens, compaction
feature             responses that are generated while no client waits
fields              the options of a request, and the response object around its answer
writer              its output items and its events
store, redis_store  stored responses, a table of the store's file; the same on Redis
"""

STORED = ("features.responses.store:stored",)
CLEARED = ("responses",)
_CREATE = "features.responses.endpoints:ResponsesEndpoint."
_STORED = "features.responses.endpoints:StoredEndpoint."
# fmt: off
ROUTES = (
    ("responses",    "POST",   "[/v1]/responses",                _CREATE + "create"),
    ("responses",    "GET",    "[/v1]/responses",                _CREATE + "refuse_websocket"),
    ("input tokens", "POST",   "[/v1]/responses/input_tokens",   _CREATE + "input_tokens"),
    ("compaction",   "POST",   "[/v1]/responses/compact",        _CREATE + "compact"),
    ("response",     "GET",    "[/v1]/responses/{}",             _STORED + "retrieve"),
    ("response",     "DELETE", "[/v1]/responses/{}",             _STORED + "delete"),
    ("response",     "GET",    "[/v1]/responses/{}/input_items", _STORED + "input_items"),
    ("response",     "POST",   "[/v1]/responses/{}/cancel",      _STORED + "cancel"),
)
# fmt: on
