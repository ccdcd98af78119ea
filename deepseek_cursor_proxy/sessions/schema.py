"""The tables of sessions.sqlite3. All CREATE statements of that file are here; see storage/sqlite/schema.

sessions    one row each; everything else belongs to one and goes with it
messages    each message, prompt or list of tools once, by digest, packed
links       the chats of a session as a trie: a message after its predecessor; a chat of 200 turns has 400 links
journals    up to which turn each journal is written (see `journal`)
nodes       trajectories: the link each ends with; `head_texts` names the prompt and the tools of each
"""

from deepseek_cursor_proxy.storage.sqlite.schema import Schema

_SESSIONS = (
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, caller BLOB NOT NULL, "
    "name TEXT NOT NULL, tags TEXT NOT NULL, track_tree INTEGER NOT NULL, tool_parser TEXT NOT NULL, "
    "chat BLOB, model TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL, expires_at REAL, "
    "requests INTEGER NOT NULL, tokens INTEGER NOT NULL, cost REAL, bytes INTEGER NOT NULL) STRICT",
    "CREATE INDEX sessions_by_caller ON sessions (caller, created_at)",
    "CREATE INDEX sessions_by_use ON sessions (used_at)",
    # Sessions that the setting record = all has begun: one for each chat of a caller.
    "CREATE UNIQUE INDEX sessions_by_chat ON sessions (caller, chat) WHERE chat IS NOT NULL",
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    "CREATE TABLE links (id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, "
    "parent INTEGER NOT NULL, identity BLOB NOT NULL, message INTEGER NOT NULL REFERENCES messages, "
    "is_own INTEGER NOT NULL, logprobs BLOB, node INTEGER NOT NULL, UNIQUE (session, parent, identity)) STRICT",
    "CREATE INDEX links_by_message ON links (message)",
    "CREATE TABLE nodes (id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, "
    "parent INTEGER, head INTEGER NOT NULL, info BLOB NOT NULL) STRICT",
    "CREATE INDEX nodes_by_session ON nodes (session)",
    "CREATE INDEX nodes_by_head ON nodes (head)",
    "CREATE TABLE head_texts (node INTEGER NOT NULL REFERENCES nodes ON DELETE CASCADE, position INTEGER NOT NULL, "
    "message INTEGER NOT NULL REFERENCES messages, PRIMARY KEY (node, position)) STRICT, WITHOUT ROWID",
    "CREATE INDEX head_texts_by_message ON head_texts (message)",
)
_JOURNALS = ("CREATE TABLE journals (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID",)
# "DScs".
SESSIONS = Schema(0x44536373, [_SESSIONS, _JOURNALS])
