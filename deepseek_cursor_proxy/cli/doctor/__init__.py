"""The `doctor` command: looks at everything between a client and DeepSeek, and names the remedy for what is wrong.

    checks                    the table of checks, run side by side, each within its time
    subject                   what is looked at: the settings, also damaged ones, the key, the proxy that runs
    finding                   the result of a check: good, a warning, failed or skipped; as text or JSON
    this_machine              Python, the files of the package, the settings and those of clients
    listeners                 the port of the proxy, its dashboard and its public address
    store                     the store and its disk
    upstreams                 the way to each upstream, the clock, keys, balance and models
    tool_round                a chat with tools through the proxy
    privacy                   findings without anything private

A check is one function, from a Subject to its findings. Nothing is changed: no file is written but an empty one beside
the store, for a moment; the address that a dead proxy left is deleted.
`cli/doctor_command.py` is the command.
"""
