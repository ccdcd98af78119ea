"""Setting up clients: their configuration files are edited so that they use the proxy, and put back as they were.

    clients                      each client: its files on every system, and what has to stand there
    endpoint, machine            what they are pointed at, and where they run
    codex_catalogue              the models as Codex wants them described
    editors                      edits of TOML, YAML and JSON that keep all else, and take themselves back
    changes, files, history      what is changed, how it is written, and what is kept for the way back
    status                       which clients are here, and which point to the proxy
    cursor                       what to enter in Cursor

The editors are pure, and nothing here uses the network. `cli/setup_command.py` asks and prints.
"""
