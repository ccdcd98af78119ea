"""Sessions: what passed through the proxy as trajectories, with the true reasoning of every turn.

feature       records turns, and the way to the others, which it imports when they are needed
trajectory    the values: Session, Node, RecordedTurn; the turns of a request
endpoints     sessions created, listed, read, exported and deleted
store         sessions, their nodes and messages in a file of their own
command       `sessions list | show | export`
export        sessions and nodes as the API has them, as one text with its tokens, masks and log probabilities, and as
              lines of a file for training
"""

# A session's own URL, with its id; the second form for clients of other recorders.
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PREFIX = f"/(?:s/(?=[^/])|(?={_UUID}(?:/|\\Z)))([^/]+)"
_ENDPOINT = "features.sessions.endpoints:SessionsEndpoint."
_ADMIN = "features.sessions.dashboard:"
# fmt: off
PREFIXES = (_PREFIX,)
ROUTES = (
    ("session",  "POST",   "/sessions/create",              _ENDPOINT + "create"),
    ("session",  "POST",   "/v1/sessions",                  _ENDPOINT + "create"),
    ("sessions", "GET",    "[/v1]/sessions",                _ENDPOINT + "list"),
    ("session",  "GET",    _PREFIX,                         _ENDPOINT + "retrieve"),
    ("session",  "DELETE", _PREFIX,                         _ENDPOINT + "delete"),
    ("session",  "GET",    _PREFIX + "/nodes",              _ENDPOINT + "nodes"),
    ("session",  "GET",    _PREFIX + "/export",             _ENDPOINT + "export"),
    ("render",   "POST",   "[/v1]/chat/completions/render", _ENDPOINT + "render"),
    ("health",   "GET",    "/health",                       _ENDPOINT + "health"),
)
# fmt: on
ADMIN_ROUTES = (
    ("/api/sessions", _ADMIN + "sessions"),
    ("/api/sessions/([0-9a-f-]{36})(?:/nodes/([0-9]{1,15}))?", _ADMIN + "find"),
)
COMMANDS = ({"name": "sessions", "help": "recorded sessions", "commands": "features.sessions.command:COMMANDS"},)
