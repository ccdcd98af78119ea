"""Setting up clients: their configuration files are edited so that they use the proxy, and put back as they were.

    clients                      each client: its files on every system, what has to stand there, and whether it does
    endpoint                     what they are pointed at, and the machine that they run on
    codex_catalogue              the models as Codex wants them described
    editors                      edits of TOML, YAML and JSON that keep all else, and take themselves back
    changes, files, history      what is changed, how it is written, and what is kept for the way back

The editors are pure, and nothing here uses the network. `cli/setup_command.py` asks and prints,
and says what to enter in Cursor.
"""
