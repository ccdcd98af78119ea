"""The `doctor` command: looks at everything between a client and DeepSeek, and names the remedy for what is wrong.

    command                   the table of checks, their threads, the page and the report
    subject                   what a check looks at, and the finding that it returns
    this_machine              Python, the settings, port, dashboard and public address, the store, clients
    upstreams                 the way to each upstream, keys, balance and models

A check is one function, from a Subject to its findings. Nothing is changed: no file is written but an empty one beside
the store, for a moment; the address that a dead proxy left is deleted.
"""
