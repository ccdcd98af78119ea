"""Setting up clients: their configuration files are edited so that they use the proxy, and restored.

    command             asks and prints, and says what to enter in Cursor
    clients             each client: its files on every system, what has to stand there, and whether it does
    codex_catalogue     what Codex has to know of the models
    files               files of other programs: editors, what setup and undo change, the history that leads back
    marked_text         edits of TOML and YAML, which mark their lines
    json_text           edits of JSON, with or without comments

The editors do no I/O and know no client.
"""
